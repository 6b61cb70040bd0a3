//! The cost of an `Idempotency-Key`: the throughput of createPet with and without one.

use clap::Args;

use crate::Outcome;
use crate::measure::{Samples, wrk};
use crate::topology::{Server, database_url, prepare};

/// The highest cost of a create with a key, as a multiple of one without.
const BAR: f64 = 1.6;

/// Alternating rounds on the same service.
#[derive(Args)]
pub(crate) struct IdempotencyCost {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

impl IdempotencyCost {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        let service = Server::petstore(&url)?;
        let mut costs = [Samples::default(), Samples::default()];
        for round in 0..=self.rounds {
            for (connections, cost) in [64, 1].into_iter().zip(&mut costs) {
                let without =
                    wrk(&service, "create_without_key", &key, 100_000, connections, self.seconds)?.rate;
                let with = wrk(&service, "create_with_key", &key, 100_000, connections, self.seconds)?.rate;
                // The first round warms up.
                if round > 0 {
                    println!(
                        "round {round}, {connections} connections: {without:.0}/s without a key, {with:.0}/s with one"
                    );
                    cost.push(without / with);
                }
            }
        }
        let [many, single] = &costs;
        println!(
            "a create with a key costs {} times one without at 64 connections, {} at one; the bar is {BAR}",
            many.spread(),
            single.spread()
        );
        if many.median() > BAR { Err("an Idempotency-Key costs too much".into()) } else { Ok(()) }
    }
}
