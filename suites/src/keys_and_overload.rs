//! API keys and limits under load: how many look-ups keys cost, how soon a revoked key is refused, whether response times
//! reveal which keys exist, and how much is served when clients send more than the service can handle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Outcome;
use crate::http::{Connection, cursor};
use crate::measure::{Samples, probe};
use crate::random::Random;
use crate::topology::{PETSTORE, Server, database_url, output, prepare, psql};

/// Two nodes over one database.
#[derive(Args)]
pub(crate) struct Overload {
    /// Revocations under load, while the database is restarted.
    #[arg(long, default_value_t = 1_000)]
    revocations: usize,
    /// Requests with one known key.
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Keys with a bad checksum.
    #[arg(long, default_value_t = 10_000)]
    mistyped: u64,
    /// Well-formed unknown keys: too few for the service to delay them.
    #[arg(long, default_value_t = 80)]
    unknown: u64,
}

impl Overload {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        psql(&url, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")?;
        let key = prepare(&url, 100_000)?;
        let nodes = [Server::petstore(&url)?, Server::petstore(&url)?];
        let addresses = nodes.each_ref().map(|node| node.address);
        self.lookups(&url, addresses[0], &key).await?;
        self.revocations(&url, addresses).await?;
        timing(&url, addresses[0]).await?;
        flood(&url, addresses[0], &key).await?;
        overload(addresses[0], &key).await
    }

    async fn lookups(&self, url: &str, node: SocketAddr, key: &str) -> Outcome {
        let mut connection = Connection::open(node, key).await?;
        connection.send("GET", "/v1/pets/1", "").await?;
        let before = lookups(url)?;
        let left = Arc::new(AtomicU64::new(self.requests));
        let mut clients = JoinSet::new();
        for _ in 0..64 {
            let (left, mut connection) = (left.clone(), Connection::open(node, key).await?);
            clients.spawn(async move {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    expect(200, &connection.send("GET", "/v1/pets/1", "").await?)?;
                }
                Outcome::Ok(())
            });
        }
        for outcome in clients.join_all().await {
            outcome?;
        }
        let known = lookups(url)? - before;
        for number in 0..self.mistyped {
            connection.key = format!("psk_{number:032}000000");
            expect(401, &connection.send("GET", "/v1/pets/1", "").await?)?;
        }
        let mistyped = lookups(url)? - before - known;
        for number in 0..self.unknown {
            connection.key = unknown_key(number);
            expect(401, &connection.send("GET", "/v1/pets/1", "").await?)?;
        }
        let unknown = lookups(url)? - before - known - mistyped;
        connection.key = key.to_owned();
        expect(200, &connection.send("GET", "/v1/pets/1", "").await?)?;
        let still_known = lookups(url)? - before - known - mistyped - unknown;
        println!(
            "key look-ups in the database: {known} for {} requests with one key; {mistyped} for {} keys with a bad checksum; \
             {unknown} for {} unknown keys; {still_known} for the known key afterwards",
            self.requests, self.mistyped, self.unknown,
        );
        Ok(())
    }

    /// Revokes keys that clients of both nodes use all the time, in groups, while the database is restarted again and again.
    async fn revocations(&self, url: &str, nodes: [SocketAddr; 2]) -> Outcome {
        let stop = Arc::new(AtomicBool::new(false));
        let restarting = std::thread::spawn({
            let (stop, url) = (stop.clone(), url.to_owned());
            move || restart_until(&url, &stop)
        });
        let mut times = Samples::default();
        for group in 0..self.revocations.div_ceil(GROUP) {
            let count = GROUP.min(self.revocations - group * GROUP);
            let keys = (0..count).map(|_| retried(|| new_key(url, &[]))).collect::<Outcome<Vec<_>>>()?;
            let mut revocations = JoinSet::new();
            for (key, id) in keys {
                revocations.spawn(revoke(url.to_owned(), nodes, key, id));
            }
            for time in revocations.join_all().await {
                times.push(time?);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let restarts = restarting.join().map_err(|_| "the thread that restarts the database panicked")??;
        println!(
            "time from a revocation to the last 200, on two nodes, {} times, during {restarts} restarts of the database: p50 \
             {:.0} ms, p90 {:.0} ms, maximum {:.0} ms",
            self.revocations,
            times.median(),
            times.at(0.9),
            times.at(1.0)
        );
        if times.at(1.0) >= 3_000.0 {
            Err("a revoked key was accepted for 3 seconds or longer".into())
        } else {
            Ok(())
        }
    }
}

/// How many keys are revoked at the same time.
const GROUP: usize = 50;

/// Restarts the database every few seconds. Returns how many times.
fn restart_until(url: &str, stop: &AtomicBool) -> Outcome<usize> {
    let data = psql(url, "SHOW data_directory")?;
    let directory = data.trim().strip_suffix("/data").ok_or("the database is not one of scripts/postgres")?;
    let mut restarts = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_secs(5));
        output("scripts/postgres", &["stop", directory, "fast"])?;
        output("scripts/postgres", &["start", directory])?;
        restarts += 1;
    }
    Ok(restarts)
}

/// Repeats what fails while the database is restarted.
fn retried<T>(attempt: impl Fn() -> Outcome<T>) -> Outcome<T> {
    let started = std::time::Instant::now();
    loop {
        match attempt() {
            Err(error) if started.elapsed() > Duration::from_secs(30) => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
            done => return done,
        }
    }
}

/// The number of key look-ups so far.
fn lookups(url: &str) -> Outcome<i64> {
    let calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE '%FROM api_keys%WHERE digest%'";
    Ok(psql(url, calls)?.trim().parse()?)
}

fn expect(status: u16, answer: &(u16, String)) -> Outcome {
    if answer.0 == status { Ok(()) } else { Err(format!("{} {}", answer.0, answer.1).into()) }
}

/// A well-formed key that was never issued.
pub(crate) fn unknown_key(number: u64) -> String {
    const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let start = format!("psk_{number:032}");
    let mut checksum = !start.bytes().fold(!0_u32, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 },
        )
    });
    let mut end = ['0'; 6];
    for character in end.iter_mut().rev() {
        *character = char::from(BASE62[checksum as usize % 62]);
        checksum /= 62;
    }
    start + &end.iter().collect::<String>()
}

pub(crate) fn new_key(url: &str, flags: &[&str]) -> Outcome<(String, String)> {
    let create = ["keys", "create", "--name", "measured", "--database-url", url];
    let key = output(PETSTORE, &[&create[..], flags].concat())?.trim().to_owned();
    let id = psql(url, "SELECT max(id) FROM api_keys")?.trim().to_owned();
    Ok((key, id))
}

/// Milliseconds from a revocation, by the server's clock just before it commits, to the last request with status 200 of any of
/// four clients on two nodes, by when it was sent.
async fn revoke(url: String, nodes: [SocketAddr; 2], key: String, id: String) -> Outcome<f64> {
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let mut connection = Connection::open(nodes[number % 2], &key).await?;
        clients.spawn(async move {
            let mut last = SystemTime::UNIX_EPOCH;
            loop {
                let sent = SystemTime::now();
                match connection.send("GET", "/v1/pets/1", "").await?.0 {
                    200 => last = sent,
                    401 => return Outcome::Ok(last),
                    503 => {}
                    other => return Err(format!("{other}").into()),
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
    }
    sleep(Duration::from_millis(500)).await;
    let revoke = format!(
        "UPDATE api_keys SET revoked_at = now() WHERE id = {id} RETURNING extract(epoch FROM clock_timestamp())"
    );
    let printed = tokio::task::spawn_blocking(move || retried(|| psql(&url, &revoke))).await??;
    let revoked = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(printed.trim().parse()?);
    let mut last = revoked;
    for outcome in clients.join_all().await {
        last = last.max(outcome?);
    }
    Ok(last.duration_since(revoked)?.as_secs_f64() * 1_000.0)
}

/// Whether the response time tells an unknown key from a revoked one, compared with two unknown keys.
async fn timing(url: &str, node: SocketAddr) -> Outcome {
    let mut keys = Vec::new();
    for end in ["DELETE FROM api_keys", "DELETE FROM api_keys", "UPDATE api_keys SET revoked_at = now()"] {
        let (key, id) = new_key(url, &[])?;
        psql(url, &format!("{end} WHERE id = {id}"))?;
        keys.push(key);
    }
    let mut connection = Connection::open(node, &keys[0]).await?;
    let (mut alike, mut different) = (Samples::default(), Samples::default());
    for _ in 0..30 {
        let mut times = [Samples::default(), Samples::default(), Samples::default()];
        for round in 0..300 {
            // The order rotates, so that none is always first.
            for place in 0..3 {
                let which = (round + place) % 3;
                connection.key.clone_from(&keys[which]);
                let started = Instant::now();
                expect(401, &connection.send("GET", "/v1/pets/1", "").await?)?;
                times[which].push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        let [one, other, revoked] = times.map(|times| times.median());
        alike.push(other - one);
        different.push(revoked - one);
    }
    println!(
        "difference between the median response times of two 401, interleaved, 30 blocks of 300, in µs: two unknown keys \
         {}, an unknown and a revoked key {}",
        alike.spread(),
        different.spread()
    );
    Ok(())
}

/// A key within its rate limit, while another floods.
async fn flood(url: &str, node: SocketAddr, key: &str) -> Outcome {
    let (flooding, _) = new_key(url, &["--rate-limit", "100/s"])?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..64 {
        let (stop, mut connection) = (stop.clone(), Connection::open(node, &flooding).await?);
        clients.spawn(async move {
            let mut refused = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                refused += u64::from(connection.send("GET", "/v1/pets/1", "").await?.0 == 429);
            }
            Outcome::Ok(refused)
        });
    }
    let times = probe(node, key, 100, 500, |_| ("GET", "/v1/pets/1".to_owned(), "")).await?;
    stop.store(true, Ordering::Relaxed);
    let mut refused = 0;
    for outcome in clients.join_all().await {
        refused += outcome?;
    }
    println!(
        "a key that sends 100 requests per second while another, limited to 100/s, floods over 64 connections ({:.0} \
         refusals/s): 500 of 500 served, p50 {:.1} ms, p99 {:.1} ms",
        f64::from(u32::try_from(refused)?) / 5.0,
        times.at(0.5),
        times.at(0.99)
    );
    Ok(())
}

/// How much is served when clients send three times what the service can handle.
async fn overload(node: SocketAddr, key: &str) -> Outcome {
    let mut ratios = Samples::default();
    let (mut peak_rate, mut shed_rate) = (Samples::default(), Samples::default());
    for _ in 0..3 {
        let (peak, _) = offer(node, key, 64, f64::INFINITY).await?;
        let (served, shed) = offer(node, key, 3_000, 3.0 * peak).await?;
        ratios.push(served / peak);
        peak_rate.push(peak);
        shed_rate.push(shed);
    }
    println!(
        "pages of 100 at a random cursor, sent at 3 times the peak ({:.0}/s) over 3000 connections: {} of the peak served, \
         {:.0}/s refused",
        peak_rate.median(),
        ratios.spread(),
        shed_rate.median()
    );
    Ok(())
}

/// Answers per second, of 200 and of 503, when requests are sent at this rate over so many connections.
async fn offer(node: SocketAddr, key: &str, connections: u32, rate: f64) -> Outcome<(f64, f64)> {
    const TIME: Duration = Duration::from_secs(6);
    // One second to warm up.
    let begin = Instant::now() + Duration::from_secs(2);
    let every = Duration::from_secs_f64(f64::from(connections) / rate);
    let mut clients = JoinSet::new();
    for number in 0..connections {
        let mut connection = Connection::open(node, key).await?;
        clients.spawn(async move {
            let mut due = begin - Duration::from_secs(1) + every * number / connections;
            let (mut served, mut shed) = (0_u32, 0_u32);
            let mut random = Random(u64::from(number) + 1);
            while due < begin + TIME {
                sleep_until(due).await;
                let after = cursor(random.below(99_000).cast_signed() + 1);
                let (status, body) =
                    connection.send("GET", &format!("/v1/pets?limit=100&cursor={after}"), "").await?;
                let counted = Instant::now() > begin && Instant::now() < begin + TIME;
                match status {
                    200 => served += u32::from(counted),
                    503 => shed += u32::from(counted),
                    _ => return Err(format!("{status} {body}").into()),
                }
                // A client that is late sends at once, but never two requests together.
                due = (due + every).max(if every.is_zero() { Instant::now() } else { due + every });
            }
            Outcome::Ok((served, shed))
        });
    }
    let (mut served, mut shed) = (0, 0);
    for outcome in clients.join_all().await {
        let (of_one, shed_of_one) = outcome?;
        served += of_one;
        shed += shed_of_one;
    }
    let seconds = TIME.as_secs_f64();
    Ok((f64::from(served) / seconds, f64::from(shed) / seconds))
}
