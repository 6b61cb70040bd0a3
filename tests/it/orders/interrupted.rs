//! Orders, and changes of pets, that end early: a write fails, or their session, their node or their client is gone. Nothing is left
//! behind, neither a change nor a lock, and the retry finds the truth.

use std::time::{Duration, Instant};

use petstore_config::{PoolSettings, ReadFrom};
use petstore_domain::metadata::Metadata;
use petstore_domain::order::{NewOrder, OrderEnd};
use petstore_domain::pet::Pet;
use petstore_domain::version::Versioned;
use petstore_storage::Storage;
use tokio_postgres::Client as Session;

use crate::support::interleaving::Between::{self, LocksAndWrites, WritesAndCommit};
use crate::support::interleaving::{FrozenRequest, Gate, Holder};
use crate::support::metrics::wait_for_requests_in_flight;
use crate::support::program::ServeProcess;
use crate::support::wait::{PROMPTLY, eventually, poll};
use crate::support::write_requests::{
    ORDERS, PATIENT, Request, add, add_ordered, cancel, complete, delete, place, rename, stored,
    while_waiting,
};
use crate::support::{Answer, Client, TestDatabase, TestService};

/// Requests of each kind that all fail or are stopped, each with what is stored as long as nothing has changed: a new pet each.
async fn one_of_each(client: &Client) -> Vec<(i64, Request)> {
    let pet = add(client).await;
    let mut requests = vec![(pet, place(pet).with_key("place"))];
    for end in [complete, cancel] {
        let (pet, order) = add_ordered(client).await;
        requests.push((pet, end(order).with_key("end")));
    }
    for (change, key) in [(rename as fn(i64) -> Request, "patch"), (delete, "delete")] {
        let pet = add(client).await;
        requests.push((pet, change(pet).with_key(key)));
    }
    requests
}

/// Sends each request while a trigger fires for it, and checks that it fails and changes nothing; then without the trigger.
async fn check_failing_writes(body: &str, fires: &[(&str, &[&str])]) {
    let service = TestService::start().await;
    let (client, session) = (&service.client, service.database.connect().await);
    let function =
        format!("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$");
    session.batch_execute(&function).await.unwrap();
    for (trigger, fails) in fires {
        let requests = one_of_each(client).await;
        let (kind, table) = trigger.split_once(" ON ").unwrap();
        let create = match kind.strip_prefix("COMMIT OF ") {
            Some(kind) => {
                format!(
                    "CREATE CONSTRAINT TRIGGER fail AFTER {kind} ON {table} DEFERRABLE INITIALLY DEFERRED"
                )
            }
            None => format!("CREATE TRIGGER fail BEFORE {kind} ON {table}"),
        };
        session.batch_execute(&format!("{create} FOR EACH ROW EXECUTE FUNCTION fail()")).await.unwrap();
        for (pet, request) in requests.iter().filter(|(_, request)| fails.contains(&request.kind())) {
            let before = stored(&session, *pet).await;
            assert_eq!(request.send(client).await.summary(), "500 internal_error", "{trigger}: {request:?}");
            assert_eq!(stored(&session, *pet).await, before, "{trigger}: {request:?}");
        }
        session.batch_execute(&format!("DROP TRIGGER fail ON {table}")).await.unwrap();
        for (_, request) in &requests {
            let answer = request.send(client).await;
            assert!(answer.status < 300 && !answer.is_replayed(), "{trigger}: {request:?}: {answer:?}");
        }
        session.batch_execute("TRUNCATE idempotency_keys").await.unwrap();
    }
}

const ENDS: [&str; 2] = ["complete", "cancel"];

#[tokio::test]
async fn a_request_of_which_one_write_or_the_commit_fails_leaves_nothing() {
    check_failing_writes(
        "RAISE EXCEPTION 'refused'",
        &[
            ("UPDATE ON pets", &["place", "complete", "cancel", "patch"]),
            ("UPDATE ON orders", &ENDS),
            ("INSERT ON orders", &["place"]),
            ("INSERT ON idempotency_keys", &["place", "complete", "cancel", "patch", "delete"]),
            ("DELETE ON pets", &["delete"]),
            ("COMMIT OF DELETE ON pets", &["delete"]),
            ("COMMIT OF UPDATE ON pets", &["place", "complete", "cancel", "patch"]),
            ("COMMIT OF INSERT ON orders", &["place"]),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_request_of_which_one_write_changes_no_row_leaves_nothing() {
    check_failing_writes(
        "RETURN NULL",
        &[
            ("UPDATE ON pets", &["place", "complete", "cancel", "patch"]),
            ("UPDATE ON orders", &ENDS),
            ("INSERT ON orders", &["place"]),
            ("DELETE ON pets", &["delete"]),
        ],
    )
    .await;
}

/// Stops a node between two round trips of a request.
async fn freeze(
    node: &ServeProcess,
    database: &TestDatabase,
    pet: i64,
    request: &Request,
    between: Between,
) -> FrozenRequest {
    FrozenRequest::new(node, database, pet, between, |client| request.clone().try_send(client)).await
}

async fn wait_until_gone(session: &Session, pid: i32) {
    let gone = "SELECT FROM pg_stat_activity WHERE pid = $1";
    eventually("the session ends", async || session.query(gone, &[&pid]).await.unwrap().is_empty()).await;
}

#[tokio::test]
async fn a_node_that_stands_still_between_its_round_trips_holds_neither_the_pet_nor_the_feed_for_long() {
    let other = TestService::start().await;
    let (client, session) = (&other.client, other.database.connect().await);
    let node = ServeProcess::start(&other.database.url(), &PATIENT);
    // What another node does meanwhile, and what is stored afterwards.
    for (frozen, between, then, left) in [
        ("place", LocksAndWrites, place as fn(i64) -> Request, "Rex pending placed 0"),
        ("complete", LocksAndWrites, cancel, "Rex available cancelled 0"),
        ("cancel", LocksAndWrites, complete, "Rex sold completed 0"),
        ("patch", LocksAndWrites, place, "Rex pending placed 0"),
        ("place", WritesAndCommit, place, "Rex pending placed 0"),
        ("complete", WritesAndCommit, cancel, "Rex available cancelled 0"),
    ] {
        let requests = one_of_each(client).await;
        let (pet, request) = requests.into_iter().find(|(_, request)| request.kind() == frozen).unwrap();
        let order = client.get(&format!("{ORDERS}?petId={pet}")).await.ids().first().copied();
        let feed = client.get("/v1/events?after=now").await.next().unwrap().to_owned();
        let frozen = freeze(&node, &other.database, pet, &request, between).await;
        let since = Instant::now();
        let then = then(order.unwrap_or(pet)).settle(client).await;
        assert!(then.status < 300, "{request:?}: {then:?}");
        wait_until_gone(&session, frozen.pid).await;
        assert!(since.elapsed() < PROMPTLY, "{request:?}, {between:?}: {:?}", since.elapsed());
        // Transactions of other tests on the same server hold the feed back, too.
        eventually("the feed shows it", async || client.get(&feed).await.body != "[]").await;
        node.signal("CONT");
        let answer = frozen.answer.await.unwrap().unwrap();
        assert_eq!(answer.summary(), "503 unavailable", "{request:?}, {between:?}: nothing was changed");
        assert_eq!(stored(&session, pet).await, left, "{request:?}, {between:?}");
        // The node works on.
        let (_, order) = add_ordered(&node.client).await;
        assert_eq!(complete(order).settle(&node.client).await.status, 200);
    }
}

#[tokio::test]
async fn a_session_that_ends_between_the_round_trips_has_changed_nothing_and_says_so() {
    let other = TestService::start().await;
    let (client, session) = (&other.client, other.database.connect().await);
    let node = ServeProcess::start(&other.database.url(), &PATIENT);
    for between in [LocksAndWrites, WritesAndCommit] {
        for (pet, request) in one_of_each(client).await {
            let before = stored(&session, pet).await;
            let frozen = freeze(&node, &other.database, pet, &request, between).await;
            session.execute("SELECT pg_terminate_backend($1)", &[&frozen.pid]).await.unwrap();
            wait_until_gone(&session, frozen.pid).await;
            node.signal("CONT");
            let answer = frozen.answer.await.unwrap().unwrap();
            assert_eq!(answer.summary(), "503 unavailable", "{request:?}, {between:?}");
            assert_eq!(stored(&session, pet).await, before, "{request:?}, {between:?}");
            let retried = request.settle(&node.client).await;
            assert!(retried.status < 300 && !retried.is_replayed(), "{request:?}: {retried:?}");
        }
        session.batch_execute("TRUNCATE idempotency_keys").await.unwrap();
    }
}

#[tokio::test]
async fn a_node_that_is_killed_between_the_round_trips_has_changed_nothing() {
    let other = TestService::start().await;
    let (client, session) = (&other.client, other.database.connect().await);
    for (number, (pet, request)) in one_of_each(client).await.into_iter().enumerate() {
        let between = [LocksAndWrites, WritesAndCommit][number % 2];
        let node = ServeProcess::start(&other.database.url(), &PATIENT);
        let before = stored(&session, pet).await;
        let frozen = freeze(&node, &other.database, pet, &request, between).await;
        node.signal("KILL");
        assert!(frozen.answer.await.unwrap().is_err());
        wait_until_gone(&session, frozen.pid).await;
        assert_eq!(stored(&session, pet).await, before, "{request:?}, {between:?}");
        let retried = request.settle(client).await;
        assert!(retried.status < 300 && !retried.is_replayed(), "{request:?}: {retried:?}");
    }
}

/// Stops a request with an idempotency key during its COMMIT, ends its node or its session, and lets the COMMIT succeed or fail.
/// Returns the answer, if there was one, and that to the retry on another node.
async fn interrupt_commit(
    other: &TestService,
    request: &Request,
    kill: bool,
    commits: bool,
) -> (String, Answer) {
    let session = other.database.connect().await;
    let node = ServeProcess::start(&other.database.url(), &PATIENT);
    let (fires, table) = match request.kind() {
        "patch" => ("UPDATE", "pets"),
        "delete" => ("DELETE", "pets"),
        _ => ("INSERT OR UPDATE", "orders"),
    };
    let gate = Gate::close_at_commit(&other.database, &format!("AFTER {fires} ON {table}")).await;
    let mut answer = tokio::spawn(request.clone().try_send(node.client.clone()));
    let pid = while_waiting(&mut answer, gate.wait_for_arrival()).await;
    if kill {
        node.signal("KILL");
    }
    if !commits {
        session.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    }
    let answer = answer.await.unwrap().map_or_else(|_| "none".to_owned(), |answer| answer.summary());
    if kill && commits {
        let early = request.send(&other.client).await;
        assert_eq!(early.summary(), "409 idempotency_in_progress", "it is not known yet");
    }
    gate.open().await;
    let retried = request.settle(&other.client).await;
    session.batch_execute(&format!("DROP TRIGGER gate ON {table}")).await.unwrap();
    (answer, retried)
}

#[tokio::test]
async fn the_retry_of_a_request_whose_commit_was_interrupted_finds_the_truth() {
    let other = TestService::start_with(&PATIENT).await;
    let client = &other.client;
    for (kill, commits, expected) in
        [(true, true, "none"), (true, false, "none"), (false, false, "503 outcome_unknown")]
    {
        for (pet, request) in one_of_each(client).await {
            let (answer, retried) = interrupt_commit(&other, &request, kill, commits).await;
            assert_eq!(answer, expected, "{request:?}");
            assert!(retried.status < 300, "{request:?}: {retried:?}");
            assert_eq!(retried.is_replayed(), commits, "{request:?}: {retried:?}");
            let orders = client.get(&format!("{ORDERS}?petId={pet}")).await.ids();
            let is_of_order = !["patch", "delete"].contains(&request.kind());
            assert_eq!(orders.len(), usize::from(is_of_order), "{request:?}");
        }
        other.database.connect().await.batch_execute("TRUNCATE idempotency_keys").await.unwrap();
    }
}

/// The server processes of the sessions of nodes.
async fn sessions(watch: &Session) -> Vec<i32> {
    let sessions = "SELECT pid FROM pg_stat_activity \
        WHERE datname = current_database() AND application_name LIKE 'petstore/%'";
    watch.query(sessions, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Waits until a session has ended its transaction, and checks that it was kept.
async fn wait_until_idle(watch: &Session, pid: i32) {
    let state = async || -> Option<String> {
        let state = "SELECT state FROM pg_stat_activity WHERE pid = $1";
        watch.query_opt(state, &[&pid]).await.unwrap().and_then(|row| row.get(0))
    };
    let is_at_rest = |state: &Option<String>| state.as_deref().is_none_or(|state| state == "idle");
    let state = poll("the transaction ends", state, is_at_rest).await;
    assert_eq!(state.as_deref(), Some("idle"), "the session was lost");
}

#[tokio::test]
async fn a_client_that_leaves_while_its_request_waits_costs_neither_a_lock_nor_a_session() {
    let service = TestService::start().await;
    let (client, session) = (&service.client, service.database.connect().await);
    for (pet, request) in one_of_each(client).await {
        let (before, sessions_before) = (stored(&session, pet).await, sessions(&session).await);
        let holder = Holder::of_pet(&service.database, pet).await;
        let mut leaving = tokio::spawn(request.clone().try_send(client.clone()));
        let pid = while_waiting(&mut leaving, holder.wait_for_waiter()).await;
        leaving.abort();
        wait_for_requests_in_flight(service.admin_address, 0).await;
        holder.end("ROLLBACK").await;
        wait_until_idle(&session, pid).await;
        let kept = sessions(&session).await;
        assert!(sessions_before.iter().all(|pid| kept.contains(pid)), "{request:?}: a session was lost");
        assert_eq!(stored(&session, pet).await, before, "{request:?}");
        assert!(request.settle(client).await.status < 300, "{request:?}");
    }
}

#[tokio::test]
async fn a_request_that_is_given_up_during_a_round_trip_changes_nothing_and_keeps_its_session() {
    let service = TestService::start().await;
    let (client, session) = (&service.client, service.database.connect().await);
    let settings = PoolSettings {
        database_connections: 4,
        database_timeout: Duration::from_mins(1),
        reads: ReadFrom::default(),
    };
    let storage = Storage::new(&service.database.url().into(), &settings).unwrap();
    let requests = [one_of_each(client).await, one_of_each(client).await].concat();
    for (number, (pet, request)) in requests.into_iter().enumerate() {
        let before = stored(&session, pet).await;
        // Half of them are given up while they take their locks, half of them while they write.
        let holder = match number {
            0..5 => Holder::of_pet(&service.database, pet).await,
            _ => Gate::close(&service.database, "BEFORE UPDATE OR DELETE ON pets FOR EACH ROW").await.0,
        };
        let pet_id = pet.try_into().unwrap();
        let calling = async {
            match request.kind() {
                "place" => {
                    let new = NewOrder { pet_id, reference: None, hold: None, metadata: Metadata::default() };
                    drop(storage.place_order(&new, None, None).await);
                }
                "patch" => {
                    let rename = |pet: &Versioned<Pet>, _: bool| {
                        Ok::<_, ()>(Pet {
                            name: "Bello".to_owned().try_into().unwrap(),
                            ..pet.content.clone()
                        })
                    };
                    drop(storage.change_pet(pet_id, None, rename).await);
                }
                "delete" => drop(storage.delete_pet(pet_id, None, |_| Ok::<_, ()>(())).await),
                kind => {
                    let order = request.path.split('/').nth(4).unwrap().parse::<i64>().unwrap();
                    let end = if kind == "complete" { OrderEnd::Complete } else { OrderEnd::Cancel };
                    drop(storage.end_order(order.try_into().unwrap(), end, None).await);
                }
            }
        };
        let pid = tokio::select! {
            pid = holder.wait_for_waiter() => pid,
            () = calling => panic!("{request:?} did not wait"),
        };
        holder.end("ROLLBACK").await;
        wait_until_idle(&session, pid).await;
        assert_eq!(stored(&session, pet).await, before, "{request:?}");
        session.batch_execute("TRUNCATE idempotency_keys").await.unwrap();
        assert!(request.send(client).await.status < 300, "{request:?}");
    }
}
