//! Restarts two nodes in turn behind a real HAProxy, under clients that send at a steady rate: no request may fail, and
//! every pet that was acknowledged must be there. Meanwhile the schema moves on to one that this version does not know,
//! as if a newer one had been rolled back.

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
use crate::tools::{Server, free_address, free_addresses, output, prepare, psql};

/// The balancer's settings, as documented.
const SETTINGS: &str = "deploy/haproxy/haproxy.cfg";
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the next version might do: additions that this version does not know.
const NEXT_SCHEMA: &str = "SET lock_timeout = '500ms'; BEGIN; \
    ALTER TABLE pets ADD COLUMN of_the_next_version text; \
    INSERT INTO refinery_schema_history (version, name, applied_on, checksum) VALUES (1000, 'next', now()::text, '0'); \
    COMMIT";

/// Two nodes, one balancer, clients that do not wait for each other.
#[derive(Args)]
pub(crate) struct Rolling {
    /// How often each node is restarted.
    #[arg(long, default_value_t = 5)]
    restarts: u32,
    /// Requests a second.
    #[arg(long, default_value_t = 300)]
    rate: u32,
}

/// What the clients saw.
#[derive(Default)]
struct Seen {
    reads: u64,
    pets_added: u64,
    failures: Vec<String>,
    milliseconds: Vec<f64>,
}

impl Rolling {
    pub(crate) async fn run(self) -> Outcome {
        let url = std::env::var("DATABASE_URL")?;
        let key = prepare(&url, 1_000)?;
        let mut nodes = [Node::start(&url)?, Node::start(&url)?];
        let balancer = Balancer::start(&nodes)?;
        let done = Arc::new(AtomicBool::new(false));
        let clients = tokio::spawn(send(balancer.address, key, self.rate, done.clone()));
        let began = Instant::now();
        sleep(Duration::from_secs(2)).await;
        for round in 1..=self.restarts {
            for (number, node) in nodes.iter_mut().enumerate() {
                let stopped_in = node.restart(&url).await?;
                println!(
                    "restart {round} of node {}: it stopped in {:.1} s; {:.0} s",
                    number + 1,
                    stopped_in.as_secs_f64(),
                    began.elapsed().as_secs_f64()
                );
                if round == 1 && number == 0 {
                    psql(&url, NEXT_SCHEMA)?;
                    println!("the schema is one version ahead of both nodes, as after a rollback");
                }
            }
        }
        done.store(true, Ordering::Release);
        let seen = clients.await?;
        seen.check(&url)
    }
}

impl Seen {
    fn check(mut self, url: &str) -> Outcome {
        self.milliseconds.sort_by(f64::total_cmp);
        let at = |part: usize| {
            self.milliseconds.get(self.milliseconds.len() * part / 1000).copied().unwrap_or(0.0)
        };
        println!(
            "{} reads, {} pets added, {} failed; 50 % within {:.1} ms, 99 % within {:.1} ms, all within {:.0} ms",
            self.reads,
            self.pets_added,
            self.failures.len(),
            at(500),
            at(990),
            self.milliseconds.last().copied().unwrap_or(0.0)
        );
        if let Some(first) = self.failures.first() {
            return Err(format!("a request failed: {first}").into());
        }
        let kept = psql(url, "SELECT count(*) FROM pets WHERE name LIKE 'Rolling %'")?;
        if kept.trim().parse() != Ok(self.pets_added) {
            return Err(format!("{} pets were acknowledged, {kept} are there", self.pets_added).into());
        }
        Ok(())
    }
}

/// Sends a request at each tick, whether the ones before are answered or not, over connections that are kept.
async fn send(address: SocketAddr, key: String, rate: u32, done: Arc<AtomicBool>) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::default()));
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
        let (seen, idle, key) = (seen.clone(), idle.clone(), key.clone());
        requests.spawn(async move {
            let answered = timeout(PATIENCE, exchange(address, &key, number, &idle)).await;
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.milliseconds.push(due.elapsed().as_secs_f64() * 1000.0);
            match answered {
                Ok(Ok(201)) => seen.pets_added += 1,
                Ok(Ok(200)) => seen.reads += 1,
                Ok(Ok(status)) => seen.failures.push(format!("request {number}: {status}")),
                Ok(Err(error)) => seen.failures.push(format!("request {number}: {error}")),
                Err(_) => seen.failures.push(format!("request {number}: no answer in {PATIENCE:?}")),
            }
        });
    }
    requests.join_all().await;
    std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner))
}

/// One request, every fourth of which adds a pet.
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

/// A node with the settings that it has by default.
pub(crate) struct Node {
    server: Server,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Node {
    pub(crate) fn start(url: &str) -> Outcome<Self> {
        let (address, admin) = free_addresses()?;
        Ok(Self { server: Server::petstore_node(url, address, admin)?, address, admin })
    }

    /// SIGTERM, its end, and a new one that the balancer has had time to find.
    async fn restart(&mut self, url: &str) -> Outcome<Duration> {
        let stopped_in = self.server.terminate().await?;
        self.server = Server::petstore_node(url, self.address, self.admin)?;
        sleep(Duration::from_secs(2)).await;
        Ok(stopped_in)
    }
}

/// HAProxy, killed with this value.
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
                return Err(format!("{SETTINGS} has not one `{documented}`").into());
            }
            settings = settings.replace(documented, &ours);
        }
        let file = "target/bench-haproxy.cfg";
        fs::write(file, settings)?;
        output("haproxy", &["-c", "-q", "-f", file])?;
        let child = Command::new("haproxy")
            .args(["-db", "-f", file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create("target/bench-haproxy.log")?)
            .spawn()?;
        let mut balancer = Self { child, address };
        // It believes that every node is up until it has asked.
        std::thread::sleep(Duration::from_secs(2));
        if let Some(end) = balancer.child.try_wait()? {
            return Err(format!("HAProxy ended with {end}: target/bench-haproxy.log says why").into());
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
