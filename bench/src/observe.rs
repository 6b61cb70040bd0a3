//! What the log and the metrics cost: the service with them against the service without.

use clap::Args;

use crate::Outcome;
use crate::report::Samples;
use crate::tools::{Server, database_url, prepare, wrk};

/// The least that the service with them must reach of the rate without.
const BAR: f64 = 0.95;

/// Alternating rounds on two services over the same database: many short ones, so that what else the machine does meets
/// both.
#[derive(Args)]
pub(crate) struct Observe {
    /// Rounds.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1)]
    seconds: u16,
}

impl Observe {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        let services = [Server::petstore(&url)?, Server::petstore_unobserved(&url)?];
        let mut slow = Vec::new();
        for script in ["get", "list", "create_plain"] {
            let mut rates = [Samples::default(), Samples::default()];
            let mut times = [Samples::default(), Samples::default()];
            for round in 0..=self.rounds {
                // In turn first, so that a machine that tires does not decide.
                for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let before = services[place].processor_seconds()?;
                    let rate = wrk(&services[place], script, &key, 100_000, 64, self.seconds)?;
                    let used = services[place].processor_seconds()? - before;
                    // The first round warms up.
                    if round > 0 {
                        rates[place].push(rate);
                        times[place].push(used / (rate * f64::from(self.seconds)) * 1e6);
                    }
                }
            }
            let rate = rates[0].ratio_to(&rates[1]);
            println!(
                "{script}: {} of the rate without a log and metrics, the bar is {BAR}; {:.1} against {:.1} microseconds of \
                 processor time a request",
                rate.spread(),
                times[0].median(),
                times[1].median()
            );
            if rate.median() < BAR {
                slow.push(script);
            }
        }
        if slow.is_empty() { Ok(()) } else { Err(format!("observing costs too much: {slow:?}").into()) }
    }
}
