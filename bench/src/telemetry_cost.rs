//! The cost of the log and the metrics: the throughput of the service with and without them.

use clap::Args;

use crate::Outcome;
use crate::report::{Samples, verdict};
use crate::tools::{Server, database_url, prepare, wrk};

/// The lowest throughput with them, as a multiple of that without.
const BAR: f64 = 0.95;

/// Alternating rounds on two services over the same database: many short ones, so that other load on the machine affects
/// both alike.
#[derive(Args)]
pub(crate) struct TelemetryCost {
    /// Rounds.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1)]
    seconds: u16,
}

impl TelemetryCost {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        let services =
            [Server::petstore(&url)?, Server::with_flags(&url, &["--log", "off", "--without-metrics"])?];
        let mut failures = Vec::new();
        for script in ["get", "list", "create_without_key"] {
            let mut rates = [Samples::default(), Samples::default()];
            let mut times = [Samples::default(), Samples::default()];
            for round in 0..=self.rounds {
                // Each goes first in turn, so that a machine that slows down affects both alike.
                for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let cost = wrk(&services[place], script, &key, 100_000, 64, self.seconds)?;
                    // The first round warms up.
                    if round > 0 {
                        rates[place].push(cost.rate);
                        times[place].push(cost.cpu_micros);
                    }
                }
            }
            let rate = rates[0].ratio_to(&rates[1]);
            println!(
                "{script}: {} of the throughput without log and metrics, the bar is {BAR}; {:.1} against {:.1} microseconds of \
                 CPU time per request",
                rate.spread(),
                times[0].median(),
                times[1].median()
            );
            if rate.median() < BAR {
                failures.push(format!("log and metrics cost too much: {script}"));
            }
        }
        verdict(&failures)
    }
}
