//! `PATCH /pets/{petId}`: changing a pet, with `If-Match` only in the state that the client has seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::interleaving::is_locked;
use crate::support::wait::PROMPTLY;
use crate::support::{Answer, Client, TestService};

/// Sends text as a patch, with these headers.
async fn patch_text(client: &Client, pet: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    client
        .send(Method::PATCH, &format!("/v1/pets/{pet}"), |request| {
            let request = request.body(body.to_owned());
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
        })
        .await
}

const MERGE_PATCH: (&str, &str) = ("content-type", "application/merge-patch+json");

/// Changes a pet if it has this `ETag`.
async fn patch_if_match(client: &Client, pet: i64, etag: &str, body: &Value) -> Answer {
    patch_text(client, &pet.to_string(), &[MERGE_PATCH, ("if-match", etag)], &body.to_string()).await
}

#[tokio::test]
async fn update_pet_changes_only_the_members_that_are_sent() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", None).await;
    for (body, expected) in [
        (json!({"name": " Rex II "}), json!({"id": pet, "name": " Rex II ", "categoryId": 1})),
        (json!({"categoryId": -9}), json!({"id": pet, "name": " Rex II ", "categoryId": -9})),
        (
            json!({"status": "available"}),
            json!({"id": pet, "name": " Rex II ", "categoryId": -9, "status": "available"}),
        ),
        (
            json!({"name": "Max", "categoryId": 7.0, "status": "sold"}),
            json!({"id": pet, "name": "Max", "categoryId": 7, "status": "sold"}),
        ),
        (json!({}), json!({"id": pet, "name": "Max", "categoryId": 7, "status": "sold"})),
    ] {
        let answer = client.patch_pet(pet, &body).await;
        assert_eq!((answer.status, answer.json()), (200, expected), "{body}");
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.header("cache-control"), "no-store");
        let read = client.get(&format!("/v1/pets/{pet}")).await;
        assert_eq!((&read.body, read.header("etag")), (&answer.body, answer.header("etag")));
    }
    assert_eq!(client.get("/v1/pets?status=sold").await.ids(), [pet]);
    assert_eq!(client.get("/v1/pets?status=available").await.ids(), [0; 0]);
}

#[tokio::test]
async fn update_pet_accepts_merge_patch_and_plain_json() {
    let service = TestService::start().await;
    let pet = service.client.add("Rex", None).await.to_string();
    for media_type in
        ["application/merge-patch+json", "application/json", "Application/Merge-Patch+JSON; charset=utf-8"]
    {
        let answer = patch_text(&service.client, &pet, &[("content-type", media_type)], "{}").await;
        assert_eq!(answer.status, 200, "{media_type}");
    }
    for media_type in
        ["application/json-patch+json", "text/plain", "application/merge-patch+json; charset=latin1"]
    {
        let answer = patch_text(&service.client, &pet, &[("content-type", media_type)], "{}").await;
        assert_eq!(answer.error(), (415, "unsupported_media_type".into()), "{media_type}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("application/merge-patch+json") && message.contains("application/json`"));
    }
    assert_eq!(patch_text(&service.client, &pet, &[], "{}").await.status, 415);
    // Other operations do not accept merge patches.
    let post = service.client.send(Method::POST, "/v1/pets", |request| {
        request.header(MERGE_PATCH.0, MERGE_PATCH.1).body(r#"{"name": "Rex", "categoryId": 1}"#)
    });
    assert_eq!(post.await.status, 415);
}

#[tokio::test]
async fn update_pet_refuses_a_bad_patch_and_changes_nothing() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    let before = client.get(&format!("/v1/pets/{pet}")).await.body;
    for (body, code) in [
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        (r#"{"name": "Max", "name": "Moritz"}"#, "invalid_json"),
        (r#"{"name": ""}"#, "invalid_field"),
        (r#"{"name": null}"#, "invalid_field"),
        (r#"{"categoryId": null}"#, "invalid_field"),
        (r#"{"status": null}"#, "invalid_field"),
        (r#"{"status": "gone"}"#, "invalid_field"),
        (r#"{"name": "Max", "categoryId": 1.5}"#, "invalid_field"),
        (r#"{"id": 8}"#, "unknown_field"),
        (r#"{"nmae": "Max"}"#, "unknown_field"),
    ] {
        let answer = patch_text(client, &pet.to_string(), &[MERGE_PATCH], body).await;
        assert_eq!(answer.error(), (400, code.into()), "{body}");
    }
    let query = patch_text(client, &format!("{pet}?force=1"), &[MERGE_PATCH], "{}").await;
    assert_eq!(query.error(), (400, "unknown_parameter".into()));
    let large = patch_text(client, &pet.to_string(), &[MERGE_PATCH], &" ".repeat(16 * 1024 + 1)).await;
    assert_eq!(large.error(), (413, "body_too_large".into()));
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.body, before);
}

#[tokio::test]
async fn update_pet_answers_404_to_an_unknown_pet_whatever_the_etag() {
    let service = TestService::start().await;
    for id in ["1", "0", "-1", "abc", "9223372036854775808"] {
        for headers in [&[MERGE_PATCH][..], &[MERGE_PATCH, ("if-match", "*")]] {
            let answer = patch_text(&service.client, id, headers, "{}").await;
            assert_eq!(answer.error(), (404, "pet_not_found".into()), "{id}");
        }
    }
}

#[tokio::test]
async fn the_etag_of_a_list_of_this_pet_alone_works_in_if_match() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", None).await;
    let other = client.add("Ada", None).await;
    let listed =
        async |query: String| client.get(&format!("/v1/pets?{query}")).await.header("etag").to_owned();
    let both = listed(format!("id={pet}&id={other}")).await;
    assert_eq!(patch_if_match(client, pet, &both, &json!({"name": "Max"})).await.status, 412);
    let alone = listed(format!("id={pet}")).await;
    assert_eq!(patch_if_match(client, pet, &alone, &json!({"name": "Max"})).await.status, 200);
    assert_eq!(patch_if_match(client, pet, &alone, &json!({"name": "Moritz"})).await.status, 412);
}

#[tokio::test]
async fn if_match_allows_a_change_only_while_the_etag_is_current() {
    let service = TestService::start().await;
    let client = &service.client;
    let created = client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1, "status": "sold"})).await;
    let pet = created.json()["id"].as_i64().unwrap();
    let first = created.header("etag").to_owned();
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.header("etag"), first);
    let changed = patch_if_match(client, pet, &first, &json!({"name": "Max"})).await;
    assert_eq!(changed.status, 200);
    let second = changed.header("etag").to_owned();
    assert_ne!(second, first);
    for stale in [&*first, "\"\"", "x", &format!("W/{second}"), ""] {
        let refused = patch_if_match(client, pet, stale, &json!({"name": "Moritz"})).await;
        assert_eq!(refused.error(), (412, "precondition_failed".into()), "{stale}");
    }
    // The ETag is checked before the rules for the change.
    let both = patch_if_match(client, pet, &first, &json!({"status": "pending"})).await;
    assert_eq!(both.status, 412);
    for good in ["*", &second, &format!("{first}, {second}")] {
        assert_eq!(patch_if_match(client, pet, good, &json!({})).await.status, 200, "{good}");
    }
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.json()["name"], "Max");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_many_changes_on_two_nodes_with_the_same_etag_succeeds() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..15 {
        let body = json!({"name": "Rex", "categoryId": round});
        let created = first.client.post("/v1/pets", &body).await;
        let pet = created.json()["id"].as_i64().unwrap();
        let (tag, barrier) = (created.header("etag").to_owned(), Arc::new(Barrier::new(32)));
        let mut clients = JoinSet::new();
        for number in 0..32 {
            let client = [&first, &second][number % 2].client.clone();
            let (tag, barrier) = (tag.clone(), barrier.clone());
            clients.spawn(async move {
                barrier.wait().await;
                patch_if_match(&client, pet, &tag, &json!({"name": format!("Rex {number}")})).await
            });
        }
        let answers = clients.join_all().await;
        let changed: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 200).collect();
        assert_eq!(changed.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.status == 200 || answer.status == 412), "{answers:?}");
        assert_eq!(first.client.get(&format!("/v1/pets/{pet}")).await.body, changed[0].body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_to_different_members_are_all_kept() {
    let service = TestService::start().await;
    for _ in 0..20 {
        let pet = service.client.add("Rex", None).await;
        let (name, category, status) =
            (json!({"name": "Max"}), json!({"categoryId": 9}), json!({"status": "sold"}));
        let (one, two, three) = tokio::join!(
            service.client.patch_pet(pet, &name),
            service.client.patch_pet(pet, &category),
            service.client.patch_pet(pet, &status),
        );
        assert_eq!([one.status, two.status, three.status], [200; 3]);
        let found = service.client.get(&format!("/v1/pets/{pet}")).await.json();
        assert_eq!(found, json!({"id": pet, "name": "Max", "categoryId": 9, "status": "sold"}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_changes_to_one_pet_all_succeed() {
    const CLIENTS: usize = 32;
    let service = TestService::start().await;
    let pet = service.client.add("Rex", Some("available")).await;
    let (mut clients, repeated) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for number in 0..CLIENTS {
        let (client, repeated) = (service.client.clone(), repeated.clone());
        clients.spawn(async move {
            for round in 0..20 {
                // The status as well, because it depends on orders.
                let status = ["available", "pending"][(number + round) % 2];
                let change = json!({"categoryId": number, "status": status});
                let mut answer = client.patch_pet(pet, &change).await;
                // On a machine that stalls, those before it may take too long.
                while is_locked(&answer) && repeated.fetch_add(1, Ordering::Relaxed) < CLIENTS {
                    answer = client.patch_pet(pet, &change).await;
                }
                assert_eq!(answer.status, 200, "{}", answer.body);
                assert_eq!(
                    (&answer.json()["categoryId"], &answer.json()["status"]),
                    (&json!(number), &json!(status))
                );
            }
        });
    }
    clients.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_many_changes_on_one_node_with_the_same_etag_succeeds() {
    let service = TestService::start().await;
    let pet = service.client.add("Rex", None).await;
    for round in 0..20 {
        let tag = service.client.get(&format!("/v1/pets/{pet}")).await.header("etag").to_owned();
        let mut clients = JoinSet::new();
        for number in 0..16 {
            let (client, tag) = (service.client.clone(), tag.clone());
            let body = json!({"categoryId": 1_000 * (round + 1) + number});
            clients.spawn(async move { patch_if_match(&client, pet, &tag, &body).await.status });
        }
        let mut statuses = clients.join_all().await;
        statuses.sort_unstable();
        assert_eq!(statuses, [&[200][..], &[412; 15]].concat());
    }
}

#[tokio::test]
async fn an_id_that_is_the_key_of_one_of_the_services_own_locks_waits_for_nothing() {
    let service = TestService::start_with(&["--database-timeout", "60s"]).await;
    let database = service.database.connect().await;
    // Under this lock, old partitions are dropped.
    let id = i64::from_be_bytes(*b"petonce!");
    database.execute("SELECT pg_advisory_lock($1)", &[&id]).await.unwrap();
    let started = Instant::now();
    let answer = service.client.patch_pet(id, &json!({"name": "Rex"})).await;
    assert_eq!(answer.error(), (404, "pet_not_found".into()));
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
}
