//! What features cost: the throughput of the service with and without each of them.

use clap::Args;

use crate::Outcome;
use crate::measure::{Bars, Extent, Side, throughput};
use crate::topology::{Postgres, Server, database_url, fill, prepare};

const PETS: u64 = 100_000;

/// A create with an `Idempotency-Key` against one without.
#[derive(Args)]
pub(crate) struct IdempotencyCost {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
    /// The highest cost of a create with a key, as a multiple of one without.
    #[arg(long, default_value_t = 1.6)]
    bar: f64,
}

impl IdempotencyCost {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, PETS)?;
        let service = Server::petstore(&url)?;
        let mut bars = Bars::default();
        for connections in [64, 1] {
            let extent = Extent { pets: PETS, connections, rounds: self.rounds, seconds: self.seconds };
            let sides = ["create_without_key", "create_with_key"].map(|script| Side(&service, script, &key));
            let [without, with] = throughput(sides, extent).await?;
            let what =
                format!("{connections} connections: the cost of a create with a key, times one without");
            let cost = without.rate.ratio_to(&with.rate);
            if connections == 64 { bars.at_most(&what, &cost, self.bar) } else { Bars::show(&what, &cost) }
        }
        bars.finish()
    }
}

/// Creates on a cluster, against the cluster without synchronous replication and a single server.
pub(crate) async fn replication() -> Outcome {
    let url = &database_url()?;
    let postgres = Postgres::temporary();
    let single_url = postgres.start()?;
    let (key, single_key) = (fill(url, 1_000)?, fill(&single_url, 1_000)?);
    let without_waiting = format!("{url}&options=-c%20synchronous_commit%3Dlocal");
    let [cluster, local, single] =
        [Server::petstore(url)?, Server::petstore(&without_waiting)?, Server::petstore(&single_url)?];
    let script = "create_without_key";
    let sides =
        [Side(&cluster, script, &key), Side(&local, script, &key), Side(&single, script, &single_key)];
    let extent = Extent { pets: 1_000, connections: 64, rounds: 7, seconds: 4 };
    let [waiting, not_waiting, single] = throughput(sides, extent).await?;
    let mut bars = Bars::default();
    let of_waiting = waiting.rate.ratio_to(&not_waiting.rate);
    bars.at_least("throughput of the cluster, times that without synchronous replication", &of_waiting, 0.8);
    let of_all = waiting.rate.ratio_to(&single.rate);
    Bars::show("throughput of the cluster, times that of a single server", &of_all);
    bars.finish()
}
