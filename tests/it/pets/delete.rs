//! `DELETE /pets/{petId}`: deleting a pet that is in no order, with `If-Match` only in the state that the client has seen, and while
//! others order, change or delete the same pet.

use std::sync::Arc;

use reqwest::Method;
use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;

use crate::support::interleaving::{Gate, Holder, wait_for_waiter_of};
use crate::support::wait::eventually;
use crate::support::write_requests::{
    ORDERS, PATIENT, PET_IS_WRITTEN, Request, add, add_ordered, cancel, complete, delete, place, rename,
    while_waiting,
};
use crate::support::{Answer, Client, TestService};

/// Where a [`Gate`] stops every request that deletes a pet, when it holds all of its locks.
const PET_IS_DELETED: &str = "AFTER DELETE ON pets FOR EACH ROW";

const INSERT_ORDER: &str =
    "INSERT INTO orders (pet_id, status, created_at, updated_at) VALUES ({pet}, '{status}', now(), now())";

fn insert_order(pet: i64, status: &str) -> String {
    INSERT_ORDER.replace("{pet}", &pet.to_string()).replace("{status}", status)
}

/// A request that changes this pet.
type Change = fn(i64) -> Request;

/// Deletes a pet if it has this `ETag`.
async fn delete_if_match(client: &Client, pet: i64, etag: &str) -> Answer {
    client.send(Method::DELETE, &format!("/v1/pets/{pet}"), |request| request.header("if-match", etag)).await
}

async fn exists(client: &Client, pet: i64) -> bool {
    client.get(&format!("/v1/pets?id={pet}")).await.ids() == [pet]
}

#[tokio::test]
async fn delete_pet_deletes_the_pet_and_never_reuses_its_id() {
    let service = TestService::start().await;
    let client = &service.client;
    let body = json!({"name": "Rex", "categoryId": 1, "status": "available", "reference": "chip 7"});
    let kept = client.add("Rex", None).await;
    let pet = client.post("/v1/pets", &body).await.json()["id"].as_i64().unwrap();
    let deleted = delete(pet).send(client).await;
    assert_eq!((deleted.status, &*deleted.body), (204, ""));
    assert_eq!(deleted.header("cache-control"), "no-store");
    assert_eq!((deleted.header("content-type"), deleted.header("etag")), ("", ""));
    // A client that has lost the answer and retries learns that the pet is gone.
    for _ in 0..2 {
        let again = delete(pet).send(client).await;
        let expected = json!({"code": "pet_not_found", "message": "No pet has this id.", "status": 404});
        assert_eq!(again.json(), expected);
    }
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.status, 404);
    for filter in ["", "?status=available", "?reference=chip+7"] {
        assert!(!client.get(&format!("/v1/pets{filter}")).await.ids().contains(&pet), "{filter}");
    }
    assert_eq!(place(pet).send(client).await.summary(), "404 pet_not_found");
    assert_eq!(rename(pet).send(client).await.summary(), "404 pet_not_found");
    // Its reference is free, its id is not.
    let successor = client.post("/v1/pets", &body).await;
    assert_eq!(successor.status, 201);
    assert!(successor.json()["id"].as_i64().unwrap() > pet);
    assert!(exists(client, kept).await);
    eventually("the event is shown", async || {
        client.get("/v1/events?type=pet.deleted").await.json()[0]["petId"] == json!(pet)
    })
    .await;
    assert_eq!(client.get("/v1/events?type=pet.deleted").await.json().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_pet_that_is_or_was_in_an_order_is_not_deleted() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let client = &service.client;
    let (placed, _) = add_ordered(client).await;
    let (completed, order) = add_ordered(client).await;
    complete(order).send(client).await;
    let (cancelled, order) = add_ordered(client).await;
    cancel(order).send(client).await;
    let expired = add(client).await;
    client.post(ORDERS, &json!({"petId": expired, "holdSeconds": 1})).await;
    let orders = format!("{ORDERS}?petId={expired}");
    eventually("the order expires", async || client.get(&orders).await.json()[0]["status"] == "expired")
        .await;
    for (status, pet) in
        [("placed", placed), ("completed", completed), ("cancelled", cancelled), ("expired", expired)]
    {
        let before = client.get(&format!("/v1/pets/{pet}")).await.body;
        let refused = delete(pet).send(client).await;
        let message = "The pet is or was in an order and cannot be deleted, because orders keep their pets: change the pet \
            instead.";
        let expected = json!({"code": "pet_has_order", "message": message, "status": 409});
        assert_eq!((refused.status, refused.json()), (409, expected), "{status}");
        assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.body, before, "{status}");
        assert_eq!(client.get(&format!("{ORDERS}?petId={pet}")).await.json()[0]["status"], status);
    }
    assert_eq!(client.get("/v1/events?type=pet.deleted").await.body, "[]");
}

#[tokio::test]
async fn delete_pet_answers_404_to_an_unknown_pet_whatever_the_etag() {
    let service = TestService::start().await;
    for id in ["1", "0", "-1", "abc", "9223372036854775808"] {
        for etag in [None, Some("*"), Some("\"stale\"")] {
            let path = format!("/v1/pets/{id}");
            let answer = service.client.send(Method::DELETE, &path, |request| {
                etag.into_iter().fold(request, |request, etag| request.header("if-match", etag))
            });
            assert_eq!(answer.await.error(), (404, "pet_not_found".into()), "{id}, {etag:?}");
        }
    }
}

#[tokio::test]
async fn delete_pet_refuses_a_query_and_a_body_and_deletes_nothing() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", None).await;
    let path = format!("/v1/pets/{pet}");
    let query = client.send(Method::DELETE, &format!("{path}?force=true"), |request| request).await;
    assert_eq!(query.error(), (400, "unknown_parameter".into()));
    let body = client.send(Method::DELETE, &path, |request| request.body("{}")).await;
    assert_eq!(body.error(), (400, "invalid_json".into()));
    let reader = service.client_with_new_key(&["--scope", "pets:read", "--scope", "orders:write"]);
    assert_eq!(delete(pet).send(&reader).await.error(), (403, "insufficient_scope".into()));
    assert!(exists(client, pet).await);
}

#[tokio::test]
async fn if_match_allows_a_deletion_only_while_the_etag_is_current() {
    let service = TestService::start().await;
    let client = &service.client;
    let create = async || client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
    let created = create().await;
    let pet = created.json()["id"].as_i64().unwrap();
    let first = created.header("etag").to_owned();
    let second = client.patch_pet(pet, &json!({"name": "Max"})).await.header("etag").to_owned();
    for stale in [&*first, "\"\"", "x", &format!("W/{second}"), ""] {
        let refused = delete_if_match(client, pet, stale).await;
        assert_eq!(refused.error(), (412, "precondition_failed".into()), "{stale}");
    }
    assert!(exists(client, pet).await);
    assert_eq!(delete_if_match(client, pet, &format!("{first}, {second}")).await.status, 204);
    // Of this pet alone, in a list.
    let pet = create().await.json()["id"].as_i64().unwrap();
    let listed = client.get(&format!("/v1/pets?id={pet}")).await.header("etag").to_owned();
    assert_eq!(delete_if_match(client, pet, &listed).await.status, 204);
    let pet = create().await.json()["id"].as_i64().unwrap();
    assert_eq!(delete_if_match(client, pet, "*").await.status, 204);
    // The ETag is checked before the orders.
    let (ordered, _) = add_ordered(client).await;
    assert_eq!(delete_if_match(client, ordered, &first).await.status, 412);
    assert_eq!(delete_if_match(client, ordered, "*").await.error(), (409, "pet_has_order".into()));
}

#[tokio::test]
async fn whoever_comes_second_on_another_node_decides_on_what_the_first_has_committed() {
    let node = TestService::start_with(&PATIENT).await;
    let other = node.start_another_with(&PATIENT).await;
    let (client, session) = (&node.client, node.database.connect().await);
    let cases: [(&str, Change, Change, &str); 5] = [
        (PET_IS_DELETED, delete, place, "404 pet_not_found"),
        (PET_IS_DELETED, delete, rename, "404 pet_not_found"),
        (PET_IS_DELETED, delete, delete, "404 pet_not_found"),
        (PET_IS_WRITTEN, place, delete, "409 pet_has_order"),
        (PET_IS_WRITTEN, rename, delete, "204"),
    ];
    for (written, first, second, expected) in cases {
        let pet = add(client).await;
        let (first, second) = (first(pet), second(pet));
        let gate = Gate::close(&node.database, written).await;
        let mut answer = first.spawn(client);
        let pid = while_waiting(&mut answer, gate.wait_for_arrival()).await;
        let mut waiting = second.spawn(&other.client);
        while_waiting(&mut waiting, wait_for_waiter_of(&session, pid)).await;
        gate.open().await;
        assert!(answer.await.unwrap().status < 300, "{first:?}");
        assert_eq!(waiting.await.unwrap().summary(), expected, "{first:?}, then {second:?}");
        let left = first.kind() == "place";
        assert_eq!(exists(client, pet).await, left, "{first:?}, then {second:?}");
        let orders = client.get(&format!("{ORDERS}?petId={pet}")).await.ids().len();
        assert_eq!(orders, usize::from(left), "{first:?}, then {second:?}");
    }
}

/// How many answers have each summary.
fn count(answers: &[Answer], summary: &str) -> usize {
    answers.iter().filter(|answer| answer.summary() == summary).count()
}

/// Sends these requests at the same time, on two nodes.
async fn send_at_once(nodes: [&Client; 2], requests: Vec<Request>) -> Vec<Answer> {
    let barrier = Arc::new(Barrier::new(requests.len()));
    let mut sent = JoinSet::new();
    for (number, request) in requests.into_iter().enumerate() {
        let (client, barrier) = (nodes[number % 2].clone(), barrier.clone());
        sent.spawn(async move {
            barrier.wait().await;
            request.settle(&client).await
        });
    }
    sent.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_deletions_and_orders_of_one_pet_exactly_one_succeeds() {
    let node = TestService::start().await;
    let other = node.start_another().await;
    let nodes = [&node.client, &other.client];
    let mut winners = [0, 0];
    for _ in 0..20 {
        let pet = add(&node.client).await;
        let deletions = vec![delete(pet), delete(pet), delete(pet), delete(pet)];
        let answers = send_at_once(nodes, deletions).await;
        assert_eq!((count(&answers, "204"), count(&answers, "404 pet_not_found")), (1, 3), "{answers:?}");

        let pet = add(&node.client).await;
        let requests = vec![delete(pet), place(pet), place(pet), delete(pet)];
        let answers = send_at_once(nodes, requests).await;
        if exists(&node.client, pet).await {
            let others = (count(&answers, "409 pet_has_order"), count(&answers, "409 pet_not_available"));
            assert_eq!((count(&answers, "201"), others), (1, (2, 1)), "{answers:?}");
            winners[0] += 1;
        } else {
            assert_eq!((count(&answers, "204"), count(&answers, "404 pet_not_found")), (1, 3), "{answers:?}");
            winners[1] += 1;
        }
    }
    eprintln!("orders won {} times, deletions {} times", winners[0], winners[1]);
}

#[tokio::test]
async fn an_order_that_psql_places_without_the_advisory_lock_is_seen_or_refused() {
    let node = TestService::start_with(&PATIENT).await;
    let (client, session) = (&node.client, node.database.connect().await);
    // First the order, of any status: the deletion waits for it.
    for (status, end, expected) in [
        ("placed", "COMMIT", "409 pet_has_order"),
        ("cancelled", "COMMIT", "409 pet_has_order"),
        ("placed", "ROLLBACK", "204"),
    ] {
        let pet = add(client).await;
        let holder = Holder::begin(&node.database, &insert_order(pet, status)).await;
        let mut answer = delete(pet).spawn(client);
        while_waiting(&mut answer, holder.wait_for_waiter()).await;
        holder.end(end).await;
        assert_eq!(answer.await.unwrap().summary(), expected, "{status}, {end}");
        assert_eq!(exists(client, pet).await, end == "COMMIT");
    }
    // First the deletion: the order waits for it.
    let pet = add(client).await;
    let gate = Gate::close(&node.database, PET_IS_DELETED).await;
    let mut answer = delete(pet).spawn(client);
    let pid = while_waiting(&mut answer, gate.wait_for_arrival()).await;
    let psql = node.database.connect().await;
    let insert = insert_order(pet, "placed");
    let open = async {
        wait_for_waiter_of(&session, pid).await;
        gate.open().await;
    };
    let (inserted, ()) = tokio::join!(psql.batch_execute(&insert), open);
    assert_eq!(inserted.unwrap_err().code(), Some(&SqlState::FOREIGN_KEY_VIOLATION));
    assert_eq!(answer.await.unwrap().summary(), "204");
}

#[tokio::test]
async fn a_pet_that_psql_deletes_or_changes_meanwhile_is_deleted_as_it_is_then() {
    let node = TestService::start_with(&PATIENT).await;
    let client = &node.client;
    for (statement, end, expected) in [
        ("DELETE FROM pets", "COMMIT", "404 pet_not_found"),
        ("DELETE FROM pets", "ROLLBACK", "204"),
        ("UPDATE pets SET name = 'Bello'", "COMMIT", "412 precondition_failed"),
        ("UPDATE pets SET name = 'Bello'", "ROLLBACK", "204"),
    ] {
        let created = client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
        let (pet, etag) = (created.json()["id"].as_i64().unwrap(), created.header("etag").to_owned());
        let statement = format!("{statement} WHERE id = {pet}");
        let holder = Holder::begin(&node.database, &statement).await;
        let client = client.clone();
        let mut answer = tokio::spawn(async move { delete_if_match(&client, pet, &etag).await });
        while_waiting(&mut answer, holder.wait_for_waiter()).await;
        holder.end(end).await;
        assert_eq!(answer.await.unwrap().summary(), expected, "{statement}, {end}");
    }
}

#[tokio::test]
async fn a_retry_of_create_pet_returns_the_first_response_even_if_the_pet_is_deleted() {
    let service = TestService::start().await;
    let client = &service.client;
    let body = json!({"name": "Rex", "categoryId": 1});
    let created = client.post_with_key("/v1/pets", "till-7", &body).await;
    let pet = created.json()["id"].as_i64().unwrap();
    assert_eq!(delete(pet).send(client).await.status, 204);
    let retried = client.post_with_key("/v1/pets", "till-7", &body).await;
    assert_eq!((retried.status, retried.is_replayed(), &retried.body), (201, true, &created.body));
    assert!(!exists(client, pet).await);
}
