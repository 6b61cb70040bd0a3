//! Kills two nodes and the database under clients and a reader. Afterwards the feed must have every effect exactly once, in the
//! order of the effects on each pet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::history::feed::Reader;
use crate::random::Random;
use crate::topology::{Nodes, Postgres, prepare};
use crate::workload::{Clients, Kind, Load, none_of};

/// A private PostgreSQL, two nodes, many clients, one reader.
#[derive(Args)]
pub(crate) struct Kills {
    /// Kills: of the one node, of the other, and of the database, in turn.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// The least number of effects.
    #[arg(long, default_value_t = 1_000_000)]
    effects: u64,
    /// The least number of orders that expire.
    #[arg(long, default_value_t = 10_000)]
    expired: usize,
    /// Clients.
    #[arg(long, default_value_t = 64)]
    clients: u64,
    /// Seed of the requests and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Without retries: an effect that is unknown to its client must be in the feed all the same.
pub(super) const CLIENTS: Clients = Clients {
    mix: &[
        (10, Kind::Create),
        (4, Kind::PlaceBriefly),
        (2, Kind::Complete),
        (2, Kind::Cancel),
        (2, Kind::Rename),
    ],
    stay: true,
    ..Clients::DEFAULT
};
/// The pets and orders that clients choose from.
pub(super) const FEW: usize = 300;

impl Kills {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let mut url = postgres.start()?;
        let key = prepare(&url, 0)?;
        let mut nodes = Nodes::start(&url)?;
        let load = Arc::new(Load::new(&url, &nodes.addresses, &key, self.seed, FEW)?);
        let reader = Reader::start(&nodes.addresses, &key, 100, None);
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, self.clients, &CLIENTS);
        let (started, mut random, mut kills) = (Instant::now(), Random(self.seed), 0);
        while kills < self.rounds || load.history().counts.writes < self.effects {
            sleep(Duration::from_millis(500 + random.below(2_000))).await;
            if kills == self.rounds {
                continue;
            }
            nodes.restart_in_turn(kills, &postgres, &mut url)?;
            kills += 1;
            if kills % 20 == 0 {
                println!(
                    "{kills} kills, {} effects acknowledged, {} events read, {} s",
                    load.history().counts.writes,
                    reader.count(),
                    started.elapsed().as_secs()
                );
            }
        }
        load.stop();
        tasks.join_all().await;
        let (journal, reading, problems) = load.check_with_feed(&url, reader).await?;
        none_of(&problems)?;
        let expired = reading.events.iter().filter(|(event, _)| event.kind == "order.expired").count();
        println!(
            "{kills} kills in {} s, {} clients: {} changes, each in the feed once; {} events read in {} pages with {} failures; \
             {expired} orders expired",
            started.elapsed().as_secs(),
            self.clients,
            journal.changes.len(),
            reading.events.len(),
            reading.pages,
            reading.failures,
        );
        if expired < self.expired { Err(format!("only {expired} orders expired").into()) } else { Ok(()) }
    }
}
