//! Every status that the document has for an operation is one that the operation really answers.

use std::sync::Arc;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::hostile_clients::exchange;
use crate::support::document::operations;
use crate::support::postgres::key;
use crate::support::program::new_key;
use crate::support::{Answer, Client, TestService};

/// A request, good unless it is changed.
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

/// Services in every state that matters.
struct World {
    service: TestService,
    /// After the end of getPet.
    later: TestService,
    /// Its tables are not where they should be.
    broken: TestService,
    /// Its database refuses connections.
    unavailable: TestService,
}

impl World {
    async fn new() -> Self {
        let future: Timestamp = "2031-01-01T00:00:00Z".parse().unwrap();
        let broken = TestService::start().await;
        let rename = "ALTER TABLE pets RENAME TO cats; ALTER TABLE orders RENAME TO wishes";
        broken.database.connect().await.batch_execute(rename).await.unwrap();
        let unavailable = TestService::start().await;
        let refuse = format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", unavailable.database.name());
        unavailable.database.server().await.batch_execute(&refuse).await.unwrap();
        unavailable.database.disconnect_all().await;
        Self {
            service: TestService::start_with(&["--body-timeout", "200ms"]).await,
            later: TestService::start_at(&[], Arc::new(move || future)).await,
            broken,
            unavailable,
        }
    }

    /// A client of a key of its own.
    fn client(&self, flags: &[&str]) -> Client {
        Client::new(self.service.address, Some(&new_key(&self.service.database.url(), flags)))
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

    /// A good request, for an animal and an order that nobody else asks for.
    async fn good(&self, (pattern, method, operation): &(String, String, &'static Value)) -> Request {
        let pet = self.service.client.add("Rex", Some("available")).await;
        let order = self.order().await;
        let path = pattern.replace("{petId}", &pet.to_string()).replace("{orderId}", &order.to_string());
        let body = match operation["operationId"].as_str().unwrap() {
            "createPet" => format!(r#"{{"name":"Rex","categoryId":{pet}}}"#),
            "updatePet" => r#"{"name":"Max"}"#.to_owned(),
            "placeOrder" => format!(r#"{{"petId":{pet}}}"#),
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

    /// The answer of this status.
    async fn provoke(&self, operation: &(String, String, &'static Value), status: u16) -> u16 {
        let client = &self.service.client;
        let good = self.good(operation).await;
        let answer = match status {
            200 | 201 => good.send(client).await,
            304 => {
                let tag = client.get(&good.path).await.header("etag").to_owned();
                good.with("if-none-match", tag).send(client).await
            }
            400 => Request { path: format!("{}?x=1", good.path), ..good }.send(client).await,
            401 => good.send(&client.without_key()).await,
            403 => {
                let needed = operation.2["security"][0]["bearer"][0].as_str().unwrap();
                let other = if needed == "pets:read" { "pets:write" } else { "pets:read" };
                good.send(&self.client(&["--scope", other])).await
            }
            404 => {
                let path = operation.0.replace("{petId}", "999999").replace("{orderId}", "999999");
                Request { path: format!("/v1{path}"), ..good }.send(client).await
            }
            408 => return self.too_slow(&good).await,
            409 => return self.conflict(operation, good).await,
            410 => good.send(&self.later.client).await,
            412 => good.with("if-match", "\"stale\"").send(client).await,
            413 => Request { body: " ".repeat(17_000), ..good }.send(client).await,
            414 => {
                Request { path: format!("{}?{}", good.path, "x".repeat(9_000)), ..good }.send(client).await
            }
            415 => good.with("content-type", "text/plain").send(client).await,
            422 => {
                self.good(operation).await.with("idempotency-key", "a").send(client).await;
                good.with("idempotency-key", "a").send(client).await
            }
            429 => {
                let limited = self.client(&["--rate-limit", "1/h"]);
                limited.get("/v1/pets").await;
                good.send(&limited).await
            }
            431 => good.with("x-large", "x".repeat(17_000)).send(client).await,
            500 => good.send(&self.broken.client).await,
            503 => good.send(&self.unavailable.client).await,
            other => panic!("say here how {other} comes about"),
        };
        answer.status
    }

    /// Sends the head of a request, and never its body.
    async fn too_slow(&self, good: &Request) -> u16 {
        let Request { method, path, .. } = good;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: 100\r\n\r\n",
            key().reveal()
        );
        let answer = exchange(self.service.address, head.as_bytes()).await;
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Asks for what does not fit what is there.
    async fn conflict(&self, operation: &(String, String, &'static Value), good: Request) -> u16 {
        let client = &self.service.client;
        let order = || good.path.split('/').nth(4).unwrap().parse().unwrap();
        let answer = match operation.2["operationId"].as_str().unwrap() {
            "createPet" => {
                // The same request is under way elsewhere, and does not end.
                let database = self.service.database.connect().await;
                let good = good.with("idempotency-key", "b");
                good.clone().send(client).await;
                let digest = "SELECT digest::text FROM idempotency_keys ORDER BY used_at DESC LIMIT 1";
                let digest: String = database.query_one(digest, &[]).await.unwrap().get(0);
                database.batch_execute("DELETE FROM idempotency_keys; COMMIT; BEGIN").await.unwrap();
                let insert = "INSERT INTO idempotency_keys \
                    SELECT $1::text::uuid, (now() AT TIME ZONE 'UTC')::date, now(), gen_random_uuid(), 1";
                database.execute(insert, &[&digest]).await.unwrap();
                good.send(client).await
            }
            "updatePet" => {
                let sold = client.add("Rex", Some("sold")).await;
                let body = r#"{"status":"pending"}"#.to_owned();
                Request { path: format!("/v1/pets/{sold}"), body, ..good }.send(client).await
            }
            "placeOrder" => {
                good.clone().send(client).await;
                good.send(client).await
            }
            "completeOrder" => {
                self.end(order(), "cancel").await;
                good.send(client).await
            }
            _ => {
                self.end(order(), "complete").await;
                good.send(client).await
            }
        };
        answer.status
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_documented_status_of_every_operation_is_reached() {
    let world = World::new().await;
    let mut reached = 0;
    for operation in operations() {
        for status in operation.2["responses"].as_object().unwrap().keys() {
            let status = status.parse().unwrap();
            let name = &operation.2["operationId"];
            assert_eq!(world.provoke(&operation, status).await, status, "{name} is said to answer {status}");
            reached += 1;
        }
    }
    assert!(reached > 100, "{reached}");
}
