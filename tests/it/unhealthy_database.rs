//! The database goes away, comes back, or takes too long.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use petstore::domain::api_key::ApiKey;
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::TestService;
use crate::support::postgres::script;
use crate::support::program::{ServeProcess, run};
use crate::support::{Client, client::Answer};

/// A PostgreSQL of the test's own, to be stopped and started.
pub(crate) struct PrivatePostgres {
    directory: PathBuf,
    pub(crate) url: String,
}

impl PrivatePostgres {
    pub(crate) fn start() -> Self {
        let directory =
            std::env::temp_dir().join(format!("petstore-private-postgres-{}", std::process::id()));
        let url = script(&["start", directory.to_str().unwrap()]);
        Self { directory, url }
    }

    /// The same, migrated and with a key.
    pub(crate) fn start_shop() -> (Self, ApiKey) {
        let postgres = Self::start();
        postgres.petstore(&["migrate"]);
        let key = postgres.petstore(&["keys", "create", "--name", "shop"]).parse().unwrap();
        (postgres, key)
    }

    pub(crate) fn stop(&self, mode: &str) {
        script(&["stop", self.directory.to_str().unwrap(), mode]);
    }

    pub(crate) fn start_again(&self) {
        script(&["start", self.directory.to_str().unwrap()]);
    }

    fn petstore(&self, arguments: &[&str]) -> String {
        let output = run(arguments, &[("DATABASE_URL", &self.url)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let directory = self.directory.to_str().unwrap();
        let _ = std::panic::catch_unwind(|| script(&["stop", directory, "immediate"]));
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const UNAVAILABLE: &str = r#"{"code":"unavailable","message":"The service is temporarily unavailable, and nothing was changed: retry after the number of seconds in `Retry-After`.","status":503}"#;

/// A database that was away is asked again within a second.
async fn becomes_well(client: &Client, path: &str) {
    let back = Instant::now();
    while client.get(path).await.status != 200 {
        assert!(back.elapsed() < Duration::from_secs(2), "{path} within 2 seconds");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn it_starts_while_the_database_is_away_and_recovers_by_itself() {
    let (postgres, key) = PrivatePostgres::start_shop();
    postgres.stop("fast");

    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    let admin = Client::new(service.admin_address, None);
    for _ in 0..3 {
        let answer = client.get("/v1/pets").await;
        assert_eq!((answer.status, &*answer.body, answer.header("retry-after")), (503, UNAVAILABLE, "1"));
    }
    assert_eq!(client.without_key().get("/v1/pets").await.status, 401, "what needs no database is answered");
    assert_eq!(client.without_key().get("/openapi.json").await.status, 200);
    assert_eq!(admin.get("/livez").await.status, 200);
    assert_eq!(admin.get("/readyz").await.status, 503);

    postgres.start_again();
    becomes_well(&client, "/v1/pets").await;
    becomes_well(&admin, "/readyz").await;
    let (exited_well, log) = service.terminate();
    assert!(exited_well);
    assert!(log.contains("the database is not available"), "{log}");
}

#[tokio::test]
async fn a_database_that_comes_back_without_its_schema_is_not_used() {
    let postgres = PrivatePostgres::start();
    postgres.stop("fast");
    let service = ServeProcess::start(&postgres.url, &[]);
    postgres.start_again();
    let admin = Client::new(service.admin_address, None);
    let back = Instant::now();
    while !service.log().contains("run `petstore migrate` first") {
        assert!(back.elapsed() < Duration::from_secs(2), "{}", service.log());
        assert_eq!(admin.get("/readyz").await.status, 503);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    postgres.petstore(&["migrate"]);
    becomes_well(&admin, "/readyz").await;
}

#[derive(Default)]
struct Load {
    done: AtomicBool,
    succeeded: AtomicU32,
    unavailable: AtomicU32,
}

/// Reads and adds until told to stop; returns the ids of the pets whose addition was acknowledged.
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
            assert_eq!(found.ids(), [last], "what was acknowledged is there");
        }
        for answer in [added, found] {
            count(&load, &answer);
        }
    }
    acknowledged
}

/// An answer is right, or it is 503: nothing else.
fn count(load: &Load, answer: &Answer) {
    match answer.status {
        200 | 201 => load.succeeded.fetch_add(1, Ordering::Relaxed),
        503 => {
            assert_eq!(answer.error().1, "unavailable");
            load.unavailable.fetch_add(1, Ordering::Relaxed)
        }
        _ => panic!("{answer:?}"),
    };
}

#[tokio::test]
async fn a_database_that_is_stopped_and_started_under_load_causes_503_and_nothing_worse() {
    let (postgres, key) = PrivatePostgres::start_shop();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    let load = Arc::new(Load::default());
    let mut clients = JoinSet::new();
    for _ in 0..32 {
        clients.spawn(work(client.clone(), load.clone()));
    }
    for mode in ["fast", "immediate", "fast", "immediate"] {
        tokio::time::sleep(Duration::from_millis(500)).await;
        postgres.stop(mode);
        let before = load.unavailable.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(load.unavailable.load(Ordering::Relaxed) > before, "503 while the database is away");

        postgres.start_again();
        let back = Instant::now();
        while client.get("/v1/pets").await.status != 200 {
            assert!(back.elapsed() < Duration::from_secs(2), "200 within 2 seconds");
        }
        eprintln!("{mode}: the first 200 came {:?} after the database was back", back.elapsed());
        let before = load.succeeded.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(load.succeeded.load(Ordering::Relaxed) > before, "everybody is served again");
    }
    load.done.store(true, Ordering::Relaxed);
    let acknowledged: Vec<i64> = clients.join_all().await.concat();
    let unique: BTreeSet<i64> = acknowledged.iter().copied().collect();
    assert_eq!(unique.len(), acknowledged.len(), "no id was given out twice");
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
async fn a_statement_that_takes_too_long_answers_503_and_frees_its_connection() {
    let service =
        TestService::start_with(&["--database-timeout", "300ms", "--database-connections", "1"]).await;
    service.client.get("/v1/pets").await;
    let blocker = service.database.connect().await;
    blocker.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let started = Instant::now();
    assert_eq!(service.client.get("/v1/pets").await.body, UNAVAILABLE);
    let new = json!({"name": "Rex", "categoryId": 1});
    assert_eq!(service.client.post("/v1/pets", &new).await.body, UNAVAILABLE, "the server itself ended it");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(service.client.get("/v1/pets").await.body, "[]", "and nothing was stored");
}

#[tokio::test]
async fn a_pool_with_no_connection_left_answers_503_soon() {
    let service =
        TestService::start_with(&["--database-connections", "1", "--database-timeout", "20s"]).await;
    service.client.get("/v1/pets").await;
    let blocker = service.database.connect().await;
    blocker.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let client = service.client.clone();
    let holding = tokio::spawn(async move { client.get("/v1/pets").await.status });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    assert_eq!(service.client.get("/v1/pets").await.body, UNAVAILABLE);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(holding.await.unwrap(), 200);
}

#[tokio::test]
async fn a_write_that_loses_its_connection_says_that_its_outcome_is_unknown() {
    let service = TestService::start_with(&["--database-connections", "1"]).await;
    // So that the statement is prepared, and only its execution waits.
    service.client.add("Max", None).await;
    let blocker = service.database.connect().await;
    blocker.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let client = service.client.clone();
    let adding = tokio::spawn(async move {
        client
            .send(Method::POST, "/v1/pets", |request| {
                request.header("content-type", "application/json").body(r#"{"name": "Rex", "categoryId": 1}"#)
            })
            .await
    });
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while blocker.query(kill, &[]).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        adding.await.unwrap().body,
        r#"{"code":"unavailable","message":"The outcome of this request is unknown, because the database failed before it confirmed the change: retry with the same `Idempotency-Key`, or if you sent none, check first whether the change took effect.","status":503}"#
    );
}
