//! A key that is revoked, expires or loses its scope while its request waits for the client or for an event: the request is
//! refused. Every operation that waits is covered, because the list comes from the document.

use petstore_domain::api_key::ApiKey;
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::events::follow;
use crate::support::metrics::wait_for_metric;
use crate::support::openapi::operations;
use crate::support::program::new_key;
use crate::support::raw_http::parse;
use crate::support::wait::eventually;
use crate::support::{Answer, Client, TestService};

/// What happens to a key, in SQL, and how its requests are answered from then on.
const LOSSES: [(&str, (u16, &str)); 3] = [
    ("revoked_at = now()", (401, "invalid_api_key")),
    ("expires_at = now()", (401, "invalid_api_key")),
    ("scopes = ARRAY['none:none']", (403, "insufficient_scope")),
];

/// A request that was authenticated and now waits.
struct WaitingRequest {
    what: String,
    socket: TcpStream,
    /// What its client has not sent yet.
    rest: &'static str,
    client: Client,
    expected: (u16, &'static str),
}

impl WaitingRequest {
    /// Sends the head of a request and all of its body but the last byte.
    async fn start(
        service: &TestService,
        key: &ApiKey,
        (loss, expected): (&str, (u16, &'static str)),
        (first_line, body): (&str, &'static str),
    ) -> Self {
        let (start, rest) = body.split_at(body.len().saturating_sub(1));
        let mut head =
            format!("{first_line} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n", key.reveal());
        if !body.is_empty() {
            head += "Content-Type: application/json\r\nExpect: 100-continue\r\n";
        }
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        socket.write_all(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes()).await.unwrap();
        if !body.is_empty() {
            // The handler waits for the body, so the key was accepted.
            let mut answer = [0; 25];
            socket.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
            socket.write_all(start.as_bytes()).await.unwrap();
        }
        let client = Client::new(service.address, Some(key));
        Self { what: format!("{first_line}, {loss}"), socket, rest, client, expected }
    }

    /// Sends the rest, and reads the answer.
    async fn finish(mut self) -> (String, (u16, &'static str), Answer) {
        self.socket.write_all(self.rest.as_bytes()).await.unwrap();
        let mut answer = [0; 4096];
        let read = self.socket.read(&mut answer).await.unwrap();
        (self.what, self.expected, parse(&String::from_utf8_lossy(&answer[..read])))
    }
}

fn body(operation: &Value) -> &'static str {
    match operation["operationId"].as_str().unwrap() {
        "createPet" => r#"{"name":"Rex","categoryId":1}"#,
        "updatePet" => r#"{"name":"Max"}"#,
        "placeOrder" => r#"{"petId":1}"#,
        "updateOrder" => r#"{"reference":"basket"}"#,
        other => panic!("{other} needs a body here"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_lost_while_its_request_waits_has_no_effect_in_any_operation() {
    let service = TestService::start_with(&["--body-timeout", "120s"]).await;
    service.client.add("Rex", Some("available")).await;
    let order = service.client.post("/v1/store/orders", &serde_json::json!({"petId": 1})).await;
    assert_eq!(order.status, 201);
    // Transactions of other tests hold the feed back. What is shown later would end a wait for events.
    follow(&service.client, "/v1/events", 3).await;
    let mut requests = Vec::new();
    for (path, method, operation) in operations() {
        let path = path.replace("{petId}", "1").replace("{orderId}", "1");
        let first_line = format!("{} /v1{path}", method.to_uppercase());
        let has_wait = |parameter: &Value| parameter["name"] == "wait";
        if operation["parameters"].as_array().is_some_and(|all| all.iter().any(has_wait)) {
            requests.push((format!("{first_line}?after=now&wait=25"), ""));
        }
        if operation.get("requestBody").is_some() {
            requests.push((first_line, body(operation)));
        }
    }
    // Waits for events start last, because they end by themselves.
    requests.sort_by_key(|(_, body)| body.is_empty());
    let cases = requests.iter().flat_map(|request| LOSSES.map(|loss| (request, loss)));
    let keys: Vec<_> = cases.clone().map(|_| new_key(&service.database.url(), &[])).collect();
    let mut waiting = Vec::new();
    for (((first_line, body), loss), key) in cases.zip(&keys) {
        waiting.push(WaitingRequest::start(&service, key, loss, (first_line, body)).await);
    }
    assert!(waiting.len() >= 4 * LOSSES.len(), "{}", waiting.len());
    wait_for_metric(service.admin_address, "petstore_waiting_requests", 3.0).await;

    let database = service.database.connect().await;
    let state = "SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM orders), (SELECT name FROM pets WHERE id = 1)";
    for (index, request) in waiting.iter().enumerate() {
        let (loss, _) = LOSSES[index % LOSSES.len()];
        assert!(request.what.ends_with(loss), "{}", request.what);
        // The test's own key is the first.
        let update = format!("UPDATE api_keys SET {loss} WHERE id = {}", index + 2);
        assert_eq!(database.execute(&update, &[]).await.unwrap(), 1);
    }
    for request in &waiting {
        let refused = async || request.client.get("/v1/pets").await.status == request.expected.0;
        eventually("the node knows of the loss", refused).await;
    }
    let mut finishing: JoinSet<_> = waiting.into_iter().map(WaitingRequest::finish).collect();
    // Ends the wait for events.
    service.client.add("Bello", None).await;
    while let Some(finished) = finishing.join_next().await {
        let (what, (status, code), answer) = finished.unwrap();
        answer.check(&Method::GET);
        assert_eq!(answer.error(), (status, code.into()), "{what}");
    }
    let row = database.query_one(state, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), (2_i64, 1_i64, "Rex"), "nothing else has changed");
}
