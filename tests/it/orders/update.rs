//! Changes of orders: more time for the buyer, another reference, metadata.

use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::wait::eventually;
use crate::support::write_requests::ORDERS;
use crate::support::{Answer, Client, TestService};

async fn shop() -> TestService {
    TestService::start_with(&["--order-hold=15m"]).await
}

async fn place(client: &Client, mut order: Value) -> Value {
    order["petId"] = client.add("Rex", Some("available")).await.into();
    let answer = client.post(ORDERS, &order).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.json()
}

async fn patch(client: &Client, order: &Value, body: &Value) -> Answer {
    patch_if(client, order, None, body).await
}

async fn patch_if(client: &Client, order: &Value, etag: Option<&str>, body: &Value) -> Answer {
    client
        .send(Method::PATCH, &format!("{ORDERS}/{}", order["id"]), |mut request| {
            if let Some(etag) = etag {
                request = request.header("if-match", etag);
            }
            request.header("content-type", "application/merge-patch+json").body(body.to_string())
        })
        .await
}

async fn end(client: &Client, order: &Value, what: &str) -> Answer {
    client.send(Method::POST, &format!("{ORDERS}/{}/{what}", order["id"]), |request| request).await
}

fn time(order: &Value, name: &str) -> Timestamp {
    order[name].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_hold_begins_again_from_now() {
    let service = shop().await;
    let client = &service.client;
    let order = place(client, json!({"holdSeconds": 60, "reference": "basket"})).await;
    let extended = patch(client, &order, &json!({"holdSeconds": 900})).await.json();
    let hold = time(&extended, "expiresAt").duration_since(time(&extended, "updatedAt"));
    assert_eq!(hold, SignedDuration::from_secs(900));
    assert!(time(&extended, "updatedAt") > time(&order, "updatedAt"));
    for same in ["id", "petId", "status", "createdAt", "reference"] {
        assert_eq!(extended[same], order[same], "{same}");
    }
    let shortened = patch(client, &order, &json!({"holdSeconds": 1})).await.json();
    eventually("it expires", async || {
        client.get(&format!("{ORDERS}/{}", shortened["id"])).await.json()["status"] == "expired"
    })
    .await;
}

#[tokio::test]
async fn a_hold_above_the_maximum_is_refused_here_and_in_place_order() {
    let service = shop().await;
    let client = &service.client;
    let message = "`/holdSeconds` must be at most 900, the longest hold in this shop.";
    let pet = client.add("Rex", Some("available")).await;
    let refused = client.post(ORDERS, &json!({"petId": pet, "holdSeconds": 901})).await;
    assert_eq!(
        (refused.error(), &refused.json()["message"]),
        ((400, "invalid_field".into()), &json!(message))
    );
    let order = place(client, json!({})).await;
    let refused = patch(client, &order, &json!({"holdSeconds": 901})).await;
    assert_eq!(
        (refused.error(), &refused.json()["message"]),
        ((400, "invalid_field".into()), &json!(message))
    );
    let unlimited = TestService::start().await;
    let order = place(&unlimited.client, json!({})).await;
    let refused = patch(&unlimited.client, &order, &json!({"holdSeconds": 60})).await;
    let reason = "`/holdSeconds` is not allowed, because orders in this shop never expire: leave it out.";
    assert_eq!(refused.json()["message"], reason);
}

#[tokio::test]
async fn a_retry_finds_an_order_whose_hold_an_earlier_release_had_shortened() {
    let service = shop().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    let new = json!({"petId": pet, "holdSeconds": 600});
    let placed = client.post_with_key(ORDERS, "once", &new).await;
    // The same shop, whose operator allows less now.
    let other = service.start_another_with(&["--order-hold=5m"]).await;
    let replayed = other.client.post_with_key(ORDERS, "once", &new).await;
    assert_eq!((replayed.status, &replayed.body), (201, &placed.body));
    assert!(replayed.is_replayed());
}

#[tokio::test]
async fn only_an_open_order_gets_more_time_but_every_order_can_be_annotated() {
    let service = shop().await;
    let client = &service.client;
    for (what, status) in [("complete", "completed"), ("cancel", "cancelled")] {
        let order = place(client, json!({})).await;
        end(client, &order, what).await;
        let refused = patch(client, &order, &json!({"holdSeconds": 60})).await;
        assert_eq!(refused.error(), (409, "invalid_transition".into()));
        let message = format!(
            "The order is `{status}`, and only a `placed` order reserves its pet: leave out `holdSeconds`, or place another \
             order."
        );
        assert_eq!(refused.json()["message"], message);
        let noted =
            patch(client, &order, &json!({"reference": "r", "metadata": {"cashier": "Kim"}})).await.json();
        assert_eq!((&noted["reference"], &noted["metadata"]), (&json!("r"), &json!({"cashier": "Kim"})));
        assert_eq!(noted["status"], status);
    }
    let unknown = patch(client, &json!({"id": 4711}), &json!({})).await;
    assert_eq!(unknown.error(), (404, "order_not_found".into()));
}

#[tokio::test]
async fn if_match_allows_a_change_only_while_the_etag_is_current() {
    let service = shop().await;
    let client = &service.client;
    let order = place(client, json!({})).await;
    let path = format!("{ORDERS}/{}", order["id"]);
    let read = client.get(&path).await;
    let page = client.get(&format!("{ORDERS}?petId={}", order["petId"])).await;
    for current in [read.header("etag"), page.header("etag"), "*"] {
        assert_eq!(patch_if(client, &order, Some(current), &json!({})).await.body, read.body);
    }
    let changed = patch_if(client, &order, Some(read.header("etag")), &json!({"reference": "a"})).await;
    assert_eq!(changed.status, 200);
    assert_eq!(changed.header("etag"), client.get(&path).await.header("etag"));
    let stale = patch_if(client, &order, Some(read.header("etag")), &json!({"reference": "b"})).await;
    assert_eq!(stale.error(), (412, "precondition_failed".into()));
    assert!(stale.json()["message"].as_str().unwrap().starts_with("The order has changed since you read it"));
    assert_eq!(client.get(&path).await.json()["reference"], "a");
}

#[tokio::test]
async fn an_order_that_has_expired_cannot_be_extended() {
    let service = shop().await;
    let client = &service.client;
    let order = place(client, json!({"holdSeconds": 1})).await;
    eventually("it expires", async || {
        client.get(&format!("{ORDERS}/{}", order["id"])).await.json()["status"] == "expired"
    })
    .await;
    let late = patch(client, &order, &json!({"holdSeconds": 60})).await;
    assert_eq!(late.error(), (409, "invalid_transition".into()));
}

#[tokio::test]
async fn many_extensions_and_expiries_at_once_never_disagree() {
    let first = shop().await;
    let second = first.start_another_with(&["--order-hold=15m"]).await;
    let mut racing = tokio::task::JoinSet::new();
    for number in 0..24 {
        let client = [&first, &second][number % 2].client.clone();
        racing.spawn(async move {
            let order = place(&client, json!({"holdSeconds": 1})).await;
            let due = time(&order, "expiresAt");
            let wait = due.duration_since(Timestamp::now()).unsigned_abs();
            tokio::time::sleep(wait).await;
            let answer = patch(&client, &order, &json!({"holdSeconds": 900})).await;
            let status = client.get(&format!("{ORDERS}/{}", order["id"])).await.json()["status"].clone();
            let pet = client.get(&format!("/v1/pets/{}", order["petId"])).await.json()["status"].clone();
            match answer.status {
                200 => assert_eq!((status, pet), (json!("placed"), json!("pending"))),
                409 => assert_eq!((status, pet), (json!("expired"), json!("available"))),
                _ => panic!("{}", answer.body),
            }
        });
    }
    while let Some(raced) = racing.join_next().await {
        raced.unwrap();
    }
}
