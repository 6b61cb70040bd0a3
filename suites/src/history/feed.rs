//! The feed of events: a reader that keeps reading whatever happens, and the check of what it got.
//!
//! A reader must get the events of the table of events, each once and in that order. The events of each pet must be those
//! that the journal demands: one for each effect, in the order of the effects. So folding the feed gives the state.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::database_journal::Journal;
use crate::Outcome;
use crate::http::Connection;
use crate::topology::psql;

/// An event, as a client gets it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) pet_id: i64,
    pub(crate) last_pet_id: Option<i64>,
    pub(crate) order_id: Option<i64>,
    pub(crate) at: String,
}

impl Event {
    /// As a row of [`EVENTS`].
    fn row(&self) -> String {
        format!("{}|{}|{}", self.kind, self.pet_id, self.order_id.unwrap_or_default())
    }
}

/// Every event, in the order of the feed.
const EVENTS: &str = "
    SELECT type, event.pet_id, coalesce(order_id, 0)
    FROM events
    -- The pets that one statement changed share a row.
    CROSS JOIN LATERAL unnest(coalesce(pet_ids, ARRAY[events.pet_id])) AS event (pet_id)
    ORDER BY events.xid, number, event.pet_id";

/// The events in the table, and how many orders are due to expire soon: those without `holdSeconds` wait for days.
pub(crate) fn stored(url: &str) -> Outcome<(Vec<String>, u64)> {
    let due =
        "SELECT count(*) FROM orders WHERE status = 'placed' AND expires_at < now() + interval '1 hour'";
    // Before the events: if there are none, there will be no more events.
    let due = psql(url, due)?.trim().parse()?;
    Ok((psql(url, EVENTS)?.lines().map(ToOwned::to_owned).collect(), due))
}

/// What a reader has read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Each event, with the time at which it arrived.
    pub(crate) events: Vec<(Event, SystemTime)>,
    pub(crate) pages: u64,
    /// Answers of 503 and broken connections.
    pub(crate) failures: u64,
}

/// A reader in the background.
pub(crate) struct Reader {
    task: JoinHandle<Outcome<Reading>>,
    count: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
}

impl Reader {
    /// Follows the feed on these nodes, after this position or from its beginning, in pages of this size.
    pub(crate) fn start(nodes: &[SocketAddr], key: &str, limit: u32, after: Option<String>) -> Self {
        let (count, (stop, stopped)) = (Arc::new(AtomicU64::new(0)), watch::channel(false));
        let task = tokio::spawn(follow(nodes.to_vec(), key.to_owned(), limit, after, count.clone(), stopped));
        Self { task, count, stop }
    }

    /// The number of events so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) async fn stop(self) -> Outcome<Reading> {
        self.stop.send_replace(true);
        self.task.await?
    }

    /// Waits until all orders that are due have expired and the reader has all events but the first few, or for two minutes.
    /// Returns all events.
    pub(crate) async fn catch_up(&self, url: &str, few: u64) -> Outcome<Vec<String>> {
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let (events, due) = stored(url)?;
            let has_all = self.count() + few >= events.len() as u64;
            if due == 0 && has_all || self.task.is_finished() || Instant::now() > deadline {
                return Ok(events);
            }
            sleep(Duration::from_millis(300)).await;
        }
    }
}

async fn follow(
    nodes: Vec<SocketAddr>,
    key: String,
    limit: u32,
    after: Option<String>,
    count: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
) -> Outcome<Reading> {
    let mut reading = Reading::default();
    let (mut connection, mut node) = (None, 0);
    let mut after = after.map_or_else(String::new, |position| format!("&after={position}"));
    while !*stop.borrow() {
        let path = format!("/v1/events?limit={limit}&wait=5{after}");
        let attempt = async {
            let open = match connection.take() {
                Some(open) => open,
                None => Connection::open(nodes[node], &key).await?,
            };
            connection.insert(open).send("GET", &path, "").await
        };
        match timeout(Duration::from_secs(20), attempt).await {
            Ok(Ok((200, body))) => {
                let now = SystemTime::now();
                let events: Vec<Event> = serde_json::from_str(&body)?;
                if let Some(last) = events.last() {
                    after = format!("&after={}", last.id);
                }
                reading.pages += 1;
                reading.events.extend(events.into_iter().map(|event| (event, now)));
                count.store(reading.events.len() as u64, Ordering::Relaxed);
                continue;
            }
            Ok(Ok((503, _))) => {}
            Ok(Ok((status, body))) => return Err(format!("the feed answered {status}: {body}").into()),
            Ok(Err(_)) | Err(_) => {
                connection = None;
                node = (node + 1) % nodes.len();
            }
        }
        reading.failures += 1;
        sleep(Duration::from_millis(20)).await;
    }
    Ok(reading)
}

impl Reading {
    /// Leaves out that these pets were created: before the journal began.
    pub(crate) fn forget_creation_of(&mut self, is_older: impl Fn(i64) -> bool) {
        self.events.retain(|(event, _)| event.kind != "pet.created" || !is_older(event.pet_id));
    }

    /// What is wrong with the events that a reader got, compared with the table; if it started later, with its end.
    pub(crate) fn problems(&self, stored: &[String], from_the_beginning: bool) -> Vec<String> {
        let mut problems = Vec::new();
        let mut ids = HashSet::new();
        for (event, _) in self.events.iter().filter(|(event, _)| !ids.insert(&event.id)) {
            problems.push(format!("shown twice: {event:?}"));
        }
        let read: Vec<String> = self.events.iter().map(|(event, _)| event.row()).collect();
        let skipped = if from_the_beginning { 0 } else { stored.len().saturating_sub(read.len()) };
        let expected = &stored[skipped..];
        if let Some(place) = read.iter().zip(expected).position(|(read, expected)| read != expected) {
            problems.push(format!("event {place} is {}, and {} in the table", read[place], expected[place]));
        } else if read.len() != expected.len() || read.is_empty() {
            problems.push(format!("{} events were read, and the table has {}", read.len(), expected.len()));
        }
        problems
    }

    /// What is wrong with the events of each pet with a later id than this, compared with the journal: its own events, and
    /// those of its orders, must be one for each effect and in the same order.
    pub(crate) fn differences(&self, journal: &Journal, after: i64) -> Vec<String> {
        let mut shown: BTreeMap<i64, Effects> = BTreeMap::new();
        let mut imported = Vec::new();
        for (event, _) in &self.events {
            if let Some(last) = event.last_pet_id {
                imported.push((event.pet_id, last));
                continue;
            }
            shown.entry(event.pet_id).or_default().add(&event.kind, event.order_id.unwrap_or_default());
        }
        let mut expected: BTreeMap<i64, Effects> = BTreeMap::new();
        for change in &journal.changes {
            let effects = expected.entry(change.pet).or_default();
            if let Some(step) = &change.of_pet {
                let kind = match (&*step.old, &*step.new) {
                    ("-", _) => "pet.created",
                    (_, "-") => "pet.deleted",
                    _ => "pet.updated",
                };
                effects.add(kind, 0);
            }
            if let Some((order, step)) = &change.of_order {
                effects.add(&format!("order.{}", step.new), *order);
            }
        }
        let is_imported = |pet| imported.iter().any(|(first, last)| (*first..=*last).contains(&pet));
        let mut problems = Vec::new();
        let pets: HashSet<i64> = shown.keys().chain(expected.keys()).copied().collect();
        for pet in pets.into_iter().filter(|pet| *pet > after) {
            let (shown, mut expected) =
                (shown.remove(&pet).unwrap_or_default(), expected.remove(&pet).unwrap_or_default());
            // Many pets that were added at once share one event.
            if shown.of_pet.first().is_none_or(|first| first != "pet.created") && is_imported(pet) {
                expected.of_pet.retain(|kind| kind != "pet.created");
            }
            if shown != expected {
                problems.push(format!("the events of pet {pet} are {shown:?}, its changes {expected:?}"));
            }
        }
        problems
    }
}

/// The events of a pet, and those of its orders.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effects {
    of_pet: Vec<String>,
    of_orders: Vec<(String, i64)>,
}

impl Effects {
    fn add(&mut self, kind: &str, order: i64) {
        match order {
            0 => self.of_pet.push(kind.to_owned()),
            _ => self.of_orders.push((kind.to_owned(), order)),
        }
    }
}
