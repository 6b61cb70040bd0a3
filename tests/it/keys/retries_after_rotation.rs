//! Retries across key rotation: idempotency keys belong to an API key and its successors by `petstore keys rotate`.

use petstore_domain::api_key::ApiKey;
use serde_json::{Value, json};

use crate::support::program::{new_key, run};
use crate::support::{Answer, Client, TestService};

/// Rotates a key, which is revoked at once.
fn rotate(service: &TestService, key: &ApiKey) -> ApiKey {
    let url = service.database.url();
    let environment = [("DATABASE_URL", &*url)];
    let list = run(&["keys", "list", "--json"], &environment).stdout;
    let keys: Value = serde_json::from_slice(&list).unwrap();
    let of_key = |record: &&Value| record["prefix"] == key.prefix();
    let id = keys.as_array().unwrap().iter().find(of_key).unwrap()["id"].to_string();
    let output = run(&["keys", "rotate", &id, "--overlap", "0s"], &environment);
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn client(service: &TestService, key: &ApiKey) -> Client {
    Client::new(service.address, Some(key))
}

fn outcome(answer: &Answer) -> (u16, bool) {
    (answer.status, answer.is_replayed())
}

fn rex() -> Value {
    json!({"name": "Rex", "categoryId": 3, "status": "available"})
}

#[tokio::test]
async fn a_request_retried_with_the_successor_of_its_key_takes_effect_once() {
    let service = TestService::start().await;
    let first_key = new_key(&service.database.url(), &[]);
    let first = client(&service, &first_key).post_with_key("/v1/pets", "a", &rex()).await;
    assert_eq!(outcome(&first), (201, false));
    let mut key = first_key;
    for rotation in 1..=2 {
        key = rotate(&service, &key);
        let again = client(&service, &key).post_with_key("/v1/pets", "a", &rex()).await;
        assert_eq!((outcome(&again), &again.body), ((201, true), &first.body), "rotation {rotation}");
        let other = json!({"name": "Max", "categoryId": 3});
        let other = client(&service, &key).post_with_key("/v1/pets", "a", &other).await;
        assert_eq!(other.error(), (422, "idempotency_key_reused".into()), "rotation {rotation}");
    }
    // The same holds for the successor of the successor.
    let later = client(&service, &key).post_with_key("/v1/pets", "b", &rex()).await;
    let again = client(&service, &rotate(&service, &key)).post_with_key("/v1/pets", "b", &rex()).await;
    assert_eq!((outcome(&again), again.body), ((201, true), later.body));
}

#[tokio::test]
async fn separately_issued_keys_share_no_idempotency_keys() {
    let service = TestService::start().await;
    let url = service.database.url();
    let (one, other) = (new_key(&url, &[]), new_key(&url, &[]));
    let first = client(&service, &one).post_with_key("/v1/pets", "a", &rex()).await;
    let second = client(&service, &other).post_with_key("/v1/pets", "a", &rex()).await;
    assert_eq!(outcome(&second), (201, false));
    assert_ne!(second.body, first.body);
    let successor = rotate(&service, &other);
    let again = client(&service, &successor).post_with_key("/v1/pets", "a", &rex()).await;
    assert_eq!((outcome(&again), again.body), ((201, true), second.body));
}

#[tokio::test]
async fn orders_retried_with_the_successor_of_their_key_take_effect_once() {
    let service = TestService::start().await;
    let key = new_key(&service.database.url(), &[]);
    let pet = json!({"petId": service.client.add("Rex", Some("available")).await});
    let first = client(&service, &key).post_with_key("/v1/store/orders", "a", &pet).await;
    assert_eq!(outcome(&first), (201, false));
    let end = format!("/v1/store/orders/{}/complete", first.json()["id"]);
    let successor = rotate(&service, &key);
    let again = client(&service, &successor).post_with_key("/v1/store/orders", "a", &pet).await;
    assert_eq!((outcome(&again), again.body), ((201, true), first.body));
    let complete = async |key: &ApiKey| {
        let request = client(&service, key);
        request.send(reqwest::Method::POST, &end, |request| request.header("idempotency-key", "b")).await
    };
    assert_eq!(outcome(&complete(&successor).await), (200, false));
    assert_eq!(outcome(&complete(&rotate(&service, &successor)).await), (200, true));
    // The same idempotency key of another API key is a different request: the pet is sold.
    let other = new_key(&service.database.url(), &[]);
    let other = client(&service, &other).post_with_key("/v1/store/orders", "a", &pet).await;
    assert_eq!(other.error(), (409, "pet_not_available".into()));
}
