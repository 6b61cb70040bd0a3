//! Rate limits, the limit of requests in flight, and connection limits.

use std::time::Instant;

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::TestService;
use crate::support::metrics::{wait_for_metric, wait_for_requests_in_flight};
use crate::support::raw_http::exchange;
use crate::support::wait::{PROMPTLY, eventually};

#[tokio::test]
async fn a_key_gets_429_once_its_rate_limit_is_used_up() {
    let service = TestService::start().await;
    let client = service.client_with_new_key(&["--rate-limit", "3/h"]);
    for left in ["r=2;t=1200", "r=1;t=1200", "r=0;t=1200"] {
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
        format!("The API key has reached its limit of 3 requests per 3600 s: retry in {wait} s.")
    );
    assert_eq!(service.client.get("/v1/pets").await.status, 200, "another key is not affected");
}

#[tokio::test]
async fn the_rate_limit_is_checked_after_the_key_and_before_the_route() {
    let service = TestService::start().await;
    let client = service.client_with_new_key(&["--rate-limit", "1/h"]);
    assert_eq!(client.get("/v1/nowhere").await.status, 404, "an unknown route counts");
    assert_eq!(client.get("/v1/nowhere").await.status, 429);
    let too_long = format!("/v1/pets?cursor={}", "x".repeat(9_000));
    assert_eq!(client.get(&too_long).await.status, 414);
    assert_eq!(client.send(Method::OPTIONS, "/v1/pets", |request| request).await.status, 204);
}

#[tokio::test]
async fn a_rate_limit_refills_over_time() {
    let service = TestService::start().await;
    let client = service.client_with_new_key(&["--rate-limit", "5/s"]);
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(client.get("/v1/pets").await.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    eventually("the limit refills", async || client.get("/v1/pets").await.status == 200).await;
}

#[tokio::test]
async fn the_default_rate_limit_applies_to_keys_without_their_own() {
    let service = TestService::start_with(&["--default-rate-limit", "2/h"]).await;
    for status in [200, 200, 429] {
        assert_eq!(service.client.get("/v1/pets").await.status, status);
    }
    let other = service.client_with_new_key(&["--rate-limit", "7/h"]);
    assert_eq!(other.get("/v1/pets").await.header("ratelimit-policy"), "\"key\";q=7;w=3600");
}

#[tokio::test]
async fn no_rate_limit_headers_are_sent_without_a_rate_limit() {
    let service = TestService::start().await;
    let answer = service.client.get("/v1/pets").await;
    assert!(!answer.headers.contains_key("ratelimit") && !answer.headers.contains_key("ratelimit-policy"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_within_its_rate_limit_is_served_while_another_key_floods() {
    let service = TestService::start().await;
    let flooding = service.client_with_new_key(&["--rate-limit", "10/s"]);
    let mut floods = JoinSet::new();
    for _ in 0..32 {
        let flooding = flooding.clone();
        floods.spawn(async move {
            loop {
                assert!(matches!(flooding.get("/v1/pets").await.status, 200 | 429));
            }
        });
    }
    for _ in 0..20 {
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
    }
}

#[tokio::test]
async fn a_request_beyond_the_in_flight_limit_is_refused_at_once() {
    let service = TestService::start_with(&["--max-requests", "2"]).await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    let database = service.database.connect().await;
    database.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let client = service.client.clone();
        waiting.spawn(async move { client.get("/v1/pets").await.status });
    }
    wait_for_requests_in_flight(service.admin_address, 2).await;
    let refused = service.client.get("/v1/nowhere").await;
    assert_eq!(refused.error(), (503, "unavailable".into()));
    assert_eq!(refused.header("retry-after"), "1");
    database.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.join_all().await, [200, 200]);
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
}

#[tokio::test]
async fn a_connection_beyond_the_limit_of_its_address_gets_503_and_is_closed() {
    let flags =
        ["--max-connections-per-address", "3", "--trusted-proxy", "192.0.2.1", "--header-timeout", "60s"];
    let service = TestService::start_with(&flags).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(TcpStream::connect(service.address).await.unwrap());
    }
    let started = Instant::now();
    let refused = exchange(service.address, b"GET /v1/pets HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{refused}");
    for part in ["\r\nretry-after: 1\r\n", "\r\nx-request-id: ", "\"code\":\"unavailable\""] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(started.elapsed() < PROMPTLY, "closed after {:?}", started.elapsed());
    drop(idle);
    eventually("permits are returned", async || !status_line(&service).await.starts_with("HTTP/1.1 503"))
        .await;
}

/// Sends a request on a new connection, and returns the start of the answer's status line.
async fn status_line(service: &TestService) -> String {
    let mut socket = TcpStream::connect(service.address).await.unwrap();
    let _ = socket.write_all(b"GET /v1/pets HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut answer = [0; 12];
    let _ = socket.read_exact(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_trusted_proxy_is_subject_only_to_the_total_connection_limit() {
    let flags = ["--max-connections", "5", "--max-connections-per-address", "1"];
    let service = TestService::start_with(&flags).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(TcpStream::connect(service.address).await.unwrap());
    }
    assert!(status_line(&service).await.starts_with("HTTP/1.1 401"));
    wait_for_metric(service.admin_address, "petstore_connections", 4.0).await;
    idle.push(TcpStream::connect(service.address).await.unwrap());
    wait_for_metric(service.admin_address, "petstore_connections", 5.0).await;
    assert!(status_line(&service).await.starts_with("HTTP/1.1 503"));
}
