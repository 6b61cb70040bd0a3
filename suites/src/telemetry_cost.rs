//! The cost of the log and the metrics: the throughput of the service with and without them.

use clap::Args;

use crate::Outcome;
use crate::measure::{verdict, wrk_in_turn};
use crate::topology::{Server, database_url, prepare};

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
            let [with, without] =
                wrk_in_turn(services.each_ref(), script, &key, 100_000, 64, self.rounds, self.seconds)?;
            let rate = with.rate.ratio_to(&without.rate);
            println!(
                "{script}: {} of the throughput without log and metrics, the bar is {BAR}; {:.1} against {:.1} microseconds of \
                 CPU time per request",
                rate.spread(),
                with.cpu_micros.median(),
                without.cpu_micros.median()
            );
            if rate.median() < BAR {
                failures.push(format!("log and metrics cost too much: {script}"));
            }
        }
        verdict(&failures)
    }
}
