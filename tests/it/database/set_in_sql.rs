//! Pets and orders that somebody has changed in SQL: what each later operation makes of them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::wait::eventually;
use crate::support::write_requests::{ORDERS, add};
use crate::support::{Client, TestService};

async fn status_of_pet(client: &Client, pet: i64) -> Value {
    client.get(&format!("/v1/pets/{pet}")).await.json()["status"].clone()
}

#[tokio::test]
async fn an_order_that_ends_releases_its_pet_only_if_nobody_has_changed_the_status_in_sql() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let (client, session) = (&service.client, service.database.connect().await);
    for status in ["available", "pending", "sold", "null"] {
        for end in ["complete", "cancel", "expire"] {
            let pet = add(client).await;
            let order = client.post(ORDERS, &json!({"petId": pet})).await.json()["id"].as_i64().unwrap();
            let path = format!("{ORDERS}/{order}");
            let set = "UPDATE pets SET status = nullif($2::text, 'null')::pet_status WHERE id = $1";
            session.execute(set, &[&pet, &status]).await.unwrap();
            let place = async || client.post(ORDERS, &json!({"petId": pet})).await.summary();
            let refused =
                if status == "available" { "409 pet_has_open_order" } else { "409 pet_not_available" };
            assert_eq!(place().await, refused, "{status}, before {end}");
            if end == "expire" {
                let due = "UPDATE orders SET expires_at = created_at WHERE id = $1";
                session.execute(due, &[&order]).await.unwrap();
                let expired = async || client.get(&path).await.json()["status"] == "expired";
                eventually("the order expires", expired).await;
            } else {
                let ended = client.send(Method::POST, &format!("{path}/{end}"), |request| request).await;
                assert_eq!(ended.status, 200, "{status}, {end}: {}", ended.body);
            }
            let expected = match (end, status) {
                ("complete", _) => json!("sold"),
                (_, "pending") => json!("available"),
                (_, "null") => Value::Null,
                (_, other) => json!(other),
            };
            assert_eq!(status_of_pet(client, pet).await, expected, "{status}, {end}");
            let outcome = if expected == "available" { "201" } else { "409 pet_not_available" };
            assert_eq!(place().await, outcome, "{status}, after {end}");
        }
    }
}
