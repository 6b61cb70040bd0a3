//! The feed of events: whether readers agree while everything is killed, how far a reader is behind, and what the events cost.

mod lag;
mod model;

use clap::Subcommand;

use crate::{Outcome, feature_costs};

#[derive(Subcommand)]
pub(crate) enum Events {
    /// Lets everybody change everything while nodes and the database are killed; seven readers and an index must agree.
    Model(model::Model),
    /// Measures how far a reader is behind, under load and during imports.
    Lag(lag::Lag),
    /// Measures the cost of the events, against a version of the service without them.
    Cost(feature_costs::EventsCost),
}

impl Events {
    pub(crate) async fn run(self) -> Outcome {
        match self {
            Self::Model(model) => model.run().await,
            Self::Lag(lag) => lag.run().await,
            Self::Cost(cost) => cost.run().await,
        }
    }
}
