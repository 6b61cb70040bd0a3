//! The one client model: clients that create, change, order and read pets, retry as real clients do, and report every request
//! to a [`History`].
//!
//! A suite says which operations its clients choose from, where and how fast they send them, and when they stop. A keyed write
//! is retried with the same `Idempotency-Key` until its outcome is known. Every answer must be a documented one.

mod client;
mod log;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Outcome;
use crate::history::database_journal::{Journal, PREFIX, State};
use crate::history::feed::{Reader, Reading};
use crate::history::{AcknowledgedWrite, History};
use crate::http::Connection;
use crate::random::Random;
pub(crate) use client::Client;
pub(crate) use log::Log;

/// What a client may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Create,
    /// Gives a pet a new name.
    Rename,
    /// Gives a pet a new name and any status.
    Patch,
    Place,
    /// Places an order that expires after a second, or another one.
    PlaceBriefly,
    Complete,
    Cancel,
    /// Creates a pet, which so many buyers order at once: one order must succeed.
    Contest(usize),
    Get,
    Find,
    /// A page that ends with the newest pets.
    Page,
    /// The first page of available pets.
    Available,
}

/// How clients behave.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    /// The operations, with their weights.
    pub(crate) mix: &'static [(u64, Kind)],
    /// Whether a client stays on one node; otherwise it chooses one for each attempt.
    pub(crate) stay: bool,
    /// The pause before a write is retried. Without it, writes have no `Idempotency-Key` and are not retried.
    pub(crate) retry: Option<Duration>,
    /// How long a client waits for an answer.
    pub(crate) patience: Duration,
    /// The pause after each request, in milliseconds.
    pub(crate) pause: Range<u64>,
    /// Whether every third keyed write is sent again after its answer.
    pub(crate) repeats: bool,
    /// Whether one attempt in fifty is given up within 20 milliseconds.
    pub(crate) abandons: bool,
}

impl Clients {
    pub(crate) const DEFAULT: Self = Self {
        mix: &[],
        stay: false,
        retry: None,
        patience: Duration::from_secs(10),
        pause: 0..0,
        repeats: false,
        abandons: false,
    };
}

/// The pets and orders that clients choose from: few, so that they compete.
#[derive(Debug, Default)]
struct Pool {
    pets: Vec<i64>,
    orders: Vec<i64>,
}

/// What the clients of a run share.
pub(crate) struct Load {
    nodes: Vec<SocketAddr>,
    key: String,
    seed: u64,
    /// The prefix of names, references and keys, which no other run has.
    run: String,
    few: usize,
    before: State,
    started: Instant,
    history: Mutex<History>,
    log: Mutex<Log>,
    pool: Mutex<Pool>,
    idle: Vec<Mutex<VecDeque<Connection>>>,
    names: AtomicU64,
    clients: AtomicU64,
    stopped: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// Begins a history: installs the journal in the database, where nobody else may write meanwhile.
    pub(crate) fn new(url: &str, nodes: &[SocketAddr], key: &str, seed: u64, few: usize) -> Outcome<Self> {
        let before = Journal::install(url)?;
        let mut history = History::default();
        for (id, (name, status)) in &before.pets {
            history.add_pet(*id, name, status);
        }
        let pool = Pool { pets: before.pets.keys().copied().take(few).collect(), orders: Vec::new() };
        Ok(Self {
            nodes: nodes.to_vec(),
            key: key.to_owned(),
            seed,
            run: format!("{PREFIX}{:x}-", UNIX_EPOCH.elapsed()?.as_millis()),
            few,
            before,
            started: Instant::now(),
            history: Mutex::new(history),
            log: Mutex::default(),
            pool: Mutex::new(pool),
            idle: nodes.iter().map(|_| Mutex::default()).collect(),
            names: AtomicU64::new(0),
            clients: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// Lets somebody else write, too.
    pub(crate) fn beside_others(self) -> Self {
        self.history().let_others_write();
        self
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Seconds since the start.
    pub(crate) fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Lets the clients stop. A write that is being retried is retried until its outcome is known.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// A name that nobody else has.
    pub(crate) fn new_name(&self) -> String {
        format!("{}{}", self.run, self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A client with its own random numbers.
    pub(crate) fn client(self: &Arc<Self>, settings: &Clients) -> Client {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        Client::new(self.clone(), settings.clone(), number, Random::of_worker(self.seed, number))
    }

    /// Starts clients, each of which sends its next request when the last is answered.
    pub(crate) fn spawn(self: &Arc<Self>, tasks: &mut JoinSet<()>, count: u64, settings: &Clients) {
        for _ in 0..count {
            tasks.spawn(self.client(settings).work());
        }
    }

    /// Starts operations at this rate, whether earlier ones are answered or not.
    pub(crate) fn spawn_at_rate(self: &Arc<Self>, tasks: &mut JoinSet<()>, rate: u32, settings: &Clients) {
        let (load, settings) = (self.clone(), settings.clone());
        tasks.spawn(async move {
            let mut operations = JoinSet::new();
            let mut ticks = interval(Duration::from_secs(1) / rate);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while !load.is_stopped() {
                ticks.tick().await;
                while operations.try_join_next().is_some() {}
                let mut client = load.client(&settings);
                operations.spawn(async move { client.operate().await });
            }
            operations.join_all().await;
        });
    }

    /// Records a pet that was created in SQL: from now on, reads must show it.
    pub(crate) fn created_in_sql(&self, id: i64, name: &str, status: &str) {
        let mut history = self.history();
        history.add_pet(id, name, status);
        history.effects.push(AcknowledgedWrite::Created { name: name.to_owned(), pet: id });
    }

    /// Everything that is wrong so far: with the answers, with what the database has of them, and with the database itself.
    pub(crate) fn check(&self, url: &str) -> Outcome<(Journal, Vec<String>)> {
        let journal = Journal::read(url, &self.before)?;
        let mut history = self.history();
        let mut problems = history.take_problems();
        problems.extend(history.missing(&journal, 0..history.effects.len()));
        problems.extend(journal.problems(&State::read(url)?));
        Ok((journal, problems))
    }

    /// The same, and everything that is wrong with what a reader got that started at the beginning of the feed.
    pub(crate) async fn check_with_feed(
        &self,
        url: &str,
        reader: Reader,
    ) -> Outcome<(Journal, Reading, Vec<String>)> {
        let stored = reader.catch_up(url, 0).await?;
        let mut reading = reader.stop().await?;
        let (journal, mut problems) = self.check(url)?;
        problems.extend(reading.problems(&stored, true));
        reading.forget_creation_of(|pet| self.before.pets.contains_key(&pet));
        problems.extend(reading.differences(&journal, 0));
        Ok((journal, reading, problems))
    }

    /// The journal so far.
    pub(crate) fn journal(&self, url: &str) -> Outcome<Journal> {
        Journal::read(url, &self.before)
    }
}

/// An error with the number of problems and the first of them, if there are any.
pub(crate) fn none_of(problems: &[String]) -> Outcome {
    for problem in problems.iter().skip(1).take(4) {
        println!("also: {problem}");
    }
    match problems.first() {
        Some(first) => Err(format!("{} problems; the first: {first}", problems.len()).into()),
        None => Ok(()),
    }
}
