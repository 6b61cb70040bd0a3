//! Failover: finding the server that accepts writes, without flooding one that is unavailable.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::Client;
use crate::support::metrics::{metric, wait_for_metric};
use crate::support::postgres::{TestDatabase, connect, wait_for_blocked_statement};
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{ServeProcess, signal};
use crate::support::wait::{PROMPTLY, eventually};

/// A URL that names another server before that of the database.
fn with_server_before(url: &str, address: &str) -> String {
    let (user, rest) = url.split_once('@').unwrap();
    format!("{user}@{address},{rest}")
}

/// A server that accepts connections and never responds.
fn unresponsive_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A server that closes every connection at once. Returns how many there were so far.
fn closing_server() -> (Arc<AtomicU32>, String) {
    let (listener, address) = unresponsive_server();
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(connection);
        }
    });
    (count, address)
}

#[tokio::test]
async fn an_unresponsive_server_does_not_hide_a_working_one() {
    let database = TestDatabase::new().await;
    let (_listener, unresponsive) = unresponsive_server();
    let started = Instant::now();
    let service = ServeProcess::start(&with_server_before(&database.url(), &unresponsive), &[]);
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
}

#[tokio::test]
async fn waiting_for_an_unresponsive_server_uses_almost_no_cpu() {
    let (_listener, unresponsive) = unresponsive_server();
    let service = ServeProcess::start(&format!("postgresql://petstore@{unresponsive}/petstore"), &[]);
    let used = || {
        let statistics = std::fs::read_to_string(format!("/proc/{}/stat", service.id())).unwrap();
        let fields: Vec<&str> = statistics.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = used();
    let started = Instant::now();
    // The promise is about time: CPU time per second.
    while started.elapsed() < Duration::from_secs(3) {
        assert_eq!(service.client.get("/v1/pets").await.status, 503);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In hundredths of a second.
    assert!(used() - before < 60, "{} of 300", used() - before);
}

#[tokio::test]
async fn a_read_only_server_is_skipped() {
    let (reader, writer) = (PrivatePostgres::start(), TestDatabase::new().await);
    connect(&reader.url)
        .await
        .batch_execute("ALTER SYSTEM SET default_transaction_read_only = on")
        .await
        .unwrap();
    connect(&reader.url).await.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let address = reader.url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let service = ServeProcess::start(&with_server_before(&writer.url(), &address), &[]);
    assert_eq!(service.client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await.status, 201);

    let alone = ServeProcess::start(&reader.url, &[]);
    assert_eq!(Client::new(alone.admin_address, None).get("/readyz").await.status, 503);
}

#[tokio::test]
async fn an_unavailable_database_is_tried_about_once_per_second_under_load() {
    let (attempts, address) = closing_server();
    let service = ServeProcess::start(&format!("postgresql://petstore@{address}/petstore"), &[]);
    let before = attempts.load(Ordering::Relaxed);
    let (started, mut requests) = (Instant::now(), 0);
    let made = || attempts.load(Ordering::Relaxed) - before;
    while requests < 100 || made() < 6 {
        assert_eq!(service.client.get("/v1/pets").await.status, 503);
        requests += 1;
    }
    let expected = started.elapsed().as_secs_f64() + 4.0;
    assert!(f64::from(made()) <= expected, "{} attempts for {requests} requests", made());
}

#[tokio::test]
async fn a_commit_cancelled_while_it_waits_for_its_standby_is_not_acknowledged() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await.status, 201);

    let admin = connect(&postgres.url).await;
    // No standby has this name, so every commit waits.
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let cancel = async || -> Infallible {
        loop {
            let waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            admin.query(waits, &[]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The server reloads its settings asynchronously.
    let answer = loop {
        let body = json!({"name": "Bello", "categoryId": 1});
        let answer = tokio::select! {
            answer = client.post("/v1/pets", &body) => answer,
            never = cancel() => match never {},
        };
        if answer.status != 201 {
            break answer;
        }
    };
    assert_eq!(answer.status, 503, "PostgreSQL reported a commit, with a warning");
    assert!(answer.body.contains("The outcome of this request is unknown"), "{}", answer.body);
}

#[tokio::test]
async fn a_repeated_request_is_acknowledged_only_once_a_standby_has_its_result() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &["--database-timeout", "1s"]);
    let client = Client::new(service.address, Some(&key));
    let rex = json!({"name": "Rex", "categoryId": 1, "status": "available"});
    let created = client.post_with_key("/v1/pets", "create", &rex).await;
    assert_eq!(created.status, 201);
    let pet = created.json()["id"].as_i64().unwrap();
    let order = json!({"petId": pet});
    let placed = client.post_with_key("/v1/store/orders", "place", &order).await;
    assert_eq!(placed.status, 201, "{}", placed.body);
    let complete = format!("/v1/store/orders/{}/complete", placed.json()["id"]);
    let complete = async |key: Option<&str>| {
        let end = |request: RequestBuilder| {
            key.into_iter().fold(request, |it, key| it.header("idempotency-key", key))
        };
        client.send(Method::POST, &complete, end).await.status
    };
    assert_eq!((complete(None).await, complete(Some("complete")).await), (200, 200));
    let newest = client.get("/v1/events?after=now").await.next().unwrap().to_owned();

    let admin = connect(&postgres.url).await;
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // The server reloads its settings asynchronously. This locks a row, but adds no event.
    while client.patch_pet(pet, &json!({"name": "Rex"})).await.status == 200 {}
    // Each found what was there. No standby has it, and a failover would lose it.
    assert_eq!(client.post_with_key("/v1/pets", "create", &rex).await.status, 503);
    assert_eq!(client.post_with_key("/v1/store/orders", "place", &order).await.status, 503);
    assert_eq!((complete(Some("complete")).await, complete(None).await), (503, 503));
    let unchanged = client.patch_pet(pet, &json!({"name": "Rex"})).await;
    assert_eq!(unchanged.status, 503, "{}", unchanged.body);
    // So does a reader that gets a position in the feed, but not one that keeps its own.
    for position in ["/v1/events", "/v1/events?after=now"] {
        assert_eq!(client.get(position).await.status, 503, "{position}");
    }
    let nothing = client.get(&newest).await;
    assert_eq!((nothing.status, &*nothing.body), (200, "[]"));
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.status, 200, "reads wait for nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_for_a_standby_use_a_bounded_number_of_server_processes_and_delay_no_read() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service =
        ServeProcess::start(&postgres.url, &["--database-timeout", "500ms", "--database-connections", "8"]);
    let client = Client::new(service.address, Some(&key));
    let rex = json!({"name": "Rex", "categoryId": 1, "status": "available"});
    assert_eq!(client.post("/v1/pets", &rex).await.status, 201);
    let admin = connect(&postgres.url).await;
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    while client.post("/v1/pets", &rex).await.status == 201 {}

    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for worker in 0..16 {
        let (client, stop, rex) = (client.clone(), stop.clone(), rex.clone());
        writers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = match worker % 4 {
                    0 => client.patch_pet(1, &json!({"name": format!("Rex {worker}")})).await,
                    1 => client.post("/v1/store/orders", &json!({"petId": 1})).await,
                    _ => client.post("/v1/pets", &rex).await,
                };
                assert_eq!(answer.status, 503, "{}", answer.body);
            }
        });
    }
    let processes = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'petstore/%'";
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let count = async |sql: &str| -> i64 { admin.query_one(sql, &[]).await.unwrap().get(0) };
    eventually("the writes use all of their connections", async || count(waiting).await >= 6).await;
    for _ in 0..100 {
        assert_eq!(client.get("/v1/pets/1").await.status, 200, "reads go on");
        assert_eq!(client.get("/v1/pets").await.status, 200, "reads go on");
        assert!(count(processes).await <= 8, "{} processes", count(processes).await);
    }
    let abandoned = r#"db_client_connections{state="abandoned"}"#;
    assert!(metric(service.admin_address, abandoned).await >= Some(1.0));

    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    // The standby is back.
    admin.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("writes succeed", async || client.post("/v1/pets", &rex).await.status == 201).await;
    wait_for_metric(service.admin_address, abandoned, 0.0).await;
}

#[tokio::test]
async fn a_broken_database_connection_ends_its_request_at_once() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &["--database-timeout", "60s"]);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(client.get("/v1/pets").await.status, 200);

    let mut admin = connect(&postgres.url).await;
    let locked = admin.transaction().await.unwrap();
    locked.batch_execute("LOCK TABLE pets").await.unwrap();
    let watch = connect(&postgres.url).await;
    let kill = async {
        let pid = wait_for_blocked_statement(&watch).await;
        // Without closing the connection in an orderly way.
        signal("KILL", pid.try_into().unwrap());
        Instant::now()
    };
    let (answer, killed) = tokio::join!(client.get("/v1/pets"), kill);
    assert_eq!(answer.status, 503);
    assert!(killed.elapsed() < PROMPTLY, "{:?}", killed.elapsed());
}
