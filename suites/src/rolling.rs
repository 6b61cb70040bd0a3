//! Restarts two nodes in turn behind HAProxy, under clients that send at a steady rate: no request may fail, and every
//! acknowledged pet must exist. Meanwhile the schema advances to a version that this release does not know, as after the
//! rollback of a newer release.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::topology::{Balancer, Node, PETSTORE, database_url, prepare, psql};
use crate::workload::{Clients, Kind, Load, none_of};

/// A migration of the next release: additions that this one does not know.
const NEXT_SCHEMA: &str = "SET lock_timeout = '500ms'; BEGIN; \
    ALTER TABLE pets ADD COLUMN of_the_next_version text; \
    INSERT INTO refinery_schema_history (version, name, applied_on, checksum) VALUES (1000, 'next', now()::text, '0'); \
    COMMIT";

/// Two nodes, one load balancer, an open-loop client.
#[derive(Args)]
pub(crate) struct Rolling {
    /// Restarts of each node.
    #[arg(long, default_value_t = 5)]
    restarts: u32,
    /// Requests per second.
    #[arg(long, default_value_t = 300)]
    rate: u32,
}

impl Rolling {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 1_000)?;
        let mut nodes = [Node::start(&url)?, Node::start(&url)?];
        let balancer = Balancer::start(&nodes)?;
        let traffic = Traffic::start(&url, balancer.address, &key, self.rate)?;
        let started = Instant::now();
        sleep(Duration::from_secs(2)).await;
        for round in 1..=self.restarts {
            for (number, node) in nodes.iter_mut().enumerate() {
                let stopped_in = node.restart(PETSTORE, &url).await?;
                println!(
                    "restart {round} of node {}: stopped in {:.1} s; {:.0} s since the start",
                    number + 1,
                    stopped_in.as_secs_f64(),
                    started.elapsed().as_secs_f64()
                );
                if round == 1 && number == 0 {
                    psql(&url, NEXT_SCHEMA)?;
                    println!("the schema is one version ahead of both nodes, as after a rollback");
                }
            }
        }
        none_of(&traffic.finish(&url).await?.1)
    }
}

/// Clients at a steady rate, none of whose requests may fail.
pub(crate) struct Traffic {
    load: Arc<Load>,
    tasks: JoinSet<()>,
}

const CLIENTS: Clients = Clients {
    mix: &[
        (4, Kind::Create),
        (4, Kind::Available),
        (6, Kind::Find),
        (2, Kind::Page),
        (1, Kind::Rename),
        (1, Kind::Place),
        (1, Kind::Complete),
        (1, Kind::Cancel),
    ],
    ..Clients::DEFAULT
};

impl Traffic {
    pub(crate) fn start(url: &str, address: SocketAddr, key: &str, rate: u32) -> Outcome<Self> {
        let load = Arc::new(Load::new(url, &[address], key, 1, 1_000)?);
        let mut tasks = JoinSet::new();
        load.spawn_at_rate(&mut tasks, rate, &CLIENTS);
        Ok(Self { load, tasks })
    }

    /// Stops the clients. Returns what is wrong with what they saw.
    pub(crate) async fn finish(self, url: &str) -> Outcome<(Arc<Load>, Vec<String>)> {
        self.load.stop();
        self.tasks.join_all().await;
        let (_, mut problems) = self.load.check(url)?;
        let (log, counts) = (self.load.log(), self.load.history().counts.clone());
        let milliseconds = log.milliseconds();
        println!(
            "{} reads, {} writes, {} failures; p50 {:.1} ms, p99 {:.1} ms, maximum {:.0} ms",
            counts.reads,
            counts.writes,
            log.failures(),
            milliseconds.median(),
            milliseconds.at(0.99),
            milliseconds.at(1.0)
        );
        problems.extend(log.first_failure.iter().map(|failure| format!("a request failed: {failure}")));
        drop(log);
        Ok((self.load, problems))
    }
}
