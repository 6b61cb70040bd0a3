//! Sells pets on two nodes that are killed meanwhile, and checks the whole history afterwards.
//!
//! Two histories are recorded completely. Triggers record every change of every pet and order in the database, in order.
//! Buyers record every answer, with the times of the request and of the answer. The first history must be a legal path for
//! every pet. The second must be contained in the first, and must never have a pet in two open orders at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::http::{Connection, id_of};
use crate::random::Random;
use crate::report::Samples;
use crate::tools::{Server, database_url, free_addresses, prepare, psql};

/// Two nodes, many buyers, few pets.
#[derive(Args)]
pub(crate) struct OrderHistory {
    /// Requests in total.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Buyers.
    #[arg(long, default_value_t = 200)]
    buyers: u64,
    /// Pets.
    #[arg(long, default_value_t = 1_000)]
    pets: u64,
    /// Contests, in each of which 64 buyers order the same pet at the same instant.
    #[arg(long, default_value_t = 100)]
    contests: u32,
    /// Seed of the requests and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const RECORD: &str = "\
    CREATE TABLE history ( \
      place bigint GENERATED ALWAYS AS IDENTITY, transaction xid8 NOT NULL DEFAULT pg_current_xact_id(), \
      pet_id bigint NOT NULL, order_id bigint, old text, new text, name text); \
    CREATE FUNCTION record_pet() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      INSERT INTO history (pet_id, old, new, name) VALUES (NEW.id, OLD.status, NEW.status, NEW.name); \
      RETURN NULL; END $$; \
    CREATE FUNCTION record_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      INSERT INTO history (pet_id, order_id, old, new) VALUES (NEW.pet_id, NEW.id, OLD.status, NEW.status); \
      RETURN NULL; END $$; \
    CREATE TRIGGER record AFTER UPDATE ON pets FOR EACH ROW EXECUTE FUNCTION record_pet(); \
    CREATE TRIGGER record AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION record_order()";

/// Terminates one connection of the service, whatever it is doing.
const TERMINATE: &str = "\
    SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity \
      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database() \
      ORDER BY random() LIMIT 1) AS one";

impl OrderHistory {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 0)?;
        let insert = format!(
            "INSERT INTO pets (name, category_id, status) SELECT 'Pet ' || n, 1, 'available' FROM generate_series(1, {}) n",
            self.pets
        );
        psql(&url, &insert)?;
        let addresses: [_; 2] = free_addresses()?.into();
        let mut nodes = [Server::petstore_at(&url, addresses[0])?, Server::petstore_at(&url, addresses[1])?];
        contest(addresses, &key, self.contests).await?;
        psql(&url, RECORD)?;

        let started = Instant::now();
        let left = Arc::new(AtomicU64::new(self.operations));
        let mut buyers = JoinSet::new();
        for number in 0..self.buyers {
            let buyer = Buyer {
                number,
                addresses,
                key: key.clone(),
                pets: self.pets,
                random: Random(self.seed.wrapping_mul(1_000_003).wrapping_add(number)),
                connection: None,
                record: Record::default(),
            };
            buyers.spawn(buyer.work(left.clone()));
        }
        let mut random = Random(self.seed);
        let (mut kills, mut terminations) = (0_u32, 0_u32);
        while left.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(100 + random.below(300))).await;
            psql(&url, TERMINATE)?;
            terminations += 1;
            if terminations.is_multiple_of(8) {
                let node = usize::from(kills.is_multiple_of(2));
                nodes[node].kill();
                nodes[node] = Server::petstore_at(&url, addresses[node])?;
                kills += 1;
            }
        }
        let mut record = Record::default();
        for buyer in buyers.join_all().await {
            record.add(buyer);
        }
        println!(
            "{} s, {kills} nodes killed, {terminations} database connections terminated",
            started.elapsed().as_secs()
        );
        println!("answers: {:?}, broken connections: {}", record.answers, record.broken);
        record.check_no_overlap()?;
        let history = History::read(&url)?;
        history.check_is_legal(self.pets)?;
        history.check_has(&record)?;
        println!(
            "{} changes of {} pets, each on a legal path, none ever in two open orders; every acknowledged effect is in the \
             history: {} orders placed, {} ended, {} patches",
            history.changes.len(),
            self.pets,
            record.placed.len(),
            record.ended.len(),
            record.patched.len()
        );
        Ok(())
    }
}

/// Lets 64 buyers order the same pet at once: one must get it. Reports their latencies.
async fn contest(addresses: [SocketAddr; 2], key: &str, rounds: u32) -> Outcome {
    let mut connections = Vec::new();
    for number in 0..64 {
        connections.push(Connection::open(addresses[number % 2], key).await?);
    }
    let mut waits = Samples::default();
    for _ in 0..rounds {
        let new = r#"{"name":"Rex","categoryId":2,"status":"available"}"#;
        let (_, pet) = connections[0].send("POST", "/v1/pets", new).await?;
        let body = format!(r#"{{"petId":{}}}"#, id_of(&pet).ok_or("no pet")?);
        let barrier = Arc::new(Barrier::new(64));
        let mut buyers = JoinSet::new();
        for mut connection in connections.drain(..) {
            let (body, barrier) = (body.clone(), barrier.clone());
            buyers.spawn(async move {
                barrier.wait().await;
                let asked = Instant::now();
                let answer = connection.send("POST", "/v1/store/orders", &body).await;
                (connection, answer.map(|(status, _)| status), asked.elapsed())
            });
        }
        let mut won = 0;
        for (connection, status, wait) in buyers.join_all().await {
            match status? {
                201 => won += 1,
                409 => {}
                other => return Err(format!("a contested order was answered {other}").into()),
            }
            waits.push(wait.as_secs_f64() * 1000.0);
            connections.push(connection);
        }
        if won != 1 {
            return Err(format!("{won} of 64 buyers got the same pet").into());
        }
    }
    println!(
        "{rounds} contests of 64 buyers: one winner and 63 times 409 in each; p50 {:.1} ms, p99 {:.1} ms, maximum {:.1} ms",
        waits.median(),
        waits.at(0.99),
        waits.at(1.0)
    );
    Ok(())
}

/// When an order was certainly open: from the answer that placed it to the first request that ends it.
struct Open {
    pet: i64,
    order: i64,
    since: Instant,
    until: Option<Instant>,
}

/// The answers that the buyers got.
#[derive(Default)]
struct Record {
    placed: Vec<Open>,
    /// Orders, with the status that each ended in.
    ended: Vec<(i64, &'static str)>,
    /// Pets, with the name that each was given, and the status, if one was set.
    patched: Vec<(i64, String, Option<&'static str>)>,
    answers: BTreeMap<String, u64>,
    broken: u64,
}

impl Record {
    fn add(&mut self, other: Self) {
        self.placed.extend(other.placed);
        self.ended.extend(other.ended);
        self.patched.extend(other.patched);
        self.broken += other.broken;
        for (answer, count) in other.answers {
            *self.answers.entry(answer).or_default() += count;
        }
    }

    /// Checks that no pet was in two open orders, as the buyers saw it.
    fn check_no_overlap(&mut self) -> Outcome {
        self.placed.sort_by_key(|open| (open.pet, open.since));
        for pair in self.placed.windows(2) {
            if let [one, other] = pair
                && one.pet == other.pet
                && one.until.is_none_or(|until| until > other.since)
            {
                return Err(format!(
                    "pet {} was in orders {} and {} at once",
                    one.pet, one.order, other.order
                )
                .into());
            }
        }
        Ok(())
    }
}

struct Buyer {
    number: u64,
    addresses: [SocketAddr; 2],
    key: String,
    pets: u64,
    random: Random,
    connection: Option<Connection>,
    record: Record,
}

const STATUSES: [&str; 3] = ["available", "pending", "sold"];

impl Buyer {
    async fn work(mut self, left: Arc<AtomicU64>) -> Record {
        let mut open: Vec<usize> = Vec::new();
        for count in 0_u64.. {
            if left.load(Ordering::Relaxed) == 0 {
                break;
            }
            let name = format!("b{}-{count}", self.number);
            match self.random.below(10) {
                0..4 => open.extend(self.place(&left, &name).await),
                4..7 if !open.is_empty() => {
                    let order = open.swap_remove(self.random.index(open.len()));
                    self.end(&left, order).await;
                }
                _ => self.patch(&left, &name).await,
            }
        }
        self.record
    }

    fn random_pet(&mut self) -> i64 {
        i64::try_from(1 + self.random.below(self.pets)).unwrap_or(1)
    }

    /// Orders a pet, and retries until the answer is known. Returns the index of the order in the record.
    async fn place(&mut self, left: &AtomicU64, name: &str) -> Option<usize> {
        let pet = self.random_pet();
        let body = format!(r#"{{"petId":{pet}}}"#);
        let (status, answer) = self.send_until_known(left, "POST", "/v1/store/orders", &body, name).await?;
        let order = id_of(&answer).filter(|_| status == 201)?;
        self.record.placed.push(Open { pet, order, since: Instant::now(), until: None });
        Some(self.record.placed.len() - 1)
    }

    /// Completes or cancels an order, and retries until the answer is known.
    async fn end(&mut self, left: &AtomicU64, place: usize) {
        let (operation, end) = [("complete", "completed"), ("cancel", "cancelled")][self.random.index(2)];
        let Some(open) = self.record.placed.get_mut(place) else { return };
        open.until = Some(Instant::now());
        let order = open.order;
        let path = format!("/v1/store/orders/{order}/{operation}");
        let name = format!("{order}-{operation}");
        if let Some((200, _)) = self.send_until_known(left, "POST", &path, "", &name).await {
            self.record.ended.push((order, end));
        }
    }

    /// Gives a pet a unique name, and most often a status. Not retried.
    async fn patch(&mut self, left: &AtomicU64, name: &str) {
        let pet = self.random_pet();
        let choice = self.random.index(8);
        // Most often `available`, so that there are pets to order.
        let status = if choice < 3 { Some(STATUSES[choice]) } else { (choice < 7).then_some("available") };
        let body = match status {
            Some(status) => format!(r#"{{"name":"{name}","status":"{status}"}}"#),
            None => format!(r#"{{"name":"{name}"}}"#),
        };
        if let Some((200, _)) = self.send(left, "PATCH", &format!("/v1/pets/{pet}"), &body, name).await {
            self.record.patched.push((pet, name.to_owned(), status));
        }
    }

    async fn send_until_known(
        &mut self,
        left: &AtomicU64,
        method: &str,
        path: &str,
        body: &str,
        name: &str,
    ) -> Option<(u16, String)> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            match self.send(left, method, path, body, name).await {
                Some((status, answer)) if status != 503 && !answer.contains("idempotency_in_progress") => {
                    return Some((status, answer));
                }
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
        *self.record.answers.entry("unknown".into()).or_default() += 1;
        None
    }

    /// Sends a request once. One in fifty is cancelled while the service handles it.
    async fn send(
        &mut self,
        left: &AtomicU64,
        method: &str,
        path: &str,
        body: &str,
        name: &str,
    ) -> Option<(u16, String)> {
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let give_up = self.random.below(50) == 0;
        let patience =
            if give_up { Duration::from_micros(self.random.below(20_000)) } else { Duration::from_secs(10) };
        let node = self.random.index(2);
        let attempt = async {
            let open = match self.connection.take() {
                Some(open) => open,
                None => Connection::open(self.addresses[node], &self.key).await?,
            };
            self.connection.insert(open).send_idempotent(method, path, body, name).await
        };
        if let Ok(Ok((status, answer, _))) = timeout(patience, attempt).await {
            let code = answer
                .split_once("\"code\":\"")
                .and_then(|(_, rest)| rest.split('"').next())
                .unwrap_or_default();
            *self.record.answers.entry(format!("{method} {status} {code}")).or_default() += 1;
            return Some((status, answer));
        }
        self.connection = None;
        self.record.broken += 1;
        None
    }
}

/// A transaction, as the triggers recorded it: the changes of a pet, and of an order for that pet.
#[derive(Default, Debug)]
struct Change {
    pet: i64,
    status: Option<(String, String)>,
    name: String,
    order: Option<(i64, String, String)>,
}

/// Every change, in order.
struct History {
    changes: Vec<Change>,
}

impl History {
    fn read(url: &str) -> Outcome<Self> {
        let sql = "SELECT transaction, pet_id, coalesce(order_id, 0), coalesce(old, ''), coalesce(new, ''), \
            coalesce(name, '') FROM history ORDER BY place";
        let mut changes: Vec<Change> = Vec::new();
        let mut indexes: HashMap<String, usize> = HashMap::new();
        for row in psql(url, sql)?.lines() {
            let fields: Vec<&str> = row.split('|').collect();
            let [transaction, pet, order, old, new, name] = fields[..] else {
                return Err(format!("not a row: {row}").into());
            };
            let index = *indexes.entry(transaction.to_owned()).or_insert_with(|| {
                changes.push(Change::default());
                changes.len() - 1
            });
            let change = &mut changes[index];
            change.pet = pet.parse()?;
            let moved = (old.to_owned(), new.to_owned());
            match order.parse()? {
                0 => (change.status, change.name) = (Some(moved), name.to_owned()),
                order => change.order = Some((order, moved.0, moved.1)),
            }
        }
        Ok(Self { changes })
    }

    /// Checks that each change is a legal transition from the one before.
    fn check_is_legal(&self, pets: u64) -> Outcome {
        let mut status: HashMap<i64, String> = HashMap::new();
        let mut open: HashMap<i64, i64> = HashMap::new();
        for change in &self.changes {
            let illegal = || format!("{change:?}: an illegal transition");
            let (old, new) = change.status.clone().ok_or_else(illegal)?;
            let before = status.get(&change.pet).map_or("available", String::as_str);
            if before != old {
                return Err(format!("{change:?}: the pet was {before}").into());
            }
            let allowed = match &change.order {
                Some((order, from, to)) => match (from.as_str(), to.as_str(), old.as_str(), new.as_str()) {
                    ("", "placed", "available", "pending") => open.insert(change.pet, *order).is_none(),
                    ("placed", "completed", "pending", "sold")
                    | ("placed", "cancelled", "pending", "available") => {
                        open.remove(&change.pet) == Some(*order)
                    }
                    _ => false,
                },
                None => {
                    old == new || (!open.contains_key(&change.pet) && (old != "sold" || new != "pending"))
                }
            };
            if !allowed {
                return Err(illegal().into());
            }
            status.insert(change.pet, new);
        }
        if (status.len() as u64) < pets / 2 {
            return Err(format!("only {} of {pets} pets ever changed", status.len()).into());
        }
        Ok(())
    }

    /// Checks that the history contains everything that was acknowledged.
    fn check_has(&self, record: &Record) -> Outcome {
        let orders: HashSet<(i64, i64, &str)> = self
            .changes
            .iter()
            .filter_map(|change| {
                change.order.as_ref().map(|(order, _, to)| (*order, change.pet, to.as_str()))
            })
            .collect();
        let ends: HashSet<(i64, &str)> = orders.iter().map(|(order, _, to)| (*order, *to)).collect();
        let names: HashMap<(i64, &str), &str> = self
            .changes
            .iter()
            .filter(|change| change.order.is_none())
            .filter_map(|change| {
                Some(((change.pet, change.name.as_str()), change.status.as_ref()?.1.as_str()))
            })
            .collect();
        for open in &record.placed {
            if !orders.contains(&(open.order, open.pet, "placed")) {
                return Err(format!("order {} was acknowledged, but never placed", open.order).into());
            }
        }
        for end in &record.ended {
            if !ends.contains(end) {
                return Err(format!("order {end:?} was acknowledged, but never got there").into());
            }
        }
        for (pet, name, status) in &record.patched {
            let found = names.get(&(*pet, name.as_str()));
            if found.is_none() || status.is_some_and(|status| found != Some(&status)) {
                return Err(format!(
                    "pet {pet} was acknowledged as {name}, {status:?}, but the history has {found:?}"
                )
                .into());
            }
        }
        Ok(())
    }
}
