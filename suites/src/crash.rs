//! Kills the service and the database repeatedly under clients that retry every request until it is answered. Each
//! acknowledged pet must exist exactly once, and all answers to the same request must have been equal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::random::Random;
use crate::topology::{Nodes, Postgres, prepare};
use crate::workload::{Clients, Kind, Load, none_of};

/// A private PostgreSQL, two nodes, many clients.
#[derive(Args)]
pub(crate) struct Crash {
    /// Kills: of one node, and every other time of both nodes and the database.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Clients.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Seed of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const CLIENTS: Clients = Clients {
    mix: &[(1, Kind::Create)],
    retry: Some(Duration::from_millis(20)),
    repeats: true,
    ..Clients::DEFAULT
};

impl Crash {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let mut url = postgres.start()?;
        let key = prepare(&url, 0)?;
        let mut nodes = Nodes::start(&url)?;
        let load = Arc::new(Load::new(&url, &nodes.addresses, &key, self.seed, 0)?);
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, self.clients, &CLIENTS);
        let (started, mut random) = (Instant::now(), Random(self.seed));
        for round in 1..=self.rounds {
            sleep(Duration::from_millis(100 + random.below(400))).await;
            if round % 2 == 0 {
                nodes.restart_all(&postgres, &mut url)?;
            } else {
                nodes.restart(usize::from(round % 4 == 1), &url)?;
            }
            if round % 20 == 0 {
                println!("{round} rounds, {:.0} s", started.elapsed().as_secs_f64());
            }
        }
        load.stop();
        tasks.join_all().await;
        let (_, problems) = load.check(&url)?;
        println!(
            "{} rounds, {} clients: {} pets acknowledged; answers: {:?}",
            self.rounds,
            self.clients,
            load.history().counts.writes,
            load.log().answers
        );
        none_of(&problems)
    }
}
