//! The one harness for comparisons: sides are measured in alternating rounds, as ratios within each round, against bars.
//!
//! Many short rounds, and each side goes first in turn, so that other load on the machine affects all sides alike.

mod load_tools;
mod open_loop_client;

use crate::Outcome;
pub(crate) use crate::report::{Measurements, Samples, Table, grouped, readable, verdict};
use crate::topology::Server;
pub(crate) use load_tools::{Cost, Load, load, pgbench, wrk, wrk_version};
pub(crate) use open_loop_client::{latency, p99_of_probe};

/// Measures each side once per round, after rounds that warm up, which are not recorded. The measurement gets the number of
/// the side, and whether it only warms up. Returns what was measured, by side.
pub(crate) async fn alternate<T>(
    sides: usize,
    (warm_ups, rounds): (usize, usize),
    mut measure: impl AsyncFnMut(usize, bool) -> Outcome<T>,
) -> Outcome<Vec<Vec<T>>> {
    let mut measured: Vec<Vec<T>> = (0..sides).map(|_| Vec::new()).collect();
    for round in 0..warm_ups + rounds {
        for turn in 0..sides {
            let side = (round + turn) % sides;
            let figure = measure(side, round < warm_ups).await?;
            if round >= warm_ups {
                measured[side].push(figure);
            }
        }
    }
    Ok(measured)
}

/// The measurements of one side at full load, one sample per round.
#[derive(Default, Clone)]
pub(crate) struct CostSamples {
    pub(crate) rate: Samples,
    pub(crate) cpu_micros: Samples,
}

impl CostSamples {
    pub(crate) fn of(costs: &[Cost]) -> Self {
        Self {
            rate: Samples(costs.iter().map(|cost| cost.rate).collect()),
            cpu_micros: Samples(costs.iter().map(|cost| cost.cpu_micros).collect()),
        }
    }
}

/// One side of a comparison at full load: a server, a workload of suites/load/requests.lua, and an API key.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a>(pub(crate) &'a Server, pub(crate) &'a str, pub(crate) &'a str);

/// The pets in the database, the connections, and the rounds and seconds of each measurement.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) pets: u64,
    pub(crate) connections: u16,
    pub(crate) rounds: usize,
    pub(crate) seconds: u16,
}

/// Compares servers at full load.
pub(crate) async fn throughput<const N: usize>(
    sides: [Side<'_>; N],
    Extent { pets, connections, rounds, seconds }: Extent,
) -> Outcome<[CostSamples; N]> {
    let costs = alternate(N, (1, rounds), async |side, _| {
        let Side(server, workload, key) = sides[side];
        wrk(server, workload, key, pets, connections, seconds)
    });
    let mut samples = costs.await?.into_iter().map(|costs| CostSamples::of(&costs));
    Ok(std::array::from_fn(|_| samples.next().unwrap_or_default()))
}

/// The bars that a suite sets, and which of them were missed.
#[derive(Default)]
pub(crate) struct Bars(Vec<String>);

impl Bars {
    /// Prints a figure whose median must be at least this.
    pub(crate) fn at_least(&mut self, what: &str, figure: &Samples, bar: f64) {
        self.check(what, figure, &format!("at least {bar:.2}"), figure.median() >= bar);
    }

    /// Prints a figure whose median must be at most this.
    pub(crate) fn at_most(&mut self, what: &str, figure: &Samples, bar: f64) {
        self.check(what, figure, &format!("at most {bar:.2}"), figure.median() <= bar);
    }

    /// Prints a figure without a bar.
    pub(crate) fn show(what: &str, figure: &Samples) {
        println!("{what}: {}", figure.spread());
    }

    fn check(&mut self, what: &str, figure: &Samples, bar: &str, is_met: bool) {
        let text = format!("{what}: {}, {bar}", figure.spread());
        println!("{text}{}", if is_met { "" } else { ": MISSED" });
        if !is_met {
            self.0.push(text);
        }
    }

    /// An error that lists the bars that were missed, if any were.
    pub(crate) fn finish(self) -> Outcome {
        verdict(&self.0)
    }
}
