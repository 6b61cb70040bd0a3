//! Stops the database for a while behind two nodes and HAProxy, under clients: each failed request must get the service's own
//! error with `Retry-After`, whoever answered it, and each node must log one line for the loss and one for the return.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::http::Connection;
use crate::rolling::{Balancer, Node};
use crate::tools::{Postgres, prepare};

const CLIENTS: usize = 20;
/// Each client pauses after an answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Two nodes, one load balancer, one database that goes away.
#[derive(Args)]
pub(crate) struct Outage {
    /// How long the database is away.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// The answers of one client, or of all.
#[derive(Default)]
struct Answers {
    succeeded: u64,
    /// Failures by their status.
    failed: BTreeMap<u16, u64>,
    /// Failures that a client cannot handle as the document says.
    bad: Vec<String>,
}

impl Outage {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let url = postgres.start()?;
        let key = prepare(&url, 1_000)?;
        let nodes = [Node::start(&url)?, Node::start(&url)?];
        let balancer = Balancer::start(&nodes)?;
        let done = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(send(balancer.address, key.clone(), number, done.clone()));
        }
        sleep(Duration::from_secs(3)).await;
        postgres.stop()?;
        sleep(Duration::from_secs(self.seconds)).await;
        postgres.start()?;
        let returned = Instant::now();
        sleep(Duration::from_secs(4)).await;
        done.store(true, Ordering::Release);
        let mut all = Answers::default();
        for answers in clients.join_all().await {
            all.succeeded += answers.succeeded;
            all.bad.extend(answers.bad);
            for (status, count) in answers.failed {
                *all.failed.entry(status).or_default() += count;
            }
        }
        println!(
            "database away for {} s: {} requests succeeded, failed by status: {:?}, not as documented: {}; observed for \
             {:.0} s after its return",
            self.seconds,
            all.succeeded,
            all.failed,
            all.bad.len(),
            returned.elapsed().as_secs_f64()
        );
        if all.failed.is_empty() {
            return Err("no request failed: the database was not away".into());
        }
        if let Some(first) = all.bad.first() {
            return Err(
                format!("{} failures are not as documented; the first: {first}", all.bad.len()).into()
            );
        }
        for node in &nodes {
            check_log(&node.log()?)?;
        }
        Ok(())
    }
}

/// Checks what a node has logged.
fn check_log(log: &str) -> Outcome {
    let lines = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let count = |message: &str| {
        lines.iter().filter(|line| line["message"].as_str().is_some_and(|it| it.starts_with(message))).count()
    };
    let (lost, back) = (count("database unavailable"), count("database back"));
    let failed = lines.iter().filter(|line| line["message"] == "request" && line["status"] == 503);
    let (mut full, mut incomplete) = (0, 0);
    for line in failed {
        full += 1;
        incomplete += usize::from(line["route"] == "-" || line["key"].is_null() || line["cause"].is_null());
    }
    println!(
        "a node logged {lost} line for the loss, {back} for the return, and {full} for failed requests, of which \
         {incomplete} lack route, key or cause"
    );
    if (lost, back, incomplete) != (1, 1, 0) {
        return Err("the log is not as documented".into());
    }
    Ok(())
}

/// Sends requests until it is done; every fourth creates a pet.
async fn send(address: SocketAddr, key: String, number: usize, done: Arc<AtomicBool>) -> Answers {
    let mut answers = Answers::default();
    let mut connection = None;
    for request in number.. {
        if done.load(Ordering::Acquire) {
            break;
        }
        if let Err(error) = exchange(address, &key, request, &mut connection, &mut answers).await {
            answers.bad.push(error.to_string());
            connection = None;
        }
        sleep(PAUSE).await;
    }
    answers
}

async fn exchange(
    address: SocketAddr,
    key: &str,
    request: usize,
    kept: &mut Option<Connection>,
    answers: &mut Answers,
) -> Outcome {
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(Connection::open(address, key).await?),
    };
    let (status, body) = match request % 4 {
        0 => connection.send("POST", "/v1/pets", r#"{"name":"Outage","categoryId":1}"#).await?,
        _ => connection.send("GET", &format!("/v1/pets?id={}", 1 + request % 1000), "").await?,
    };
    let head = connection.head().to_ascii_lowercase();
    if head.contains("\r\nconnection: close") {
        *kept = None;
    }
    if status < 300 {
        answers.succeeded += 1;
        return Ok(());
    }
    *answers.failed.entry(status).or_default() += 1;
    let error: Value = serde_json::from_str(&body).unwrap_or_default();
    let has_body = error["code"].is_string() && error["message"].is_string() && error["status"] == status;
    if !has_body || !head.contains("\r\nretry-after: ") {
        answers.bad.push(format!("{status} {body}"));
    }
    Ok(())
}
