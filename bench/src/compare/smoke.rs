//! The short form of the comparison, for CI.

use super::Compare;
use super::thin::Pair;
use super::workloads::WORKLOADS;
use crate::Outcome;
use crate::report::verdict;
use crate::tools::database_url;

/// Few rounds on a smaller table: enough to notice that something became much slower.
pub(crate) fn smoke() -> Outcome {
    let compare = Compare { pets: 100_000, rounds: 3, seconds: 2 };
    let url = database_url()?;
    let pair = Pair::start(&url, compare.pets)?;
    let figures = compare.rounds(&url, &pair, &[])?;
    let mut failures = Vec::new();
    for (workload, figures) in WORKLOADS.iter().zip(&figures) {
        let ratios = figures.to_pgbench().into_iter().zip(workload.to_pgbench);
        for ((ratio, expected), connections) in ratios.zip(["64 connections", "1 connection"]) {
            let (name, recorded) = (workload.name, expected.recorded);
            println!(
                "{name}, {connections}: {} times pgbench; docs/performance.md has {recorded}",
                ratio.spread()
            );
            if ratio.median() < 0.4 * recorded {
                failures.push(format!("{name} at {connections} is below 40 % of that"));
            }
        }
    }
    verdict(&failures)
}
