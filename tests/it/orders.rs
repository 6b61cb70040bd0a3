//! `/store/orders`: placing, reading, listing and ending orders; each animal is sold once.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{Answer, Client, TestService};

const ORDERS: &str = "/v1/store/orders";

async fn place(client: &Client, pet: i64) -> Answer {
    client.post(ORDERS, &json!({"petId": pet})).await
}

async fn place_once(client: &Client, key: &str, pet: i64) -> Answer {
    client
        .send(Method::POST, ORDERS, |request| {
            let body = json!({"petId": pet}).to_string();
            request.header("content-type", "application/json").header("idempotency-key", key).body(body)
        })
        .await
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
async fn ordered(client: &Client) -> (i64, i64) {
    let pet = client.add("Rex", Some("available")).await;
    let answer = place(client, pet).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    (pet, answer.json()["id"].as_i64().unwrap())
}

async fn status_of(client: &Client, pet: i64) -> Value {
    client.get(&format!("/v1/pets/{pet}")).await.json()["status"].clone()
}

fn replayed(answer: &Answer) -> bool {
    answer.header("idempotent-replayed") == "true"
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

    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let completed = end(client, id, "complete", None).await;
    assert_eq!((completed.status, completed.json()["status"].clone()), (200, json!("completed")));
    assert_eq!(completed.json()["createdAt"], order["createdAt"]);
    assert!(completed.json()["updatedAt"].as_str() > order["updatedAt"].as_str());
    assert_eq!(status_of(client, pet).await, "sold");
    assert_eq!(client.get(&format!("{ORDERS}/{id}")).await.body, completed.body);
}

#[tokio::test]
async fn a_cancelled_order_gives_the_animal_back_to_the_next_buyer() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, first) = ordered(client).await;
    assert_eq!(place(client, pet).await.error(), (409, "pet_not_available".into()));
    let cancelled = end(client, first, "cancel", None).await;
    assert_eq!((cancelled.status, cancelled.json()["status"].clone()), (200, json!("cancelled")));
    assert_eq!(status_of(client, pet).await, "available");
    let second = place(client, pet).await;
    assert_eq!(second.status, 201);
    // The end of the first is behind it: what is repeated answers as before, and does not touch the second.
    let again = end(client, first, "cancel", None).await;
    assert_eq!((again.status, &again.body), (200, &cancelled.body));
    assert_eq!(status_of(client, pet).await, "pending");
    let other_end = end(client, first, "complete", None).await;
    assert_eq!(other_end.error(), (409, "invalid_transition".into()));
    assert_eq!(other_end.json()["message"], "The order is `cancelled` and cannot become `completed`.");
}

#[tokio::test]
async fn only_a_pet_that_there_is_can_be_ordered() {
    let service = TestService::start().await;
    let client = &service.client;
    for missing in [1, i64::MAX] {
        let answer = place(client, missing).await;
        assert_eq!(answer.error(), (400, "invalid_field".into()));
        assert_eq!(answer.json()["message"], "`/petId` must be the id of an existing pet.");
    }
    assert_eq!(client.get(ORDERS).await.body, "[]");
}

#[tokio::test]
async fn a_bad_body_is_refused_with_its_reason() {
    let service = TestService::start().await;
    for (body, code, message) in [
        ("{}", "missing_field", "`/petId` is required: it must be the id of a pet."),
        (r#"{"petId": 0}"#, "invalid_field", "`/petId` must be at least 1."),
        (r#"{"petId": "7"}"#, "invalid_field", "`/petId` must be an integer from -2^63 to 2^63 - 1."),
        (r#"{"petId": null}"#, "invalid_field", "`/petId` must be an integer from -2^63 to 2^63 - 1."),
        (
            r#"{"petID": 7}"#,
            "unknown_field",
            "`/petID` is not a field that you can set; the nearest is `/petId`.",
        ),
        (
            r#"{"petId": 7, "quantity": 2}"#,
            "unknown_field",
            "`/quantity` is not a field that you can set; the nearest is `/petId`.",
        ),
    ] {
        let answer = service.client.post_text(ORDERS, body).await;
        assert_eq!(answer.error(), (400, code.into()), "{body}");
        assert_eq!(answer.json()["message"], message, "{body}");
    }
    for (path, code) in [("?dryRun=1", "unknown_parameter"), ("/1/cancel?force=1", "unknown_parameter")] {
        let answer = service.client.post(&format!("{ORDERS}{path}"), &json!({"petId": 1})).await;
        assert_eq!(answer.error(), (400, code.into()));
    }
}

#[tokio::test]
async fn what_is_no_order_is_not_found() {
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
async fn an_order_is_known_by_its_tag_until_it_changes() {
    let service = TestService::start().await;
    let client = &service.client;
    let (_, order) = ordered(client).await;
    let path = format!("{ORDERS}/{order}");
    let tag = client.get(&path).await.header("etag").to_owned();
    let ask = async |path: &str, tag: &str| {
        client.send(Method::GET, path, |request| request.header("if-none-match", tag)).await.status
    };
    assert_eq!(ask(&path, &tag).await, 304);
    let list_tag = client.get(ORDERS).await.header("etag").to_owned();
    assert_eq!(ask(ORDERS, &list_tag).await, 304);
    end(client, order, "cancel", None).await;
    assert_eq!(ask(&path, &tag).await, 200);
    assert_eq!(ask(ORDERS, &list_tag).await, 200);
}

#[tokio::test]
async fn orders_are_listed_by_status_and_pet_page_by_page() {
    let service = TestService::start().await;
    let client = &service.client;
    let busy = client.add("Rex", Some("available")).await;
    let mut of_busy = Vec::new();
    let mut all: Vec<(i64, &str)> = Vec::new();
    for number in 0..7 {
        let (_, other) = ordered(client).await;
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
async fn a_bad_query_is_refused() {
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
        ("petID=1", "unknown_parameter"),
        ("cursor=x", "invalid_cursor"),
    ] {
        let answer = service.client.get(&format!("{ORDERS}?{query}")).await;
        assert_eq!(answer.error(), (400, code.into()), "{query}");
    }
}

#[tokio::test]
async fn an_order_is_placed_once_under_a_key_and_answered_as_it_was() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, other) =
        (client.add("Rex", Some("available")).await, client.add("Max", Some("available")).await);
    let first = place_once(client, "basket", pet).await;
    assert_eq!((first.status, replayed(&first)), (201, false));
    let again = place_once(client, "basket", pet).await;
    assert_eq!((again.status, replayed(&again), &again.body), (201, true, &first.body));
    assert_eq!(again.header("location"), first.header("location"));
    // Whatever became of it since.
    let order = first.json()["id"].as_i64().unwrap();
    assert_eq!(end(client, order, "complete", None).await.status, 200);
    let later = place_once(client, "basket", pet).await;
    assert_eq!((later.status, replayed(&later), &later.body), (201, true, &first.body));
    assert_eq!(place_once(client, "basket", other).await.error(), (422, "idempotency_key_reused".into()));
    assert_eq!(status_of(client, other).await, "available");
    // The key is of this operation alone.
    assert_eq!(end(client, order, "complete", Some("basket")).await.status, 200);
    assert_eq!(client.get(ORDERS).await.ids(), [order]);
}

#[tokio::test]
async fn a_refused_order_is_not_remembered() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, order) = ordered(client).await;
    assert_eq!(place_once(client, "basket", pet).await.error(), (409, "pet_not_available".into()));
    end(client, order, "cancel", None).await;
    let placed = place_once(client, "basket", pet).await;
    assert_eq!((placed.status, replayed(&placed)), (201, false));
}

#[tokio::test]
async fn an_order_is_ended_under_a_key_for_that_order_alone() {
    let service = TestService::start().await;
    let client = &service.client;
    let ((_, first), (pet, second)) = (ordered(client).await, ordered(client).await);
    let ended = end(client, first, "complete", Some("a")).await;
    assert_eq!((ended.status, replayed(&ended)), (200, false));
    let again = end(client, first, "complete", Some("a")).await;
    assert_eq!((again.status, replayed(&again), &again.body), (200, true, &ended.body));
    assert_eq!(
        end(client, second, "complete", Some("a")).await.error(),
        (422, "idempotency_key_reused".into())
    );
    assert_eq!(status_of(client, pet).await, "pending");
    // A key that came too late to change anything is used up all the same.
    let late = end(client, first, "complete", Some("b")).await;
    assert_eq!((late.status, replayed(&late), &late.body), (200, false, &ended.body));
    assert_eq!(
        end(client, second, "complete", Some("b")).await.error(),
        (422, "idempotency_key_reused".into())
    );
    assert_eq!(end(client, second, "complete", Some("")).await.error(), (400, "invalid_header".into()));
}

/// Asks 64 times at the same instant, on two nodes.
async fn all_at_once<F: Future<Output = Answer> + Send + 'static>(
    nodes: [&TestService; 2],
    ask: impl Fn(Client, usize) -> F,
) -> Vec<Answer> {
    let barrier = Arc::new(Barrier::new(64));
    let mut clients = JoinSet::new();
    for number in 0..64 {
        let (asking, barrier) = (ask(nodes[number % 2].client.clone(), number), barrier.clone());
        clients.spawn(async move {
            barrier.wait().await;
            asking.await
        });
    }
    clients.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_buyers_of_one_animal_one_gets_it() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..15 {
        let pet = first.client.add("Rex", Some("available")).await;
        // With a key of each one's own, or without.
        let answers = all_at_once([&first, &second], move |client, number| async move {
            if round % 2 == 0 {
                place(&client, pet).await
            } else {
                place_once(&client, &format!("{round}-{number}"), pet).await
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
async fn one_buyer_who_asks_64_times_at_once_is_never_told_that_somebody_else_has_it() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..15 {
        let pet = first.client.add("Rex", Some("available")).await;
        let answers = all_at_once([&first, &second], move |client, _| async move {
            place_once(&client, &format!("basket-{round}"), pet).await
        })
        .await;
        let placed: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 201).collect();
        assert_eq!(placed.iter().filter(|answer| !replayed(answer)).count(), 1);
        for answer in &answers {
            match answer.status {
                201 => assert_eq!(answer.body, placed[0].body),
                _ => assert_eq!(answer.error(), (409, "idempotency_in_progress".into())),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_both_ends_at_once_one_holds() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    for _ in 0..15 {
        let (pet, order) = ordered(&first.client).await;
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
async fn the_database_itself_refuses_a_second_open_order_and_an_order_for_nobody() {
    let service = TestService::start().await;
    let (pet, _) = ordered(&service.client).await;
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
