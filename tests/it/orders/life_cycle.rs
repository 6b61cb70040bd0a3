//! `/store/orders`: placing, reading, listing and ending orders. Each pet is sold once.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::write_requests::ORDERS;
use crate::support::{Answer, Client, TestService};

async fn place(client: &Client, pet: i64) -> Answer {
    client.post(ORDERS, &json!({"petId": pet})).await
}

async fn place_with_key(client: &Client, key: &str, pet: i64) -> Answer {
    client.post_with_key(ORDERS, key, &json!({"petId": pet})).await
}

async fn end(client: &Client, order: i64, what: &str, key: Option<&str>) -> Answer {
    client
        .send(Method::POST, &format!("{ORDERS}/{order}/{what}"), |request| match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        })
        .await
}

/// Adds a pet and places an order for it; returns both ids.
async fn add_ordered_pet(client: &Client) -> (i64, i64) {
    let pet = client.add("Rex", Some("available")).await;
    let answer = place(client, pet).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    (pet, answer.json()["id"].as_i64().unwrap())
}

async fn status_of(client: &Client, pet: i64) -> Value {
    client.get(&format!("/v1/pets/{pet}")).await.json()["status"].clone()
}

#[tokio::test]
async fn an_order_is_placed_read_and_completed() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    let placed = place(client, pet).await;
    assert_eq!(placed.status, 201);
    let order = placed.json();
    let id = order["id"].as_i64().unwrap();
    assert_eq!(placed.header("location"), format!("{ORDERS}/{id}"));
    assert_eq!(placed.header("content-type"), "application/json");
    assert_eq!((&order["petId"], &order["status"]), (&json!(pet), &json!("placed")));
    assert_eq!(order["createdAt"], order["updatedAt"]);
    let members: Vec<&String> = order.as_object().unwrap().keys().collect();
    assert_eq!(members, ["id", "petId", "status", "createdAt", "updatedAt"]);
    for time in ["createdAt", "updatedAt"] {
        let text = order[time].as_str().unwrap();
        let at: jiff::Timestamp = text.parse().unwrap();
        assert_eq!(text, format!("{at:.3}"), "in milliseconds, UTC");
        assert!(jiff::Timestamp::now().duration_since(at).as_secs().abs() < 60);
    }
    let read = client.get(&format!("{ORDERS}/{id}")).await;
    assert_eq!((read.status, &read.body), (200, &placed.body));
    assert_eq!(status_of(client, pet).await, "pending");

    // Timestamps are in milliseconds.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let completed = end(client, id, "complete", None).await;
    assert_eq!((completed.status, completed.json()["status"].clone()), (200, json!("completed")));
    assert_eq!(completed.json()["createdAt"], order["createdAt"]);
    assert!(completed.json()["updatedAt"].as_str() > order["updatedAt"].as_str());
    assert_eq!(status_of(client, pet).await, "sold");
    assert_eq!(client.get(&format!("{ORDERS}/{id}")).await.body, completed.body);
}

#[tokio::test]
async fn a_cancelled_order_makes_the_pet_available_again() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, first) = add_ordered_pet(client).await;
    assert_eq!(place(client, pet).await.error(), (409, "pet_not_available".into()));
    let cancelled = end(client, first, "cancel", None).await;
    assert_eq!((cancelled.status, cancelled.json()["status"].clone()), (200, json!("cancelled")));
    assert_eq!(status_of(client, pet).await, "available");
    let second = place(client, pet).await;
    assert_eq!(second.status, 201);
    // A repeated end of the first order answers as before, and does not change the second.
    let again = end(client, first, "cancel", None).await;
    assert_eq!((again.status, &again.body), (200, &cancelled.body));
    assert_eq!(status_of(client, pet).await, "pending");
    let other_end = end(client, first, "complete", None).await;
    assert_eq!(other_end.error(), (409, "invalid_transition".into()));
    assert_eq!(other_end.json()["message"], "The order is `cancelled` and cannot become `completed`.");
}

#[tokio::test]
async fn a_pet_that_was_made_available_in_sql_while_its_order_is_open_cannot_be_ordered_again() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, order) = add_ordered_pet(client).await;
    let database = service.database.connect().await;
    database.execute("UPDATE pets SET status = 'available' WHERE id = $1", &[&pet]).await.unwrap();
    for refused in [place(client, pet).await, place_with_key(client, "a", pet).await] {
        assert_eq!(refused.error(), (409, "pet_has_open_order".into()));
        assert_eq!(
            refused.json()["message"],
            "The pet has an open order: complete or cancel the order first."
        );
    }
    assert_eq!(end(client, order, "cancel", None).await.status, 200);
    assert_eq!(place_with_key(client, "a", pet).await.status, 201);
}

#[tokio::test]
async fn place_order_answers_404_to_an_unknown_pet() {
    let service = TestService::start().await;
    let client = &service.client;
    for missing in [1, i64::MAX] {
        let answer = place(client, missing).await;
        assert_eq!(answer.error(), (404, "pet_not_found".into()));
    }
    assert_eq!(client.get(ORDERS).await.body, "[]");
}

#[tokio::test]
async fn place_order_answers_400_to_a_bad_body() {
    let service = TestService::start().await;
    for (body, code, message) in [
        ("{}", "missing_field", "`/petId` is required: it must be the id of a pet."),
        (r#"{"petId": 0}"#, "invalid_field", "`/petId` must be at least 1."),
        (r#"{"petId": "7"}"#, "invalid_field", "`/petId` must be an integer from -2^63 to 2^63 - 1."),
        (r#"{"petId": null}"#, "invalid_field", "`/petId` must be an integer from -2^63 to 2^63 - 1."),
        (r#"{"petID": 7}"#, "unknown_field", "`/petID` cannot be set: did you mean `/petId`?"),
        (
            r#"{"petId": 7, "quantity": 2}"#,
            "unknown_field",
            "`/quantity` cannot be set: you can set `/petId`, `/reference`, `/holdSeconds` and `/metadata`. Put your own data, such as a price, into `/metadata`.",
        ),
        (
            r#"{"petId": 7, "status": "placed"}"#,
            "unknown_field",
            "`/status` is assigned by the service: leave it out.",
        ),
    ] {
        let answer = service.client.post_text(ORDERS, body).await;
        assert_eq!(answer.error(), (400, code.into()), "{body}");
        assert_eq!(answer.json()["message"], message, "{body}");
    }
    let dry = service.client.post(&format!("{ORDERS}?dryRun=1"), &json!({"petId": 1})).await;
    assert_eq!(dry.error(), (400, "unknown_parameter".into()));
    let path = format!("{ORDERS}/1/cancel?force=1");
    let forced = service.client.send(Method::POST, &path, |request| request).await;
    assert_eq!(forced.error(), (400, "unknown_parameter".into()));
}

#[tokio::test]
async fn an_unknown_or_malformed_order_id_answers_404() {
    let service = TestService::start().await;
    for id in ["1", "0", "-1", "abc", "9223372036854775808", "01"] {
        let read = service.client.get(&format!("{ORDERS}/{id}")).await;
        assert_eq!(read.error(), (404, "order_not_found".into()), "{id}");
        for what in ["complete", "cancel"] {
            let path = format!("{ORDERS}/{id}/{what}");
            let ended = service.client.send(Method::POST, &path, |request| request).await;
            assert_eq!(ended.error(), (404, "order_not_found".into()), "{id}");
        }
    }
}

#[tokio::test]
async fn list_orders_filters_by_status_and_pet_across_pages() {
    let service = TestService::start().await;
    let client = &service.client;
    let busy = client.add("Rex", Some("available")).await;
    let mut of_busy = Vec::new();
    let mut all: Vec<(i64, &str)> = Vec::new();
    for number in 0..7 {
        let (_, other) = add_ordered_pet(client).await;
        let what = ["complete", "cancel", ""][number % 3];
        if !what.is_empty() {
            end(client, other, what, None).await;
        }
        all.push((other, ["completed", "cancelled", "placed"][number % 3]));
        let id = place(client, busy).await.json()["id"].as_i64().unwrap();
        let last = number == 6;
        end(client, id, if last { "complete" } else { "cancel" }, None).await;
        all.push((id, if last { "completed" } else { "cancelled" }));
        of_busy.push(id);
    }
    let expected = |status: Option<&str>, only_busy: bool| -> Vec<i64> {
        all.iter()
            .filter(|(id, found)| {
                status.is_none_or(|status| status == *found) && (!only_busy || of_busy.contains(id))
            })
            .map(|(id, _)| *id)
            .collect()
    };
    for limit in [1, 2, 3, 100] {
        for status in [None, Some("placed"), Some("completed"), Some("cancelled")] {
            for only_busy in [false, true] {
                let by_status = status.map_or(String::new(), |status| format!("&status={status}"));
                let by_pet = if only_busy { format!("&petId={busy}") } else { String::new() };
                let query = format!("?limit={limit}{by_status}{by_pet}");
                let (mut found, mut next) = (Vec::new(), Some(format!("{ORDERS}{query}")));
                while let Some(path) = next {
                    let page = client.get(&path).await;
                    assert!(page.ids().len() <= limit);
                    found.extend(page.ids());
                    next = page.next().map(str::to_owned);
                }
                assert_eq!(found, expected(status, only_busy), "{query}");
            }
        }
    }
    assert_eq!(client.get(&format!("{ORDERS}?petId={}", i64::MAX)).await.body, "[]");
    assert_eq!(client.get(&format!("{ORDERS}?limit=1")).await.header("link").matches("limit=1").count(), 1);
}

#[tokio::test]
async fn list_orders_answers_400_to_a_bad_query() {
    let service = TestService::start().await;
    for (query, code) in [
        ("status=open", "invalid_parameter"),
        ("status=", "invalid_parameter"),
        ("status=placed&status=placed", "invalid_parameter"),
        ("petId=0", "invalid_parameter"),
        ("petId=x", "invalid_parameter"),
        ("petId=1&petId=2", "invalid_parameter"),
        ("limit=0", "invalid_parameter"),
        ("limit=101", "invalid_parameter"),
        ("sort=desc", "invalid_parameter"),
        ("sort=id&sort=-id", "invalid_parameter"),
        ("petID=1", "unknown_parameter"),
        ("cursor=x", "invalid_cursor"),
    ] {
        let answer = service.client.get(&format!("{ORDERS}?{query}")).await;
        assert_eq!(answer.error(), (400, code.into()), "{query}");
    }
}

#[tokio::test]
async fn an_order_with_an_idempotency_key_is_placed_once_and_replayed_as_it_is_now() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, other) =
        (client.add("Rex", Some("available")).await, client.add("Max", Some("available")).await);
    let first = place_with_key(client, "basket", pet).await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    let again = place_with_key(client, "basket", pet).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body));
    assert_eq!(again.header("location"), first.header("location"));
    let order = first.json()["id"].as_i64().unwrap();
    let completed = end(client, order, "complete", None).await;
    assert_eq!(completed.status, 200);
    let later = place_with_key(client, "basket", pet).await;
    assert_eq!((later.status, later.is_replayed(), &later.body), (201, true, &completed.body));
    assert_eq!(place_with_key(client, "basket", other).await.error(), (422, "idempotency_key_reused".into()));
    assert_eq!(status_of(client, other).await, "available");
    // The key belongs to this operation only.
    assert_eq!(end(client, order, "complete", Some("basket")).await.status, 200);
    assert_eq!(client.get(ORDERS).await.ids(), [order]);
}

#[tokio::test]
async fn a_refused_order_does_not_use_up_its_idempotency_key() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, order) = add_ordered_pet(client).await;
    assert_eq!(place_with_key(client, "basket", pet).await.error(), (409, "pet_not_available".into()));
    end(client, order, "cancel", None).await;
    let placed = place_with_key(client, "basket", pet).await;
    assert_eq!((placed.status, placed.is_replayed()), (201, false));
}

#[tokio::test]
async fn an_idempotency_key_for_ending_an_order_is_bound_to_that_order() {
    let service = TestService::start().await;
    let client = &service.client;
    let ((_, first), (pet, second)) = (add_ordered_pet(client).await, add_ordered_pet(client).await);
    let ended = end(client, first, "complete", Some("a")).await;
    assert_eq!((ended.status, ended.is_replayed()), (200, false));
    let again = end(client, first, "complete", Some("a")).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (200, true, &ended.body));
    assert_eq!(
        end(client, second, "complete", Some("a")).await.error(),
        (422, "idempotency_key_reused".into())
    );
    assert_eq!(status_of(client, pet).await, "pending");
    // A key is used up even if its request changes nothing.
    let late = end(client, first, "complete", Some("b")).await;
    assert_eq!((late.status, late.is_replayed(), &late.body), (200, false, &ended.body));
    assert_eq!(
        end(client, second, "complete", Some("b")).await.error(),
        (422, "idempotency_key_reused".into())
    );
    assert_eq!(end(client, second, "complete", Some("")).await.error(), (400, "invalid_header".into()));
}

/// Sends 64 requests at the same time, to two nodes.
async fn all_at_once<F: Future<Output = Answer> + Send + 'static>(
    nodes: [&TestService; 2],
    send: impl Fn(Client, usize) -> F,
) -> Vec<Answer> {
    let barrier = Arc::new(Barrier::new(64));
    let mut clients = JoinSet::new();
    for number in 0..64 {
        let (sending, barrier) = (send(nodes[number % 2].client.clone(), number), barrier.clone());
        clients.spawn(async move {
            barrier.wait().await;
            sending.await
        });
    }
    clients.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_64_concurrent_buyers_gets_the_pet() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..15 {
        let pet = first.client.add("Rex", Some("available")).await;
        // Each with its own idempotency key, or all without.
        let answers = all_at_once([&first, &second], move |client, number| async move {
            if round % 2 == 0 {
                place(&client, pet).await
            } else {
                place_with_key(&client, &format!("{round}-{number}"), pet).await
            }
        })
        .await;
        let won = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(won, 1, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            assert_eq!(answer.error(), (409, "pet_not_available".into()));
        }
        assert_eq!(first.client.get(&format!("{ORDERS}?petId={pet}")).await.ids().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_retries_of_one_order_never_answer_pet_not_available() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..15 {
        let pet = first.client.add("Rex", Some("available")).await;
        let answers = all_at_once([&first, &second], move |client, _| async move {
            place_with_key(&client, &format!("basket-{round}"), pet).await
        })
        .await;
        let placed: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 201).collect();
        assert_eq!(placed.iter().filter(|answer| !answer.is_replayed()).count(), 1);
        for answer in &answers {
            match answer.status {
                201 => assert_eq!(answer.body, placed[0].body),
                _ => assert_eq!(answer.error(), (409, "idempotency_in_progress".into())),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_concurrent_complete_and_cancel_takes_effect() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for _ in 0..15 {
        let (pet, order) = add_ordered_pet(&first.client).await;
        let answers = all_at_once([&first, &second], move |client, number| async move {
            end(&client, order, ["complete", "cancel"][number / 2 % 2], None).await
        })
        .await;
        let ended: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 200).collect();
        assert_eq!(ended.len(), 32, "{answers:?}");
        assert!(ended.iter().all(|answer| answer.body == ended[0].body), "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!(answer.error(), (409, "invalid_transition".into()));
        }
        let expected = if ended[0].json()["status"] == "completed" { "sold" } else { "available" };
        assert_eq!(status_of(&first.client, pet).await, expected);
    }
}

#[tokio::test]
async fn the_database_refuses_a_second_open_order_and_an_order_without_a_pet() {
    let service = TestService::start().await;
    let (pet, _) = add_ordered_pet(&service.client).await;
    let database = service.database.connect().await;
    let insert =
        "INSERT INTO orders (pet_id, status, created_at, updated_at) VALUES ($1, 'placed', now(), now())";
    for (pet, constraint) in [(pet, "orders_one_open_a_pet"), (4711, "orders_pet_id_fkey")] {
        let error = database.execute(insert, &[&pet]).await.unwrap_err();
        assert_eq!(error.as_db_error().and_then(|error| error.constraint()), Some(constraint));
    }
    let delete = database.execute("DELETE FROM pets WHERE id = $1", &[&pet]).await.unwrap_err();
    assert_eq!(delete.as_db_error().and_then(|error| error.constraint()), Some("orders_pet_id_fkey"));
}

#[tokio::test]
async fn a_reference_that_cannot_be_shown_hides_neither_its_order_nor_its_page() {
    let service = TestService::start().await;
    let client = &service.client;
    let database = service.database.connect().await;
    // As it was before schema version 15.
    let drop = "ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_reference";
    database.batch_execute(drop).await.unwrap();
    let unreadable = ["a\tb", " ", "\u{3000}", "\u{85}", "a\u{7f}"];
    for (number, reference) in unreadable.into_iter().chain(["basket"]).enumerate() {
        let pet = client.add("Rex", Some("available")).await;
        let order = client.post(ORDERS, &json!({"petId": pet})).await.json()["id"].as_i64().unwrap();
        assert_eq!(order, i64::try_from(number).unwrap() + 1);
        let set = "UPDATE orders SET reference = $1 WHERE id = $2";
        assert_eq!(database.execute(set, &[&reference, &order]).await.unwrap(), 1);
    }
    for path in [ORDERS, "/v1/store/orders?status=placed", "/v1/store/orders?petId=1"] {
        let page = client.get(path).await;
        assert!(page.ids().contains(&1), "{path}");
        assert_eq!(page.json()[0].get("reference"), None, "{path}");
    }
    assert_eq!(client.get(ORDERS).await.json()[5]["reference"], "basket");
    for order in 1..=i64::try_from(unreadable.len()).unwrap() {
        let path = format!("{ORDERS}/{order}");
        assert_eq!(client.get(&path).await.status, 200);
        let ended = client.send(Method::POST, &format!("{path}/cancel"), |request| request).await;
        assert_eq!(ended.status, 200, "{}", ended.body);
    }
}
