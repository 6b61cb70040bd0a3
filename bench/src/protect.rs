//! What keys and limits promise, measured: how often keys are looked up, how soon a revoked one is refused, what an
//! answer's time gives away, and what is served under more load than there is room for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Outcome;
use crate::http::Connection;
use crate::random::Random;
use crate::report::Samples;
use crate::tools::{PETSTORE, Server, database_url, output, prepare, psql};

/// Two nodes over one database.
#[derive(Args)]
pub(crate) struct Protect {
    /// Revocations under load.
    #[arg(long, default_value_t = 50)]
    revocations: usize,
    /// Requests with one known key.
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Keys with a bad checksum.
    #[arg(long, default_value_t = 10_000)]
    mistyped: u64,
    /// Keys that are well formed and unknown: not so many that the service slows them down.
    #[arg(long, default_value_t = 80)]
    strangers: u64,
}

impl Protect {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        psql(&url, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")?;
        let key = prepare(&url, 100_000)?;
        let nodes = [Server::petstore(&url)?, Server::petstore(&url)?];
        let addresses = nodes.each_ref().map(|node| node.address);
        self.look_ups(&url, addresses[0], &key).await?;
        self.revocations(&url, addresses).await?;
        timing(&url, addresses[0]).await?;
        flood(&url, addresses[0], &key).await?;
        overload(addresses[0], &key).await
    }

    async fn look_ups(&self, url: &str, node: SocketAddr, key: &str) -> Outcome {
        let mut connection = Connection::open(node, key).await?;
        // The first look may have been before the node heard of changes.
        for _ in 0..6 {
            connection.send("GET", "/v1/pets/1", "").await?;
            sleep(Duration::from_secs(1)).await;
        }
        let before = looked_up(url)?;
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
        let known = looked_up(url)? - before;
        for number in 0..self.mistyped {
            connection.key = format!("psk_{number:032}000000");
            expect(401, &connection.send("GET", "/v1/pets/1", "").await?)?;
        }
        let mistyped = looked_up(url)? - before - known;
        for number in 0..self.strangers {
            connection.key = stranger(number);
            expect(401, &connection.send("GET", "/v1/pets/1", "").await?)?;
        }
        let unknown = looked_up(url)? - before - known - mistyped;
        connection.key = key.to_owned();
        expect(200, &connection.send("GET", "/v1/pets/1", "").await?)?;
        let still_known = looked_up(url)? - before - known - mistyped - unknown;
        println!(
            "looks at keys in the database: {known} for {} requests with one key; {mistyped} for {n} keys with a bad \
             checksum; {unknown} for {n} unknown keys; {still_known} for the known key afterwards",
            self.requests,
            n = self.strangers,
        );
        Ok(())
    }

    async fn revocations(&self, url: &str, nodes: [SocketAddr; 2]) -> Outcome {
        let mut heard = Samples::default();
        for _ in 0..self.revocations {
            heard.push(revoke(url, nodes).await?);
        }
        println!(
            "the last 200 after a revocation, both nodes under load, {} times: median {:.1} ms, 90 % {:.1} ms, \
             greatest {:.1} ms",
            self.revocations,
            heard.median(),
            heard.at(0.9),
            heard.at(1.0)
        );
        let stop = Arc::new(AtomicBool::new(false));
        let cutting = std::thread::spawn({
            let (stop, url) = (stop.clone(), url.to_owned());
            move || {
                let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
                while !stop.load(Ordering::Relaxed) && psql(&url, cut).is_ok() {}
            }
        });
        let mut unheard = Samples::default();
        for _ in 0..5 {
            unheard.push(revoke(url, nodes).await?);
        }
        stop.store(true, Ordering::Relaxed);
        let _ = cutting.join();
        println!(
            "and with the notifications cut off, 5 times: median {:.0} ms, greatest {:.0} ms",
            unheard.median(),
            unheard.at(1.0)
        );
        Ok(())
    }
}

/// How many times a key was looked for.
fn looked_up(url: &str) -> Outcome<i64> {
    let calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE '%FROM api_keys%WHERE digest%'";
    Ok(psql(url, calls)?.trim().parse()?)
}

fn expect(status: u16, answer: &(u16, String)) -> Outcome {
    if answer.0 == status { Ok(()) } else { Err(format!("{} {}", answer.0, answer.1).into()) }
}

/// A well-formed key that nobody issued.
pub(crate) fn stranger(number: u64) -> String {
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

/// Milliseconds from a revocation, by the server's clock just before it commits, to the last 200 of any of eight
/// clients on two nodes.
async fn revoke(url: &str, nodes: [SocketAddr; 2]) -> Outcome<f64> {
    let (key, id) = new_key(url, &[])?;
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let mut connection = Connection::open(nodes[number % 2], &key).await?;
        clients.spawn(async move {
            let mut last = SystemTime::UNIX_EPOCH;
            loop {
                match connection.send("GET", "/v1/pets/1", "").await?.0 {
                    200 => last = SystemTime::now(),
                    401 => return Outcome::Ok(last),
                    other => return Err(format!("{other}").into()),
                }
            }
        });
    }
    sleep(Duration::from_millis(200)).await;
    let url = url.to_owned();
    let revoke = format!(
        "UPDATE api_keys SET revoked_at = now() WHERE id = {id} RETURNING extract(epoch FROM clock_timestamp())"
    );
    let said = tokio::task::spawn_blocking(move || psql(&url, &revoke)).await??;
    let revoked = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(said.trim().parse()?);
    let mut last = revoked;
    for outcome in clients.join_all().await {
        last = last.max(outcome?);
    }
    Ok(last.duration_since(revoked)?.as_secs_f64() * 1_000.0)
}

/// Whether the time of an answer tells an unknown key from a revoked one: compared with two unknown ones.
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
            // In an order that changes, so that none is always first.
            for place in 0..3 {
                let which = (round + place) % 3;
                connection.key.clone_from(&keys[which]);
                let began = Instant::now();
                expect(401, &connection.send("GET", "/v1/pets/1", "").await?)?;
                times[which].push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        let [one, other, revoked] = times.map(|times| times.median());
        alike.push(other - one);
        different.push(revoked - one);
    }
    println!(
        "difference between the median times of two 401, interleaved, 30 blocks of 300, in µs: two unknown keys {}, an \
         unknown and a revoked key {}",
        alike.spread(),
        different.spread()
    );
    Ok(())
}

/// A key within its limit, while another floods.
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
    let mut connection = Connection::open(node, key).await?;
    let mut times = Samples::default();
    let mut due = Instant::now();
    for _ in 0..500 {
        due += Duration::from_millis(10);
        sleep_until(due).await;
        let began = Instant::now();
        expect(200, &connection.send("GET", "/v1/pets/1", "").await?)?;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    stop.store(true, Ordering::Relaxed);
    let mut refused = 0;
    for outcome in clients.join_all().await {
        refused += outcome?;
    }
    println!(
        "a key that asks 100 times a second while another, limited to 100/s, floods over 64 connections ({:.0} refusals/s): \
         500 of 500 served, p50 {:.1} ms, p99 {:.1} ms",
        f64::from(u32::try_from(refused)?) / 5.0,
        times.at(0.5),
        times.at(0.99)
    );
    Ok(())
}

/// What is served when requests are due at so many times the rate that can be served.
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
        "pages of 100 at a random cursor, due at 3 times the peak ({:.0}/s) over 3000 connections: {} of the peak served, \
         {:.0}/s refused",
        peak_rate.median(),
        ratios.spread(),
        shed_rate.median()
    );
    Ok(())
}

/// Answers a second, of 200 and of 503, when requests are due at a rate over so many connections.
async fn offer(node: SocketAddr, key: &str, connections: u32, rate: f64) -> Outcome<(f64, f64)> {
    const TIME: Duration = Duration::from_secs(6);
    // A second to get going.
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
                let cursor = crate::stale::cursor(random.below(99_000).cast_signed() + 1);
                let (status, body) =
                    connection.send("GET", &format!("/v1/pets?limit=100&cursor={cursor}"), "").await?;
                let counted = Instant::now() > begin && Instant::now() < begin + TIME;
                match status {
                    200 => served += u32::from(counted),
                    503 => shed += u32::from(counted),
                    _ => return Err(format!("{status} {body}").into()),
                }
                // A client that is behind sends at once, but does not send twice.
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
