//! The throughput of this build as a multiple of that of the previous release, in a few minutes.

use clap::Args;

use super::CONNECTIONS;
use super::workloads::WORKLOADS;
use crate::Outcome;
use crate::measure::{Bars, Extent, Side, throughput};
use crate::topology::{Server, database_url, prepare};

const PETS: u64 = 100_000;
/// A statement that reads the whole table, or requests that share no statement, are slower by far more.
const LEAST: f64 = 0.75;

/// Both programs serve the same database.
#[derive(Args)]
pub(crate) struct Regression {
    /// The program of the previous release.
    #[arg(long)]
    previous: String,
    /// Rounds of one second.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

impl Regression {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, PETS)?;
        let now = Server::petstore(&url)?;
        let before = Server::program(&self.previous, &url, &[], "target/suite-other-version.log")?;
        let mut bars = Bars::default();
        for workload in &WORKLOADS {
            for connections in CONNECTIONS {
                let extent = Extent { pets: PETS, connections, rounds: self.rounds, seconds: 1 };
                let sides = [&now, &before].map(|server| Side(server, workload.service, &key));
                let [of_now, of_before] = throughput(sides, extent).await?;
                let what =
                    format!("{}, {connections} connections: times the previous release", workload.name);
                bars.at_least(&what, &of_now.rate.ratio_to(&of_before.rate), LEAST);
            }
        }
        bars.finish()
    }
}
