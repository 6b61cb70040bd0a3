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
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1)]
    seconds: u16,
}

impl Regression {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, PETS)?;
        let now = Server::petstore(&url)?;
        let before = Server::program(&self.previous, &url, &[], "target/suite-other-version.log")?;
        let mut bars = Bars::default();
        let workloads = WORKLOADS.iter().map(|workload| (workload.name, workload.service));
        for (name, script) in workloads.chain([("createPet with a key", "create_with_key")]) {
            for connections in CONNECTIONS {
                let extent = Extent { pets: PETS, connections, rounds: self.rounds, seconds: self.seconds };
                let sides = [&now, &before].map(|server| Side(server, script, &key));
                let [of_now, of_before] = throughput(sides, extent).await?;
                let what = format!("{name}, {connections} connections: times the previous release");
                bars.at_least(&what, &of_now.rate.ratio_to(&of_before.rate), LEAST);
            }
        }
        bars.finish()
    }
}
