//! The service against the thinnest server on the same parts, `suites/src/bin/petstore-thin.rs`.

use std::fmt::Write;

use clap::Args;

use super::workloads::{CPU_GOAL, Ratio, WORKLOADS, Workload};
use crate::Outcome;
use crate::measure::{CostSamples, Samples, wrk};
use crate::topology::{Server, database_url, prepare};

/// The connections of the two measurements: requests are batched, or not at all.
pub(super) const CONNECTIONS: [u16; 2] = [64, 1];

/// The extent of the measurement.
#[derive(Args)]
pub(crate) struct Thin {
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 1_000_000)]
    pets: u64,
    /// Rounds, each with every workload on both servers, at 64 connections and at one.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u16,
}

impl Thin {
    pub(crate) fn run(self) -> Outcome {
        let pair = Pair::start(&database_url()?, self.pets)?;
        let mut all: Vec<[PairSamples; 2]> = WORKLOADS.iter().map(|_| Default::default()).collect();
        for round in 0..=self.rounds {
            for (workload, samples) in WORKLOADS.iter().zip(&mut all) {
                if workload.to_thin.is_none() {
                    continue;
                }
                for (connections, samples) in CONNECTIONS.into_iter().zip(samples) {
                    // The first round warms up.
                    if round == 0 {
                        pair.measure(&mut PairSamples::default(), workload, connections, 1)?;
                    } else {
                        pair.measure(samples, workload, connections, self.seconds)?;
                    }
                }
            }
            println!("round {round} of {}", self.rounds);
        }
        print!("{}", tables(&all.iter().collect::<Vec<_>>())?);
        Ok(())
    }
}

/// Both servers on the same database.
pub(super) struct Pair {
    pub(super) service: Server,
    pub(super) thin: Server,
    pub(super) key: String,
    pub(super) pets: u64,
}

/// The measurements of both servers, one sample per round.
#[derive(Default)]
pub(super) struct PairSamples {
    pub(super) service: CostSamples,
    pub(super) thin: CostSamples,
}

impl Pair {
    pub(super) fn start(url: &str, pets: u64) -> Outcome<Self> {
        let key = prepare(url, pets)?;
        Ok(Self { service: Server::petstore(url)?, thin: Server::thin(url)?, key, pets })
    }

    /// Adds one sample of each, or of the service alone if the workload is not compared with the thinnest server. They go
    /// first in turn, so that a machine that slows down affects both alike.
    pub(super) fn measure(
        &self,
        samples: &mut PairSamples,
        workload: &Workload,
        connections: u16,
        seconds: u16,
    ) -> Outcome {
        let mut sides = vec![(&self.service, &mut samples.service)];
        if workload.to_thin.is_some() {
            sides.push((&self.thin, &mut samples.thin));
        }
        if sides[0].1.rate.0.len() % 2 == 1 {
            sides.reverse();
        }
        for (server, samples) in sides {
            let cost = wrk(server, workload.service, &self.key, self.pets, connections, seconds)?;
            samples.push(cost);
        }
        Ok(())
    }
}

impl PairSamples {
    /// The CPU time per request of the service as a multiple of that of the thinnest server.
    pub(super) fn cpu_ratio(&self) -> Samples {
        self.service.cpu_micros.ratio_to(&self.thin.cpu_micros)
    }

    /// The throughput of the service as a multiple of that of the thinnest server.
    pub(super) fn ratio(&self) -> Samples {
        self.service.rate.ratio_to(&self.thin.rate)
    }
}

/// One table for 64 connections and one for a single connection, from the samples of each workload.
pub(super) fn tables(all: &[&[PairSamples; 2]]) -> Outcome<String> {
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
            write_row(&mut tables, workload, ratios[place], &samples[place])?;
        }
    }
    Ok(tables)
}

fn write_row(table: &mut String, workload: &Workload, ratio: Ratio, samples: &PairSamples) -> Outcome {
    let (service, thin) = (&samples.service, &samples.thin);
    writeln!(
        table,
        "| {} | {:.0} | {:.0} | {} | {} | {:.1} | {:.1} | {} | {CPU_GOAL} |",
        workload.name,
        thin.rate.median(),
        service.rate.median(),
        samples.ratio().spread(),
        ratio.goal,
        thin.cpu_micros.median(),
        service.cpu_micros.median(),
        samples.cpu_ratio().spread(),
    )?;
    Ok(())
}
