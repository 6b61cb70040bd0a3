//! Everybody who can change a pet or an order does, on two nodes that are killed like the database: clients, imports, expiry,
//! and an operator in psql who updates, deletes, adds many and keeps transactions open. Afterwards the sequence of each of seven
//! readers must be that of the table of events, and an index that one of them kept by `pet.…` events alone must equal the pets.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::Outcome;
use crate::chaos::GIVING_UP;
use crate::history::feed::{Event, Reader};
use crate::http::Connection;
use crate::random::Random;
use crate::topology::{Nodes, PETSTORE, Postgres, prepare, psql};
use crate::workload::{Load, none_of};

/// A private PostgreSQL, two nodes, writers of every kind, seven readers.
#[derive(Args)]
pub(crate) struct ReaderConsistency {
    /// Kills: of the one node, of the other, and of the database, in turn.
    #[arg(long, default_value_t = 45)]
    rounds: u32,
    /// Clients.
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// Seed of the requests and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The pets and orders that clients choose from.
const FEW: usize = 300;

/// The page size of each reader, and after how many kills it starts at the end of the feed; none starts at the beginning.
const READERS: [(u32, Option<u32>); 7] =
    [(100, None), (7, None), (33, None), (64, None), (100, Some(0)), (13, Some(0)), (100, Some(4))];

/// What an operator does. The pets that the clients order are left alone, except for their names.
const OPERATOR: [&str; 6] = [
    "UPDATE pets SET name = 'renamed ' || id WHERE id % 50 = 7",
    "DELETE FROM pets WHERE category_id = 77 AND id % 3 = 0",
    "INSERT INTO pets (name, category_id) SELECT 'many', 77 FROM generate_series(1, 2300)",
    "INSERT INTO pets (name, category_id) SELECT 'few', 77 FROM generate_series(1, 5)",
    "BEGIN; INSERT INTO pets (name, category_id) VALUES ('slow', 77); SELECT pg_sleep(2); COMMIT",
    "BEGIN; UPDATE pets SET category_id = category_id WHERE id = 1; SELECT pg_sleep(1); ROLLBACK",
];

const IMPORT: &str = "target/events-model.ndjson";

impl ReaderConsistency {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let url = postgres.start()?;
        let key = prepare(&url, 0)?;
        let mut nodes = Nodes::start(&url)?;
        let load = Arc::new(Load::new(&url, &nodes.addresses, &key, self.seed, FEW)?.beside_others());
        let (stop, stopped) = watch::channel(false);
        let mirror = tokio::spawn(mirror(nodes.addresses, key.clone(), stopped));
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, self.clients, &GIVING_UP);
        let done = Arc::new(AtomicBool::new(false));
        let operator = spawn_blocking({
            let (url, done, seed) = (url.clone(), done.clone(), self.seed);
            move || operate(&url, seed, &done)
        });
        let (started, mut random) = (Instant::now(), Random(self.seed));
        let mut readers: Vec<Reader> = Vec::new();
        for kill in 0..self.rounds {
            while let Some((limit, start)) = READERS.get(readers.len())
                && start.is_none_or(|start| start <= kill)
            {
                let position = match start {
                    None => None,
                    Some(_) => Some(end_of_feed(nodes.addresses, &key).await?),
                };
                readers.push(Reader::start(&nodes.addresses, &key, *limit, position));
            }
            sleep(Duration::from_millis(500 + random.below(2_000))).await;
            nodes.restart_in_turn(kill, &postgres, &url)?;
        }
        load.stop();
        tasks.join_all().await;
        done.store(true, Ordering::Relaxed);
        let operations = operator.await??;
        let stored = readers[0].catch_up(&url, 0).await?;
        // Time for the slowest reader and the mirror, of which the last page is the proof.
        sleep(Duration::from_secs(3)).await;
        stop.send_replace(true);
        let (journal, mut problems) = load.check(&url)?;
        for (reader, (limit, start)) in readers.into_iter().zip(READERS) {
            let reading = reader.stop().await?;
            let found = reading.problems(&stored, start.is_none());
            problems.extend(found.into_iter().map(|problem| format!("limit {limit}: {problem}")));
            if limit == 100 && start.is_none() {
                problems.extend(reading.differences(&journal, 0));
            }
        }
        none_of(&problems)?;
        let pets = compare(&url, &mirror.await??)?;
        println!(
            "{} kills in {} s, {} clients, {operations} changes by imports and in SQL: {} events; the sequences of {} readers \
             equal the table, and an index kept by the events of pets equals all {pets} pets",
            self.rounds,
            started.elapsed().as_secs(),
            self.clients,
            stored.len(),
            READERS.len()
        );
        Ok(())
    }
}

/// Imports pets and changes them in SQL until told to stop. What fails during a kill is tried no more.
fn operate(url: &str, seed: u64, done: &AtomicBool) -> Outcome<u64> {
    let mut random = Random(seed);
    fs::write(IMPORT, "{\"name\":\"imported\",\"categoryId\":77}\n".repeat(3_200))?;
    let mut changes = 0;
    while !done.load(Ordering::Relaxed) {
        let choice = random.index(OPERATOR.len() + 1);
        let succeeded = if let Some(statement) = OPERATOR.get(choice) {
            psql(url, statement).is_ok()
        } else {
            let mut import = Command::new(PETSTORE);
            import.args(["import", "--database-url", url, IMPORT]);
            import.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success()
        };
        changes += u64::from(succeeded);
        std::thread::sleep(Duration::from_millis(100));
    }
    fs::remove_file(IMPORT)?;
    Ok(changes)
}

/// The position at the end of the feed.
async fn end_of_feed(addresses: [SocketAddr; 2], key: &str) -> Outcome<String> {
    for attempt in 0..200 {
        if let Ok(mut connection) = Connection::open(addresses[attempt % 2], key).await
            && let Ok(response) = connection.exchange("GET", "/v1/events?after=now", "", None).await
            && response.status == 200
        {
            let link = response.header("link").unwrap_or_default();
            let position = link.split("after=").nth(1).and_then(|rest| rest.split(['&', '>']).next());
            return position.map(ToOwned::to_owned).ok_or_else(|| "no position".into());
        }
        sleep(Duration::from_millis(100)).await;
    }
    Err("no node answered".into())
}

/// A copy of the pets: name, category and status by id.
type Mirror = BTreeMap<i64, (String, i64, Option<String>)>;

/// Keeps a copy of all pets by the events of pets alone, fetching each pet that an event names.
async fn mirror(addresses: [SocketAddr; 2], key: String, stop: watch::Receiver<bool>) -> Outcome<Mirror> {
    let (mut copy, mut after, mut node) = (Mirror::new(), String::new(), 0);
    while !*stop.borrow() {
        let attempt = async {
            let mut connection = Connection::open(addresses[node], &key).await?;
            let path = format!("/v1/events?limit=100&wait=1{after}");
            let (200, body) = connection.send("GET", &path, "").await? else { return Err("no page".into()) };
            let events: Vec<Event> = serde_json::from_str(&body)?;
            let of_pets = events.iter().filter(|event| event.kind.starts_with("pet"));
            let ids: Vec<i64> =
                of_pets.flat_map(|event| event.pet_id..=event.last_pet_id.unwrap_or(event.pet_id)).collect();
            let mut fetched = Mirror::new();
            for ids in ids.chunks(100) {
                let query: Vec<String> = ids.iter().map(|id| format!("id={id}")).collect();
                let path = format!("/v1/pets?{}", query.join("&"));
                let (200, body) = connection.send("GET", &path, "").await? else {
                    return Err("no pets".into());
                };
                fetched.extend(pets(&body)?);
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((events, ids, fetched))
        };
        if let Ok((events, ids, fetched)) = attempt.await {
            for id in ids {
                copy.remove(&id);
            }
            copy.extend(fetched);
            if let Some(last) = events.last() {
                after = format!("&after={}", last.id);
            }
        } else {
            node = (node + 1) % addresses.len();
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(copy)
}

fn pets(body: &str) -> Outcome<Mirror> {
    let pets: Vec<Value> = serde_json::from_str(body)?;
    let pet = |pet: &Value| {
        let status = pet["status"].as_str().map(ToOwned::to_owned);
        Some((pet["id"].as_i64()?, (pet["name"].as_str()?.to_owned(), pet["categoryId"].as_i64()?, status)))
    };
    pets.iter().map(pet).collect::<Option<_>>().ok_or_else(|| "not a pet".into())
}

/// Compares the copy with the table, and returns the number of pets.
fn compare(url: &str, copy: &Mirror) -> Outcome<usize> {
    let rows = psql(url, "SELECT id, name, category_id, coalesce(status::text, '') FROM pets")?;
    let mut stored = Mirror::new();
    for row in rows.lines() {
        let fields: Vec<&str> = row.split('|').collect();
        let [id, name, category, status] = fields[..] else { return Err(format!("not a pet: {row}").into()) };
        let status = (!status.is_empty()).then(|| status.to_owned());
        stored.insert(id.parse()?, (name.to_owned(), category.parse()?, status));
    }
    if let Some((id, pet)) = stored.iter().find(|(id, pet)| copy.get(id) != Some(pet)) {
        return Err(format!("pet {id} is {pet:?}, and {:?} in the copy", copy.get(id)).into());
    }
    if let Some(id) = copy.keys().find(|id| !stored.contains_key(id)) {
        return Err(format!("pet {id} was deleted, and is in the copy").into());
    }
    Ok(stored.len())
}
