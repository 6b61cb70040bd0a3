//! Fuzzes the running service: valid requests, also with one odd value, bytes that are not HTTP, and slow clients. Every answer
//! must be a documented one to the request that was sent, nothing may hang or leak, and a normal client must be served.
//!
//! A seed, which is printed, determines the requests of each worker, but not how the workers interleave.

mod connection;
mod differential;
mod findings;
mod malformed;
mod raw;
mod response_parser;
mod rules;
mod slow_reader;
mod valid;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::http::Connection;
use crate::random::printed_seed;
use crate::topology::{LOG, PETSTORE, Server, database_url, output, prepare, psql};
use connection::RawConnection;
pub(crate) use differential::Differential;
use findings::Record;
use rules::Rules;
use valid::{Fixtures, Generator, Key, SCOPES};

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
    /// Clients besides the slow ones.
    #[arg(long, default_value_t = 32)]
    workers: usize,
}

/// What all clients share.
struct Run {
    address: SocketAddr,
    fixtures: Arc<Fixtures>,
    rules: Rules,
    record: Record,
    end: Instant,
}

impl Run {
    fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// Opens a connection. The service must accept it.
    async fn connect(&self) -> Option<RawConnection> {
        match RawConnection::open(self.address).await {
            Ok(connection) => Some(connection),
            Err(error) => {
                self.record.find("connect", &error.to_string(), b"", b"");
                sleep(Duration::from_millis(100)).await;
                None
            }
        }
    }
}

impl Fuzz {
    pub(crate) async fn run(self) -> Outcome {
        let seed = printed_seed(self.seed);
        let url = database_url()?;
        let fixtures = Arc::new(fixtures(&url)?);
        let service = Server::with_flags(
            &url,
            &["--header-timeout", "2s", "--body-timeout", "2s", "--log", "warn", "--order-hold", "168h"],
        )?;
        place_orders(service.address, &fixtures.key).await?;
        let duration = Duration::from_secs(self.seconds);
        let run = Arc::new(Run {
            address: service.address,
            fixtures: fixtures.clone(),
            rules: Rules::read()?,
            record: Record::default(),
            end: Instant::now() + duration,
        });
        let mut clients = JoinSet::new();
        clients.spawn(slow_reader::send_normally(run.clone()));
        for number in 0..self.workers {
            let generator = Generator::new(fixtures.clone(), seed, number);
            clients.spawn(raw::work(run.clone(), generator));
        }
        for _ in 0..SLOW {
            clients.spawn(raw::send_slowly(run.clone(), false));
            clients.spawn(raw::send_slowly(run.clone(), true));
            clients.spawn(slow_reader::read_slowly(run.clone()));
        }
        sleep((duration / 5).min(Duration::from_secs(30))).await;
        let early = service.kilobytes().unwrap_or_default();
        while clients.join_next().await.is_some() {}
        // The last connections close, and their memory is freed.
        sleep(Duration::from_secs(3)).await;
        check_service(&run, &service, early)?;
        run.record.report(seed)
    }
}

/// Checks what answers do not show: whether the service died, panicked or leaks memory.
fn check_service(run: &Run, service: &Server, early: f64) -> Outcome {
    let find = |problem: &str, text: &str| run.record.find("service", problem, b"", text.as_bytes());
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

/// Fills the database with pets, and creates keys of all kinds.
fn fixtures(url: &str) -> Outcome<Fixtures> {
    let key = prepare(url, PETS.into())?;
    let create = |flags: &[&str]| -> Outcome<String> {
        let create = ["keys", "create", "--name", "fuzz", "--database-url", url];
        Ok(output(PETSTORE, &[&create[..], flags].concat())?.trim().to_owned())
    };
    let mut keys = vec![Key::new(&key, &SCOPES)];
    for scope in SCOPES.chunks(1) {
        keys.push(Key::new(&create(&["--scope", scope[0]])?, scope));
    }
    for invalidate in [
        "UPDATE api_keys SET revoked_at = now()",
        "UPDATE api_keys SET expires_at = now() - interval '1 minute'",
        "DELETE FROM api_keys",
    ] {
        keys.push(Key::new(&create(&[])?, &[]));
        psql(url, &format!("{invalidate} WHERE id = (SELECT max(id) FROM api_keys)"))?;
    }
    keys.extend(["psk_", "x", "🐕"].map(|text| Key::new(text, &[])));
    keys.push(Key { header: String::new(), scopes: &[] });
    Ok(Fixtures { key, keys, pets: PETS.into(), orders: ORDERS.into() })
}

async fn place_orders(address: SocketAddr, key: &str) -> Outcome {
    let mut connection = Connection::open(address, key).await?;
    // Pets whose ids end in 10 to 99 are available.
    for id in (1..=PETS).filter(|id| id % 100 >= 10).take(ORDERS.into()) {
        let (status, answer) =
            connection.send("POST", "/v1/store/orders", &format!(r#"{{"petId":{id}}}"#)).await?;
        if status != 201 {
            return Err(format!("{status} {answer}").into());
        }
    }
    Ok(())
}
