//! What somebody else holds, in psql or with an import: requests that do not need it are answered as if nothing had happened, and
//! those that need it get an answer in time that is true and can be retried.
//!
//! A table test: each operation is sent again and again while each thing is held. To add an operation, add it to [`OPERATIONS`] or,
//! if it depends on an earlier answer, to [`Shopper`], and to the things that it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::interleaving::hold_idempotency_key;
use crate::support::postgres::wait_for_blocked_statement;
use crate::support::wait::eventually;
use crate::support::write_requests::ORDERS;
use crate::support::{Answer, Client, TestDatabase, TestService};

/// The pets of the tests: 1 is available, and 2 and 3 have the orders 1 and 2. Of these, 1 and 3 and the order 2 are held, or none.
/// 4 and 5 are changed, and those from 6 on are bought. After those come the ones that are deleted.
const PETS: i64 = 5;
/// The number of pets that are there to be deleted: more than one client can delete.
const DELETED: i32 = 200;
/// Of those, the last ones are held, too, and no client deletes as many: each client changes its own.
const EACH_ITS_OWN: std::ops::Range<usize> = 111..211;
/// The reference and the idempotency key that are held.
const HELD: &str = "HELD";

/// How long each thing is held, at least: the requests that were sent by then are answered while it is held.
const HOLD: Duration = Duration::from_secs(3);
/// No answer takes longer.
const LIMIT: Duration = Duration::from_secs(10);
/// The usual answer to a request that needs what is held does not take longer: it waits for a second, on a connection for which a
/// few others may wait, too.
const NEEDING_LIMIT: Duration = Duration::from_secs(6);
/// How many clients repeat a createPet that needs what is held.
const TILLS: usize = 24;
/// The pause of a client between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// A request that is sent again and again.
struct Operation {
    name: &'static str,
    method: Method,
    /// With one of [`EACH_ITS_OWN`] in place of `@`.
    path: &'static str,
    /// The same, and with a new number in place of `#`.
    body: Option<&'static str>,
    /// `Idempotency-Key`, likewise.
    key: Option<&'static str>,
    /// How many clients send it.
    clients: usize,
}

const fn get(name: &'static str, path: &'static str) -> Operation {
    Operation { name, method: Method::GET, path, body: None, key: None, clients: 1 }
}

const fn create(
    name: &'static str,
    body: &'static str,
    key: Option<&'static str>,
    clients: usize,
) -> Operation {
    post(name, "/v1/pets", Some(body), key, clients)
}

const fn post(
    name: &'static str,
    path: &'static str,
    body: Option<&'static str>,
    key: Option<&'static str>,
    clients: usize,
) -> Operation {
    Operation { name, method: Method::POST, path, body, key, clients }
}

const fn patch(name: &'static str, path: &'static str, body: &'static str, clients: usize) -> Operation {
    Operation { name, method: Method::PATCH, path, body: Some(body), key: None, clients }
}

const fn delete(name: &'static str, path: &'static str, clients: usize) -> Operation {
    Operation { name, method: Method::DELETE, path, body: None, key: None, clients }
}

const PLAIN: &str = r#"{"name":"Rex","categoryId":1}"#;
const WITH_REFERENCE: &str = r#"{"name":"Rex","categoryId":1,"reference":"R#"}"#;
const WITH_HELD_REFERENCE: &str = r#"{"name":"Rex","categoryId":1,"reference":"HELD"}"#;

/// Every operation that is sent while something is held.
static OPERATIONS: [Operation; 24] = [
    create("createPet", PLAIN, None, 2),
    create("createPet with a key", PLAIN, Some("k#"), 2),
    create("createPet with a reference", WITH_REFERENCE, None, 1),
    create("createPet with both", WITH_REFERENCE, Some("b#"), 1),
    patch("updatePet", "/v1/pets/4", r#"{"name":"Rex #"}"#, 1),
    patch("updatePet with a reference", "/v1/pets/5", r#"{"reference":"P#"}"#, 1),
    patch("updateOrder", "/v1/store/orders/1", r#"{"reference":"O#"}"#, 1),
    get("getPet", "/v1/pets/2"),
    get("getPet, held", "/v1/pets/1"),
    get("listPets", "/v1/pets?limit=5"),
    get("listPets by status", "/v1/pets?status=available&limit=5"),
    get("listPets by category", "/v1/pets?categoryId=3&limit=5"),
    get("listPets by id", "/v1/pets?id=1&id=2"),
    get("listPets by reference", "/v1/pets?reference=first&reference=HELD"),
    get("getOrder", "/v1/store/orders/1"),
    get("getOrder, held", "/v1/store/orders/2"),
    get("listOrders", "/v1/store/orders?limit=5"),
    get("listOrders by status", "/v1/store/orders?status=placed"),
    get("listOrders by pet", "/v1/store/orders?petId=2"),
    get("listOrders by reference", "/v1/store/orders?reference=basket"),
    get("listEvents", "/v1/events?limit=5"),
    get("listEvents by type", "/v1/events?type=order.placed"),
    get("listEvents from now on", "/v1/events?after=now"),
    get("listEvents, waiting", "/v1/events?after=now&wait=1"),
];

/// The requests that need what is held.
static NEED_REFERENCE: [Operation; 3] = [
    create("createPet with the held reference", WITH_HELD_REFERENCE, None, TILLS / 2),
    create("createPet with the held reference and a key", WITH_HELD_REFERENCE, Some("h#"), TILLS / 2),
    patch("updatePet to the held reference", "/v1/pets/@", r#"{"reference":"HELD"}"#, 16),
];
static NEED_MANY_REFERENCES: [Operation; 1] = [create(
    "createPet with one of many held references",
    r#"{"name":"Rex","categoryId":1,"reference":"HELD @"}"#,
    None,
    100,
)];
static NEED_KEY: [Operation; 3] = [
    create("createPet with the held key", PLAIN, Some(HELD), TILLS),
    post("placeOrder with the held key", ORDERS, Some(ORDER_HELD), Some(HELD), 4),
    post("completeOrder with the held key", COMPLETE_HELD, None, Some(HELD), 2),
];
static NEED_PET: [Operation; 10] = [
    post("placeOrder of the held pet", ORDERS, Some(ORDER_HELD), None, 8),
    post("placeOrder of the held pet with a key", ORDERS, Some(ORDER_HELD), Some("p#"), 8),
    post("completeOrder of the held pet", COMPLETE_HELD, None, None, 1),
    post("completeOrder of the held pet with a key", COMPLETE_HELD, None, Some("c#"), 1),
    post("cancelOrder of the held pet", "/v1/store/orders/2/cancel", None, None, 1),
    post("cancelOrder of the held pet with a key", "/v1/store/orders/2/cancel", None, Some("x#"), 1),
    patch("updatePet of the held pet", "/v1/pets/1", r#"{"name":"Rex #"}"#, 2),
    patch("updatePet of many held pets", "/v1/pets/@", r#"{"name":"Rex #"}"#, 16),
    patch("updatePet of the held pet with a reference", "/v1/pets/1", r#"{"reference":"H#"}"#, 1),
    delete("deletePet of the held pet", "/v1/pets/1", 2),
];

const ORDER_HELD: &str = r#"{"petId":1}"#;
const COMPLETE_HELD: &str = "/v1/store/orders/2/complete";

/// A client that orders a pet again and again, each time after the order has ended.
#[derive(Clone, Copy)]
struct Shopper {
    /// Whether the order of its pet is open when something is held.
    has_ordered: bool,
    /// Whether it completes orders, and makes the pet available again, or cancels them.
    completes: bool,
    /// Whether it sends idempotency keys.
    with_keys: bool,
}

const SHOPPERS: [Shopper; 5] = [
    Shopper { has_ordered: false, completes: false, with_keys: false },
    Shopper { has_ordered: false, completes: false, with_keys: true },
    Shopper { has_ordered: true, completes: false, with_keys: false },
    Shopper { has_ordered: true, completes: true, with_keys: false },
    Shopper { has_ordered: true, completes: true, with_keys: true },
];

/// The answers to a request that needs what is held: nothing was changed, and it may be retried.
const UNAVAILABLE: &str = "503 unavailable";
const IN_PROGRESS: &str = "409 idempotency_in_progress";

/// Something that a transaction holds.
struct Held {
    /// Run in the transaction that holds it.
    statement: &'static str,
    /// The operations that need it.
    needing: &'static [Operation],
    /// Whether the operation with this name, of [`OPERATIONS`] or of a [`Shopper`], needs it, too.
    blocks: fn(&str) -> bool,
}

fn nothing(_: &str) -> bool {
    false
}

fn writes(operation: &str) -> bool {
    let names = ["createPet", "updatePet", "deletePet"];
    changes_order(operation) || names.iter().any(|name| operation.starts_with(name))
}

fn writes_pets(operation: &str) -> bool {
    writes(operation) && operation != "updateOrder"
}

fn changes_order(operation: &str) -> bool {
    ["placeOrder", "updateOrder", "completeOrder", "cancelOrder"]
        .iter()
        .any(|name| operation.starts_with(name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pet_or_an_order_that_is_locked_delays_only_requests_that_change_it() {
    check(&Held {
        statement: "SELECT FROM pets WHERE id = 1 OR id >= 111 FOR UPDATE; SELECT FROM orders WHERE id = 2 FOR UPDATE",
        needing: &NEED_PET,
        blocks: nothing,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pet_that_is_changed_delays_only_requests_that_change_it() {
    check(&Held {
        statement: "UPDATE pets SET name = 'Bello', reference = NULL WHERE id IN (1, 3) OR id >= 111",
        needing: &NEED_PET,
        blocks: nothing,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_advisory_lock_of_a_pet_delays_only_requests_that_change_it() {
    check(&Held {
        statement: "SELECT pg_advisory_xact_lock(1885697139, hashint8(id)) FROM pets WHERE id IN (1, 3) OR id >= 111",
        needing: &NEED_PET,
        blocks: nothing,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_that_is_not_committed_delays_only_requests_with_that_reference() {
    check(&Held {
        statement: "INSERT INTO pets (name, category_id, reference) VALUES ('Rex', 1, 'HELD')",
        needing: &NEED_REFERENCE,
        blocks: nothing,
    })
    .await;
}

/// As many tills as the references that an import adds in one transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_references_that_are_not_committed_delay_only_requests_with_those_references() {
    let answers = check(&Held {
        statement: "INSERT INTO pets (name, category_id, reference) \
            SELECT 'Rex', 1, 'HELD ' || number FROM generate_series(111, 210) AS number",
        needing: &NEED_MANY_REFERENCES,
        blocks: nothing,
    })
    .await
    .1;
    // Both have as many clients, and nothing can make the first wait.
    let [plain, with_key] = ["createPet", "createPet with a key"].map(|name| answers[name].times.len());
    assert!(with_key * 2 > plain, "{with_key} with a key, {plain} without");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_that_is_not_committed_delays_only_requests_with_that_key() {
    check(&Held { statement: "", needing: &NEED_KEY, blocks: nothing }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pets_in_share_mode_delay_only_writes() {
    check(&Held { statement: "LOCK TABLE pets IN SHARE MODE", needing: &[], blocks: writes_pets }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_in_share_mode_delay_only_writes_of_orders() {
    check(&Held { statement: "LOCK TABLE orders IN SHARE MODE", needing: &[], blocks: changes_order }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_in_share_mode_delay_only_writes() {
    check(&Held { statement: "LOCK TABLE events IN SHARE MODE", needing: &[], blocks: writes }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_keys_in_share_mode_delay_only_writes_with_a_key_and_createpet_with_a_reference() {
    check(&Held {
        statement: "LOCK TABLE idempotency_keys IN SHARE MODE",
        needing: &[],
        blocks: |operation| {
            operation.ends_with("a key")
                || ["createPet with a reference", "createPet with both"].contains(&operation)
        },
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_transaction_with_an_id_delays_only_the_feed() {
    let (service, _) =
        check(&Held { statement: "SELECT pg_current_xact_id()", needing: &[], blocks: nothing }).await;
    // By design: what a transaction with a smaller id may still write must not appear before what is already read.
    let client = &service.client;
    let from = client.get("/v1/events?after=now").await.next().unwrap().to_owned();
    let holder = hold(&service.database, "SELECT pg_current_xact_id()").await;
    client.add("Rex", None).await;
    assert_eq!(client.get(&from).await.body, "[]");
    holder.batch_execute("ROLLBACK").await.unwrap();
    eventually("the event is shown", async || client.get(&from).await.body != "[]").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_a_reference_gets_the_decision_when_it_is_made() {
    for (end, expected) in [("COMMIT", "409 reference_taken"), ("ROLLBACK", "201")] {
        let service = prepared().await;
        let statement = "INSERT INTO pets (name, category_id, reference) VALUES ('Rex', 1, 'HELD')";
        let holder = hold(&service.database, statement).await;
        let client = service.client.clone();
        let body: Value = serde_json::from_str(WITH_HELD_REFERENCE).unwrap();
        let waiting = tokio::spawn(async move { client.post_with_key("/v1/pets", "fresh", &body).await });
        wait_for_blocked_statement(&service.database.connect().await).await;
        holder.batch_execute(end).await.unwrap();
        assert_eq!(waiting.await.unwrap().summary(), expected, "{end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_deadlock_ends_is_tried_again() {
    let service = prepared().await;
    let holder = service.database.connect().await;
    // The service's sessions notice a deadlock at once, so that they are the ones that it ends. A slow insert lets the other
    // transaction wait first. (The statement inserts the pet before the key. On a machine that stalls, the limit of the wait may end
    // it before the deadlock does: then it is tried again, too.)
    let slow = "ALTER DATABASE {database} SET deadlock_timeout = '10ms'; \
        CREATE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS \
          'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END'";
    holder.batch_execute(&slow.replace("{database}", service.database.name())).await.unwrap();
    let digests = digests_of_held_key(&service).await;
    let node = service.start_another().await;
    let trigger =
        "CREATE TRIGGER delay BEFORE INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION delay()";
    holder.batch_execute(trigger).await.unwrap();
    holder.batch_execute("BEGIN; SET LOCAL deadlock_timeout = '1h'").await.unwrap();
    for digest in digests {
        hold_idempotency_key(&holder, &digest).await;
    }
    let watch = service.database.connect().await;
    let body: Value = serde_json::from_str(WITH_HELD_REFERENCE).unwrap();
    let client = node.client.clone();
    let waiting = tokio::spawn(async move { client.post_with_key("/v1/pets", HELD, &body).await });
    let inserting =
        "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
    eventually("the pet is inserted", async || !watch.query(inserting, &[]).await.unwrap().is_empty()).await;
    // It waits for the request, until the request waits for it.
    let insert = "INSERT INTO pets (name, category_id, reference) VALUES ('Bello', 1, 'HELD')";
    holder.batch_execute(insert).await.unwrap();
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(waiting.await.unwrap().summary(), "201");
}

/// A service with pets, the first of which have references, and orders.
async fn prepared() -> TestService {
    let service = TestService::start().await;
    let client = &service.client;
    let shoppers = i64::try_from(SHOPPERS.len()).unwrap();
    for number in 1..=PETS + shoppers {
        let reference = if number == 1 { "first".to_owned() } else { format!("pet {number}") };
        let body = json!({"name": "Rex", "categoryId": 3, "status": "available", "reference": reference});
        assert_eq!(client.post("/v1/pets", &body).await.json()["id"], number);
    }
    service.database.add_pets(DELETED).await;
    for pet in [2, 3] {
        let order = json!({"petId": pet, "reference": "basket"});
        assert_eq!(client.post(ORDERS, &order).await.status, 201);
    }
    service
}

/// Opens a transaction that holds what the statement takes.
async fn hold(database: &TestDatabase, statement: &str) -> tokio_postgres::Client {
    let holder = database.connect().await;
    holder.batch_execute("BEGIN").await.unwrap();
    holder.batch_execute(statement).await.unwrap();
    holder
}

/// The digests under which the service stores [`HELD`] as an idempotency key of each operation of [`NEED_KEY`].
async fn digests_of_held_key(service: &TestService) -> Vec<String> {
    let client = &service.client;
    let body: Value = serde_json::from_str(PLAIN).unwrap();
    assert_eq!(client.post_with_key("/v1/pets", HELD, &body).await.status, 201);
    let order = json!({"petId": PETS});
    let placed = client.post_with_key(ORDERS, HELD, &order).await;
    assert_eq!(placed.status, 201);
    let path = format!("{ORDERS}/{}/complete", placed.json()["id"]);
    let completed = client.send(Method::POST, &path, |it| it.header("idempotency-key", HELD)).await;
    assert_eq!(completed.status, 200);
    let delete = "DELETE FROM idempotency_keys RETURNING digest::text";
    let deleted = service.database.connect().await.query(delete, &[]).await.unwrap();
    // In the last minute of a day, there are two rows for each.
    let digests: BTreeSet<String> = deleted.iter().map(|row| row.get(0)).collect();
    assert_eq!(digests.len(), NEED_KEY.len());
    digests.into_iter().collect()
}

/// Holds the idempotency keys of [`NEED_KEY`], as attempts of the same requests on another node do.
async fn hold_keys(service: &TestService) -> tokio_postgres::Client {
    let digests = digests_of_held_key(service).await;
    let holder = service.database.connect().await;
    holder.batch_execute("BEGIN").await.unwrap();
    for digest in digests {
        hold_idempotency_key(&holder, &digest).await;
    }
    holder
}

/// The answers to one operation: how many of each kind, and the longest time.
#[derive(Debug, Default)]
struct Answers {
    counts: BTreeMap<String, usize>,
    times: Vec<Duration>,
    /// The pets that were acknowledged.
    created: Vec<i64>,
}

impl Answers {
    /// The share of the answers of this kind.
    fn share(&self, kind: &str) -> f64 {
        let count = |number: usize| f64::from(u32::try_from(number).unwrap());
        count(self.counts.get(kind).copied().unwrap_or(0)) / count(self.times.len())
    }

    fn longest(&self) -> Duration {
        self.times.iter().max().copied().unwrap_or_default()
    }

    /// The median.
    fn usual(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times[times.len() / 2]
    }

    fn extend(&mut self, other: Self) {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.times.extend(other.times);
        self.created.extend(other.created);
    }
}

/// Sends a request, and records its answer.
async fn send(
    client: &Client,
    answers: &mut Answers,
    method: Method,
    path: &str,
    body: Option<String>,
    key: Option<String>,
) -> Answer {
    let sent = Instant::now();
    let answer = client
        .send(method, path, |mut request| {
            if let Some(body) = body {
                request = request.header("content-type", "application/json").body(body);
            }
            key.into_iter().fold(request, |request, key| request.header("idempotency-key", key))
        })
        .await;
    answers.times.push(sent.elapsed());
    *answers.counts.entry(answer.summary()).or_default() += 1;
    answer
}

/// Sends an operation again and again until the time is over.
async fn repeat(client: Client, operation: &'static Operation, number: usize, until: Instant) -> Answers {
    let mut answers = Answers::default();
    let mut attempt = 0;
    while Instant::now() < until {
        attempt += 1;
        let own = (EACH_ITS_OWN.start + number % EACH_ITS_OWN.len()).to_string();
        let number = format!("{number}-{attempt}-{}", operation.name.len());
        let fill = |text: &str| text.replace('@', &own).replace('#', &number);
        let (method, path) = (operation.method.clone(), fill(operation.path));
        let (body, key) = (operation.body.map(fill), operation.key.map(fill));
        let answer = send(&client, &mut answers, method, &path, body, key).await;
        if answer.status == 201 && path == "/v1/pets" {
            answers.created.extend(answer.json()["id"].as_i64());
        }
        sleep(PAUSE).await;
    }
    answers
}

/// Buys a pet again and again until the time is over.
async fn shop(
    client: Client,
    shopper: Shopper,
    pet: i64,
    mut order: Option<i64>,
    until: Instant,
) -> BTreeMap<String, Answers> {
    let mut all: BTreeMap<String, Answers> = BTreeMap::new();
    let (mut attempt, mut is_sold) = (0, false);
    let end = if shopper.completes { "complete" } else { "cancel" };
    while Instant::now() < until {
        attempt += 1;
        let (mut name, method, path, body) = match order {
            _ if is_sold => {
                let available = json!({"status": "available"});
                ("updatePet".to_owned(), Method::PATCH, format!("/v1/pets/{pet}"), Some(available))
            }
            None => ("placeOrder".to_owned(), Method::POST, ORDERS.to_owned(), Some(json!({"petId": pet}))),
            Some(id) => (format!("{end}Order"), Method::POST, format!("{ORDERS}/{id}/{end}"), None),
        };
        let key = (shopper.with_keys && !is_sold).then(|| format!("{pet}-{attempt}"));
        if key.is_some() {
            name += " with a key";
        }
        let body = body.map(|body| body.to_string());
        let answer = send(&client, all.entry(name).or_default(), method, &path, body, key).await;
        match answer.status {
            201 => order = answer.json()["id"].as_i64(),
            // Made available, or ended.
            200 => (order, is_sold) = (None, !is_sold && shopper.completes),
            _ => {}
        }
        sleep(PAUSE).await;
    }
    all
}

/// Deletes one pet after the other until the time is over.
async fn delete_all(client: Client, mut pet: i64, until: Instant) -> Answers {
    let mut answers = Answers::default();
    while Instant::now() < until {
        let path = format!("/v1/pets/{pet}");
        let answer = send(&client, &mut answers, Method::DELETE, &path, None, None).await;
        pet += i64::from(answer.status == 204);
        sleep(PAUSE).await;
    }
    answers
}

/// Sends every operation while something is held, and checks the answers.
async fn check(held: &Held) -> (TestService, BTreeMap<String, Answers>) {
    let service = prepared().await;
    let mut orders = Vec::new();
    for (pet, shopper) in (PETS + 1..).zip(SHOPPERS) {
        let mut order = None;
        if shopper.has_ordered {
            order = service.client.post(ORDERS, &json!({"petId": pet})).await.json()["id"].as_i64();
        }
        orders.push((pet, shopper, order));
    }
    let first_deleted = PETS + i64::try_from(SHOPPERS.len()).unwrap() + 1;
    let holder = match held.statement {
        "" => hold_keys(&service).await,
        statement => hold(&service.database, statement).await,
    };
    let until = Instant::now() + HOLD;
    let (mut clients, mut number) = (JoinSet::new(), 0);
    for operation in OPERATIONS.iter().chain(held.needing) {
        for _ in 0..operation.clients {
            number += 1;
            let sending = repeat(service.client.clone(), operation, number, until);
            clients.spawn(async move { BTreeMap::from([(operation.name.to_owned(), sending.await)]) });
        }
    }
    for (pet, shopper, order) in orders {
        clients.spawn(shop(service.client.clone(), shopper, pet, order, until));
    }
    let deleting = delete_all(service.client.clone(), first_deleted, until);
    clients.spawn(async move { BTreeMap::from([("deletePet".to_owned(), deleting.await)]) });
    let mut answers: BTreeMap<String, Answers> = BTreeMap::new();
    while let Some(finished) = clients.join_next().await {
        for (name, of_client) in finished.unwrap() {
            answers.entry(name).or_default().extend(of_client);
        }
    }
    for (name, answers) in &answers {
        verify(name, answers, expected(held, name));
        if held.needing.iter().any(|needing| needing.name == name) {
            let usual = answers.usual();
            assert!(usual < NEEDING_LIMIT, "{name}: usually {usual:?}");
        }
    }
    check_unchanged(&service, held).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    let acknowledged: Vec<i64> = answers.values().flat_map(|answers| answers.created.clone()).collect();
    let stored = "SELECT count(*) FROM pets WHERE id = ANY ($1)";
    let stored = service.database.connect().await.query_one(stored, &[&acknowledged]).await.unwrap();
    assert_eq!(stored.get::<_, i64>(0), i64::try_from(acknowledged.len()).unwrap(), "a pet was lost");
    (service, answers)
}

/// The answers that an operation may get.
fn expected(held: &Held, operation: &str) -> &'static [&'static str] {
    let needs = held.needing.iter().any(|needing| needing.name == operation) || (held.blocks)(operation);
    let has_key = operation.ends_with(" key");
    match operation {
        // createPet knows what it has waited for.
        "createPet with the held key" => &[IN_PROGRESS],
        // What is held may be held by an attempt of the same request, unless the request has not even got a connection.
        _ if needs && has_key && changes_order(operation) => &[IN_PROGRESS, UNAVAILABLE],
        _ if needs => &[UNAVAILABLE],
        _ if ["createPet", "placeOrder"].iter().any(|name| operation.starts_with(name)) => &["201"],
        "deletePet" => &["204"],
        _ => &["200"],
    }
}

fn verify(name: &str, answers: &Answers, expected: &[&str]) {
    let (counts, longest) = (&answers.counts, answers.longest());
    eprintln!("{name}: {counts:?}, usually {:?}, at most {longest:?}", answers.usual());
    let share: f64 = expected.iter().map(|kind| answers.share(kind)).sum();
    assert!(share >= 0.98, "{name}: not {expected:?}, but {counts:?}");
    assert!(longest < LIMIT, "{name}: {longest:?}");
}

/// Checks that the requests for what is held have changed nothing.
async fn check_unchanged(service: &TestService, held: &Held) {
    let state = "SELECT string_agg(concat_ws(' ', name, status, reference), ', ' ORDER BY id) FROM pets \
        WHERE id IN (1, 3)";
    let session = service.database.connect().await;
    let found: String = session.query_one(state, &[]).await.unwrap().get(0);
    assert_eq!(found, "Rex available first, Rex pending pet 3", "{}", held.statement);
    let orders = "SELECT count(*) FROM orders WHERE pet_id IN (1, 3) AND status = 'placed'";
    assert_eq!(session.query_one(orders, &[]).await.unwrap().get::<_, i64>(0), 1, "{}", held.statement);
}
