//! Kills the service and the database, again and again, under clients that send every request until it is answered:
//! afterwards each pet that was acknowledged must be there, once, and every answer to a request must have been the same.

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
use crate::http::Connection;
use crate::random::Random;
use crate::tools::{Postgres, Server, free_address, prepare, psql};

/// A cluster of its own, one node, many clients.
#[derive(Args)]
pub(crate) struct Crash {
    /// How often the service is killed; every other time, the database as well.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// How many clients there are.
    #[arg(long, default_value_t = 64)]
    clients: u32,
    /// Decides when each blow falls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What the clients were told.
#[derive(Default)]
struct Told {
    /// The ids that were answered, by the name of the pet, which is the key of its request as well.
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
            clients.spawn(send_until_answered(address, key.clone(), number, done.clone()));
        }
        let began = Instant::now();
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
                println!("{round} rounds, {:.0} s", began.elapsed().as_secs_f64());
            }
        }
        done.store(true, Ordering::Release);
        let mut told = Told::default();
        for client in clients.join_all().await {
            told.add(client);
        }
        self.check(&url, &told)
    }

    fn check(&self, url: &str, told: &Told) -> Outcome {
        let rows = psql(url, "SELECT name, count(*), min(id) FROM pets GROUP BY name")?;
        let mut pets = BTreeMap::new();
        for row in rows.lines() {
            let mut fields = row.split('|');
            let (Some(name), Some(count), Some(id)) = (fields.next(), fields.next(), fields.next()) else {
                return Err(format!("not a row: {row}").into());
            };
            pets.insert(name.to_owned(), (count.parse::<i64>()?, id.parse::<i64>()?));
        }
        for (name, ids) in &told.ids {
            let Some((1, id)) = pets.get(name) else {
                return Err(format!("{name} was acknowledged, and is there {:?}", pets.get(name)).into());
            };
            if *ids != BTreeSet::from([*id]) {
                return Err(format!("{name} is {id}, but was answered as {ids:?}").into());
            }
        }
        if let Some((name, _)) = pets.iter().find(|(_, (count, _))| *count != 1) {
            return Err(format!("{name} is there more than once").into());
        }
        println!(
            "{} rounds, {} clients, {} attempts: {} pets acknowledged, each there once and always answered alike; {} not \
             acknowledged; {} replays, {} answers of 409, {} of 503, {} broken connections",
            self.rounds,
            self.clients,
            told.attempts,
            told.ids.len(),
            pets.len() - told.ids.len(),
            told.replays,
            told.in_progress,
            told.unavailable,
            told.broken
        );
        Ok(())
    }
}

impl Told {
    fn add(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.attempts += other.attempts;
        self.replays += other.replays;
        self.in_progress += other.in_progress;
        self.unavailable += other.unavailable;
        self.broken += other.broken;
    }
}

/// Adds pets one after another, each under a key of its own, and sends each until it is answered; every third once more.
async fn send_until_answered(address: SocketAddr, key: String, number: u32, done: Arc<AtomicBool>) -> Told {
    let mut told = Told::default();
    let mut connection = None;
    for count in 0_u64.. {
        if done.load(Ordering::Acquire) {
            break;
        }
        let name = format!("c{number}-{count}");
        let body = format!(r#"{{"name":"{name}","categoryId":{number}}}"#);
        let mut answers_wanted = if count % 3 == 0 { 2 } else { 1 };
        while answers_wanted > 0 {
            told.attempts += 1;
            let attempt = async {
                let open = match connection.take() {
                    Some(open) => open,
                    None => Connection::open(address, &key).await?,
                };
                let open = connection.insert(open);
                open.send_once("POST", "/v1/pets", &body, &name).await
            };
            match timeout(Duration::from_secs(10), attempt).await {
                Ok(Ok((201, answer, replayed))) => {
                    let id =
                        answer.trim_start_matches(r#"{"id":"#).split(',').next().unwrap_or_default().parse();
                    told.ids.entry(name.clone()).or_default().insert(id.unwrap_or(-1));
                    told.replays += u64::from(replayed);
                    answers_wanted -= 1;
                    continue;
                }
                Ok(Ok((409, ..))) => told.in_progress += 1,
                Ok(Ok((503, ..))) => told.unavailable += 1,
                Ok(Ok((status, answer, _))) => {
                    // An answer that is none of these is a failure, and looks like two different ones.
                    println!("{status} {answer}");
                    told.ids.entry(name.clone()).or_default().insert(-i64::from(status));
                    answers_wanted = 0;
                }
                Ok(Err(_)) | Err(_) => {
                    told.broken += 1;
                    connection = None;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
    told
}
