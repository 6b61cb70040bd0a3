//! Kills the service and the database repeatedly under clients that retry every request until it is answered. Afterwards
//! each acknowledged pet must exist exactly once, and all answers to the same request must have been equal.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::http::{Connection, id_of};
use crate::random::Random;
use crate::tools::{Postgres, Server, free_address, pets_by_name, prepare};

/// A private PostgreSQL, one node, many clients.
#[derive(Args)]
pub(crate) struct Crash {
    /// Kills of the service; every other time, of the database as well.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Clients.
    #[arg(long, default_value_t = 64)]
    clients: u32,
    /// Seed of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The answers that the clients got.
#[derive(Default)]
struct Answers {
    /// The ids in the answers, by the name of the pet, which is also the `Idempotency-Key` of its request.
    ids: BTreeMap<String, BTreeSet<i64>>,
    attempts: u64,
    replays: u64,
    in_progress: u64,
    unavailable: u64,
    broken: u64,
}

impl Crash {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let mut url = postgres.start()?;
        let key = prepare(&url, 0)?;
        let address = free_address()?;
        let mut service = Server::petstore_at(&url, address)?;
        let done = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            clients.spawn(create_pets(address, key.clone(), number, done.clone()));
        }
        let started = Instant::now();
        let mut random = Random(self.seed);
        for round in 1..=self.rounds {
            sleep(Duration::from_millis(100 + random.below(400))).await;
            service.kill();
            if round % 2 == 0 {
                Command::new("kill").args(["-9", &postgres.pid()?.to_string()]).status()?;
                sleep(Duration::from_millis(100)).await;
                url = postgres.start()?;
            }
            service = Server::petstore_at(&url, address)?;
            if round % 20 == 0 {
                println!("{round} rounds, {:.0} s", started.elapsed().as_secs_f64());
            }
        }
        done.store(true, Ordering::Release);
        let mut answers = Answers::default();
        for client in clients.join_all().await {
            answers.add(client);
        }
        self.check(&url, &answers)
    }

    fn check(&self, url: &str, answers: &Answers) -> Outcome {
        let pets = pets_by_name(url, "c")?;
        for (name, ids) in &answers.ids {
            let Some((1, id)) = pets.get(name) else {
                return Err(
                    format!("{name} was acknowledged, and the database has {:?}", pets.get(name)).into()
                );
            };
            if *ids != BTreeSet::from([*id]) {
                return Err(format!("{name} has the id {id}, but was answered with {ids:?}").into());
            }
        }
        if let Some((name, _)) = pets.iter().find(|(_, (count, _))| *count != 1) {
            return Err(format!("{name} exists more than once").into());
        }
        println!(
            "{} rounds, {} clients, {} attempts: {} pets acknowledged, each exists once and was always answered alike; {} not \
             acknowledged; {} replays, {} answers of 409, {} of 503, {} broken connections",
            self.rounds,
            self.clients,
            answers.attempts,
            answers.ids.len(),
            pets.len() - answers.ids.len(),
            answers.replays,
            answers.in_progress,
            answers.unavailable,
            answers.broken
        );
        Ok(())
    }
}

impl Answers {
    fn add(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.attempts += other.attempts;
        self.replays += other.replays;
        self.in_progress += other.in_progress;
        self.unavailable += other.unavailable;
        self.broken += other.broken;
    }
}

/// Creates pets one after another, each with its own `Idempotency-Key`, and retries until each is answered; every third is
/// sent once more.
async fn create_pets(address: SocketAddr, key: String, number: u32, done: Arc<AtomicBool>) -> Answers {
    let mut answers = Answers::default();
    let mut connection = None;
    for count in 0_u64.. {
        if done.load(Ordering::Acquire) {
            break;
        }
        let name = format!("c{number}-{count}");
        let body = format!(r#"{{"name":"{name}","categoryId":{number}}}"#);
        let mut answers_wanted = if count % 3 == 0 { 2 } else { 1 };
        while answers_wanted > 0 {
            answers.attempts += 1;
            let attempt = async {
                let open = match connection.take() {
                    Some(open) => open,
                    None => Connection::open(address, &key).await?,
                };
                let open = connection.insert(open);
                open.send_idempotent("POST", "/v1/pets", &body, &name).await
            };
            match timeout(Duration::from_secs(10), attempt).await {
                Ok(Ok((201, answer, replayed))) => {
                    answers.ids.entry(name.clone()).or_default().insert(id_of(&answer).unwrap_or(-1));
                    answers.replays += u64::from(replayed);
                    answers_wanted -= 1;
                    continue;
                }
                Ok(Ok((409, ..))) => answers.in_progress += 1,
                Ok(Ok((503, ..))) => answers.unavailable += 1,
                Ok(Ok((status, answer, _))) => {
                    // Any other answer is a failure, recorded as an id that no pet has.
                    println!("{status} {answer}");
                    answers.ids.entry(name.clone()).or_default().insert(-i64::from(status));
                    answers_wanted = 0;
                }
                Ok(Err(_)) | Err(_) => {
                    answers.broken += 1;
                    connection = None;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
    answers
}
