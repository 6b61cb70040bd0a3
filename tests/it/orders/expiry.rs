//! Order expiry, and the shop's own references to orders.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::wait::eventually;
use crate::support::write_requests::ORDERS;
use crate::support::{Answer, Client, TestService};

async fn place(client: &Client, mut order: Value) -> Value {
    if order.get("petId").is_none() {
        order["petId"] = client.add("Rex", Some("available")).await.into();
    }
    let answer = client.post(ORDERS, &order).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.json()
}

async fn end(client: &Client, order: &Value, what: &str) -> Answer {
    client.send(Method::POST, &format!("{ORDERS}/{}/{what}", order["id"]), |request| request).await
}

async fn read(client: &Client, order: &Value) -> Value {
    client.get(&format!("{ORDERS}/{}", order["id"])).await.json()
}

async fn wait_for_expiry(client: &Client, order: &Value) {
    eventually("the order expires", async || read(client, order).await["status"] == "expired").await;
}

/// The seconds from the placing of an order to its expiry.
fn hold(order: &Value) -> Option<i64> {
    let time = |name: &str| order[name].as_str().map(|text| text.parse::<Timestamp>().unwrap());
    Some(time("expiresAt")?.duration_since(time("createdAt")?).as_secs())
}

/// Lets orders expire.
const HOLD: [&str; 1] = ["--order-hold=168h"];

/// A shop whose orders expire.
async fn start() -> TestService {
    TestService::start_with(&HOLD).await
}

#[tokio::test]
async fn an_order_that_is_not_completed_in_time_expires() {
    let service = start().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    let new = json!({"petId": pet, "holdSeconds": 1, "reference": "basket 4711"});
    let placed = client.post_with_key(ORDERS, "once", &new).await;
    let order = placed.json();
    let members: Vec<&String> = order.as_object().unwrap().keys().collect();
    assert_eq!(members, ["id", "petId", "status", "createdAt", "updatedAt", "expiresAt", "reference"]);
    assert_eq!((hold(&order), &order["reference"]), (Some(1), &json!("basket 4711")));
    assert_eq!(read(client, &order).await, order);

    wait_for_expiry(client, &order).await;
    let expired = read(client, &order).await;
    let updated: Timestamp = expired["updatedAt"].as_str().unwrap().parse().unwrap();
    let due: Timestamp = expired["expiresAt"].as_str().unwrap().parse().unwrap();
    assert!(updated >= due, "{expired}");
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.json()["status"], "available");

    for what in ["complete", "cancel"] {
        assert_eq!(end(client, &order, what).await.error(), (409, "invalid_transition".into()), "{what}");
    }
    let replayed = client.post_with_key(ORDERS, "once", &new).await;
    assert!(replayed.is_replayed());
    assert_eq!(replayed.json(), expired, "as it is now");
    assert_eq!(client.get(&format!("{ORDERS}?status=expired")).await.json()[0]["id"], order["id"]);
    // The pet can be sold to another buyer.
    let next = place(client, json!({"petId": pet})).await;
    assert_eq!(end(client, &next, "complete").await.status, 200);
}

#[tokio::test]
async fn a_client_may_ask_for_a_shorter_time_than_the_shop_s() {
    let unlimited = TestService::start().await;
    assert_eq!(hold(&place(&unlimited.client, json!({})).await), None);
    let pet = unlimited.client.add("Rex", Some("available")).await;
    let refused = unlimited.client.post(ORDERS, &json!({"petId": pet, "holdSeconds": 60})).await;
    assert_eq!(refused.error(), (400, "invalid_field".into()));
    let reason = "`/holdSeconds` is not allowed, because orders in this shop never expire: leave it out.";
    assert_eq!(refused.json()["message"], reason);
    let limited = TestService::start_with(&["--order-hold=15m"]).await;
    assert_eq!(hold(&place(&limited.client, json!({})).await), Some(900));
    assert_eq!(hold(&place(&limited.client, json!({"holdSeconds": 60})).await), Some(60));
    assert_eq!(hold(&place(&limited.client, json!({"holdSeconds": 900})).await), Some(900));
}

#[tokio::test]
async fn an_order_that_has_ended_does_not_expire() {
    let service = start().await;
    let client = &service.client;
    let orders = [
        (place(client, json!({"holdSeconds": 1})).await, "completed", "sold"),
        (place(client, json!({"holdSeconds": 1})).await, "cancelled", "available"),
    ];
    for ((order, _, _), what) in orders.iter().zip(["complete", "cancel"]) {
        assert_eq!(end(client, order, what).await.status, 200);
    }
    wait_for_expiry(client, &place(client, json!({"holdSeconds": 2})).await).await;
    for (order, status, pet_status) in &orders {
        assert_eq!(read(client, order).await["status"], *status);
        let pet = client.get(&format!("/v1/pets/{}", order["petId"])).await.json();
        assert_eq!(pet["status"], *pet_status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_ends_once_whoever_ends_it() {
    let service = start().await;
    let another = service.start_another_with(&HOLD).await;
    let mut placing = JoinSet::new();
    for n in 0..60 {
        let client = if n % 2 == 0 { service.client.clone() } else { another.client.clone() };
        placing.spawn(async move {
            let order = place(&client, json!({"holdSeconds": 1})).await;
            // Around the time of the expiry.
            let due: Timestamp = order["expiresAt"].as_str().unwrap().parse().unwrap();
            let delay = due.duration_since(Timestamp::now()) + SignedDuration::from_millis(n * 20);
            tokio::time::sleep(Duration::try_from(delay).unwrap_or_default()).await;
            let what = ["complete", "cancel", "nothing"][usize::try_from(n % 3).unwrap()];
            let status = if what == "nothing" { 0 } else { end(&client, &order, what).await.status };
            (order, what, status)
        });
    }
    let mut ended: BTreeMap<String, usize> = BTreeMap::new();
    for (order, what, status) in placing.join_all().await {
        if status != 200 {
            assert!(status == 0 || status == 409, "{status}");
            wait_for_expiry(&service.client, &order).await;
        }
        let found = read(&service.client, &order).await["status"].clone();
        let expected = match (what, status) {
            ("complete", 200) => "completed",
            ("cancel", 200) => "cancelled",
            _ => "expired",
        };
        assert_eq!(found, expected);
        *ended.entry(expected.to_owned()).or_default() += 1;
        let pet = service.client.get(&format!("/v1/pets/{}", order["petId"])).await.json();
        assert_eq!(pet["status"], if expected == "completed" { "sold" } else { "available" });
    }
    let database = service.database.connect().await;
    let events = "SELECT split_part(type::text, '.', 2), count(*), count(DISTINCT order_id) FROM events \
        WHERE order_id IS NOT NULL AND type <> 'order.placed' GROUP BY 1";
    for row in database.query(events, &[]).await.unwrap() {
        let (status, events, orders): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let ended = i64::try_from(ended[&status]).unwrap();
        assert_eq!((events, orders), (ended, ended), "{status}");
    }
}

#[tokio::test]
async fn orders_are_found_by_reference() {
    let service = TestService::start().await;
    let client = &service.client;
    let references = ["basket 1", "basket 2", "basket 1", "Größe & Ähnliches = 7"];
    let mut ids = Vec::new();
    for reference in references {
        ids.push(place(client, json!({"reference": reference})).await["id"].as_i64().unwrap());
    }
    place(client, json!({})).await;
    let list = async |query: &str| client.get(&format!("{ORDERS}?{query}")).await;
    assert_eq!(list("reference=basket%201").await.ids(), [ids[0], ids[2]]);
    assert!(list("reference=basket+3").await.ids().is_empty());
    assert_eq!(list("reference=Gr%C3%B6%C3%9Fe+%26+%C3%84hnliches+%3D+7").await.ids(), [ids[3]]);
    assert_eq!(end(client, &json!({"id": ids[0]}), "cancel").await.status, 200);
    assert_eq!(list("reference=basket+1&status=placed").await.ids(), [ids[2]]);
    let first = list("reference=basket+1&limit=1").await;
    assert_eq!(first.ids(), [ids[0]]);
    assert_eq!(client.get(first.next().unwrap()).await.ids(), [ids[2]]);
    assert_eq!(list("reference=basket+1&petId=3").await.ids(), [ids[2]]);
    assert!(list("reference=basket+2&petId=3").await.ids().is_empty());
    for query in ["reference=", "reference=a%00b", "reference=%20"] {
        assert_eq!(list(query).await.error(), (400, "invalid_parameter".into()), "{query}");
    }
}

#[tokio::test]
async fn a_reference_and_a_hold_have_limits() {
    let service = start().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    for (name, value) in [
        ("reference", json!("")),
        ("reference", json!(" ")),
        ("reference", json!("a\nb")),
        ("reference", json!("x".repeat(256))),
        ("reference", json!(7)),
        ("reference", json!(null)),
        ("holdSeconds", json!(0)),
        ("holdSeconds", json!(604_801)),
        ("holdSeconds", json!("5")),
        ("holdSeconds", json!(1.5)),
    ] {
        let answer = client.post(ORDERS, &json!({"petId": pet, name: value})).await;
        assert_eq!(answer.error(), (400, "invalid_field".into()), "{name}: {value}");
        if name == "holdSeconds" {
            let bounds = "`/holdSeconds` must be an integer from 1 to 604800.";
            assert_eq!(answer.json()["message"], bounds, "{value}");
        }
    }
    let longest = "🐕".repeat(255);
    assert_eq!(place(client, json!({"petId": pet, "reference": longest})).await["reference"], longest);
}

#[tokio::test]
async fn a_key_is_not_reused_for_another_reference_or_hold() {
    let service = start().await;
    let pet = service.client.add("Rex", Some("available")).await;
    let place = async |body: Value| service.client.post_with_key(ORDERS, "once", &body).await;
    assert_eq!(place(json!({"petId": pet})).await.status, 201);
    assert!(place(json!({"petId": pet})).await.is_replayed());
    for other in [json!({"petId": pet, "reference": "a"}), json!({"petId": pet, "holdSeconds": 60})] {
        assert_eq!(place(other).await.error(), (422, "idempotency_key_reused".into()));
    }
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_delays_the_expiry_of_no_other_order() {
    let service = start().await;
    let client = &service.client;
    let held =
        [place(client, json!({"holdSeconds": 5})).await, place(client, json!({"holdSeconds": 5})).await];
    let (locked, watch) = (service.database.connect().await, service.database.connect().await);
    let lock = "BEGIN; SELECT FROM orders WHERE id = 1 FOR UPDATE; SELECT FROM pets WHERE id = 2 FOR UPDATE";
    locked.batch_execute(lock).await.unwrap();
    let due = "SELECT count(*) FROM orders WHERE status = 'placed' AND expires_at < now()";
    eventually("both orders are due", async || {
        watch.query_one(due, &[]).await.unwrap().get::<_, i64>(0) == 2
    })
    .await;
    let mut others = Vec::new();
    for _ in 0..20 {
        others.push(place(client, json!({"holdSeconds": 1})).await);
    }
    for order in &others {
        wait_for_expiry(client, order).await;
    }
    for order in &held {
        assert_eq!(read(client, order).await["status"], "placed");
    }
    locked.batch_execute("ROLLBACK").await.unwrap();
    for order in &held {
        wait_for_expiry(client, order).await;
    }
}

#[tokio::test]
async fn an_order_that_cannot_be_changed_keeps_no_other_order_from_expiring() {
    let service = start().await;
    let client = &service.client;
    let refused = place(client, json!({"holdSeconds": 1})).await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$; \
        CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION refuse()";
    service.database.connect().await.batch_execute(refuse).await.unwrap();
    let others =
        [place(client, json!({"holdSeconds": 1})).await, place(client, json!({"holdSeconds": 1})).await];
    for order in &others {
        wait_for_expiry(client, order).await;
    }
    assert_eq!(read(client, &refused).await["status"], "placed");
}
