//! Sells pets on two nodes that are killed meanwhile, and checks the whole history afterwards: every change of every pet is
//! legal, everything that was acknowledged is in the history once, and no pet was ever in two open orders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::measure::Samples;
use crate::random::Random;
use crate::topology::{Nodes, database_url, prepare, psql};
use crate::workload::{Clients, Kind, Load, none_of};

/// Two nodes, many buyers, few pets.
#[derive(Args)]
pub(crate) struct OrderHistory {
    /// Requests in total.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Buyers.
    #[arg(long, default_value_t = 200)]
    buyers: u64,
    /// Pets.
    #[arg(long, default_value_t = 1_000)]
    pets: usize,
    /// Contests, in each of which 64 buyers order the same pet at the same instant.
    #[arg(long, default_value_t = 100)]
    contests: u32,
    /// Seed of the requests and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const BUYERS: Clients = Clients {
    mix: &[
        (40, Kind::Place),
        (15, Kind::Complete),
        (15, Kind::Cancel),
        (20, Kind::Patch),
        (5, Kind::Rename),
        (5, Kind::Get),
    ],
    retry: Some(Duration::from_millis(10)),
    abandons: true,
    repeats: true,
    ..Clients::DEFAULT
};

/// Terminates one connection of the service, whatever it is doing.
const TERMINATE: &str = "\
    SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity \
      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database() \
      ORDER BY random() LIMIT 1) AS one";

impl OrderHistory {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 0)?;
        let insert = format!(
            "INSERT INTO pets (name, category_id, status) SELECT 'Pet ' || n, 1, 'available' FROM generate_series(1, {}) n",
            self.pets
        );
        psql(&url, &insert)?;
        let mut nodes = Nodes::start(&url)?;
        contests(&url, &nodes, &key, self.contests).await?;

        let load = Load::new(&url, &nodes.addresses, &key, self.seed, self.pets)?;
        let (load, started) = (Arc::new(load.limited_to(self.operations)), Instant::now());
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, self.buyers, &BUYERS);
        let mut random = Random(self.seed);
        let (mut kills, mut terminations) = (0_u32, 0_u32);
        while !load.is_stopped() {
            sleep(Duration::from_millis(100 + random.below(300))).await;
            psql(&url, TERMINATE)?;
            terminations += 1;
            if terminations.is_multiple_of(8) {
                nodes.restart(usize::from(kills.is_multiple_of(2)), &url)?;
                kills += 1;
            }
        }
        tasks.join_all().await;
        let seconds = started.elapsed().as_secs();
        println!("{seconds} s, {kills} nodes killed, {terminations} database connections terminated");
        println!("answers: {:?}", load.log().answers);
        let (journal, problems) = load.check(&url)?;
        none_of(&problems)?;
        println!(
            "{} changes of {} pets, each legal, none ever in two open orders; all {} acknowledged effects are in the history",
            journal.changes.len(),
            self.pets,
            load.history().effects.len()
        );
        // A run in which little happened proves little.
        let changed = journal.changes.len();
        if changed < self.pets / 2 { Err(format!("only {changed} changes").into()) } else { Ok(()) }
    }
}

/// Lets 64 buyers order the same pet at once, again and again, and reports their latencies.
async fn contests(url: &str, nodes: &Nodes, key: &str, rounds: u32) -> Outcome {
    let load = Arc::new(Load::new(url, &nodes.addresses, key, 0, 0)?);
    let mut seller = load.client(&Clients::DEFAULT);
    let mut waits = Samples::default();
    for _ in 0..rounds {
        waits.0.extend(seller.contest(64).await.iter().map(|wait| wait.as_secs_f64() * 1_000.0));
    }
    println!(
        "{rounds} contests of 64 buyers, with one winner each; p50 {:.1} ms, p99 {:.1} ms, maximum {:.1} ms",
        waits.median(),
        waits.at(0.99),
        waits.at(1.0)
    );
    none_of(&load.check(url)?.1)
}
