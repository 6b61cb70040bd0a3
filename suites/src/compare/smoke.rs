//! The short form of the comparison, for CI: few rounds on a smaller table. Fails when a ratio is much lower than recorded.

use std::time::{Duration, Instant};

use super::workloads::{WORKLOADS, Workload};
use super::{ALL, Contest, Figures, Side};
use crate::Outcome;
use crate::measure::{Samples, verdict};

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

pub(crate) async fn smoke() -> Outcome {
    let mut contest = Contest::start(100_000)?;
    let mut failures = Vec::new();
    for workload in &WORKLOADS {
        let figures = contest.measure(workload, &ALL, 3, 1).await?;
        for (place, measured) in figures.to_pgbench().iter().enumerate() {
            let what = format!("{} at {}, times pgbench", workload.name, connections(place));
            failures.extend(check(&what, measured, workload.to_pgbench[place], LEAST_TO_PGBENCH[place]));
        }
        for (place, ratio) in workload.to_thin.into_iter().flatten().enumerate() {
            let what = format!("{} at {}, times thin", workload.name, connections(place));
            if check(&what, &figures.to_thin(place), ratio, LEAST_TO_THIN[place]).is_some() {
                let (again, was_idle) = measure_again(&mut contest, workload, place).await?;
                let what = format!("{what}, measured again");
                let failure = check(&what, &again.to_thin(place), ratio, LEAST_TO_THIN[place]);
                let (cpu, recorded) = (again.cpu_to_thin(place), workload.cpu_to_thin[place]);
                let most = recorded / LEAST_TO_THIN[place];
                println!("CPU time: {} times thin, recorded {recorded}, at most {most:.2}", cpu.spread());
                // Beside other processes, a lower throughput with the usual CPU time is their doing.
                failures.extend(failure.filter(|_| was_idle || cpu.median() > most));
            }
        }
    }
    verdict(&failures)
}

/// Measures both servers in more rounds, each when the machine is idle: other processes slow down the server that needs more
/// CPU time per request more. Returns whether the machine was idle each time.
async fn measure_again(contest: &mut Contest, workload: &Workload, place: usize) -> Outcome<(Figures, bool)> {
    let deadline = Instant::now() + WAIT_FOR_OTHERS;
    contest.wait_until = Some(deadline);
    let sides = [Side::Service(place), Side::Thin(place)];
    let figures = contest.measure(workload, &sides, MORE_ROUNDS, 1).await?;
    contest.wait_until = None;
    let was_idle = Instant::now() < deadline;
    if !was_idle {
        println!("other processes kept the machine busy during the last measurement");
    }
    Ok((figures, was_idle))
}

fn connections(place: usize) -> &'static str {
    ["64 connections", "1 connection"][place]
}

/// Prints the result, and returns it if it is too low.
fn check(what: &str, measured: &Samples, recorded: f64, least: f64) -> Option<String> {
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
