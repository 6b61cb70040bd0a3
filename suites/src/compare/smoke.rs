//! The short form of the comparison, for CI: few rounds on a smaller table. Fails when a ratio is much lower than recorded.

use std::time::{Duration, Instant};

use super::Compare;
use super::thin::{CONNECTIONS, Pair, PairSamples};
use super::workloads::{Ratio, WORKLOADS, Workload};
use crate::Outcome;
use crate::measure::{Samples, verdict};
use crate::topology::{database_url, wait_until_idle};

/// The lowest ratios to pgbench at 64 connections and at one, as fractions of the recorded ones. pgbench is a different
/// program, which other load on the machine affects differently.
const LEAST_TO_PGBENCH: [f64; 2] = [0.4, 0.4];
/// The same to the thinnest server. At 64 connections, other load affects both alike; at one, the delay of each wake-up
/// counts as well, of which the service has more.
const LEAST_TO_THIN: [f64; 2] = [0.8, 0.4];
/// Rounds of the second measurement of a ratio to the thinnest server that was too low at first.
const MORE_ROUNDS: usize = 9;
/// How long the second measurement waits for other processes, in total.
const WAIT_FOR_OTHERS: Duration = Duration::from_mins(2);

pub(crate) fn smoke() -> Outcome {
    let compare = Compare { pets: 100_000, rounds: 3, seconds: 1 };
    let url = database_url()?;
    let pair = Pair::start(&url, compare.pets)?;
    let figures = compare.rounds(&url, &pair, &[])?;
    let mut failures = Vec::new();
    for (workload, figures) in WORKLOADS.iter().zip(&figures) {
        for (place, measured) in figures.to_pgbench().iter().enumerate() {
            let what = format!("{} at {}, times pgbench", workload.name, connections(place));
            failures.extend(check(&what, measured, workload.to_pgbench[place], LEAST_TO_PGBENCH[place]));
        }
    }
    for (workload, figures) in WORKLOADS.iter().zip(&figures) {
        let Some(ratios) = workload.to_thin else { continue };
        for (place, ratio) in ratios.into_iter().enumerate() {
            let what = format!("{} at {}, times thin", workload.name, connections(place));
            let measured = figures.servers[place].ratio();
            if check(&what, &measured, ratio, LEAST_TO_THIN[place]).is_some() {
                let (again, was_idle) = measure_again(&pair, workload, place, compare.seconds)?;
                let what = format!("{what}, measured again");
                let failure = check(&what, &again.ratio(), ratio, LEAST_TO_THIN[place]);
                let (cpu, recorded) = (again.cpu_ratio(), workload.cpu_to_thin[place]);
                let most = recorded / LEAST_TO_THIN[place];
                println!("CPU time: {} times thin, recorded {recorded}, at most {most:.2}", cpu.spread());
                // Beside other processes, a lower throughput with the usual CPU time is their doing.
                failures.extend(failure.filter(|_| was_idle || cpu.median() > most));
            }
        }
    }
    verdict(&failures)
}

/// Measures both servers in more rounds, each of which starts when the machine is idle: other processes slow down the server
/// that needs more CPU time per request more. Returns whether the machine was idle each time.
fn measure_again(
    pair: &Pair,
    workload: &Workload,
    place: usize,
    seconds: u16,
) -> Outcome<(PairSamples, bool)> {
    let deadline = Instant::now() + WAIT_FOR_OTHERS;
    let mut samples = PairSamples::default();
    for _ in 0..MORE_ROUNDS {
        wait_until_idle(deadline)?;
        pair.measure(&mut samples, workload, CONNECTIONS[place], seconds)?;
    }
    let was_idle = Instant::now() < deadline;
    if !was_idle {
        println!("other processes kept the machine busy during the next measurement");
    }
    Ok((samples, was_idle))
}

fn connections(place: usize) -> &'static str {
    ["64 connections", "1 connection"][place]
}

/// Prints the result, and returns it if it is too low.
fn check(what: &str, measured: &Samples, Ratio { recorded, .. }: Ratio, least: f64) -> Option<String> {
    let least = least * recorded;
    let passed = measured.median() >= least;
    let result = format!(
        "{}: {what}: {}, recorded {recorded}, at least {least:.2}",
        if passed { "passed" } else { "TOO SLOW" },
        measured.spread()
    );
    println!("{result}");
    (!passed).then_some(result)
}
