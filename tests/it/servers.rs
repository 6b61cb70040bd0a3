//! Finding the server that takes writes, and not storming one that is away.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::Client;
use crate::support::postgres::{TestDatabase, connect, locked_out};
use crate::support::program::ServeProcess;
use crate::unhealthy_database::PrivatePostgres;

/// The same database with another server before it.
fn with_server_before(url: &str, address: &str) -> String {
    let (user, rest) = url.split_once('@').unwrap();
    format!("{user}@{address},{rest}")
}

/// Takes connections and never says a word.
fn deaf_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Ends every connection at once, and counts them.
fn hostile_server() -> (Arc<AtomicU32>, String) {
    let (listener, address) = deaf_server();
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
async fn a_server_that_never_answers_does_not_hide_the_one_that_does() {
    let database = TestDatabase::new().await;
    let (_listener, deaf) = deaf_server();
    let started = Instant::now();
    let service = ServeProcess::start(&with_server_before(&database.url(), &deaf), &[]);
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn waiting_for_a_server_costs_no_processor_time() {
    let (_listener, deaf) = deaf_server();
    let service = ServeProcess::start(&format!("postgresql://nobody@{deaf}/petstore"), &[]);
    let used = || {
        let statistics = std::fs::read_to_string(format!("/proc/{}/stat", service.id())).unwrap();
        let fields: Vec<&str> = statistics.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = used();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        assert_eq!(service.client.get("/v1/pets").await.status, 503);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In hundredths of a second.
    assert!(used() - before < 60, "{} of 300", used() - before);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_passed_over_until_it_takes_them() {
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
async fn a_database_that_is_away_is_asked_about_once_a_second_whatever_comes() {
    let (attempts, address) = hostile_server();
    let service = ServeProcess::start(&format!("postgresql://nobody@{address}/petstore"), &[]);
    let before = attempts.load(Ordering::Relaxed);
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut requests = 0;
    while started.elapsed() < Duration::from_secs(4) {
        let asked = Instant::now();
        assert_eq!(service.client.get("/v1/pets").await.status, 503);
        slowest = slowest.max(asked.elapsed());
        requests += 1;
    }
    let made = attempts.load(Ordering::Relaxed) - before;
    assert!(requests > 100, "{requests} requests");
    // The pool, and the connection that hears of changed keys, each ask once a second.
    assert!((3..=12).contains(&made), "{made} attempts for {requests} requests");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test]
async fn a_commit_that_gave_up_on_its_standby_is_not_acknowledged() {
    let (postgres, key) = PrivatePostgres::start_shop();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await.status, 201);

    let admin = connect(&postgres.url).await;
    // Nobody has this name, so every commit waits.
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let cancel = async || -> Infallible {
        loop {
            let waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            admin.query(waits, &[]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The server takes a moment to hear of its new setting.
    let heard_within = Instant::now() + Duration::from_secs(10);
    let answer = loop {
        let body = json!({"name": "Bello", "categoryId": 1});
        let answer = tokio::select! {
            answer = client.post("/v1/pets", &body) => answer,
            never = cancel() => match never {},
        };
        if answer.status != 201 {
            break answer;
        }
        assert!(Instant::now() < heard_within, "every commit was acknowledged");
    };
    assert_eq!(answer.status, 503, "PostgreSQL said that it committed, and warned");
    assert!(answer.body.contains("The outcome of this request is unknown"), "{}", answer.body);
}

#[tokio::test]
async fn a_connection_that_breaks_ends_its_request_at_once() {
    let (postgres, key) = PrivatePostgres::start_shop();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(client.get("/v1/pets").await.status, 200);

    let mut admin = connect(&postgres.url).await;
    let locked = admin.transaction().await.unwrap();
    locked.batch_execute("LOCK TABLE pets").await.unwrap();
    let watch = connect(&postgres.url).await;
    let kill = async {
        let pid = locked_out(&watch).await;
        // Without a word of farewell.
        let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(status.unwrap().success());
        Instant::now()
    };
    let (answer, killed) = tokio::join!(client.get("/v1/pets"), kill);
    assert_eq!(answer.status, 503);
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
}
