//! Checks for stale reads: a read that starts after a create was acknowledged must return it, on either node.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::topology::{Nodes, database_url, prepare};
use crate::workload::{Clients, Kind, Load, none_of};

/// Two nodes over one database, many clients, every answer checked.
#[derive(Args)]
pub(crate) struct StaleReads {
    /// Operations in total.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Clients.
    #[arg(long, default_value_t = 64)]
    clients: u64,
}

/// A quarter are creates, and some are renames; the rest reads the newest pets in three ways.
const CLIENTS: Clients = Clients {
    mix: &[(20, Kind::Create), (5, Kind::Rename), (25, Kind::Get), (25, Kind::Find), (25, Kind::Page)],
    ..Clients::DEFAULT
};

impl StaleReads {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 1_000)?;
        let nodes = Nodes::start(&url)?;
        let load = Load::new(&url, &nodes.addresses, &key, 1, 100)?.limited_to(self.operations);
        let (load, started) = (Arc::new(load), Instant::now());
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, self.clients, &CLIENTS);
        tasks.join_all().await;
        let (_, mut problems) = load.check(&url)?;
        if let Some(failure) = &load.log().first_failure {
            problems.push(format!("a request failed: {failure}"));
        }
        let counts = load.history().counts.clone();
        println!(
            "{} operations on two nodes by {} clients in {:.0} s: {} writes, {} reads, {} stale",
            counts.writes + counts.reads,
            self.clients,
            started.elapsed().as_secs_f64(),
            counts.writes,
            counts.reads,
            counts.stale
        );
        none_of(&problems)
    }
}
