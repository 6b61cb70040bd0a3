//! Every documented status of every operation can be provoked.

use std::sync::Arc;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::interleaving::hold_idempotency_key;
use crate::support::openapi::{operations, path_with_id};
use crate::support::postgres::key;
use crate::support::raw_http::exchange;
use crate::support::wait::poll;
use crate::support::{Answer, Client, TestService};

/// A request, valid unless it is changed.
#[derive(Clone)]
struct Request {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Request {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }

    async fn send(self, client: &Client) -> Answer {
        client
            .send(self.method, &self.path, |builder| {
                let builder = if self.body.is_empty() { builder } else { builder.body(self.body) };
                self.headers.into_iter().fold(builder, |builder, (name, value)| builder.header(name, value))
            })
            .await
    }
}

/// Services in every relevant state.
struct Services {
    service: TestService,
    /// After the removal of getPet.
    later: TestService,
    /// Its tables have other names.
    broken: TestService,
    /// Its database refuses connections.
    unavailable: TestService,
}

impl Services {
    async fn new() -> Self {
        let after_removal: Timestamp = "2031-01-01T00:00:00Z".parse().unwrap();
        let broken = TestService::start().await;
        let rename = "ALTER TABLE pets RENAME TO cats; ALTER TABLE orders RENAME TO wishes; \
            ALTER TABLE events RENAME TO rumours";
        broken.database.connect().await.batch_execute(rename).await.unwrap();
        let unavailable = TestService::start().await;
        let refuse = format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", unavailable.database.name());
        unavailable.database.server().await.batch_execute(&refuse).await.unwrap();
        unavailable.database.disconnect_all().await;
        Self {
            service: TestService::start_with(&["--body-timeout", "200ms", "--order-hold", "1h"]).await,
            later: TestService::start_at(&[], Arc::new(move || after_removal)).await,
            broken,
            unavailable,
        }
    }

    async fn order(&self) -> i64 {
        let client = &self.service.client;
        let pet = client.add("Rex", Some("available")).await;
        client.post("/v1/store/orders", &json!({"petId": pet})).await.json()["id"].as_i64().unwrap()
    }

    async fn end(&self, order: i64, what: &str) {
        let path = format!("/v1/store/orders/{order}/{what}");
        self.service.client.send(Method::POST, &path, |request| request).await;
    }

    /// A valid request, for a new pet and a new order.
    async fn valid(&self, (pattern, method, operation): &(String, String, &'static Value)) -> Request {
        let pet = self.service.client.add("Rex", Some("available")).await;
        let order = self.order().await;
        let path = pattern.replace("{petId}", &pet.to_string()).replace("{orderId}", &order.to_string());
        let body = match operation["operationId"].as_str().unwrap() {
            "createPet" => format!(r#"{{"name":"Rex","categoryId":{pet}}}"#),
            "updatePet" => r#"{"name":"Max"}"#.to_owned(),
            "placeOrder" => format!(r#"{{"petId":{pet}}}"#),
            "updateOrder" => r#"{"reference":"basket"}"#.to_owned(),
            _ => String::new(),
        };
        let request = Request {
            method: method.to_uppercase().parse().unwrap(),
            path: format!("/v1{path}"),
            headers: Vec::new(),
            body,
        };
        if request.body.is_empty() { request } else { request.with("content-type", "application/json") }
    }

    /// Sends a request that must be answered with this status, and returns the status of the answer.
    async fn provoke(&self, operation: &(String, String, &'static Value), status: u16) -> u16 {
        let client = &self.service.client;
        let valid = self.valid(operation).await;
        let answer = match status {
            200 | 201 | 204 => valid.send(client).await,
            304 => {
                // Repeated: an event may become visible between the two.
                let ask = async || {
                    let tag = client.get(&valid.path).await.header("etag").to_owned();
                    valid.clone().with("if-none-match", tag).send(client).await
                };
                poll("the page stays the same", ask, |answer| answer.status == 304).await
            }
            400 => Request { path: format!("{}?x=1", valid.path), ..valid }.send(client).await,
            401 => valid.send(&client.without_key()).await,
            403 => {
                let needed = operation.2["security"][0]["bearer"][0].as_str().unwrap();
                let other = if needed == "pets:read" { "pets:write" } else { "pets:read" };
                valid.send(&self.service.client_with_new_key(&["--scope", other])).await
            }
            404 if operation.2["operationId"] == "placeOrder" => {
                Request { body: r#"{"petId":999999}"#.to_owned(), ..valid }.send(client).await
            }
            404 => Request { path: path_with_id(&operation.0, 999_999), ..valid }.send(client).await,
            408 => return self.time_out(&valid).await,
            409 => return self.conflict(operation, valid).await,
            410 if operation.0 == "/events" => {
                let next = client.get(&valid.path).await.next().unwrap().to_owned();
                let database = self.service.database.connect().await;
                database.batch_execute("SELECT start_event_epoch()").await.unwrap();
                Request { path: next, ..valid }.send(client).await
            }
            410 => valid.send(&self.later.client).await,
            412 => valid.with("if-match", "\"stale\"").send(client).await,
            413 => Request { body: " ".repeat(17_000), ..valid }.send(client).await,
            414 => {
                Request { path: format!("{}?{}", valid.path, "x".repeat(9_000)), ..valid }.send(client).await
            }
            415 => valid.with("content-type", "text/plain").send(client).await,
            422 => {
                self.valid(operation).await.with("idempotency-key", "a").send(client).await;
                valid.with("idempotency-key", "a").send(client).await
            }
            429 => {
                let limited = self.service.client_with_new_key(&["--rate-limit", "1/h"]);
                limited.get("/v1/pets").await;
                valid.send(&limited).await
            }
            431 => valid.with("x-large", "x".repeat(17_000)).send(client).await,
            500 => valid.send(&self.broken.client).await,
            503 => valid.send(&self.unavailable.client).await,
            other => panic!("add a request that is answered with {other}"),
        };
        answer.status
    }

    /// Sends the head of a request without its body.
    async fn time_out(&self, valid: &Request) -> u16 {
        let Request { method, path, .. } = valid;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: 100\r\n\r\n",
            key().reveal()
        );
        let answer = exchange(self.service.address, head.as_bytes()).await;
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Sends a request that conflicts with the state of its pet or order.
    async fn conflict(&self, operation: &(String, String, &'static Value), valid: Request) -> u16 {
        let client = &self.service.client;
        let order = || valid.path.split('/').nth(4).unwrap().parse().unwrap();
        let answer = match operation.2["operationId"].as_str().unwrap() {
            "createPet" => {
                // The same request is in progress on another connection.
                let database = self.service.database.connect().await;
                let valid = valid.with("idempotency-key", "b");
                valid.clone().send(client).await;
                let digest = "SELECT digest::text FROM idempotency_keys ORDER BY used_at DESC LIMIT 1";
                let digest: String = database.query_one(digest, &[]).await.unwrap().get(0);
                database.batch_execute("DELETE FROM idempotency_keys; COMMIT; BEGIN").await.unwrap();
                hold_idempotency_key(&database, &digest).await;
                valid.send(client).await
            }
            "updatePet" => {
                let sold = client.add("Rex", Some("sold")).await;
                let body = r#"{"status":"pending"}"#.to_owned();
                Request { path: format!("/v1/pets/{sold}"), body, ..valid }.send(client).await
            }
            "deletePet" => {
                let pet: i64 = valid.path.rsplit('/').next().unwrap().parse().unwrap();
                client.post("/v1/store/orders", &json!({"petId": pet})).await;
                valid.send(client).await
            }
            "placeOrder" => {
                valid.clone().send(client).await;
                valid.send(client).await
            }
            "updateOrder" => {
                self.end(order(), "complete").await;
                Request { body: r#"{"holdSeconds":60}"#.to_owned(), ..valid }.send(client).await
            }
            "completeOrder" => {
                self.end(order(), "cancel").await;
                valid.send(client).await
            }
            _ => {
                self.end(order(), "complete").await;
                valid.send(client).await
            }
        };
        answer.status
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_documented_status_of_every_operation_is_reachable() {
    let services = Services::new().await;
    let mut reached = 0;
    for operation in operations() {
        let responses = operation.2["responses"].as_object().unwrap();
        for status in responses.keys().filter(|status| *status != "default") {
            let status = status.parse().unwrap();
            let name = &operation.2["operationId"];
            assert_eq!(services.provoke(&operation, status).await, status, "{name} documents {status}");
            reached += 1;
        }
    }
    assert!(reached > 100, "{reached}");
}
