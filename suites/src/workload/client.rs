//! One client: chooses operations, sends them, retries them and reports how they ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::log::Attempt;
use super::{Clients, Kind, Load, lock};
use crate::Outcome;
use crate::history::{Answer, End, Found, Request};
use crate::http::{Connection, Response, cursor, id_of};
use crate::random::Random;

/// How many of the newest pets are read.
const NEWEST: usize = 60;
/// Names and references end with it: text that is stored must not change any answer.
const STORED: &str = "HTTP/1.1 400 Bad Request";
/// A write is retried for so long after the clients were told to stop.
const LAST_RETRIES: Duration = Duration::from_mins(1);

pub(crate) struct Client {
    load: Arc<Load>,
    settings: Clients,
    number: u64,
    random: Random,
    writes: u64,
}

/// What an answer means for the request.
enum Meaning {
    /// The request has ended in this way.
    Final(Answer),
    /// It had no effect, and may be sent again.
    NotNow,
    /// It may have had an effect.
    InDoubt,
}

impl Client {
    pub(super) fn new(load: Arc<Load>, settings: Clients, number: u64, random: Random) -> Self {
        Self { load, settings, number, random, writes: 0 }
    }

    /// One operation after another, until the clients are told to stop.
    pub(super) async fn work(mut self) {
        while !self.load.is_stopped() {
            self.operate().await;
            let pause = self.settings.pause.clone();
            if !pause.is_empty() {
                let milliseconds = pause.start + self.random.below(pause.end - pause.start);
                sleep(Duration::from_millis(milliseconds)).await;
            }
        }
    }

    /// Any operation of the mix.
    pub(super) async fn operate(&mut self) {
        let total = self.settings.mix.iter().map(|(weight, _)| weight).sum();
        let mut place = self.random.below(total);
        let kind = self.settings.mix.iter().find_map(|(weight, kind)| {
            let is_chosen = place < *weight;
            place = place.saturating_sub(*weight);
            is_chosen.then_some(*kind)
        });
        match kind {
            Some(Kind::Contest(buyers)) => self.contest(buyers).await,
            Some(kind) => {
                let request = self.request(kind);
                self.perform(request).await;
            }
            None => {}
        }
    }

    /// A request of this kind; a new pet if there are too few to choose from.
    fn request(&mut self, kind: Kind) -> Request {
        let name = format!("{} {STORED}", self.load.new_name());
        let (mut pet, order) = {
            let mut pool = lock(&self.load.pool);
            let pet = (pool.pets.len() >= self.load.few.max(1)).then(|| *self.random.pick(&pool.pets));
            let order = (!pool.orders.is_empty()).then(|| self.random.index(pool.orders.len()));
            let ends = matches!(kind, Kind::Complete | Kind::Cancel);
            // Half of the time, another client may try to end it as well.
            let is_taken = ends && self.random.chance(50);
            let order =
                order.map(|place| if is_taken { pool.orders.swap_remove(place) } else { pool.orders[place] });
            (pet, order)
        };
        let is_read = matches!(kind, Kind::Get | Kind::Find);
        if kind == Kind::Page || is_read && (pet.is_none() || self.random.chance(50)) {
            // Most often one of the very newest.
            let place = self.random.index(NEWEST).min(self.random.index(NEWEST)) / 3;
            let history = self.load.history();
            pet = history.newest().nth(place).or_else(|| history.newest().next());
        }
        match (kind, pet, order) {
            (Kind::Available, ..) => Request::Available,
            (Kind::Get, Some(pet), _) => Request::Get { pet },
            (Kind::Find, Some(pet), _) => Request::Find { pet },
            (Kind::Page, Some(pet), _) => Request::Page { after: pet - 1 },
            (Kind::Rename, Some(pet), _) => Request::Patch { pet, name, status: None },
            (Kind::Patch, Some(pet), _) => {
                // Most often `available`, so that there are pets to order.
                let statuses = ["available", "available", "available", "available", "pending", "sold"];
                Request::Patch { pet, name, status: Some(*self.random.pick(&statuses)) }
            }
            (Kind::Place, Some(pet), _) => Request::Place { pet, reference: name, expires: false },
            (Kind::PlaceBriefly, Some(pet), _) => {
                Request::Place { pet, reference: name, expires: self.random.chance(70) }
            }
            (Kind::Complete, _, Some(order)) => Request::End { order, end: End::Completed },
            (Kind::Cancel, _, Some(order)) => Request::End { order, end: End::Cancelled },
            _ => Request::Create { name, status: "available" },
        }
    }

    /// Sends a request until its outcome is known, and reports it. Returns the id of what was created or changed, which other
    /// clients may choose.
    async fn perform(&mut self, request: Request) -> Option<i64> {
        self.send(request, true).await
    }

    async fn send(&mut self, request: Request, is_shared: bool) -> Option<i64> {
        let ticket = self.load.history().begin(request.clone());
        let retry = self.settings.retry.filter(|_| request.is_write());
        let key = retry.map(|_| self.load.new_name());
        let (mut in_doubt, started) = (false, Instant::now());
        let answer = loop {
            match self.attempt(&request, key.as_deref()).await {
                // An attempt that is in doubt may still be carried out.
                Meaning::Final(Answer::Refused) if in_doubt => break Answer::Unknown,
                Meaning::Final(answer) => break answer,
                Meaning::NotNow => {}
                Meaning::InDoubt => in_doubt = true,
            }
            let gives_up = self.load.is_stopped() && started.elapsed() > LAST_RETRIES;
            let Some(pause) = retry.filter(|_| !gives_up) else {
                sleep(Duration::from_millis(20)).await;
                break if in_doubt { Answer::Unknown } else { Answer::Refused };
            };
            sleep(pause).await;
        };
        let done = if let Answer::Done(id) = answer { Some(id) } else { None };
        let is_unknown = answer == Answer::Unknown;
        self.load.history().end(ticket, answer);
        // Only now: the history must know what other clients choose.
        if is_shared {
            self.remember(&request, done, is_unknown);
        }
        self.writes += u64::from(done.is_some());
        if let (Some(first), Some(key), true, true) =
            (done, &key, self.settings.repeats, self.writes.is_multiple_of(3))
        {
            self.repeat(&request, key, first).await;
        }
        done
    }

    /// Sends a request again with the same key: the answer must be the same.
    async fn repeat(&mut self, request: &Request, key: &str, first: i64) {
        let started = Instant::now();
        while started.elapsed() < LAST_RETRIES {
            match self.attempt(request, Some(key)).await {
                Meaning::Final(Answer::Done(second)) => {
                    return self.load.history().repeated(request, first, second);
                }
                Meaning::Final(answer) => {
                    let problem = format!("{request:?} was done, and when repeated {answer:?}");
                    return self.load.history().problem(problem);
                }
                _ => sleep(self.settings.retry.unwrap_or_default()).await,
            }
        }
    }

    /// Adds what was created to what clients choose from. A pet with a change in doubt is left alone.
    fn remember(&mut self, request: &Request, done: Option<i64>, is_unknown: bool) {
        let mut pool = lock(&self.load.pool);
        let pool = &mut *pool;
        let (known, id) = match (request, done) {
            (Request::Create { .. }, Some(id)) => (&mut pool.pets, id),
            (Request::Place { .. }, Some(id)) => (&mut pool.orders, id),
            (Request::Patch { pet, .. }, _) if is_unknown => return pool.pets.retain(|known| known != pet),
            _ => return,
        };
        if known.len() < self.load.few {
            known.push(id);
        } else if let Some(place) = (!known.is_empty()).then(|| self.random.index(known.len())) {
            known[place] = id;
        }
    }

    /// Creates a pet, which no other client chooses, and lets so many buyers order it at once: one must get it.
    async fn contest(&mut self, buyers: usize) {
        let create = Request::Create { name: self.load.new_name(), status: "available" };
        let Some(pet) = self.send(create, false).await else { return };
        let barrier = Arc::new(Barrier::new(buyers));
        let mut contest = JoinSet::new();
        for _ in 0..buyers {
            let (mut buyer, barrier) = (self.load.client(&self.settings), barrier.clone());
            contest.spawn(async move {
                let reference = buyer.load.new_name();
                barrier.wait().await;
                buyer.send(Request::Place { pet, reference, expires: false }, false).await
            });
        }
        let won = contest.join_all().await.into_iter().flatten().count();
        if won != 1 {
            self.load.history().problem(format!("{won} of {buyers} buyers got pet {pet} at once"));
        }
    }

    /// Makes one attempt.
    async fn attempt(&mut self, request: &Request, key: Option<&str>) -> Meaning {
        let load = self.load.clone();
        let place = if self.settings.stay { self.number } else { self.random.next() };
        let node = usize::try_from(place).unwrap_or_default() % load.nodes.len();
        let gives_up = self.settings.abandons && self.random.below(50) == 0;
        let soon = Duration::from_micros(self.random.below(20_000));
        let patience = if gives_up { soon } else { self.settings.patience };
        let kept = lock(&load.idle[node]).pop_front().filter(|_| !self.random.chance(2));
        let (method, path, body) = render(request);
        let started = Instant::now();
        let exchange = async {
            let mut connection = match kept {
                Some(connection) => connection,
                None => Connection::open(load.nodes[node], &load.key).await?,
            };
            let response = connection.exchange(method, &path, &body, key).await?;
            if !response.closes() {
                lock(&load.idle[node]).push_back(connection);
            }
            Outcome::Ok(response)
        };
        let result = timeout(patience, exchange).await;
        let seconds = started.elapsed().as_secs_f64();
        let (status, failure) = match &result {
            Ok(Ok(response)) => (response.status, response.body.clone()),
            Ok(Err(error)) => (0, error.to_string()),
            Err(_) => (0, format!("no answer in {seconds:.1} s")),
        };
        {
            let mut log = load.log();
            let attempt = Attempt { at: load.now(), seconds, node, is_write: request.is_write(), status };
            log.add(attempt, method, &path, &failure);
        }
        let Ok(Ok(response)) = result else { return Meaning::InDoubt };
        meaning(request, &response).unwrap_or_else(|| {
            let problem = format!("{method} {path} was answered {status}: {}", response.body);
            load.history().problem(problem);
            Meaning::Final(Answer::Refused)
        })
    }
}

fn render(request: &Request) -> (&'static str, String, String) {
    let get = |path: String| ("GET", path, String::new());
    match request {
        Request::Create { name, status } => {
            let body = format!(r#"{{"name":"{name}","categoryId":1,"status":"{status}"}}"#);
            ("POST", "/v1/pets".to_owned(), body)
        }
        Request::Patch { pet, name, status } => {
            let status = status.map_or(String::new(), |status| format!(r#","status":"{status}""#));
            ("PATCH", format!("/v1/pets/{pet}"), format!(r#"{{"name":"{name}"{status}}}"#))
        }
        Request::Place { pet, reference, expires } => {
            let hold = if *expires { r#","holdSeconds":1"# } else { "" };
            let body = format!(r#"{{"petId":{pet},"reference":"{reference}"{hold}}}"#);
            ("POST", "/v1/store/orders".to_owned(), body)
        }
        Request::End { order, end } => {
            let end = if *end == End::Completed { "complete" } else { "cancel" };
            ("POST", format!("/v1/store/orders/{order}/{end}"), String::new())
        }
        Request::Get { pet } => get(format!("/v1/pets/{pet}")),
        Request::Find { pet } => get(format!("/v1/pets?id={pet}")),
        Request::Page { after: 0 } => get("/v1/pets?limit=100".to_owned()),
        Request::Page { after } => get(format!("/v1/pets?limit=100&cursor={}", cursor(*after))),
        Request::Available => get("/v1/pets?status=available&limit=20".to_owned()),
    }
}

/// What an answer means; none if it is not a documented answer to this request.
fn meaning(request: &Request, response: &Response) -> Option<Meaning> {
    let body = &response.body;
    let done = || id_of(body).map(|id| Meaning::Final(Answer::Done(id)));
    let pets = |pets: Vec<Found>| Meaning::Final(Answer::Pets(pets));
    match (request, response.status) {
        (Request::Create { .. } | Request::Place { .. }, 201)
        | (Request::Patch { .. } | Request::End { .. }, 200) => done(),
        (Request::Get { .. }, 200) => serde_json::from_str(body).ok().map(|pet| pets(vec![pet])),
        (Request::Find { .. } | Request::Page { .. } | Request::Available, 200) => {
            serde_json::from_str(body).ok().map(pets)
        }
        (_, status @ (404 | 409 | 503)) => {
            let error: Value = serde_json::from_str(body).ok()?;
            let code = error["code"].as_str()?;
            if !error["message"].is_string() || error["status"] != status {
                return None;
            }
            match (request, status, code) {
                (Request::Get { .. }, 404, _) => Some(pets(Vec::new())),
                (_, 503, _) if response.header("retry-after").is_none() => None,
                (_, 503, "outcome_unknown") => Some(Meaning::InDoubt),
                (_, 503, "unavailable") | (_, 409, "idempotency_in_progress") => Some(Meaning::NotNow),
                (_, 409, _) if request.is_write() => Some(Meaning::Final(Answer::Refused)),
                _ => None,
            }
        }
        _ => None,
    }
}
