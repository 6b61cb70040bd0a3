//! The feed of events: whether readers agree while everything is killed, and how far a reader is behind.

mod reader_consistency;
mod reader_lag;

use clap::Subcommand;

use crate::Outcome;

#[derive(Subcommand)]
pub(crate) enum Events {
    /// Lets everybody change everything while nodes and the database are killed; seven readers and an index must agree.
    ReaderConsistency(reader_consistency::ReaderConsistency),
    /// Measures how far a reader is behind, under load and during imports.
    ReaderLag(reader_lag::ReaderLag),
}

impl Events {
    pub(crate) async fn run(self) -> Outcome {
        match self {
            Self::ReaderConsistency(model) => model.run().await,
            Self::ReaderLag(lag) => lag.run().await,
        }
    }
}
