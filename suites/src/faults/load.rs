//! An open-loop load that retries every write until it is answered, a record of all attempts, and a check of the record
//! against the database. Reads must show the last write that was acknowledged before they were sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Outcome;
use crate::http::{Connection, id_of};
use crate::report::Samples;
use crate::tools::{pets_by_name, psql};

/// No request may take longer: the queue, the connection and the statement each have a deadline.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// How long a client waits before it retries, as `Retry-After` says.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One attempt at a request.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    /// When it ended, in seconds since the start.
    pub(crate) at: f64,
    pub(crate) seconds: f64,
    pub(crate) is_write: bool,
    /// 0 for a broken connection.
    pub(crate) status: u16,
}

/// All attempts, what was acknowledged, and which reads missed some of it.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) attempts: Vec<Attempt>,
    /// The ids in the answers, by the name of the pet, which is also the `Idempotency-Key` of its request.
    pets: BTreeMap<String, BTreeSet<i64>>,
    /// The orders in the answers, by the `Idempotency-Key` of the request, with the pet.
    orders: BTreeMap<String, (i64, BTreeSet<i64>)>,
    /// The last pet that was created and the last one that was ordered: its id, and what a read of it must contain.
    latest: [Option<(i64, String)>; 2],
    /// Reads that missed a write which was acknowledged before they were sent.
    stale: Vec<String>,
    /// Other violations of the guarantees.
    problems: Vec<String>,
}

/// Clients at a steady rate, until they are stopped.
pub(crate) struct Load {
    started: Instant,
    record: Mutex<Record>,
    nodes: Vec<SocketAddr>,
    idle: Vec<Mutex<VecDeque<Connection>>>,
    key: String,
    run: String,
    done: AtomicBool,
    turn: AtomicU64,
}

impl Load {
    /// Starts clients of these nodes. `run` is the prefix of the names of their pets.
    pub(crate) fn start(
        nodes: &[SocketAddr],
        key: &str,
        run: &str,
        rate: u32,
    ) -> (Arc<Self>, JoinHandle<()>) {
        let load = Arc::new(Self {
            started: Instant::now(),
            record: Mutex::default(),
            nodes: nodes.to_vec(),
            idle: nodes.iter().map(|_| Mutex::default()).collect(),
            key: key.to_owned(),
            run: run.to_owned(),
            done: AtomicBool::new(false),
            turn: AtomicU64::new(0),
        });
        let clients = tokio::spawn(load.clone().send(rate));
        (load, clients)
    }

    /// Seconds since the start.
    pub(crate) fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Stops sending new requests; those in flight are retried until they are answered.
    pub(crate) fn stop(&self) {
        self.done.store(true, Ordering::Release);
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(self: Arc<Self>, rate: u32) {
        let mut jobs = JoinSet::new();
        let mut ticks = interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for number in 0_u64.. {
            ticks.tick().await;
            if self.done.load(Ordering::Acquire) {
                break;
            }
            while jobs.try_join_next().is_some() {}
            let load = self.clone();
            jobs.spawn(async move {
                match number % 10 {
                    0..3 => drop(load.attempt("GET", "/v1/pets?status=available&limit=20", "", None).await),
                    3..6 => load.read(number).await,
                    6..9 => drop(load.create(number).await),
                    _ => load.order(number).await,
                }
            });
        }
        jobs.join_all().await;
    }

    /// Reads the last acknowledged pet, or the pet of the last acknowledged order: the read must show it.
    async fn read(&self, number: u64) {
        let latest = self.record().latest[usize::from(number.is_multiple_of(2))].clone();
        let Some((id, part)) = latest else { return };
        let answer = self.attempt("GET", &format!("/v1/pets?id={id}"), "", None).await;
        if let Some((200, body)) = answer
            && !body.contains(&part)
        {
            let stale = format!("pet {id} was acknowledged with {part}, but a read returned {body}");
            self.record().stale.push(stale);
        }
    }

    /// Creates a pet, and returns its id.
    async fn create(&self, number: u64) -> Option<i64> {
        let name = format!("{}-{number}", self.run);
        let pet = format!(r#"{{"name":"{name}","categoryId":1,"status":"available"}}"#);
        let id = self.send_until_answered("/v1/pets", &pet, &name, 201).await?;
        self.record().acknowledge(name, id);
        Some(id)
    }

    /// Creates a pet and orders it twice at once. Exactly one of the two orders must succeed.
    async fn order(&self, number: u64) {
        let Some(pet) = self.create(number).await else { return };
        let order = format!(r#"{{"petId":{pet}}}"#);
        let keys = [format!("{}-{number}-a", self.run), format!("{}-{number}-b", self.run)];
        let [one, two] =
            keys.each_ref().map(|key| self.send_until_answered("/v1/store/orders", &order, key, 201));
        let placed = <[Option<i64>; 2]>::from(tokio::join!(one, two));
        let mut record = self.record();
        for (key, id) in keys.into_iter().zip(placed) {
            if let Some(id) = id {
                record.orders.entry(key).or_insert((pet, BTreeSet::new())).1.insert(id);
                record.latest[1] = Some((pet, "\"status\":\"pending\"".to_owned()));
            }
        }
        if placed.iter().flatten().count() != 1 {
            record.problems.push(format!("pet {pet} was ordered twice at once: {placed:?} succeeded"));
        }
    }

    /// Retries a request until it is answered with this status, and returns the id; none if it was refused for good.
    async fn send_until_answered(&self, path: &str, body: &str, name: &str, wanted: u16) -> Option<i64> {
        loop {
            match self.attempt("POST", path, body, Some(name)).await {
                Some((status, answer)) if status == wanted => {
                    return id_of(&answer);
                }
                // The other order has the pet.
                Some((409, answer)) if answer.contains("pet_not_available") => return None,
                Some((503 | 409, _)) | None => sleep(RETRY_AFTER).await,
                Some((status, answer)) => {
                    self.record().problems.push(format!("{path}: {status} {answer}"));
                    return None;
                }
            }
        }
    }

    /// Makes one attempt at the next node. Returns the status and the body, if there is an answer.
    async fn attempt(
        &self,
        method: &str,
        path: &str,
        body: &str,
        idempotency_key: Option<&str>,
    ) -> Option<(u16, String)> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let place = usize::try_from(turn).unwrap_or_default() % self.nodes.len();
        let started = Instant::now();
        let exchange = async {
            let kept = self.idle(place).pop_front();
            let mut connection = match kept {
                Some(connection) => connection,
                None => Connection::open(self.nodes[place], &self.key).await?,
            };
            let (status, body) = match idempotency_key {
                None => connection.send(method, path, body).await?,
                Some(key) => {
                    let (status, body, _) = connection.send_idempotent(method, path, body, key).await?;
                    (status, body)
                }
            };
            self.idle(place).push_back(connection);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((status, body))
        };
        // A little more than the service guarantees, for the round trip.
        let answer = timeout(DEADLINE + Duration::from_secs(1), exchange).await;
        let seconds = started.elapsed().as_secs_f64();
        let mut record = self.record();
        if answer.is_err() || seconds > DEADLINE.as_secs_f64() + 0.5 {
            record.problems.push(format!("{method} {path} took {seconds:.1} s"));
        }
        let answer = answer.ok().and_then(Result::ok);
        let status = answer.as_ref().map_or(0, |(status, _)| *status);
        record.attempts.push(Attempt { at: self.now(), seconds, is_write: method == "POST", status });
        if let Some((status, body)) = &answer
            && !is_valid(*status, body)
        {
            record.problems.push(format!("{method} {path}: {status} with the body {body}"));
        }
        answer
    }

    fn idle(&self, place: usize) -> MutexGuard<'_, VecDeque<Connection>> {
        self.idle[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a body is valid for this status.
fn is_valid(status: u16, body: &str) -> bool {
    match status {
        200 => body.starts_with('[') && body.ends_with(']'),
        201 => body.starts_with("{\"id\":") && body.ends_with('}'),
        409 | 503 => {
            body.contains("\"code\":")
                && body.contains("\"message\":")
                && body.ends_with(&format!("\"status\":{status}}}"))
        }
        _ => false,
    }
}

impl Record {
    /// Records that a pet of this name was acknowledged.
    pub(crate) fn acknowledge(&mut self, name: String, id: i64) {
        self.pets.entry(name).or_default().insert(id);
        self.latest[0] = Some((id, format!("\"id\":{id},")));
    }

    /// The longest time in this period without an acknowledged write, or without a successful read.
    pub(crate) fn longest_gap(&self, of_writes: bool, from: f64, to: f64) -> f64 {
        let succeeded =
            |attempt: &&Attempt| attempt.is_write == of_writes && matches!(attempt.status, 200 | 201);
        let mut moments: Vec<f64> =
            self.attempts.iter().filter(succeeded).map(|attempt| attempt.at).collect();
        moments.retain(|at| (from..=to).contains(at));
        moments.push(to);
        moments.sort_by(f64::total_cmp);
        let mut last = from;
        moments.into_iter().fold(0.0, |longest: f64, at| longest.max(at - std::mem::replace(&mut last, at)))
    }

    /// The stale reads since the last call.
    pub(crate) fn take_stale(&mut self) -> Vec<String> {
        std::mem::take(&mut self.stale)
    }

    /// The number of attempts in this period that ended with this status, and the p99 of their seconds.
    pub(crate) fn with_status(&self, status: u16, from: f64, to: f64) -> (usize, f64) {
        let ended = |attempt: &&Attempt| attempt.status == status && (from..=to).contains(&attempt.at);
        let times = Samples(self.attempts.iter().filter(ended).map(|attempt| attempt.seconds).collect());
        (times.0.len(), if times.0.is_empty() { 0.0 } else { times.at(0.99) })
    }

    /// The violations so far, without stale reads.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Compares what was acknowledged with the database.
    pub(crate) fn check(&self, url: &str, run: &str) -> Outcome<String> {
        let stored = pets_by_name(url, &format!("{run}-"))?;
        let mut problems = [&self.problems[..], &self.stale].concat();
        for (name, ids) in &self.pets {
            match stored.get(name) {
                Some((1, id)) if *ids == BTreeSet::from([*id]) => {}
                found => problems
                    .push(format!("{name} was acknowledged as {ids:?}, but the database has {found:?}")),
            }
        }
        problems.extend(
            stored
                .iter()
                .filter(|(_, (count, _))| *count > 1)
                .map(|(name, _)| format!("{name} exists twice")),
        );
        let orders: BTreeMap<i64, i64> = psql(url, "SELECT id, pet_id FROM orders")?
            .lines()
            .filter_map(|row| row.split_once('|'))
            .filter_map(|(id, pet)| Some((id.parse().ok()?, pet.parse().ok()?)))
            .collect();
        for (key, (pet, ids)) in &self.orders {
            if ids.len() != 1 || ids.iter().any(|id| orders.get(id) != Some(pet)) {
                problems.push(format!("the order {key} of pet {pet} was acknowledged as {ids:?}"));
            }
        }
        let twice = psql(
            url,
            "SELECT pet_id FROM orders WHERE status = 'placed' GROUP BY pet_id HAVING count(*) > 1",
        )?;
        problems.extend(twice.lines().map(|pet| format!("pet {pet} is in two open orders")));
        if let Some(first) = problems.first() {
            return Err(format!("{} problems; the first: {first}", problems.len()).into());
        }
        Ok(format!(
            "{} attempts; {} pets and {} orders acknowledged: none lost, none duplicated, no pet in two open orders",
            self.attempts.len(),
            self.pets.len(),
            self.orders.len()
        ))
    }

    /// CSV with a line for each second: reads and writes that succeeded and that failed, and the slowest of each.
    pub(crate) fn timeline(&self) -> String {
        let mut seconds: BTreeMap<u64, [f64; 6]> = BTreeMap::new();
        for attempt in &self.attempts {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "seconds since the start"
            )]
            let row = seconds.entry(attempt.at as u64).or_default();
            let first = if attempt.is_write { 3 } else { 0 };
            row[first + usize::from(!matches!(attempt.status, 200 | 201))] += 1.0;
            row[first + 2] = row[first + 2].max(attempt.seconds);
        }
        let rows = seconds.iter().map(|(at, [reads, no_reads, slow_read, writes, no_writes, slow_write])| {
            format!("{at},{reads},{no_reads},{slow_read:.3},{writes},{no_writes},{slow_write:.3}\n")
        });
        let head = "second,reads,failed_reads,slowest_read,writes,failed_writes,slowest_write\n";
        rows.fold(head.to_owned(), |text, row| text + &row)
    }
}
