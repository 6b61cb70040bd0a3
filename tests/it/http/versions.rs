//! The `ETag` of a pet and of an order stands for a version: every committed change of the row gives another one, whoever makes it,
//! and nothing else does.

use std::process::Command;

use reqwest::Method;
use serde_json::json;
use tokio_postgres::Client as Session;

use crate::support::postgres::{connect, script};
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::ServeProcess;
use crate::support::wait::eventually;
use crate::support::write_requests::{ORDERS, add, add_ordered};
use crate::support::{Answer, Client, TestDatabase, TestService};

/// The tag that getPet, getOrder or a list returns.
async fn tag(client: &Client, path: &str) -> String {
    let answer = client.get(path).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.header("etag").to_owned()
}

fn of_pet(pet: i64) -> String {
    format!("/v1/pets/{pet}")
}

fn of_order(order: i64) -> String {
    format!("{ORDERS}/{order}")
}

async fn patch(client: &Client, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let send = client.send(Method::PATCH, path, |request| {
        let request = request.header("content-type", "application/json").body(body.to_owned());
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    });
    send.await
}

/// The status of an update that changes nothing, if the tag is still this one.
async fn status_if_match(client: &Client, path: &str, tag: &str) -> u16 {
    patch(client, path, &[("if-match", tag)], "{}").await.status
}

#[tokio::test]
async fn a_late_retry_of_a_return_does_not_undo_a_later_sale() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = add(client).await;
    let sell = async || {
        let order = client.post(ORDERS, &json!({"petId": pet})).await.json()["id"].as_i64().unwrap();
        let complete = format!("{}/complete", of_order(order));
        assert_eq!(client.send(Method::POST, &complete, |request| request).await.status, 200);
    };
    sell().await;
    let sold = tag(client, &of_pet(pet)).await;
    let give_back =
        async || patch(client, &of_pet(pet), &[("if-match", &sold)], r#"{"status":"available"}"#).await;
    assert_eq!(give_back().await.status, 200);
    sell().await;
    assert_eq!(give_back().await.error(), (412, "precondition_failed".into()));
    assert_eq!(client.get(&of_pet(pet)).await.json()["status"], "sold");
}

/// Changes whose effect is undone by the next one, so that the content comes back.
const CHANGES_OF_A_PET: [(&str, &str, &str); 3] = [
    ("updatePet", r#"{"name":"Max"}"#, r#"{"name":"Rex"}"#),
    ("updatePet of the status", r#"{"status":"sold"}"#, r#"{"status":"available"}"#),
    ("updatePet of the metadata", r#"{"metadata":{"price":"129.00"}}"#, r#"{"metadata":null}"#),
];

#[tokio::test]
async fn the_tag_of_a_pet_never_comes_back_with_its_content() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let (client, session) = (&service.client, service.database.connect().await);
    let pet = add(client).await;
    let content = client.get(&of_pet(pet)).await.body;
    let mut tags = vec![tag(client, &of_pet(pet)).await];
    let mut check = async |what: &str| {
        let answer = client.get(&of_pet(pet)).await;
        assert_eq!(answer.body, content, "{what}");
        let new = answer.header("etag").to_owned();
        assert!(!tags.contains(&new), "{what}: {new} came back");
        for old in &tags {
            assert_eq!(status_if_match(client, &of_pet(pet), old).await, 412, "{what}");
        }
        tags.push(new);
    };
    for (what, change, back) in CHANGES_OF_A_PET {
        for body in [change, back] {
            assert_eq!(patch(client, &of_pet(pet), &[], body).await.status, 200);
        }
        check(what).await;
    }
    let place = async || client.post(ORDERS, &json!({"petId": pet})).await.json()["id"].as_i64().unwrap();
    let order = place().await;
    client.send(Method::POST, &format!("{}/cancel", of_order(order)), |request| request).await;
    check("placeOrder and cancelOrder").await;
    let order = place().await;
    let due = "UPDATE orders SET expires_at = created_at WHERE id = $1";
    session.execute(due, &[&order]).await.unwrap();
    eventually("the order expires", async || {
        client.get(&of_order(order)).await.json()["status"] == "expired"
    })
    .await;
    check("placeOrder and the order's expiry").await;
    session.batch_execute("UPDATE pets SET name = 'Max'").await.unwrap();
    session.batch_execute("UPDATE pets SET name = 'Rex'").await.unwrap();
    check("SQL").await;
    session.batch_execute("UPDATE pets SET name = name").await.unwrap();
    check("SQL that changes nothing").await;
    session.batch_execute("BEGIN; SAVEPOINT a; UPDATE pets SET name = name; COMMIT").await.unwrap();
    check("SQL in a subtransaction").await;
}

#[tokio::test]
async fn the_tag_of_an_order_changes_with_every_change_and_stays_without_one() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let (client, session) = (&service.client, service.database.connect().await);
    let (_, order) = add_ordered(client).await;
    let path = of_order(order);
    let mut tags = vec![tag(client, &path).await];
    let complete = format!("{path}/complete");
    for (what, method, to, body, changes) in [
        ("updateOrder", Method::PATCH, &path, r#"{"reference":"a"}"#, true),
        ("updateOrder without a change", Method::PATCH, &path, r#"{"reference":"a"}"#, false),
        ("updateOrder of the hold", Method::PATCH, &path, r#"{"holdSeconds":60}"#, true),
        ("completeOrder", Method::POST, &complete, "", true),
        ("completeOrder again", Method::POST, &complete, "", false),
    ] {
        let sent = client.send(method, to, |request| match body {
            "" => request,
            body => request.header("content-type", "application/json").body(body),
        });
        assert_eq!(sent.await.status, 200, "{what}");
        let new = tag(client, &path).await;
        assert_eq!(tags.contains(&new), !changes, "{what}");
        tags.push(new);
    }
    session.batch_execute("UPDATE orders SET reference = reference").await.unwrap();
    assert!(!tags.contains(&tag(client, &path).await), "SQL");
}

async fn run_all(session: &Session, statements: &[&str]) {
    for statement in statements {
        session.batch_execute(statement).await.unwrap();
    }
}

#[tokio::test]
async fn what_changes_no_row_changes_no_tag() {
    let service = TestService::start().await;
    let (client, session) = (&service.client, service.database.connect().await);
    let (pet, order) = add_ordered(client).await;
    let paths = [of_pet(pet), format!("/v1/pets?id={pet}"), of_order(order), format!("{ORDERS}?petId={pet}")];
    for path in &paths {
        let before = tag(client, path).await;
        run_all(
            &session,
            &[
                "BEGIN; SELECT FROM pets FOR UPDATE; SELECT FROM orders FOR SHARE; COMMIT",
                "BEGIN; UPDATE pets SET name = 'Max'; UPDATE orders SET reference = 'a'; ROLLBACK",
                "VACUUM FREEZE pets, orders",
                "VACUUM FULL pets, orders",
                "REINDEX TABLE pets",
                "ALTER TABLE pets ADD COLUMN IF NOT EXISTS own integer DEFAULT 7",
            ],
        )
        .await;
        assert_eq!(tag(client, path).await, before, "{path}");
        let again = client.get_with_header(path, "if-none-match", &before).await;
        assert_eq!((again.status, again.header("etag")), (304, &*before), "{path}");
    }
    let refused = client.post(ORDERS, &json!({"petId": pet})).await;
    assert_eq!(refused.status, 409);
    assert_eq!(patch(client, &of_pet(pet), &[], r#"{"name":"Rex"}"#).await.status, 200);
    let other = service.start_another().await;
    for path in &paths {
        assert_eq!(tag(client, path).await, tag(&other.client, path).await, "{path}");
    }
}

#[tokio::test]
async fn a_replayed_create_has_the_tag_of_the_first_answer() {
    let service = TestService::start().await;
    let client = &service.client;
    for body in [
        json!({"name": "Rex", "categoryId": 3}),
        json!({"name": "Rex", "categoryId": 3, "reference": "chip 7", "metadata": {"price": "129.00"}}),
    ] {
        let key = body.to_string().len().to_string();
        let first = client.post_with_key("/v1/pets", &key, &body).await;
        let again = client.post_with_key("/v1/pets", &key, &body).await;
        assert_eq!((again.is_replayed(), again.header("etag")), (true, first.header("etag")));
        let path = first.header("location").to_owned();
        assert_eq!(tag(client, &path).await, first.header("etag"));
        // A client whose first answer was lost changes the pet only if nobody else has.
        assert_eq!(status_if_match(client, &path, again.header("etag")).await, 200);
        assert_eq!(patch(client, &path, &[], r#"{"name":"Max"}"#).await.status, 200);
        let late = client.post_with_key("/v1/pets", &key, &body).await;
        assert_eq!(late.header("etag"), first.header("etag"));
        assert_eq!(status_if_match(client, &path, late.header("etag")).await, 412);
    }
}

/// The tags of a pet, of an order, and of the lists of each alone.
async fn tags(client: &Client, pet: i64, order: i64) -> Vec<String> {
    let mut tags = Vec::new();
    for path in [of_pet(pet), format!("/v1/pets?id={pet}"), of_order(order), format!("{ORDERS}?petId={pet}")]
    {
        tags.push(tag(client, &path).await);
    }
    tags
}

#[tokio::test]
async fn tags_survive_a_restart_an_epoch_of_transaction_ids_and_a_failover_to_a_standby() {
    let (primary, key) = PrivatePostgres::start_with_key();
    let node = ServeProcess::start(&primary.url, &[]);
    let client = Client::new(node.address, Some(&key));
    let (pet, order) = add_ordered(&client).await;
    let keyed = json!({"name": "Kim", "categoryId": 1});
    let created = client.post_with_key("/v1/pets", "a", &keyed).await;
    let before = tags(&client, pet, order).await;
    drop(node);
    primary.stop("fast");
    // As if four billion transactions had run.
    script(&["tool", "pg_resetwal", "--epoch=1", "--pgdata", &format!("{}/data", primary.directory())]);
    primary.start_again();
    let node = ServeProcess::start(&primary.url, &[]);
    let client = Client::new(node.address, Some(&key));
    assert_eq!(tags(&client, pet, order).await, before);
    let replayed = client.post_with_key("/v1/pets", "a", &keyed).await;
    assert_eq!((replayed.is_replayed(), replayed.header("etag")), (true, created.header("etag")));
    let standby = primary.start_standby("standby");
    let changed = patch(&client, &of_pet(pet), &[("if-match", &before[0])], r#"{"name":"Max"}"#).await;
    assert_eq!(changed.status, 200);
    let before = tags(&client, pet, order).await;
    let (on_primary, on_standby) = (connect(&primary.url).await, connect(&standby.url).await);
    let written: String =
        on_primary.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
    let replayed = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
    eventually("the standby has everything", async || {
        on_standby.query_one(replayed, &[&written]).await.unwrap().get(0)
    })
    .await;
    drop(node);
    primary.stop("immediate");
    standby.promote();
    let node = ServeProcess::start(&standby.url, &[]);
    let client = Client::new(node.address, Some(&key));
    assert_eq!(tags(&client, pet, order).await, before);
}

#[tokio::test]
async fn after_a_dump_is_restored_old_tags_do_not_match() {
    let service = TestService::start().await;
    let (pet, order) = add_ordered(&service.client).await;
    // Another row in another transaction: a restored table has been written by one.
    add(&service.client).await;
    let before = tags(&service.client, pet, order).await;
    let restored = TestDatabase::empty().await;
    let (source, target) = (service.database.url(), restored.url());
    let copy = r#"pg_dump "$0" | psql --quiet --set ON_ERROR_STOP=1 "$1""#;
    let copied = Command::new("bash").args(["-c", copy, &source, &target]).output().unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let node = ServeProcess::start(&target, &[]);
    let after = tags(&node.client, pet, order).await;
    assert!(before.iter().all(|old| !after.contains(old)), "{before:?}, {after:?}");
    assert_eq!(status_if_match(&node.client, &of_pet(pet), &before[0]).await, 412);
    assert_eq!(status_if_match(&node.client, &of_pet(pet), &after[0]).await, 200);
    assert_eq!(patch(&node.client, &of_order(order), &[("if-match", &before[2])], "{}").await.status, 412);
}
