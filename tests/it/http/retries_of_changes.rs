//! Safe retries of updatePet, updateOrder and deletePet: with an `Idempotency-Key`, each takes effect once. What a replay shows is what
//! is there now.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::interleaving::Holder;
use crate::support::write_requests::{ORDERS, add, add_ordered};
use crate::support::{Answer, Client, TestService};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn send(client: &Client, method: &Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let send = client.send(method.clone(), path, |request| {
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        if body.is_empty() { request } else { request.header(JSON.0, JSON.1).body(body.to_owned()) }
    });
    send.await
}

async fn patch(client: &Client, path: &str, key: &str, body: &str) -> Answer {
    send(client, &Method::PATCH, path, &[("idempotency-key", key)], body).await
}

async fn delete(client: &Client, path: &str, key: &str) -> Answer {
    send(client, &Method::DELETE, path, &[("idempotency-key", key)], "").await
}

/// The status of an answer, and whether it was replayed.
fn outcome(answer: &Answer) -> (String, bool) {
    (answer.summary(), answer.is_replayed())
}

fn done(status: &str) -> (String, bool) {
    (status.into(), false)
}

fn replayed(status: &str) -> (String, bool) {
    (status.into(), true)
}

/// The path of a new pet, and that of a new order.
async fn pet_and_order(client: &Client) -> [String; 2] {
    let (_, order) = add_ordered(client).await;
    [format!("/v1/pets/{}", add(client).await), format!("{ORDERS}/{order}")]
}

#[tokio::test]
async fn a_retried_update_changes_nothing_and_shows_what_is_there_now() {
    let service = TestService::start().await;
    let client = &service.client;
    for path in pet_and_order(client).await {
        let first = patch(client, &path, "a", r#"{"reference":"first"}"#).await;
        assert_eq!(outcome(&first), done("200"), "{path}");
        let again = patch(client, &path, "a", r#"{"reference":"first"}"#).await;
        assert_eq!((outcome(&again), &again.body), (replayed("200"), &first.body), "{path}");
        assert_eq!(again.header("etag"), first.header("etag"), "{path}");
        let other = patch(client, &path, "b", r#"{"reference":"second"}"#).await;
        assert_eq!(outcome(&other), done("200"), "{path}");
        let late = patch(client, &path, "a", r#"{"reference":"first"}"#).await;
        assert_eq!((outcome(&late), &late.body), (replayed("200"), &other.body), "{path}");
        assert_eq!(late.header("etag"), other.header("etag"), "{path}");
        assert_eq!(client.get(&path).await.body, other.body, "{path}");
    }
}

#[tokio::test]
async fn a_retry_wins_over_if_match() {
    let service = TestService::start().await;
    let client = &service.client;
    let mut paths = pet_and_order(client).await.map(|path| (Method::PATCH, path, "200")).to_vec();
    paths.push((Method::DELETE, format!("/v1/pets/{}", add(client).await), "204"));
    for (method, path, status) in paths {
        let tag = client.get(&path).await.header("etag").to_owned();
        let body = if method == Method::PATCH { r#"{"metadata":{"price":"129.00"}}"# } else { "" };
        let headers = [("idempotency-key", "a"), ("if-match", &*tag)];
        assert_eq!(outcome(&send(client, &method, &path, &headers, body).await), done(status), "{path}");
        assert_eq!(outcome(&send(client, &method, &path, &headers, body).await), replayed(status), "{path}");
        let with_other_key = [("idempotency-key", "b"), ("if-match", &*tag)];
        let late = send(client, &method, &path, &with_other_key, body).await;
        assert!(["412 precondition_failed", "404 pet_not_found"].contains(&&*late.summary()), "{late:?}");
    }
}

#[tokio::test]
async fn a_retry_finds_that_the_pet_or_the_order_was_deleted_since() {
    let service = TestService::start().await;
    let (client, session) = (&service.client, service.database.connect().await);
    let [pet, order] = pet_and_order(client).await;
    for path in [&pet, &order] {
        assert_eq!(outcome(&patch(client, path, "a", "{}").await), done("200"));
    }
    assert_eq!(outcome(&delete(client, &pet, "a").await), done("204"));
    session.batch_execute("DELETE FROM orders").await.unwrap();
    for (path, gone) in [(&pet, "404 pet_not_found"), (&order, "404 order_not_found")] {
        assert_eq!(outcome(&patch(client, path, "a", "{}").await), replayed(gone));
        assert_eq!(outcome(&patch(client, path, "b", "{}").await), done(gone), "another request");
        assert_eq!(
            patch(client, path, "a", r#"{"reference":"x"}"#).await.summary(),
            "422 idempotency_key_reused"
        );
    }
    for _ in 0..2 {
        assert_eq!(outcome(&delete(client, &pet, "a").await), replayed("204"));
    }
    assert_eq!(outcome(&delete(client, &pet, "b").await), done("404 pet_not_found"));
}

#[tokio::test]
async fn a_key_stands_for_one_pet_or_order_and_one_content() {
    let service = TestService::start().await;
    let client = &service.client;
    let [pet, order] = pet_and_order(client).await;
    let [other_pet, other_order] = pet_and_order(client).await;
    for (path, other) in [(&pet, &other_pet), (&order, &other_order)] {
        assert_eq!(
            outcome(&patch(client, path, "a", r#"{"metadata":{"price":"129.00"}}"#).await),
            done("200")
        );
        for (path, body) in [
            (other, r#"{"metadata":{"price":"129.00"}}"#),
            (path, "{}"),
            (path, r#"{"metadata":{}}"#),
            (path, r#"{"metadata":null}"#),
            (path, r#"{"metadata":{"price":null}}"#),
            (path, r#"{"metadata":{"price":"129.00","note":null}}"#),
            (path, r#"{"metadata":{"price":"129.00"},"reference":null}"#),
        ] {
            let refused = patch(client, path, "a", body).await;
            assert_eq!(refused.summary(), "422 idempotency_key_reused", "{path}: {body}");
        }
        // The same request in another notation.
        let again = patch(client, path, r#""a""#, r#" {"metadata": {"pric\u0065": "129.00"}} "#).await;
        assert_eq!(outcome(&again), replayed("200"));
    }
    assert_eq!(
        outcome(&delete(client, &other_pet, "a").await),
        done("204"),
        "keys are separate for each operation"
    );
    assert_eq!(delete(client, &pet, "a").await.summary(), "422 idempotency_key_reused");
    let stranger = service.client_with_new_key(&[]);
    assert_eq!(outcome(&patch(&stranger, &pet, "a", "{}").await), done("200"), "and for each API key");
}

#[tokio::test]
async fn a_refused_update_or_deletion_does_not_use_up_its_key() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = add(client).await;
    let path = format!("/v1/pets/{pet}");
    let order = client.post(ORDERS, &json!({"petId": pet})).await.json()["id"].clone();
    let order = format!("{ORDERS}/{order}");
    let sell = r#"{"status":"sold"}"#;
    assert_eq!(patch(client, &path, "a", sell).await.summary(), "409 pet_has_open_order");
    assert_eq!(delete(client, &path, "a").await.summary(), "409 pet_has_order");
    let stale = [("idempotency-key", "a"), ("if-match", "\"stale\"")];
    assert_eq!(send(client, &Method::PATCH, &order, &stale, "{}").await.status, 412);
    assert_eq!(outcome(&patch(client, &order, "a", "{}").await), done("200"));
    client.send(Method::POST, &format!("{order}/cancel"), |request| request).await;
    assert_eq!(outcome(&patch(client, &path, "a", sell).await), done("200"));
    assert_eq!(outcome(&patch(client, &path, "a", sell).await), replayed("200"));
}

#[tokio::test]
async fn a_bad_key_answers_400_and_a_safe_method_ignores_it() {
    let service = TestService::start().await;
    let client = &service.client;
    for path in pet_and_order(client).await {
        let before = client.get(&path).await;
        assert_eq!(patch(client, &path, "", r#"{"reference":"x"}"#).await.summary(), "400 invalid_header");
        let read = send(client, &Method::GET, &path, &[("idempotency-key", "")], "").await;
        assert_eq!((outcome(&read), &read.body), (done("200"), &before.body), "{path}");
    }
    let pet = format!("/v1/pets/{}", add(client).await);
    assert_eq!(delete(client, &pet, "").await.summary(), "400 invalid_header");
    assert_eq!(client.get(&pet).await.status, 200);
}

#[tokio::test]
async fn a_retry_answers_409_while_its_first_attempt_is_in_progress() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, deleted) = (add(client).await, add(client).await);
    let (ordered, order) = add_ordered(client).await;
    for (of, method, path) in [
        (pet, Method::PATCH, format!("/v1/pets/{pet}")),
        (ordered, Method::PATCH, format!("{ORDERS}/{order}")),
        (deleted, Method::DELETE, format!("/v1/pets/{deleted}")),
    ] {
        let body = if method == Method::PATCH { r#"{"reference":"x"}"# } else { "" };
        let holder = Holder::of_pet(&service.database, of).await;
        let waiting = send(client, &method, &path, &[("idempotency-key", "a")], body).await;
        assert_eq!(waiting.summary(), "409 idempotency_in_progress", "{method} {path}");
        let without_key = send(client, &method, &path, &[], body).await;
        assert_eq!(without_key.summary(), "503 unavailable", "{method} {path}");
        holder.end("ROLLBACK").await;
        let after = send(client, &method, &path, &[("idempotency-key", "a")], body).await;
        assert!(after.status < 300 && !after.is_replayed(), "{after:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_attempts_on_two_nodes_takes_effect_whichever_pet_they_name() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..10 {
        let pets = [add(&first.client).await, add(&first.client).await];
        let (key, barrier) = (format!("round-{round}"), Arc::new(Barrier::new(32)));
        let mut clients = JoinSet::new();
        for number in 0..32_usize {
            let client = [&first, &second][number % 2].client.clone();
            let (key, barrier, pet) = (key.clone(), barrier.clone(), pets[number / 2 % 2]);
            clients.spawn(async move {
                barrier.wait().await;
                (pet, patch(&client, &format!("/v1/pets/{pet}"), &key, r#"{"name":"Max"}"#).await)
            });
        }
        let answers = clients.join_all().await;
        let changed: Vec<i64> = answers
            .iter()
            .filter(|(_, answer)| answer.status == 200 && !answer.is_replayed())
            .map(|(pet, _)| *pet)
            .collect();
        assert_eq!(changed.len(), 1, "{answers:?}");
        for (pet, answer) in &answers {
            let expected: &[&str] =
                if *pet == changed[0] { &["200"] } else { &["422 idempotency_key_reused"] };
            let in_progress = "409 idempotency_in_progress";
            assert!(expected.contains(&&*answer.summary()) || answer.summary() == in_progress, "{answer:?}");
        }
        let names = pets.map(|pet| (pet == changed[0], pet));
        for (is_changed, pet) in names {
            let name: Value = if is_changed { "Max".into() } else { "Rex".into() };
            assert_eq!(first.client.get(&format!("/v1/pets/{pet}")).await.json()["name"], name);
        }
    }
}
