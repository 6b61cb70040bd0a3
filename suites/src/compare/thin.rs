//! The service against the thinnest server on the same parts, `suites/src/bin/petstore-thin.rs`.

use std::fmt::Write;

use clap::Args;

use super::workloads::{CPU_GOAL, Ratio, WORKLOADS, Workload};
use super::{Contest, Figures, Side};
use crate::Outcome;

/// The extent of the measurement.
#[derive(Args)]
pub(crate) struct Thin {
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 1_000_000)]
    pets: u64,
    /// Rounds, each on both servers, at 64 connections and at one.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u16,
}

impl Thin {
    pub(crate) async fn run(self) -> Outcome {
        let contest = Contest::start(self.pets)?;
        let sides = [Side::Service(0), Side::Thin(0), Side::Service(1), Side::Thin(1)];
        let mut all = Vec::new();
        for workload in &WORKLOADS {
            all.push(match workload.to_thin {
                Some(_) => contest.measure(workload, &sides, self.rounds, self.seconds).await?,
                None => Figures::default(),
            });
        }
        print!("{}", tables(&all)?);
        Ok(())
    }
}

/// One table for 64 connections and one for a single connection, from the samples of each workload.
pub(super) fn tables(all: &[Figures]) -> Outcome<String> {
    let mut tables = String::new();
    for (place, title) in ["at 64 connections", "at a single connection"].into_iter().enumerate() {
        write!(
            tables,
            "\n### Against the thinnest server on the same parts, {title}\n\n\
             | operation | thin, requests/s | service, requests/s | ratio | bar \
             | thin, CPU µs per request | service, CPU µs per request | CPU ratio | bar, at most |\n\
             |---|---|---|---|---|---|---|---|---|\n"
        )?;
        for (workload, samples) in WORKLOADS.iter().zip(all) {
            let Some(ratios) = workload.to_thin else { continue };
            write_row(&mut tables, workload, ratios[place], samples, place)?;
        }
    }
    Ok(tables)
}

fn write_row(
    table: &mut String,
    workload: &Workload,
    ratio: Ratio,
    figures: &Figures,
    place: usize,
) -> Outcome {
    let (service, thin) = (&figures.service[place], &figures.thin[place]);
    writeln!(
        table,
        "| {} | {:.0} | {:.0} | {} | {} | {:.1} | {:.1} | {} | {CPU_GOAL} |",
        workload.name,
        thin.rate.median(),
        service.rate.median(),
        figures.to_thin(place).spread(),
        ratio.goal,
        thin.cpu_micros.median(),
        service.cpu_micros.median(),
        figures.cpu_to_thin(place).spread(),
    )?;
    Ok(())
}
