//! Orders, and changes of the pets that they are for, while others change the same pet: other requests and nodes, the expiry, nodes
//! of earlier releases, psql. Whoever comes second decides on what the first has committed.

use serde_json::json;
use tokio_postgres::Client as Session;

use crate::support::interleaving::{Gate, Holder, hold_idempotency_key, wait_for_waiter_of};
use crate::support::program::ServeProcess;
use crate::support::wait::{eventually, poll};
use crate::support::write_requests::{
    ORDERS, PATIENT, PET_IS_WRITTEN, Request, add, add_ordered, cancel, complete, patch, place, rename,
    status_of_order, status_of_pet, stored, while_waiting,
};
use crate::support::{Answer, Client, TestDatabase, TestService};

#[derive(Clone, Copy, PartialEq)]
enum Release {
    /// Takes the rows in the order of its statements, and no advisory lock, as psql does.
    V1_0_0,
    /// Takes the advisory lock of the pet first.
    V1_1_0,
}

/// A change by an earlier release, in two steps, and a request of this one that waits for it.
struct Beside {
    first: &'static str,
    second: &'static str,
    /// Of a pet and its order.
    request: fn(i64, i64) -> Request,
    expected: &'static str,
    /// The status of the pet afterwards.
    status: &'static str,
}

const PLACES: [&str; 2] = [
    "UPDATE pets SET status = 'pending' WHERE id = {pet}",
    "INSERT INTO orders (pet_id, status, created_at, updated_at) VALUES ({pet}, 'placed', now(), now())",
];
const COMPLETES: [&str; 2] = [
    "UPDATE orders SET status = 'completed', updated_at = now() WHERE id = {order}",
    "UPDATE pets SET status = 'sold' WHERE id = {pet}",
];
const CANCELS: [&str; 2] = [
    "UPDATE orders SET status = 'cancelled', updated_at = now() WHERE id = {order}",
    "UPDATE pets SET status = 'available' WHERE id = {pet}",
];
const CHANGES: [&str; 2] =
    ["UPDATE pets SET category_id = 9 WHERE id = {pet}", "UPDATE pets SET status = 'sold' WHERE id = {pet}"];

const fn beside(
    [first, second]: [&'static str; 2],
    request: fn(i64, i64) -> Request,
    expected: &'static str,
    status: &'static str,
) -> Beside {
    Beside { first, second, request, expected, status }
}

static BESIDE: [Beside; 8] = [
    beside(PLACES, |pet, _| place(pet), "409 pet_not_available", "pending"),
    beside(PLACES, |pet, _| place(pet).with_key("k"), "409 pet_not_available", "pending"),
    beside(PLACES, |pet, _| patch(pet, json!({"status": "sold"})), "409 pet_has_open_order", "pending"),
    beside(CANCELS, |_, order| complete(order), "409 invalid_transition", "available"),
    beside(CANCELS, |_, order| cancel(order), "200", "available"),
    beside(COMPLETES, |_, order| cancel(order).with_key("k"), "409 invalid_transition", "sold"),
    beside(COMPLETES, |_, order| complete(order), "200", "sold"),
    beside(CHANGES, |pet, _| rename(pet), "200", "sold"),
];

/// Lets an earlier release make a change while a request of this one waits for it.
async fn check_beside(release: Release, cases: &[Beside]) {
    let service = TestService::start().await;
    let client = &service.client;
    for case in cases {
        let ordered = case.first.contains("{order}");
        let (pet, order) = if ordered { add_ordered(client).await } else { (add(client).await, 0) };
        let request = (case.request)(pet, order);
        let fill =
            |text: &str| text.replace("{pet}", &pet.to_string()).replace("{order}", &order.to_string());
        let holder = match release {
            Release::V1_0_0 => Holder::begin(&service.database, "").await,
            Release::V1_1_0 => Holder::of_pet(&service.database, pet).await,
        };
        holder.session.batch_execute(&fill(case.first)).await.unwrap();
        let mut answer = request.spawn(client);
        while_waiting(&mut answer, holder.wait_for_waiter()).await;
        // A wait of any length would be for what the request holds: a deadlock.
        let second = format!("SET LOCAL lock_timeout = '10ms'; {}", fill(case.second));
        let second = holder.session.batch_execute(&second).await;
        assert!(second.is_ok(), "{request:?} holds what the earlier release needs next: {second:?}");
        holder.end("COMMIT").await;
        let found = (answer.await.unwrap().summary(), status_of_pet(client, pet).await);
        assert_eq!(found, (case.expected.into(), json!(case.status)), "{request:?}");
    }
}

#[tokio::test]
async fn beside_a_node_of_1_0_0_or_psql_nothing_deadlocks_and_the_second_decides_on_what_the_first_did() {
    check_beside(Release::V1_0_0, &BESIDE).await;
}

#[tokio::test]
async fn beside_a_node_of_1_1_0_nothing_deadlocks_and_the_second_decides_on_what_the_first_did() {
    check_beside(Release::V1_1_0, &BESIDE).await;
}

#[tokio::test]
async fn an_order_that_waited_until_its_pet_became_available_gets_it() {
    check_beside(Release::V1_1_0, &[beside(CANCELS, |pet, _| place(pet), "201", "pending")]).await;
    // Somebody in psql, who takes only the row.
    let service = TestService::start().await;
    let pet = service.client.add("Rex", Some("pending")).await;
    let release = format!("UPDATE pets SET status = 'available' WHERE id = {pet}");
    let holder = Holder::begin(&service.database, &release).await;
    let mut placed = place(pet).spawn(&service.client);
    while_waiting(&mut placed, holder.wait_for_waiter()).await;
    holder.end("COMMIT").await;
    assert_eq!(placed.await.unwrap().summary(), "201");
}

/// A request, a second one that waits for it and its answer, and what both leave.
type InTurn = (fn(i64, i64) -> Request, fn(i64, i64) -> Request, &'static str, &'static str);

#[tokio::test]
async fn of_two_requests_on_two_nodes_the_second_decides_on_what_the_first_committed() {
    let node = TestService::start_with(&PATIENT).await;
    let other = node.start_another_with(&PATIENT).await;
    let (client, session) = (&node.client, node.database.connect().await);
    let cases: [InTurn; 8] = [
        (|pet, _| place(pet), |pet, _| place(pet), "409 pet_not_available", "Rex pending placed 0"),
        (
            |pet, _| place(pet),
            |pet, _| patch(pet, json!({"status": "sold"})),
            "409 pet_has_open_order",
            "Rex pending placed 0",
        ),
        (|pet, _| place(pet), |pet, _| rename(pet), "200", "Bello pending placed 0"),
        (|pet, _| rename(pet), |pet, _| place(pet), "201", "Bello pending placed 0"),
        (|_, order| complete(order), |pet, _| rename(pet), "200", "Bello sold completed 0"),
        (|pet, _| rename(pet), |_, order| complete(order), "200", "Bello sold completed 0"),
        (
            |_, order| complete(order),
            |_, order| cancel(order),
            "409 invalid_transition",
            "Rex sold completed 0",
        ),
        (
            |_, order| cancel(order),
            |_, order| complete(order),
            "409 invalid_transition",
            "Rex available cancelled 0",
        ),
    ];
    for (first, second, expected, left) in cases {
        let ordered = !left.contains("placed");
        let (pet, order) = if ordered { add_ordered(client).await } else { (add(client).await, 0) };
        let (first, second) = (first(pet, order), second(pet, order));
        let gate = Gate::close(&node.database, PET_IS_WRITTEN).await;
        let mut answer = first.spawn(client);
        let pid = while_waiting(&mut answer, gate.wait_for_arrival()).await;
        let mut waiting = second.spawn(&other.client);
        while_waiting(&mut waiting, wait_for_waiter_of(&session, pid)).await;
        gate.open().await;
        assert!(answer.await.unwrap().status < 300, "{first:?}");
        assert_eq!(waiting.await.unwrap().summary(), expected, "{first:?}, then {second:?}");
        assert_eq!(stored(&session, pet).await, left, "{first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn an_order_is_replayed_as_it_is_when_the_replay_is_answered() {
    let node = TestService::start_with(&PATIENT).await;
    let other = node.start_another_with(&PATIENT).await;
    let (client, session) = (&node.client, node.database.connect().await);
    let pet = add(client).await;
    let place = place(pet).with_key("basket");
    let order = place.send(client).await.json()["id"].as_i64().unwrap();
    let gate = Gate::close(&node.database, PET_IS_WRITTEN).await;
    let mut completing = complete(order).spawn(client);
    let pid = while_waiting(&mut completing, gate.wait_for_arrival()).await;
    let mut replaying = place.spawn(&other.client);
    let early = tokio::select! {
        replayed = &mut replaying => Some(replayed.unwrap()),
        () = wait_for_waiter_of(&session, pid) => None,
    };
    gate.open().await;
    // It may wait for the completion, or be answered before it.
    let expected = if early.is_some() { "placed" } else { "completed" };
    let replayed = match early {
        Some(replayed) => replayed,
        None => replaying.await.unwrap(),
    };
    assert_eq!((replayed.status, replayed.is_replayed()), (201, true), "{replayed:?}");
    assert_eq!(replayed.json()["status"], expected);
    assert_eq!(completing.await.unwrap().status, 200);
    assert_eq!(place.send(client).await.json()["status"], "completed");
}

#[tokio::test]
async fn of_two_attempts_with_one_key_on_two_nodes_the_second_gets_what_became_of_the_first() {
    let node = TestService::start_with(&PATIENT).await;
    let other = node.start_another_with(&PATIENT).await;
    let (client, session) = (&node.client, node.database.connect().await);
    // For another pet, the second waits when it stores the key. How long that may take does not count here.
    let patient = "CREATE FUNCTION be_patient() RETURNS trigger LANGUAGE plpgsql AS \
          $$ BEGIN PERFORM set_config('lock_timeout', '0', true); RETURN NEW; END $$; \
        CREATE TRIGGER be_patient BEFORE UPDATE ON pets FOR EACH ROW EXECUTE FUNCTION be_patient()";
    session.batch_execute(patient).await.unwrap();
    // The first is stopped during its COMMIT. The second is for the same pet, or for another one; the first commits, or not.
    for (same, commits, expected) in [
        (true, true, "201 replayed"),
        (true, false, "201"),
        (false, true, "422 idempotency_key_reused"),
        (false, false, "201"),
    ] {
        let pets = [add(client).await, add(client).await];
        let first = place(pets[0]).with_key("basket");
        let second = if same { first.clone() } else { place(pets[1]).with_key("basket") };
        let gate = Gate::close_at_commit(&node.database, "AFTER INSERT ON orders").await;
        let mut placing = first.spawn(client);
        let pid = while_waiting(&mut placing, gate.wait_for_arrival()).await;
        let mut waiting = if same { second.spawn(&other.client) } else { second.spawn_once(&other.client) };
        while_waiting(&mut waiting, wait_for_waiter_of(&session, pid)).await;
        if !commits {
            session.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
        }
        gate.open().await;
        let first = if commits { "201" } else { "503 outcome_unknown" };
        assert_eq!(placing.await.unwrap().summary(), first);
        let answer = waiting.await.unwrap();
        let replayed = if answer.is_replayed() { " replayed" } else { "" };
        assert_eq!(answer.summary() + replayed, expected, "same pet: {same}, commits: {commits}");
        let placed = "SELECT count(*) FROM orders WHERE pet_id = ANY ($1)";
        assert_eq!(session.query_one(placed, &[&&pets[..]]).await.unwrap().get::<_, i64>(0), 1);
        session.batch_execute("DROP TRIGGER gate ON orders; TRUNCATE idempotency_keys").await.unwrap();
    }
}

/// Lets orders expire.
const HOLD: [&str; 3] = ["--order-hold=168h", PATIENT[0], PATIENT[1]];

/// Adds a pet and places an order for it that is due in a second; returns both ids.
async fn add_ordered_for_a_second(client: &Client) -> (i64, i64) {
    let pet = add(client).await;
    let placed = client.post(ORDERS, &json!({"petId": pet, "holdSeconds": 1})).await;
    (pet, placed.json()["id"].as_i64().unwrap())
}

/// Waits until an order that was placed now has expired, and with it every earlier one that may.
async fn wait_for_expiry(client: &Client) {
    let (_, order) = add_ordered_for_a_second(client).await;
    eventually("an order expires", async || status_of_order(client, order).await == "expired").await;
}

#[tokio::test]
async fn an_order_that_is_completed_while_it_expires_ends_as_the_first_of_both_says() {
    let service = TestService::start_with(&HOLD).await;
    let (client, session) = (&service.client, service.database.connect().await);
    let stop = |status| format!("BEFORE UPDATE ON orders FOR EACH ROW WHEN (NEW.status = '{status}')");
    let gate = Gate::close(&service.database, &stop("expired")).await;
    let (pet, order) = add_ordered_for_a_second(client).await;
    let pid = gate.wait_for_arrival().await;
    let mut completing = complete(order).spawn(client);
    while_waiting(&mut completing, wait_for_waiter_of(&session, pid)).await;
    gate.open().await;
    assert_eq!(completing.await.unwrap().summary(), "409 invalid_transition");
    assert_eq!(stored(&session, pet).await, "Rex available expired 0");

    session.batch_execute("DROP TRIGGER gate ON orders").await.unwrap();
    let gate = Gate::close(&service.database, &stop("completed")).await;
    let (pet, order) = add_ordered_for_a_second(client).await;
    let mut completing = complete(order).spawn(client);
    while_waiting(&mut completing, gate.wait_for_arrival()).await;
    wait_for_expiry(client).await;
    assert_eq!(status_of_order(client, order).await, "placed", "the expiry passes over it");
    gate.open().await;
    assert_eq!(completing.await.unwrap().summary(), "200");
    assert_eq!(stored(&session, pet).await, "Rex sold completed 0");
}

#[tokio::test]
async fn an_order_whose_hold_is_extended_while_the_expiry_looks_at_it_does_not_expire() {
    let database = TestDatabase::new().await;
    let session = database.connect().await;
    // Stops the expiry between the snapshot in which it finds orders that are due and the locks of their rows.
    let pause = format!(
        "CREATE FUNCTION public.pg_try_advisory_xact_lock(integer, integer) RETURNS boolean LANGUAGE plpgsql AS \
           $$ BEGIN PERFORM set_config('lock_timeout', '0', true); \
              PERFORM pg_catalog.pg_advisory_xact_lock_shared(42); \
              RETURN pg_catalog.pg_try_advisory_xact_lock($1, $2); END $$; \
         ALTER DATABASE {} SET search_path = public, pg_catalog",
        database.name()
    );
    session.batch_execute(&pause).await.unwrap();
    let node = ServeProcess::start(&database.url(), &HOLD);
    let client = &node.client;
    let paused = Holder::begin(&database, "SELECT pg_advisory_xact_lock(42)").await;
    let ((_, one), (_, other)) =
        (add_ordered_for_a_second(client).await, add_ordered_for_a_second(client).await);
    let extend =
        |order: i64| format!("UPDATE orders SET expires_at = now() + interval '1 hour' WHERE id = {order}");
    let due = "SELECT count(*) FROM orders WHERE expires_at < now()";
    let due = async || session.query_one(due, &[]).await.unwrap().get::<_, i64>(0) == 2;
    eventually("both orders are due", due).await;
    paused.wait_for_waiter().await;
    // One before the expiry has its lock, the other one only afterwards.
    session.batch_execute(&extend(one)).await.unwrap();
    let holder = Holder::begin(&database, &extend(other)).await;
    paused.end("COMMIT").await;
    wait_for_expiry(client).await;
    assert_eq!(status_of_order(client, one).await, "placed");
    holder.end("COMMIT").await;
    wait_for_expiry(client).await;
    for order in [one, other] {
        assert_eq!(status_of_order(client, order).await, "placed");
    }
}

#[tokio::test]
async fn many_orders_that_are_due_and_locked_do_not_delay_the_expiry_of_others() {
    const LOCKED: i64 = 250;
    let database = TestDatabase::new().await;
    let due = format!(
        "INSERT INTO pets (name, category_id, status) SELECT 'Rex', 1, 'pending' FROM generate_series(1, {LOCKED}); \
         INSERT INTO orders (pet_id, status, created_at, updated_at, expires_at) \
         SELECT id, 'placed', now() - interval '2 hours', now() - interval '2 hours', now() - interval '1 hour' \
         FROM pets"
    );
    database.connect().await.batch_execute(&due).await.unwrap();
    // A third each holds the orders, the pets, and the advisory locks of the pets.
    let lock = "SELECT FROM orders WHERE pet_id % 3 = 0 FOR UPDATE; SELECT FROM pets WHERE id % 3 = 1 FOR UPDATE; \
        SELECT pg_advisory_xact_lock(1885697139, hashint8(id)) FROM pets WHERE id % 3 = 2";
    let holder = Holder::begin(&database, lock).await;
    let node = ServeProcess::start(&database.url(), &HOLD);
    let client = &node.client;
    wait_for_expiry(client).await;
    let placed = async || {
        let placed = "SELECT count(*) FROM orders WHERE status = 'placed'";
        holder.session.query_one(placed, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(placed().await, LOCKED, "those that are locked wait");
    holder.session.batch_execute("COMMIT").await.unwrap();
    eventually("the others expire, too", async || placed().await == 0).await;
}

/// Lets a request and another transaction wait for each other, so that PostgreSQL ends the request's, and returns its answer. The
/// other one holds what the request writes last. The request stops at the gate when it has locked the pet.
async fn deadlock(node: &TestService, gate: Gate, holder: Holder, pet: i64, request: &Request) -> Answer {
    let mut answer = request.spawn_once(&node.client);
    while_waiting(&mut answer, gate.wait_for_arrival()).await;
    // It gets this lock before the next attempt of the request can, and the server itself ends it then.
    let lock = format!("SELECT pg_advisory_xact_lock(1885697139, hashint8({pet})); ROLLBACK");
    let open = async {
        holder.wait_until_it_waits().await;
        gate.open().await;
    };
    let (locked, ()) = tokio::join!(holder.session.batch_execute(&lock), open);
    locked.unwrap();
    answer.await.unwrap()
}

/// A node whose sessions are the ones that a deadlock ends.
async fn start_deadlock_victim() -> TestService {
    let service = TestService::start_with(&PATIENT).await;
    let notice = format!("ALTER DATABASE {} SET deadlock_timeout = '10ms'", service.database.name());
    service.database.connect().await.batch_execute(&notice).await.unwrap();
    service.start_another_with(&PATIENT).await
}

/// Checks how many deadlocks there were. Sessions report them when they end.
async fn check_deadlocks(node: TestService, expected: i64) {
    let database = node.database.clone();
    node.stop().await;
    let session = database.connect().await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks = async || session.query_one(deadlocks, &[]).await.unwrap().get::<_, i64>(0);
    poll("the deadlocks are counted", deadlocks, |count| *count >= expected).await;
}

/// Sends a request with an idempotency key, forgets the key, and returns the digest under which it was stored.
async fn digest_of_key(client: &Client, session: &Session, request: &Request) -> String {
    let delete = "DELETE FROM idempotency_keys RETURNING digest::text";
    session.execute(delete, &[]).await.unwrap();
    assert!(request.settle(client).await.status < 300, "{request:?}");
    session.query(delete, &[]).await.unwrap()[0].get(0)
}

#[tokio::test]
async fn an_order_that_a_deadlock_ends_is_tried_again() {
    let node = start_deadlock_victim().await;
    let (client, session) = (&node.client, node.database.connect().await);
    let ((_, sample), (ordered, order)) = (add_ordered(client).await, add_ordered(client).await);
    let (other, pet) = (add(client).await, add(client).await);
    for (sample, pet, request, table) in [
        (place(other).with_key("basket"), pet, place(pet).with_key("basket"), "pets"),
        (complete(sample).with_key("sale"), ordered, complete(order).with_key("sale"), "orders"),
    ] {
        let digest = digest_of_key(client, &session, &sample).await;
        let gate = Gate::close(&node.database, &format!("BEFORE UPDATE ON {table} FOR EACH ROW")).await;
        let holder = Holder::begin(&node.database, "SET LOCAL deadlock_timeout = '1h'").await;
        hold_idempotency_key(&holder.session, &digest).await;
        let answer = deadlock(&node, gate, holder, pet, &request).await;
        assert!(answer.status < 300 && !answer.is_replayed(), "{request:?}: {answer:?}");
        session.batch_execute(&format!("DROP TRIGGER gate ON {table}")).await.unwrap();
    }
    check_deadlocks(node, 2).await;
}

#[tokio::test]
async fn a_change_of_a_pet_that_a_deadlock_ends_is_tried_again() {
    let node = start_deadlock_victim().await;
    let pet = add(&node.client).await;
    let insert = "SET LOCAL deadlock_timeout = '1h'; \
        INSERT INTO pets (name, category_id, reference) VALUES ('Bello', 1, 'HELD')";
    let gate = Gate::close(&node.database, PET_IS_WRITTEN).await;
    let holder = Holder::begin(&node.database, insert).await;
    let request = patch(pet, json!({"reference": "HELD"}));
    let answer = deadlock(&node, gate, holder, pet, &request).await;
    assert_eq!((answer.status, &answer.json()["reference"]), (200, &json!("HELD")), "{answer:?}");
    check_deadlocks(node, 1).await;
}
