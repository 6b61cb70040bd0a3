//! Clients that write and read pets. Each read is checked against what was acknowledged before it was sent.
//!
//! The name of a pet is its number and its version. Each pet has one writer, which only raises the version, so of two
//! versions the higher one is newer. A write without an answer may take effect at any later time: after it, the pet is not
//! written again.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::http::{Connection, cursor, id_of};
use crate::random::Random;

const WRITERS_PER_NODE: u64 = 3;
const READERS_PER_NODE: u64 = 3;
/// How many pets a writer changes.
const PETS_PER_WRITER: usize = 6;
/// How many of the newest pets are read: all that are written, and more.
const PETS_READ: usize = 60;
/// A write that waits for a standby which is gone must not keep its writer from trying again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// No read may take longer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How many stale reads and how many errors of a phase are described.
const EXAMPLES: u64 = 2;

/// The number of a pet, and its version.
pub(super) type Version = (u64, u64);

/// The name of a pet at this version.
pub(super) fn name_of((pet, version): Version) -> String {
    format!("fresh-{pet}-{version}")
}

/// The version that a pet with this name has.
pub(super) fn version_of(name: &str) -> Option<Version> {
    let (pet, version) = name.strip_prefix("fresh-")?.split_once('-')?;
    Some((pet.parse().ok()?, version.parse().ok()?))
}

/// What happened in a phase.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) reads: u64,
    /// Reads that missed a write that was acknowledged before they were sent.
    pub(super) stale: u64,
    /// Reads that were answered while the test knew that no server could be proven fresh.
    pub(super) unproven: u64,
    /// Reads that returned less than an earlier read, but all that was acknowledged.
    pub(super) backwards: u64,
    /// Reads that were answered 503.
    pub(super) unavailable: u64,
    /// Reads and writes whose connection broke, and writes without an answer in time.
    pub(super) broken: u64,
    /// Acknowledged writes.
    pub(super) writes: u64,
    /// Acknowledged writes that are not in the database.
    pub(super) lost: usize,
    /// Writes that a read has returned, that were not acknowledged, and that are not in the database.
    pub(super) shown_and_lost: usize,
    /// Answers that no client should get.
    pub(super) errors: u64,
    /// The first stale reads and errors.
    pub(super) examples: Vec<String>,
    /// The longest time without a successful read on a node.
    pub(super) longest_gap: Duration,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.stale += other.stale;
        self.unproven += other.unproven;
        self.backwards += other.backwards;
        self.unavailable += other.unavailable;
        self.broken += other.broken;
        self.writes += other.writes;
        self.lost += other.lost;
        self.shown_and_lost += other.shown_and_lost;
        self.errors += other.errors;
        self.longest_gap = self.longest_gap.max(other.longest_gap);
    }
}

/// A pet whose creation was acknowledged.
#[derive(Clone, Copy)]
struct Pet {
    number: u64,
    /// The newest acknowledged version.
    acknowledged: u64,
    acknowledged_at: Instant,
    /// The newest version that a read has returned.
    shown: u64,
}

/// When a node last succeeded.
struct Progress {
    last_read: Instant,
    /// The first success of a request that was sent after the mark.
    first_read: Option<Instant>,
    first_write: Option<Instant>,
}

struct State {
    /// By id.
    pets: BTreeMap<i64, Pet>,
    numbers: u64,
    acknowledged: HashSet<Version>,
    /// Returned by a read before they were acknowledged.
    shown: HashSet<Version>,
    counts: Counts,
    nodes: [Progress; 2],
    mark: Instant,
    /// Whether no server can be proven fresh.
    is_unprovable: bool,
}

/// Writers and readers on two nodes, until they are stopped.
pub(super) struct Load {
    state: Mutex<State>,
    done: AtomicBool,
    seed: u64,
}

impl Load {
    pub(super) fn start(nodes: [SocketAddr; 2], key: &str, seed: u64) -> (Arc<Self>, JoinSet<()>) {
        let now = Instant::now();
        let progress = || Progress { last_read: now, first_read: None, first_write: None };
        let load = Arc::new(Self {
            state: Mutex::new(State {
                pets: BTreeMap::new(),
                numbers: 0,
                acknowledged: HashSet::new(),
                shown: HashSet::new(),
                counts: Counts::default(),
                nodes: [progress(), progress()],
                mark: now,
                is_unprovable: false,
            }),
            done: AtomicBool::new(false),
            seed,
        });
        let mut clients = JoinSet::new();
        for (node, address) in nodes.into_iter().enumerate() {
            let client = || Client { address, key: key.to_owned(), connection: None };
            for number in 0..WRITERS_PER_NODE {
                let random = Random::of_worker(seed, number * 2 + node as u64);
                clients.spawn(load.clone().write(client(), node, random));
            }
            for number in 0..READERS_PER_NODE {
                let random = Random::of_worker(seed, 100 + number * 2 + node as u64);
                clients.spawn(load.clone().read(client(), node, random));
            }
        }
        (load, clients)
    }

    pub(super) fn stop(&self) {
        self.done.store(true, Ordering::Release);
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what happened since the last call.
    pub(super) fn take_counts(&self) -> Counts {
        let mut state = self.state();
        let open_gap = state.nodes.iter().map(|node| node.last_read.elapsed()).max().unwrap_or_default();
        let mut counts = std::mem::take(&mut state.counts);
        counts.longest_gap = counts.longest_gap.max(open_gap);
        counts
    }

    /// Begins to wait for the first success on each node.
    pub(super) fn mark(&self) {
        let mut state = self.state();
        state.mark = Instant::now();
        for node in &mut state.nodes {
            (node.first_read, node.first_write) = (None, None);
        }
    }

    /// When each node had answered a read that was sent after the mark.
    pub(super) fn all_read_since_mark(&self) -> Option<Instant> {
        let [one, other] = self.state().nodes.each_ref().map(|node| node.first_read);
        Some(one?.max(other?))
    }

    /// When each node had acknowledged a write that was sent after the mark.
    pub(super) fn all_wrote_since_mark(&self) -> Option<Instant> {
        let [one, other] = self.state().nodes.each_ref().map(|node| node.first_write);
        Some(one?.max(other?))
    }

    /// Sets whether no server can be proven fresh.
    pub(super) fn set_unprovable(&self, is_unprovable: bool) {
        self.state().is_unprovable = is_unprovable;
    }

    /// Returns all versions that were acknowledged, and all that were shown before.
    pub(super) fn versions(&self) -> (HashSet<Version>, HashSet<Version>) {
        let state = self.state();
        (state.acknowledged.clone(), state.shown.clone())
    }

    /// Forgets versions that were reported as lost, and stops reading their pets.
    pub(super) fn forget(&self, lost: &[Version]) {
        let mut state = self.state();
        for version in lost {
            state.acknowledged.remove(version);
            state.shown.remove(version);
            state.pets.retain(|_, pet| pet.number != version.0);
        }
    }

    /// A number that no other pet has.
    pub(super) fn new_number(&self) -> u64 {
        let mut state = self.state();
        state.numbers += 1;
        state.numbers
    }

    /// Records that a version was acknowledged. From now on, reads must return it.
    pub(super) fn acknowledge(&self, id: i64, version: Version) {
        let mut state = self.state();
        state.counts.writes += 1;
        state.acknowledged.insert(version);
        let acknowledged_at = Instant::now();
        let (number, acknowledged) = version;
        let pet = state.pets.entry(id).or_insert(Pet { number, acknowledged, acknowledged_at, shown: 0 });
        (pet.acknowledged, pet.acknowledged_at) = (acknowledged, acknowledged_at);
    }

    /// Creates pets and changes them.
    async fn write(self: Arc<Self>, mut client: Client, node: usize, mut random: Random) {
        let mut own: Vec<(i64, Version)> = Vec::new();
        while !self.is_done() {
            sleep(Duration::from_millis(5 + random.below(20))).await;
            if own.len() < PETS_PER_WRITER || random.chance(1) {
                let version = (self.new_number(), 0);
                let Some(id) = self.create(&mut client, node, version).await else { continue };
                if own.len() == PETS_PER_WRITER {
                    own.remove(0);
                }
                own.push((id, version));
                continue;
            }
            let place = random.index(own.len());
            let (id, version) = &mut own[place];
            version.1 += 1;
            let (path, body) = (format!("/v1/pets/{id}"), format!(r#"{{"name":"{}"}}"#, name_of(*version)));
            let sent = Instant::now();
            match client.send("PATCH", &path, &body, None, WRITE_TIMEOUT).await {
                Some((200, _)) => {
                    self.acknowledge(*id, *version);
                    self.wrote(node, sent);
                    continue;
                }
                Some((503, answer)) if !answer.contains("outcome") => {}
                Some((503, _)) => drop(own.remove(place)),
                None => {
                    self.state().counts.broken += 1;
                    own.remove(place);
                }
                Some((status, answer)) => {
                    self.error(|| format!("PATCH {path}: {status} {answer}"));
                    own.remove(place);
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Creates a pet: sends the request until it is answered.
    async fn create(&self, client: &mut Client, node: usize, version: Version) -> Option<i64> {
        let body = format!(r#"{{"name":"{}","categoryId":1}}"#, name_of(version));
        let key = format!("{}-{}", self.seed, version.0);
        while !self.is_done() {
            let sent = Instant::now();
            match client.send("POST", "/v1/pets", &body, Some(&key), WRITE_TIMEOUT).await {
                Some((201, answer)) => {
                    let id = id_of(&answer)?;
                    self.acknowledge(id, version);
                    self.wrote(node, sent);
                    return Some(id);
                }
                // Another attempt is in progress.
                Some((503 | 409, _)) => {}
                None => self.state().counts.broken += 1,
                Some((status, answer)) => {
                    self.error(|| format!("POST /v1/pets: {status} {answer}"));
                    return None;
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
        None
    }

    fn wrote(&self, node: usize, sent: Instant) {
        let mut state = self.state();
        if sent >= state.mark {
            state.nodes[node].first_write.get_or_insert_with(Instant::now);
        }
    }

    fn error(&self, text: impl FnOnce() -> String) {
        let mut state = self.state();
        state.counts.errors += 1;
        if state.counts.errors <= EXAMPLES {
            state.counts.examples.push(text());
        }
    }

    /// Reads single pets and lists.
    async fn read(self: Arc<Self>, mut client: Client, node: usize, mut random: Random) {
        while !self.is_done() {
            sleep(Duration::from_millis(1 + random.below(4))).await;
            if random.chance(2) {
                client.connection = None;
            }
            let (mut expected, was_unprovable) = {
                let state = self.state();
                let newest = state.pets.iter().rev().take(PETS_READ).map(|(id, pet)| (*id, *pet));
                (newest.collect::<Vec<_>>(), state.is_unprovable)
            };
            let Some((oldest, _)) = expected.last() else { continue };
            let is_list = random.chance(50);
            let path = if is_list {
                // No page ends before the first pet, so no cursor does.
                let cursor =
                    if *oldest > 1 { format!("&cursor={}", cursor(oldest - 1)) } else { String::new() };
                format!("/v1/pets?limit=100{cursor}")
            } else {
                expected = vec![*random.pick(&expected)];
                format!("/v1/pets/{}", expected[0].0)
            };
            let sent = Instant::now();
            let found: Outcome<Vec<Found>> = match client.send("GET", &path, "", None, READ_TIMEOUT).await {
                Some((200, body)) if is_list => serde_json::from_str(&body).map_err(Into::into),
                Some((200, body)) => serde_json::from_str(&body).map(|pet| vec![pet]).map_err(Into::into),
                Some((404, _)) if !is_list => Ok(Vec::new()),
                Some((503, _)) => {
                    self.state().counts.unavailable += 1;
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
                Some((status, body)) => Err(format!("{status} {body}").into()),
                None if sent.elapsed() >= READ_TIMEOUT => Err("no answer".into()),
                None => {
                    self.state().counts.broken += 1;
                    continue;
                }
            };
            match found {
                Ok(found) => {
                    let is_complete = !is_list || found.len() < 100;
                    self.state().check(node, &path, sent, &expected, &found, is_complete);
                }
                Err(error) => self.error(|| format!("GET {path}: {error}")),
            }
            let mut state = self.state();
            if was_unprovable && state.is_unprovable {
                state.counts.unproven += 1;
            }
        }
    }
}

impl State {
    /// Checks the answer to a read against what was known when the read was sent.
    fn check(
        &mut self,
        node: usize,
        path: &str,
        sent: Instant,
        expected: &[(i64, Pet)],
        found: &[Found],
        is_complete: bool,
    ) {
        let now = Instant::now();
        let progress = &mut self.nodes[node];
        self.counts.reads += 1;
        self.counts.longest_gap = self.counts.longest_gap.max(now - progress.last_read);
        progress.last_read = now;
        if sent >= self.mark {
            progress.first_read.get_or_insert(now);
        }

        let last = found.iter().map(|pet| pet.id).max().unwrap_or_default();
        let versions: BTreeMap<i64, Option<Version>> =
            found.iter().map(|pet| (pet.id, version_of(&pet.name))).collect();
        let mut is_backwards = false;
        let mut missed = None;
        for (id, pet) in expected.iter().filter(|(id, _)| is_complete || *id <= last) {
            match versions.get(id).copied().flatten() {
                Some((number, version)) if number == pet.number && version >= pet.acknowledged => {
                    is_backwards |= version < pet.shown;
                }
                older => missed = Some((id, pet, older)),
            }
        }
        self.counts.backwards += u64::from(is_backwards);
        if let Some((id, pet, older)) = missed {
            self.counts.stale += 1;
            if self.counts.stale <= EXAMPLES {
                let ago = (sent - pet.acknowledged_at).as_secs_f64();
                let newest = name_of((pet.number, pet.acknowledged));
                let found = older.map_or("nothing".to_owned(), name_of);
                self.counts.examples.push(format!(
                    "GET {path} on node {node} found {found} as pet {id}; {newest} was acknowledged {ago:.3} s before"
                ));
            }
        }

        for (id, version) in versions.iter().filter_map(|(id, version)| version.map(|version| (id, version)))
        {
            if let Some(pet) = self.pets.get_mut(id).filter(|pet| pet.number == version.0) {
                pet.shown = pet.shown.max(version.1);
            }
            if !self.acknowledged.contains(&version) {
                self.shown.insert(version);
            }
        }
    }
}

/// A pet in an answer.
#[derive(Deserialize)]
struct Found {
    id: i64,
    name: String,
}

/// Sends requests over a connection that is opened when needed.
struct Client {
    address: SocketAddr,
    key: String,
    connection: Option<Connection>,
}

impl Client {
    /// Returns the status and the body; `None` for a broken connection, or without an answer in time.
    async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        idempotency_key: Option<&str>,
        limit: Duration,
    ) -> Option<(u16, String)> {
        // Taken, so that a connection that is out of step is not used again.
        let kept = self.connection.take();
        let exchange = async {
            let mut connection = match kept {
                Some(connection) => connection,
                None => Connection::open(self.address, &self.key).await?,
            };
            let (status, body) = match idempotency_key {
                None => connection.send(method, path, body).await?,
                Some(key) => {
                    let (status, body, _) = connection.send_idempotent(method, path, body, key).await?;
                    (status, body)
                }
            };
            Outcome::Ok((connection, status, body))
        };
        let (connection, status, body) = timeout(limit, exchange).await.ok()?.ok()?;
        self.connection = Some(connection);
        Some((status, body))
    }
}
