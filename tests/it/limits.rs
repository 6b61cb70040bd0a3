//! Limits that protect everyone: how often a key may ask, how much is done at once, how many may connect.

use std::time::{Duration, Instant};

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::hostile_clients::exchange;
use crate::support::program::new_key;
use crate::support::{Client, TestService};

#[tokio::test]
async fn a_key_is_refused_once_it_has_used_up_its_limit() {
    let service = TestService::start().await;
    let client =
        Client::new(service.address, Some(&new_key(&service.database.url(), &["--rate-limit", "3/h"])));
    for left in ["r=2;t=1200", "r=1;t=2400", "r=0;t=3600"] {
        let answer = client.get("/v1/pets").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-policy"), "\"key\";q=3;w=3600");
        assert_eq!(answer.header("ratelimit"), format!("\"key\";{left}"));
    }
    let refused = client.get("/v1/pets").await;
    assert_eq!(refused.error(), (429, "rate_limited".into()));
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1_190..=1_200).contains(&wait), "{wait}");
    assert_eq!(refused.header("ratelimit"), format!("\"key\";r=0;t={wait}"));
    assert_eq!(
        refused.json()["message"],
        format!("The API key has reached its limit of 3 requests in 3600 s: retry in {wait} s.")
    );
    assert_eq!(service.client.get("/v1/pets").await.status, 200, "another key is not affected");
}

#[tokio::test]
async fn a_limit_comes_after_the_key_and_before_the_route() {
    let service = TestService::start().await;
    let client =
        Client::new(service.address, Some(&new_key(&service.database.url(), &["--rate-limit", "1/h"])));
    assert_eq!(client.get("/v1/nowhere").await.status, 404, "an unknown route counts");
    assert_eq!(client.get("/v1/nowhere").await.status, 429);
    let too_long = format!("/v1/pets?cursor={}", "x".repeat(9_000));
    assert_eq!(client.get(&too_long).await.status, 414);
    assert_eq!(client.send(Method::OPTIONS, "/v1/pets", |request| request).await.status, 204);
}

#[tokio::test]
async fn a_limit_is_filled_again_as_time_passes() {
    let service = TestService::start().await;
    let client =
        Client::new(service.address, Some(&new_key(&service.database.url(), &["--rate-limit", "5/s"])));
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(client.get("/v1/pets").await.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    sleep(Duration::from_millis(1_100)).await;
    for _ in 0..5 {
        assert_eq!(client.get("/v1/pets").await.status, 200);
    }
}

#[tokio::test]
async fn the_services_limit_holds_for_keys_without_one_of_their_own() {
    let service = TestService::start_with(&["--default-rate-limit", "2/h"]).await;
    for status in [200, 200, 429] {
        assert_eq!(service.client.get("/v1/pets").await.status, status);
    }
    let other =
        Client::new(service.address, Some(&new_key(&service.database.url(), &["--rate-limit", "7/h"])));
    assert_eq!(other.get("/v1/pets").await.header("ratelimit-policy"), "\"key\";q=7;w=3600");
}

#[tokio::test]
async fn nothing_is_said_of_limits_where_there_are_none() {
    let service = TestService::start().await;
    let answer = service.client.get("/v1/pets").await;
    assert!(!answer.headers.contains_key("ratelimit") && !answer.headers.contains_key("ratelimit-policy"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_within_its_limit_is_served_while_another_floods() {
    let service = TestService::start().await;
    let flooding =
        Client::new(service.address, Some(&new_key(&service.database.url(), &["--rate-limit", "10/s"])));
    let mut floods = JoinSet::new();
    for _ in 0..32 {
        let flooding = flooding.clone();
        floods.spawn(async move {
            loop {
                assert!(matches!(flooding.get("/v1/pets").await.status, 200 | 429));
            }
        });
    }
    let served = timeout(Duration::from_secs(10), async {
        for _ in 0..20 {
            assert_eq!(service.client.get("/v1/pets").await.status, 200);
        }
    });
    assert!(served.await.is_ok(), "20 requests take longer than 10 seconds");
}

#[tokio::test]
async fn a_request_beyond_those_that_may_be_in_progress_is_refused_at_once() {
    let service = TestService::start_with(&["--max-requests", "2"]).await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    let database = service.database.connect().await;
    database.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let client = service.client.clone();
        waiting.spawn(async move { client.get("/v1/pets").await.status });
    }
    let deadline = Instant::now() + Duration::from_secs(4);
    let refused = loop {
        let asking = timeout(Duration::from_millis(100), service.client.get("/v1/nowhere")).await;
        match asking {
            Ok(answer) if answer.status == 503 => break answer,
            _ => assert!(Instant::now() < deadline, "nobody is refused"),
        }
    };
    assert_eq!(refused.error(), (503, "unavailable".into()));
    assert_eq!(refused.header("retry-after"), "1");
    database.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.join_all().await, [200, 200]);
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
}

#[tokio::test]
async fn a_connection_beyond_those_of_its_address_is_told_and_closed() {
    let flags = ["--max-connections-per-address", "3", "--trusted-proxy", "192.0.2.1"];
    let service = TestService::start_with(&flags).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(TcpStream::connect(service.address).await.unwrap());
    }
    let began = Instant::now();
    let refused = exchange(service.address, b"GET /v1/pets HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{refused}");
    for part in ["\r\nretry-after: 1\r\n", "\r\nx-request-id: ", "\"code\":\"unavailable\""] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(began.elapsed() < Duration::from_secs(3), "closed after {:?}", began.elapsed());
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(5);
    while exchange_one(&service).await.starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "places are not given back");
    }
}

/// Asks once and reads the beginning of the answer.
async fn exchange_one(service: &TestService) -> String {
    let mut socket = TcpStream::connect(service.address).await.unwrap();
    let _ = socket.write_all(b"GET /v1/pets HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut answer = [0; 12];
    let _ = socket.read_exact(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn connections_of_a_trusted_proxy_are_bound_only_in_all() {
    let flags = ["--max-connections", "5", "--max-connections-per-address", "1"];
    let service = TestService::start_with(&flags).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(TcpStream::connect(service.address).await.unwrap());
    }
    assert!(exchange_one(&service).await.starts_with("HTTP/1.1 401"));
    sleep(Duration::from_millis(100)).await;
    idle.push(TcpStream::connect(service.address).await.unwrap());
    sleep(Duration::from_millis(100)).await;
    assert!(exchange_one(&service).await.starts_with("HTTP/1.1 503"));
}
