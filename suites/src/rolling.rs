//! Restarts two nodes in turn behind HAProxy, under clients that send at a steady rate: no request may fail, and every
//! acknowledged pet must exist. Meanwhile the schema advances to a version that this release does not know, as after the
//! rollback of a newer release.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Outcome;
use crate::http::Connection;
use crate::report::Samples;
use crate::tools::{
    PETSTORE, Server, database_url, free_address, free_addresses, node_log, output, prepare, psql,
};

/// The load balancer's configuration, as shipped.
const SETTINGS: &str = "deploy/haproxy/haproxy.cfg";
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
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

/// The results of the requests.
#[derive(Default)]
pub(crate) struct Results {
    reads: u64,
    pets_added: u64,
    failures: Vec<String>,
    milliseconds: Samples,
}

impl Rolling {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 1_000)?;
        let mut nodes = [Node::start(&url)?, Node::start(&url)?];
        let balancer = Balancer::start(&nodes)?;
        let done = Arc::new(AtomicBool::new(false));
        let clients = tokio::spawn(send(balancer.address, key, self.rate, done.clone()));
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
        done.store(true, Ordering::Release);
        clients.await?.check(&url)
    }
}

impl Results {
    /// Prints the results. No request may have failed, and every acknowledged pet must exist.
    pub(crate) fn check(self, url: &str) -> Outcome {
        println!(
            "{} reads, {} creates, {} failures; p50 {:.1} ms, p99 {:.1} ms, maximum {:.0} ms",
            self.reads,
            self.pets_added,
            self.failures.len(),
            self.milliseconds.median(),
            self.milliseconds.at(0.99),
            self.milliseconds.at(1.0)
        );
        if let Some(first) = self.failures.first() {
            return Err(format!("a request failed: {first}").into());
        }
        let kept = psql(url, "SELECT count(*) FROM pets WHERE name LIKE 'Rolling %'")?;
        if kept.trim().parse() != Ok(self.pets_added) {
            return Err(format!("{} pets were acknowledged, the database has {kept}", self.pets_added).into());
        }
        Ok(())
    }
}

/// Sends a request at each tick, whether earlier ones are answered or not, over keep-alive connections.
pub(crate) async fn send(address: SocketAddr, key: String, rate: u32, done: Arc<AtomicBool>) -> Results {
    let results = Arc::new(Mutex::new(Results::default()));
    let idle = Arc::new(Mutex::new(VecDeque::new()));
    let mut requests = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0_u64.. {
        let due = ticks.tick().await.into_std();
        if done.load(Ordering::Acquire) {
            break;
        }
        while requests.try_join_next().is_some() {}
        let (results, idle, key) = (results.clone(), idle.clone(), key.clone());
        requests.spawn(async move {
            let answered = timeout(PATIENCE, exchange(address, &key, number, &idle)).await;
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.milliseconds.push(due.elapsed().as_secs_f64() * 1000.0);
            match answered {
                Ok(Ok(201)) => results.pets_added += 1,
                Ok(Ok(200)) => results.reads += 1,
                Ok(Ok(status)) => results.failures.push(format!("request {number}: {status}")),
                Ok(Err(error)) => results.failures.push(format!("request {number}: {error}")),
                Err(_) => results.failures.push(format!("request {number}: no answer in {PATIENCE:?}")),
            }
        });
    }
    requests.join_all().await;
    std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sends one request; every fourth creates a pet.
async fn exchange(
    address: SocketAddr,
    key: &str,
    number: u64,
    idle: &Mutex<VecDeque<Connection>>,
) -> Outcome<u16> {
    let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let mut connection = match kept {
        Some(connection) => connection,
        None => Connection::open(address, key).await?,
    };
    let (status, _) = match number % 4 {
        0 => {
            let pet = format!(r#"{{"name":"Rolling {number}","categoryId":1}}"#);
            connection.send("POST", "/v1/pets", &pet).await?
        }
        1 => connection.send("GET", "/v1/pets?status=available&limit=20", "").await?,
        _ => connection.send("GET", &format!("/v1/pets?id={}", 1 + number % 1000), "").await?,
    };
    idle.lock().unwrap_or_else(PoisonError::into_inner).push_back(connection);
    Ok(status)
}

/// A node behind the load balancer.
pub(crate) struct Node {
    server: Server,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Node {
    pub(crate) fn start(url: &str) -> Outcome<Self> {
        Self::start_version(PETSTORE, url)
    }

    /// Starts a node of another version.
    pub(crate) fn start_version(program: &str, url: &str) -> Outcome<Self> {
        let (address, admin) = free_addresses()?;
        Ok(Self { server: Server::node_of(program, url, address, admin)?, address, admin })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> Outcome<String> {
        Ok(fs::read_to_string(node_log(self.address))?)
    }

    /// Sends SIGTERM, waits for the exit, starts a new process and gives the load balancer time to find it.
    pub(crate) async fn restart(&mut self, program: &str, url: &str) -> Outcome<Duration> {
        let stopped_in = self.server.terminate().await?;
        self.server = Server::node_of(program, url, self.address, self.admin)?;
        sleep(Duration::from_secs(2)).await;
        Ok(stopped_in)
    }
}

/// HAProxy, killed on drop.
pub(crate) struct Balancer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Balancer {
    pub(crate) fn start([one, two]: &[Node; 2]) -> Outcome<Self> {
        let address = free_address()?;
        let mut settings = fs::read_to_string(SETTINGS)?;
        for (documented, ours) in [
            ("127.0.0.1:8000", address.to_string()),
            ("127.0.0.1:8081", one.address.to_string()),
            ("check port 9091", format!("check port {}", one.admin.port())),
            ("127.0.0.1:8082", two.address.to_string()),
            ("check port 9092", format!("check port {}", two.admin.port())),
        ] {
            if settings.matches(documented).count() != 1 {
                return Err(format!("{SETTINGS} does not contain `{documented}` exactly once").into());
            }
            settings = settings.replace(documented, &ours);
        }
        let file = "target/suite-haproxy.cfg";
        fs::write(file, settings)?;
        output("haproxy", &["-c", "-q", "-f", file])?;
        let child = Command::new("haproxy")
            .args(["-db", "-f", file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create("target/suite-haproxy.log")?)
            .spawn()?;
        let mut balancer = Self { child, address };
        // It considers every node up until its first health check.
        std::thread::sleep(Duration::from_secs(2));
        if let Some(end) = balancer.child.try_wait()? {
            return Err(format!("HAProxy exited with {end}: see target/suite-haproxy.log").into());
        }
        Ok(balancer)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
