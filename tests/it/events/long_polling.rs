//! `GET /events?wait=…`: a request that waits for the next event.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::events::{EVENTS, from_now};
use crate::support::metrics::{metric, wait_for_metric};
use crate::support::postgres::key;
use crate::support::program::{ServeProcess, new_key, run};
use crate::support::raw_http::parse;
use crate::support::wait::{PROMPTLY, eventually};
use crate::support::{Client, TestDatabase, TestService};

/// Waits until a request waits for an event.
async fn wait_for_waiting_request(service: &TestService) {
    wait_for_metric(service.admin_address, "petstore_waiting_requests", 1.0).await;
}

#[tokio::test]
async fn a_waiting_request_is_answered_when_something_happens() {
    let service = TestService::start().await;
    let client = &service.client;
    let from = from_now(client).await;
    let waiting = tokio::spawn({
        let (client, from) = (client.clone(), format!("{from}&wait=25"));
        async move { client.get(&from).await }
    });
    wait_for_waiting_request(&service).await;
    let pet = client.add("Rex", None).await;
    let page = timeout(PROMPTLY, waiting).await.expect("it does not wait any longer").unwrap();
    assert_eq!(page.json()[0]["petId"], pet);
    assert!(page.next().unwrap().contains("wait=25"), "{:?}", page.next());

    let started = Instant::now();
    let from = from_now(client).await;
    assert_eq!(client.get(&format!("{from}&wait=1")).await.body, "[]");
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_request_does_not_wait_before_the_end_of_the_feed() {
    let service = TestService::start().await;
    // An event that is left out, and so many others that the next one is on the next page.
    let odd = "INSERT INTO pets (id, name, category_id) OVERRIDING SYSTEM VALUE VALUES (0, 'Odd', 1)";
    service.database.connect().await.batch_execute(odd).await.unwrap();
    let client = &service.client;
    for _ in 0..99 {
        client.add("Rex", None).await;
    }
    let last = client.add("Max", None).await;
    client.patch_pet(last, &json!({"name": "Ada"})).await;
    // From now on, the node knows where the feed ends.
    client.get(&format!("{EVENTS}?after=now&wait=1")).await;
    let started = Instant::now();
    let answer = client.get(&format!("{EVENTS}?type=pet.updated&wait=25")).await;
    assert_eq!(answer.json()[0]["petId"], last);
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_waiting_request_ends_when_the_service_stops() {
    let service = TestService::start().await;
    let client = service.client.clone();
    let from = from_now(&client).await;
    let waiting = tokio::spawn(async move { client.get(&format!("{from}&wait=25")).await });
    wait_for_waiting_request(&service).await;
    let started = Instant::now();
    service.stop().await;
    let page = waiting.await.unwrap();
    assert_eq!((page.status, page.body.as_str(), page.header("connection")), (200, "[]", "close"));
    assert!(started.elapsed() < PROMPTLY, "it does not wait for 25 seconds");
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_place_and_one_that_half_closes_is_answered_at_once() {
    let service = TestService::start().await;
    let from = from_now(&service.client).await;
    let request =
        format!("GET {from}&wait=25 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", key().reveal());
    let wait = async || {
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        wait_for_waiting_request(&service).await;
        (socket, Instant::now())
    };
    let (socket, left) = wait().await;
    drop(socket);
    wait_for_metric(service.admin_address, "petstore_waiting_requests", 0.0).await;
    assert!(left.elapsed() < PROMPTLY, "it does not wait for 25 seconds");

    let (mut socket, closed) = wait().await;
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let page = parse(&answer);
    assert_eq!((page.status, page.body.as_str()), (200, "[]"));
    assert!(closed.elapsed() < PROMPTLY, "it does not wait for 25 seconds");
}

#[tokio::test]
async fn a_waiting_request_is_held_during_the_drain_delay() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--drain-delay", "1h"]);
    let from = from_now(&service.client).await;
    service.signal("TERM");
    service.wait_for_log("draining").await;
    let started = Instant::now();
    // Its client would ask this node again at once, until the load balancer has noticed.
    assert_eq!(service.client.get(&format!("{from}&wait=2")).await.body, "[]");
    assert!(started.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn waiting_is_not_counted_as_the_duration_of_a_request() {
    let service = TestService::start().await;
    let from = from_now(&service.client).await;
    assert_eq!(service.client.get(&format!("{from}&wait=2")).await.body, "[]");
    let labels = r#"{http_route="/v1/events",http_request_method="GET",http_response_status_code="200"}"#;
    let of = async |name: &str| {
        let series = format!("http_server_request_duration_seconds_{name}{labels}");
        metric(service.admin_address, &series).await.unwrap()
    };
    assert_eq!(Some(of("count").await), Some(2.0));
    assert!(of("sum").await < 2.0, "{}", of("sum").await);
}

#[tokio::test]
async fn a_key_that_is_revoked_meanwhile_gets_no_events() {
    let service = TestService::start().await;
    let url = service.database.url();
    let key = new_key(&url, &[]);
    let client = Client::new(service.address, Some(&key));
    let from = from_now(&client).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(&format!("{from}&wait=25")).await }
    });
    wait_for_waiting_request(&service).await;
    assert!(run(&["keys", "revoke", "2"], &[("DATABASE_URL", &url)]).status.success());
    eventually("the key is refused", async || client.get("/v1/pets").await.status == 401).await;
    service.client.add("Rex", None).await;
    assert_eq!(waiting.await.unwrap().error(), (401, "invalid_api_key".into()));
}

#[tokio::test]
async fn each_key_has_a_share_of_the_waiting_requests() {
    let service = TestService::start_with(&["--max-requests=4"]).await;
    let client = &service.client;
    let from = from_now(client).await;
    let waiting = tokio::spawn({
        let (client, from) = (client.clone(), from.clone());
        async move { client.get(&format!("{from}&wait=25")).await }
    });
    wait_for_waiting_request(&service).await;
    assert_eq!(client.get(&format!("{from}&wait=1")).await.error(), (503, "unavailable".into()));
    client.add("Rex", None).await;
    assert_eq!(waiting.await.unwrap().status, 200);
}
