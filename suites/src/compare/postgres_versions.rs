//! The throughput of the service on several versions of PostgreSQL.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;

use super::workloads::WORKLOADS;
use crate::Outcome;
use crate::measure::{Samples, alternate, verdict, wrk};
use crate::topology::{Postgres, Server, prepare, psql};

/// The lowest throughput, as a multiple of that on the first version. A statement that scans a table is slower by far more.
const LEAST: f64 = 0.5;

/// Alternating rounds, with a server of each version and a service for each of them.
#[derive(Args)]
pub(crate) struct PostgresVersions {
    /// Directories of PostgreSQL's programs. The others are compared with the first.
    #[arg(required = true, num_args = 2..)]
    bins: Vec<PathBuf>,
    /// Pets in each database at the start.
    #[arg(long, default_value_t = 100_000)]
    pets: u64,
    /// Rounds, each with every workload on every version, at 64 connections.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u16,
}

/// The service on one version of PostgreSQL. The service stops first.
struct Version {
    name: String,
    key: String,
    service: Server,
    _postgres: Postgres,
}

impl Version {
    fn start(place: usize, bin: &Path, pets: u64) -> Outcome<Self> {
        let directory = env::temp_dir().join(format!("petstore-suites-{}-{place}", std::process::id()));
        let postgres = Postgres::of_version(directory, bin.to_owned());
        let url = postgres.start()?;
        let name = psql(&url, "SHOW server_version")?.trim().to_owned();
        let key = prepare(&url, pets)?;
        let service = Server::with_log(&url, &[], &format!("target/suite-petstore-on-{name}.log"))?;
        Ok(Self { name, key, service, _postgres: postgres })
    }
}

impl PostgresVersions {
    pub(crate) async fn run(self) -> Outcome {
        let start = |(place, bin): (usize, &PathBuf)| Version::start(place, bin, self.pets);
        let versions = self.bins.iter().enumerate().map(start).collect::<Outcome<Vec<_>>>()?;
        let mut rates = Vec::new();
        for workload in &WORKLOADS {
            let measured = alternate(versions.len(), (1, self.rounds), async |side, _| {
                let Version { service, key, .. } = &versions[side];
                Ok(wrk(service, workload.service, key, self.pets, 64, self.seconds)?.rate)
            });
            rates.push(measured.await?.into_iter().map(Samples).collect());
            println!("measured: {}", workload.name);
        }
        let names: Vec<&str> = versions.iter().map(|version| &*version.name).collect();
        report(&names, &rates)
    }
}

/// Prints a table with a row for each workload. Fails if a ratio is too low.
fn report(names: &[&str], rates: &[Vec<Samples>]) -> Outcome {
    let (first, others) = names.split_first().ok_or("no version")?;
    println!("| operation | {first}, requests/s | {}, ratio |", others.join(", ratio | "));
    println!("|---|---|{}", "---|".repeat(others.len()));
    let mut failures = Vec::new();
    for (workload, rates) in WORKLOADS.iter().zip(rates) {
        print!("| {} | {:.0} |", workload.name, rates[0].median());
        for (name, rate) in others.iter().zip(&rates[1..]) {
            let ratio = rate.ratio_to(&rates[0]);
            print!(" {} |", ratio.spread());
            if ratio.median() < LEAST {
                failures.push(format!("{} on {name}: {} times {first}", workload.name, ratio.spread()));
            }
        }
        println!();
    }
    verdict(&failures)
}
