//! The database is unavailable, comes back, or is too slow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::TestService;
use crate::support::postgres::wait_for_blocked_statement;
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::ServeProcess;
use crate::support::wait::{PROMPTLY, eventually};
use crate::support::{Client, client::Answer};

const UNAVAILABLE: &str = r#"{"code":"unavailable","message":"The service is temporarily unavailable, and nothing was changed: retry after the number of seconds in `Retry-After`.","status":503}"#;

/// Waits for recovery.
async fn recovers(client: &Client, path: &str) {
    eventually(path, async || client.get(path).await.status == 200).await;
}

#[tokio::test]
async fn the_service_starts_without_its_database_and_recovers_by_itself() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    postgres.stop("fast");

    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    let admin = Client::new(service.admin_address, None);
    for _ in 0..3 {
        let answer = client.get("/v1/pets").await;
        assert_eq!((answer.status, &*answer.body, answer.header("retry-after")), (503, UNAVAILABLE, "1"));
    }
    assert_eq!(client.without_key().get("/v1/pets").await.status, 401, "this needs no database");
    assert_eq!(client.without_key().get("/openapi.json").await.status, 200);
    assert_eq!(admin.get("/livez").await.status, 200);
    for check in ["/startupz", "/readyz"] {
        let answer = admin.get(check).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("This node is not ready: database unavailable: "), "{message}");
        assert!(message.contains("Connection refused"), "{message}");
    }

    postgres.start_again();
    recovers(&client, "/v1/pets").await;
    recovers(&admin, "/startupz").await;
    recovers(&admin, "/readyz").await;
    let (exited_well, log) = service.terminate();
    assert!(exited_well);
    assert!(log.contains("database unavailable"), "{log}");
}

#[tokio::test]
async fn a_node_stays_ready_while_its_database_is_away() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &[]);
    let admin = Client::new(service.admin_address, None);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(admin.get("/readyz").await.status, 200);
    postgres.stop("fast");
    assert_eq!(client.get("/v1/pets").await.status, 503);
    for check in ["/livez", "/startupz", "/readyz"] {
        assert_eq!(admin.get(check).await.status, 200, "{check}");
    }
}

#[tokio::test]
async fn a_database_that_comes_back_without_its_schema_is_not_used() {
    let postgres = PrivatePostgres::start();
    postgres.stop("fast");
    let service = ServeProcess::start(&postgres.url, &[]);
    postgres.start_again();
    let admin = Client::new(service.admin_address, None);
    eventually("the schema is checked", async || {
        let answer = admin.get("/readyz").await;
        assert_eq!(answer.status, 503);
        answer.body.contains("run `petstore migrate` first")
    })
    .await;
    postgres.petstore(&["migrate"]);
    recovers(&admin, "/readyz").await;
}

#[derive(Default)]
struct Load {
    done: AtomicBool,
    succeeded: AtomicU32,
    unavailable: AtomicU32,
}

impl Load {
    /// Waits until a counter has grown by a few requests of each client.
    async fn wait_for_more(&self, what: &str, counter: &AtomicU32) {
        let before = counter.load(Ordering::Relaxed);
        eventually(what, async || counter.load(Ordering::Relaxed) >= before + 100).await;
    }
}

/// Adds and reads pets until the load is done. Returns the ids of the pets that were acknowledged.
async fn work(client: Client, load: Arc<Load>) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    while !load.done.load(Ordering::Relaxed) {
        let added = client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
        if added.status == 201 {
            acknowledged.push(added.json()["id"].as_i64().unwrap());
        }
        let last = acknowledged.last().copied();
        let found = client.get(&format!("/v1/pets?id={}", last.unwrap_or(1))).await;
        if let (200, Some(last)) = (found.status, last) {
            assert_eq!(found.ids(), [last], "an acknowledged pet is there");
        }
        for answer in [added, found] {
            count(&load, &answer);
        }
    }
    acknowledged
}

/// Counts an answer, which must be right or 503.
fn count(load: &Load, answer: &Answer) {
    match answer.status {
        200 | 201 => load.succeeded.fetch_add(1, Ordering::Relaxed),
        503 => {
            assert!(["unavailable", "outcome_unknown"].contains(&answer.error().1.as_str()));
            load.unavailable.fetch_add(1, Ordering::Relaxed)
        }
        _ => panic!("{answer:?}"),
    };
}

#[tokio::test]
async fn restarting_the_database_under_load_causes_503_and_no_other_error() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    let load = Arc::new(Load::default());
    let mut clients = JoinSet::new();
    for _ in 0..32 {
        clients.spawn(work(client.clone(), load.clone()));
    }
    for mode in ["fast", "immediate", "fast", "immediate"] {
        load.wait_for_more("requests are served", &load.succeeded).await;
        postgres.stop(mode);
        load.wait_for_more("503 while the database is unavailable", &load.unavailable).await;

        postgres.start_again();
        let back = Instant::now();
        recovers(&client, "/v1/pets").await;
        eprintln!("{mode}: the first 200 came {:?} after the database was started", back.elapsed());
        assert!(back.elapsed() < PROMPTLY, "{:?}", back.elapsed());
        load.wait_for_more("requests are served again", &load.succeeded).await;
    }
    load.done.store(true, Ordering::Relaxed);
    let acknowledged: Vec<i64> = clients.join_all().await.concat();
    let unique: BTreeSet<i64> = acknowledged.iter().copied().collect();
    assert_eq!(unique.len(), acknowledged.len(), "no id was issued twice");
    for ids in acknowledged.chunks(100) {
        let query: Vec<String> = ids.iter().map(|id| format!("id={id}")).collect();
        let found = client.get(&format!("/v1/pets?limit=100&{}", query.join("&"))).await.ids();
        assert_eq!(found.len(), ids.len(), "every acknowledged pet is there");
    }
    let (succeeded, unavailable) =
        (load.succeeded.load(Ordering::Relaxed), load.unavailable.load(Ordering::Relaxed));
    eprintln!(
        "{succeeded} answers of 200 or 201, {unavailable} of 503, {} pets acknowledged",
        acknowledged.len()
    );
    assert!(!acknowledged.is_empty());
}

#[tokio::test]
async fn a_statement_that_times_out_answers_503_and_frees_its_connection() {
    let service =
        TestService::start_with(&["--database-timeout", "300ms", "--database-connections", "1"]).await;
    service.client.get("/v1/pets").await;
    let blocker = service.database.connect().await;
    blocker.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    // The lock is held until both are answered.
    assert_eq!(service.client.get("/v1/pets").await.body, UNAVAILABLE);
    let new = json!({"name": "Rex", "categoryId": 1});
    assert_eq!(service.client.post("/v1/pets", &new).await.body, UNAVAILABLE, "the server ended it");
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(service.client.get("/v1/pets").await.body, "[]", "and nothing was stored");
}

#[tokio::test]
async fn an_exhausted_connection_pool_answers_503_quickly() {
    let service =
        TestService::start_with(&["--database-connections", "1", "--database-timeout", "60s"]).await;
    let blocker = service.database.connect().await;
    // Conflicts with writing only: the table is read in the background.
    blocker.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE").await.unwrap();
    let client = service.client.clone();
    let holding = tokio::spawn(async move { client.add("Rex", None).await });
    wait_for_blocked_statement(&service.database.connect().await).await;
    let started = Instant::now();
    assert_eq!(service.client.get("/v1/pets").await.body, UNAVAILABLE);
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(holding.await.unwrap(), 1);
}

#[tokio::test]
async fn a_table_that_somebody_changed_costs_a_session_and_not_the_service() {
    let service = TestService::start().await;
    let client = &service.client;
    client.add("Rex", None).await;
    assert_eq!(client.get("/v1/pets/1").await.status, 200);
    let database = service.database.connect().await;
    // "cached plan must not change result type"
    database.batch_execute("ALTER TABLE pets ALTER COLUMN name TYPE varchar(300)").await.unwrap();
    eventually("the pet is found", async || {
        let answer = client.get("/v1/pets/1").await;
        assert!(matches!(answer.status, 200 | 503), "{}", answer.body);
        answer.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_write_that_loses_its_connection_says_that_its_outcome_is_unknown() {
    let service = TestService::start_with(&["--database-connections", "1"]).await;
    let blocker = service.database.connect().await;
    // Only inserting waits: neither preparing the statement nor measuring the table does.
    blocker
        .batch_execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ \
               BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NEW; END $$; \
             CREATE TRIGGER wait BEFORE INSERT ON pets FOR EACH ROW EXECUTE FUNCTION wait(); \
             SELECT pg_advisory_lock(42)",
        )
        .await
        .unwrap();
    let client = service.client.clone();
    let adding = tokio::spawn(async move {
        client
            .send(Method::POST, "/v1/pets", |request| {
                request.header("content-type", "application/json").body(r#"{"name": "Rex", "categoryId": 1}"#)
            })
            .await
    });
    let watch = service.database.connect().await;
    let pid = wait_for_blocked_statement(&watch).await;
    watch.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    assert_eq!(
        adding.await.unwrap().body,
        r#"{"code":"outcome_unknown","message":"The outcome of this request is unknown, because the database failed before it confirmed the change: retry with the same `Idempotency-Key`. If you sent no key, first check whether the change took effect.","status":503}"#
    );
}
