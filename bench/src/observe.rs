//! What the log and the metrics cost: the service with them against the service without.

use clap::Args;

use crate::Outcome;
use crate::report::Samples;
use crate::tools::{Server, database_url, prepare, wrk};

/// The least that the service with them must reach of the rate without.
const BAR: f64 = 0.95;

/// Alternating rounds on two services over the same database.
#[derive(Args)]
pub(crate) struct Observe {
    /// Rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

impl Observe {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        let (seen, unseen) = (Server::petstore(&url)?, Server::petstore_unobserved(&url)?);
        let mut slow = Vec::new();
        for script in ["get", "list", "create_plain"] {
            let mut ratios = Samples::default();
            for round in 0..=self.rounds {
                // In turn first, so that a machine that tires does not decide.
                let mut rates = [0.0; 2];
                let mut services = [(0, &seen), (1, &unseen)];
                if round % 2 == 1 {
                    services.reverse();
                }
                for (place, service) in services {
                    rates[place] = wrk(service, script, &key, 100_000, 64, self.seconds)?;
                }
                // The first round warms up.
                if round > 0 {
                    ratios.push(rates[0] / rates[1]);
                }
            }
            println!("{script}: {} of the rate without a log and metrics; the bar is {BAR}", ratios.spread());
            if ratios.median() < BAR {
                slow.push(script);
            }
        }
        if slow.is_empty() { Ok(()) } else { Err(format!("observing costs too much: {slow:?}").into()) }
    }
}
