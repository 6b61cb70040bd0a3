//! Faults of the nodes, of their connections, and of a PostgreSQL of their own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{ANY, Fault, SystemUnderTest};
use crate::Outcome;
use crate::http::Connection;
use crate::topology::{PETSTORE, output, psql};

/// How long a revoked key may be accepted, in seconds.
const REVOCATION: f64 = 5.0;
/// How long the database is stopped.
const OUTAGE: Duration = Duration::from_secs(10);

pub(crate) const NODE_KILLED: Fault = Fault {
    name: "node-killed",
    writes: ANY,
    reads: ANY,
    cause: |system| {
        Box::pin(async {
            let node = system.random.index(2);
            system.nodes.restart(node, &system.url)
        })
    },
};

/// The second node lives on, so that it shows what leaks.
pub(crate) const ONE_NODE_KILLED: Fault = Fault {
    name: "node-killed",
    writes: 1.0,
    reads: 1.0,
    cause: |system| Box::pin(async { system.nodes.restart(0, &system.url) }),
};

/// SIGSTOP and, three seconds later, SIGCONT. The other node goes on: some clients stay on one node.
pub(crate) const NODE_PAUSED: Fault = Fault {
    name: "node-paused",
    writes: 1.5,
    reads: 1.5,
    cause: |system| {
        Box::pin(async {
            let node = system.random.index(2);
            let paused = system.nodes.nodes[node].freeze()?;
            sleep(Duration::from_secs(3)).await;
            drop(paused);
            Ok(())
        })
    },
};

/// SIGTERM, and a new process.
pub(crate) const FIRST_NODE_RESTARTED: Fault = Fault {
    name: "first-node-restarted",
    writes: 1.5,
    reads: 1.5,
    cause: |system| Box::pin(system.restart_node(0)),
};

pub(crate) const SECOND_NODE_RESTARTED: Fault = Fault {
    name: "second-node-restarted",
    writes: 1.5,
    reads: 1.5,
    cause: |system| Box::pin(system.restart_node(1)),
};

/// As after the rollback of the next release: its schema has additions that this one does not know.
pub(crate) const SCHEMA_ADVANCED: Fault = Fault {
    name: "schema-advanced",
    writes: 1.5,
    reads: 1.5,
    cause: |system| {
        Box::pin(async {
            let next = "SET lock_timeout = '500ms'; BEGIN; \
                ALTER TABLE pets ADD COLUMN IF NOT EXISTS of_the_next_version text; \
                INSERT INTO refinery_schema_history (version, name, applied_on, checksum) \
                  VALUES (1000, 'next', now()::text, '0') ON CONFLICT DO NOTHING; \
                COMMIT";
            psql(system.database_url(), next).map(drop)
        })
    },
};

pub(crate) const CONNECTION_LOST: Fault = Fault {
    name: "connection-lost",
    writes: ANY,
    reads: ANY,
    cause: |system| {
        Box::pin(async {
            let terminate = "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity \
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database() \
                ORDER BY random() LIMIT 1) AS one";
            psql(system.database_url(), terminate).map(drop)
        })
    },
};

pub(crate) const DATABASE_CRASHED: Fault = Fault {
    name: "database-crashed",
    writes: ANY,
    reads: ANY,
    cause: |system| {
        Box::pin(async {
            let postgres = system.database.postgres()?;
            postgres.crash()?;
            postgres.start_again(&system.url)
        })
    },
};

/// Both nodes and the postmaster.
pub(crate) const ALL_KILLED: Fault = Fault {
    name: "all-killed",
    writes: ANY,
    reads: ANY,
    cause: |system| Box::pin(async { system.nodes.restart_all(system.database.postgres()?, &system.url) }),
};

/// Each node must log one line for the loss and one for the return, and the cause of each failed request.
pub(crate) const DATABASE_STOPPED: Fault = Fault {
    name: "database-stopped",
    writes: ANY,
    reads: ANY,
    cause: |system| {
        Box::pin(async {
            let from = system.load.now();
            let postgres = system.database.postgres()?;
            postgres.stop()?;
            sleep(OUTAGE).await;
            postgres.start_again(&system.url)?;
            sleep(Duration::from_secs(4)).await;
            if system.load.log().with_status(503, from, f64::INFINITY).0 == 0 {
                return Err("no request failed: the database was not away".into());
            }
            let logs = [system.nodes.nodes[0].log()?, system.nodes.nodes[1].log()?];
            logs.iter().try_for_each(|log| check_log(log))
        })
    },
};

fn check_log(log: &str) -> Outcome {
    let lines = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let count = |message: &str| {
        lines.iter().filter(|line| line["message"].as_str().is_some_and(|it| it.starts_with(message))).count()
    };
    let (lost, back) = (count("database unavailable"), count("database back"));
    let failed = lines.iter().filter(|line| line["message"] == "request" && line["status"] == 503);
    let incomplete = failed
        .filter(|line| line["route"] == "-" || line["key"].is_null() || line["cause"].is_null())
        .count();
    if (lost, back, incomplete) != (1, 1, 0) {
        return Err(format!(
            "a node logged {lost} lines for the loss of the database, {back} for its return, and {incomplete} failed requests \
             without route, key or cause"
        )
        .into());
    }
    Ok(())
}

/// A key is revoked that both nodes know.
pub(crate) const KEY_REVOKED: Fault = Fault {
    name: "key-revoked",
    writes: ANY,
    reads: ANY,
    cause: |system| {
        Box::pin(async {
            let key = system.new_key().await?;
            let refused = system.revoke(&key)?;
            system.must_be_refused("", refused).await
        })
    },
};

/// A key, and its id.
pub(super) struct Key {
    id: String,
    key: String,
}

/// For how many seconds a revoked key was accepted.
pub(super) type Refused = JoinHandle<Result<f64, String>>;

impl SystemUnderTest {
    async fn restart_node(&mut self, node: usize) -> Outcome {
        let stopped_in = self.nodes.nodes[node].restart(PETSTORE, &self.url).await?;
        self.note(format!("stopped in {:.1} s", stopped_in.as_secs_f64()));
        Ok(())
    }

    /// Creates a key and uses it on both nodes, so that they know it.
    pub(super) async fn new_key(&self) -> Outcome<Key> {
        let url = self.database_url();
        let key = output(PETSTORE, &["keys", "create", "--name", "revoked", "--database-url", url])?;
        let key = key.trim().to_owned();
        for node in self.nodes.addresses {
            let (status, answer) =
                Connection::open(node, &key).await?.send("GET", "/v1/pets?limit=1", "").await?;
            if status != 200 {
                return Err(format!("a new key was answered {status} {answer}").into());
            }
        }
        let id = psql(url, "SELECT max(id) FROM api_keys")?.trim().to_owned();
        Ok(Key { id, key })
    }

    /// Revokes a key, and finds out in the background when both nodes refuse it.
    pub(super) fn revoke(&self, Key { id, key }: &Key) -> Outcome<Refused> {
        output(PETSTORE, &["keys", "revoke", id, "--database-url", self.database_url()])?;
        let (nodes, key, limit) = (self.nodes.addresses, key.clone(), REVOCATION * self.slack);
        Ok(tokio::spawn(async move { last_accepted(nodes, &key, limit).await }))
    }

    pub(super) async fn must_be_refused(&mut self, when: &str, refused: Refused) -> Outcome {
        match refused.await? {
            Ok(seconds) => self.note(format!("key revoked{when} accepted for {seconds:.2} s")),
            Err(text) => self.problem(format!("key revoked{when}: {text}")),
        }
        Ok(())
    }
}

async fn last_accepted(nodes: [SocketAddr; 2], key: &str, limit: f64) -> Result<f64, String> {
    let revoked = Instant::now();
    let seconds = || revoked.elapsed().as_secs_f64();
    let (mut accepted, mut refused) = (0.0, [false; 2]);
    while seconds() < limit + 2.0 {
        for (node, refused) in nodes.into_iter().zip(&mut refused) {
            let sent = seconds();
            let answer =
                async { Connection::open(node, key).await?.send("GET", "/v1/pets?limit=1", "").await };
            match answer.await {
                Ok((401, _)) => *refused = true,
                Ok((200, _)) => accepted = sent,
                _ => {}
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    if accepted > limit {
        return Err(format!("accepted for {accepted:.1} s"));
    }
    if refused == [true; 2] { Ok(accepted) } else { Err("not refused with 401".to_owned()) }
}
