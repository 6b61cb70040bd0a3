//! The feed of events: whether a reader misses or repeats one while everything is killed, how far it is behind, and what the
//! events cost.

mod kills;
mod lag;
mod model;

use clap::Subcommand;

use crate::{Outcome, costs};

#[derive(Subcommand)]
pub(crate) enum Events {
    /// Kills the nodes and the database under clients and a reader; the feed must explain the state of every pet and order.
    Kills(kills::Kills),
    /// Lets everybody change everything while nodes and the database are killed; seven readers and an index must agree.
    Model(model::Model),
    /// Measures how far a reader is behind, under load and during imports.
    Lag(lag::Lag),
    /// Measures the cost of the events, against a version of the service without them.
    Cost(costs::EventsCost),
}

impl Events {
    pub(crate) async fn run(self) -> Outcome {
        match self {
            Self::Kills(kills) => kills.run().await,
            Self::Model(model) => model.run().await,
            Self::Lag(lag) => lag.run().await,
            Self::Cost(cost) => cost.run().await,
        }
    }
}
