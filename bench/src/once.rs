//! What an `Idempotency-Key` costs: creates with one against creates without.

use clap::Args;

use crate::Outcome;
use crate::report::Samples;
use crate::tools::{Server, database_url, prepare, wrk};

/// The most that a create with a key may cost, as a multiple of one without.
const BAR: f64 = 1.6;

/// Alternating rounds on the same service.
#[derive(Args)]
pub(crate) struct Once {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

impl Once {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        let service = Server::petstore(&url)?;
        let mut costs = [Samples::default(), Samples::default()];
        for round in 0..=self.rounds {
            for (connections, cost) in [64, 1].into_iter().zip(&mut costs) {
                let plain = wrk(&service, "create_plain", &key, 100_000, connections, self.seconds)?;
                let once = wrk(&service, "create_once", &key, 100_000, connections, self.seconds)?;
                // The first round warms up.
                if round > 0 {
                    println!(
                        "round {round}, {connections} connections: {plain:.0} plain, {once:.0} with a key"
                    );
                    cost.push(plain / once);
                }
            }
        }
        let [many, single] = &costs;
        println!(
            "a create with a key costs {} times one without at 64 connections, {} at one; the bar is {BAR}",
            many.spread(),
            single.spread()
        );
        if many.median() > BAR { Err("a key costs too much".into()) } else { Ok(()) }
    }
}
