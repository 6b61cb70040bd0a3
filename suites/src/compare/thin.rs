//! The service against the thinnest server on the same parts, `suites/src/bin/petstore-thin.rs`.

use clap::Args;

use super::workloads::WORKLOADS;
use super::{CONNECTIONS, Contest, Side};
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
        let mut rows = vec![
            "| operation | connections | service, requests/s | times thin | CPU µs per request | times thin |".to_owned(),
            "|---|---|---|---|---|---|".to_owned(),
        ];
        for workload in WORKLOADS.iter().filter(|workload| workload.to_thin.is_some()) {
            let figures = contest.measure(workload, &sides, self.rounds, self.seconds).await?;
            for (place, connections) in CONNECTIONS.into_iter().enumerate() {
                let service = &figures.service[place];
                rows.push(format!(
                    "| {} | {connections} | {:.0} | {} | {:.1} | {} |",
                    workload.name,
                    service.rate.median(),
                    figures.to_thin(place).spread(),
                    service.cpu_micros.median(),
                    figures.cpu_to_thin(place).spread(),
                ));
            }
        }
        println!("{}", rows.join("\n"));
        Ok(())
    }
}
