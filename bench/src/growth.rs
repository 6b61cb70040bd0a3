//! The same figures with few and with many pets: what does not stay flat is a wall further on.

use clap::Args;

use crate::Outcome;
use crate::report::Samples;
use crate::tools::{Server, database_url, prepare, psql, sibling, wrk};

/// Two databases on one server, a service on each, measured in turn.
#[derive(Args)]
pub(crate) struct Growth {
    /// Pets in the small database.
    #[arg(long, default_value_t = 10_000)]
    small: u64,
    /// Pets in the large one.
    #[arg(long, default_value_t = 10_000_000)]
    large: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl Growth {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let mut shops = Vec::new();
        for (name, pets) in [("small", self.small), ("large", self.large)] {
            psql(&url, &format!("CREATE DATABASE {name}"))?;
            let url = sibling(&url, name);
            let key = prepare(&url, pets)?;
            shops.push((Server::petstore(&url)?, key, pets));
        }
        // A page that begins at 99 % of each table.
        let workloads = ["get", "list", "cursor", "late", "create"];
        let mut ratios: Vec<Samples> = workloads.iter().map(|_| Samples::default()).collect();
        for round in 0..=self.rounds {
            for (workload, ratios) in workloads.iter().zip(&mut ratios) {
                let mut rates = Vec::new();
                for (service, key, pets) in &shops {
                    rates.push(wrk(service, workload, key, *pets, 64, 3)?);
                }
                // The first round warms up.
                if round > 0 {
                    ratios.push(rates[1] / rates[0]);
                }
            }
        }
        println!("rate with {} pets as a multiple of the rate with {}:", self.large, self.small);
        let mut worst = f64::INFINITY;
        for (workload, ratio) in workloads.iter().zip(&ratios) {
            println!("| {workload} | {} |", ratio.spread());
            worst = worst.min(ratio.median());
        }
        if worst < 0.85 { Err(format!("the worst is {worst:.2}, below 0.85").into()) } else { Ok(()) }
    }
}
