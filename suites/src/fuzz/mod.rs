//! Fuzzes the running service: mutated requests, bytes that are not HTTP, and slow clients. Whatever is sent, every answer
//! must be a documented one, nothing may hang or leak, and a normal client must be served.
//!
//! A seed, which is printed, determines the requests of each worker, but not how the workers interleave.

mod answer;
mod differential;
mod findings;
mod grammar;
mod json;
mod malformed;
mod mutate;
mod mutate_json;
mod raw;
mod request;
mod rules;
mod slow;
mod wire;
mod worker;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::http::Connection;
use crate::random::{Random, printed_seed};
use crate::topology::{LOG, PETSTORE, Server, database_url, output, prepare, psql};
pub(crate) use differential::Differential;
use findings::{Exchange, Record};
use grammar::{Fixtures, Key, SCOPES};
use rules::Rules;

const PETS: u16 = 1_000;
const ORDERS: u16 = 200;
/// Clients of each slow kind.
const SLOW: u64 = 8;
/// The most memory at the end, in kilobytes, above twice the memory after the first seconds.
const MAX_GROWTH: f64 = 50.0 * 1024.0;

/// Sends random requests.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// Duration in seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Seed of the requests; without it, each run has a new one.
    #[arg(long)]
    seed: Option<u64>,
    /// Clients that send requests over keep-alive connections, and as many that send raw bytes over new ones.
    #[arg(long, default_value_t = 16)]
    workers: u64,
}

/// What all clients share.
struct Run {
    address: SocketAddr,
    fixtures: Fixtures,
    rules: Rules,
    record: Record,
    end: Instant,
}

impl Run {
    fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }
}

impl Fuzz {
    pub(crate) async fn run(self) -> Outcome {
        let seed = printed_seed(self.seed);
        let url = database_url()?;
        let key = prepare(&url, PETS.into())?;
        let keys = keys(&url, key.clone())?;
        let service = Server::with_flags(
            &url,
            &["--header-timeout", "2s", "--body-timeout", "2s", "--log", "warn", "--order-hold", "168h"],
        )?;
        let tags = create_fixtures(service.address, &key).await?;
        let duration = Duration::from_secs(self.seconds);
        let run = Arc::new(Run {
            address: service.address,
            fixtures: Fixtures { keys, pets: PETS.into(), orders: ORDERS.into(), tags },
            rules: Rules::read()?,
            record: Record::new(),
            end: Instant::now() + duration,
        });
        let normal = tokio::spawn(slow::normal_client(run.clone()));
        let mut clients = JoinSet::new();
        for number in 0..self.workers {
            clients.spawn(worker::work(run.clone(), Random::of_worker(seed, 2 * number)));
            clients.spawn(raw::work(run.clone(), Random::of_worker(seed, 2 * number + 1)));
        }
        for _ in 0..SLOW {
            clients.spawn(slow::send_slowly(run.clone(), false));
            clients.spawn(slow::send_slowly(run.clone(), true));
            clients.spawn(slow::read_slowly(run.clone()));
        }
        sleep((duration / 5).min(Duration::from_secs(30))).await;
        let early = service.kilobytes().unwrap_or_default();
        while clients.join_next().await.is_some() {}
        let times = normal.await?;
        // The last connections close, and their memory is freed.
        sleep(Duration::from_secs(3)).await;
        check_service(&run, &service, early)?;
        println!(
            "normal client: {} answers, p50 {:.1} ms, p99 {:.1} ms",
            times.0.len(),
            times.median(),
            times.at(0.99)
        );
        run.record.report(seed)
    }
}

/// Checks what answers do not show: whether the service died, panicked or leaks memory.
fn check_service(run: &Run, service: &Server, early: f64) -> Outcome {
    let find = |problem: &str, text: &str| {
        run.record.find("service", problem, || Exchange { answered: text.into(), ..Exchange::default() });
    };
    match service.kilobytes() {
        Err(_) => find("died", ""),
        Ok(late) => {
            println!(
                "memory: {:.0} MB after the first seconds, {:.0} MB at the end",
                early / 1024.0,
                late / 1024.0
            );
            if late > 2.0 * early + MAX_GROWTH {
                find("memory grew", &format!("{early} KB, then {late} KB"));
            }
        }
    }
    for line in fs::read_to_string(LOG)?.lines().filter(|line| line.contains("panicked")) {
        find("panicked", line);
    }
    Ok(())
}

/// Keys of all kinds. The first has every scope.
fn keys(url: &str, all: String) -> Outcome<Vec<Key>> {
    let key =
        |text: String, scopes: &'static [&'static str]| Key { text: Some(text), scopes, is_limited: false };
    let create = |flags: &[&str]| -> Outcome<String> {
        let create = ["keys", "create", "--name", "fuzz", "--database-url", url];
        Ok(output(PETSTORE, &[&create[..], flags].concat())?.trim().to_owned())
    };
    let mut keys = vec![key(all, &SCOPES)];
    for scope in SCOPES.chunks(1) {
        keys.push(key(create(&["--scope", scope[0]])?, scope));
    }
    keys.push(Key { is_limited: true, ..key(create(&["--rate-limit", "50/s"])?, &SCOPES) });
    for invalidate in [
        "UPDATE api_keys SET revoked_at = now()",
        "UPDATE api_keys SET expires_at = now() - interval '1 minute'",
        "DELETE FROM api_keys",
    ] {
        keys.push(key(create(&[])?, &[]));
        psql(url, &format!("{invalidate} WHERE id = (SELECT max(id) FROM api_keys)"))?;
    }
    for text in ["psk_00000000000000000000000000000000000000", "psk_", "x", "🐕"] {
        keys.push(key(text.to_owned(), &[]));
    }
    keys.push(Key { text: None, scopes: &[], is_limited: false });
    Ok(keys)
}

/// Places orders, and collects the entity tags of some pets.
async fn create_fixtures(address: SocketAddr, key: &str) -> Outcome<Vec<String>> {
    let mut connection = Connection::open(address, key).await?;
    // Pets whose ids end in 10 to 99 are available.
    let available = (1..=PETS).filter(|id| id % 100 >= 10).take(ORDERS.into());
    for id in available {
        let (status, answer) =
            connection.send("POST", "/v1/store/orders", &format!(r#"{{"petId":{id}}}"#)).await?;
        if status != 201 {
            return Err(format!("{status} {answer}").into());
        }
    }
    let mut wire = wire::Wire::open(address).await?;
    let mut tags = vec!["\"0000000000000000\"".to_owned()];
    for id in 1..=20 {
        let request =
            format!("GET /v1/pets/{id} HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\n\r\n");
        wire.send(request.as_bytes()).await;
        let answer = wire.answer(false).await.map_err(|error| error.problem())?;
        tags.extend(answer.header("etag").map(str::to_owned));
    }
    Ok(tags)
}
