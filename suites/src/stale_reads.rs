//! Checks for stale reads: a read that starts after a create was acknowledged must return it, on either node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::http::{Connection, cursor, id_of};
use crate::tools::{Server, database_url, prepare, psql};

/// Two nodes over one database, many clients, every answer checked.
#[derive(Args)]
pub(crate) struct StaleReads {
    /// Operations in total.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Clients.
    #[arg(long, default_value_t = 64)]
    clients: usize,
}

/// What all clients share.
struct Known {
    /// The largest id whose creation was acknowledged to any client.
    newest: AtomicI64,
    left: AtomicU64,
}

impl StaleReads {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 1_000)?;
        let nodes = [Server::petstore(&url)?, Server::petstore(&url)?];
        let known = Arc::new(Known { newest: AtomicI64::new(1_000), left: AtomicU64::new(self.operations) });
        let started = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            clients.spawn(check(
                nodes.each_ref().map(|node| node.address),
                key.clone(),
                known.clone(),
                number,
            ));
        }
        let (mut creates, mut reads) = (0, 0);
        for counts in clients.join_all().await {
            let (of_one, reads_of_one) = counts?;
            creates += of_one;
            reads += reads_of_one;
        }
        let rows: u64 = psql(&url, "SELECT count(*) FROM pets")?.trim().parse()?;
        if rows != 1_000 + creates {
            return Err(format!("{creates} creates were acknowledged, but the table has {rows} rows").into());
        }
        println!(
            "{} operations on two nodes by {} clients in {:.0} s: {creates} creates, {reads} reads, no stale read",
            creates + reads,
            self.clients,
            started.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// Creates a pet on one node and reads on the other: that pet, the newest known to any client, and the last page.
async fn check(nodes: [SocketAddr; 2], key: String, known: Arc<Known>, number: usize) -> Outcome<(u64, u64)> {
    let mut connections = [Connection::open(nodes[0], &key).await?, Connection::open(nodes[1], &key).await?];
    let (mut creates, mut reads) = (0, 0);
    let mut turn = number;
    while known.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(4)).is_ok() {
        turn += 1;
        let (status, body) = connections[turn % 2]
            .send("POST", "/v1/pets", r#"{"name":"Rex","categoryId":1,"status":"sold"}"#)
            .await?;
        if status != 201 {
            return Err(format!("{status} {body}").into());
        }
        let id = id_of(&body).ok_or("no id")?;
        known.newest.fetch_max(id, Ordering::SeqCst);
        creates += 1;

        // Known before the read starts, so the read must return it.
        let newest = known.newest.load(Ordering::SeqCst);
        let cursor = format!("/v1/pets?limit=100&cursor={}", cursor(newest - 1));
        for (path, wanted) in [
            (format!("/v1/pets/{id}"), format!(r#"{{"id":{id},"#)),
            (format!("/v1/pets?id={newest}"), format!(r#"[{{"id":{newest},"#)),
            (cursor, format!(r#"[{{"id":{newest},"#)),
        ] {
            let (status, body) = connections[(turn + 1) % 2].send("GET", &path, "").await?;
            if status != 200 || !body.starts_with(&wanted) {
                return Err(format!("stale: {path} was answered {status} {body}").into());
            }
            reads += 1;
        }
    }
    Ok((creates, reads))
}
