//! Requests that change one pet: placeOrder, completeOrder, cancelOrder, updatePet and deletePet.

use std::fmt::Debug;
use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_postgres::Client as Session;

use super::interleaving::is_locked;
use super::wait::PROMPTLY;
use super::{Answer, Client};

pub(crate) const ORDERS: &str = "/v1/store/orders";

/// What a transaction may take without being ended, in tests that stop it or a node for as long as they need.
pub(crate) const PATIENT: [&str; 2] = ["--database-timeout", "60s"];

/// Where a [`Gate`] stops every request that changes a pet, when it holds all of its locks.
pub(crate) const PET_IS_WRITTEN: &str = "BEFORE UPDATE ON pets FOR EACH ROW";

/// A request that changes a pet.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    body: Value,
    pub(crate) key: Option<&'static str>,
}

impl Request {
    fn post(path: String, body: Value) -> Self {
        Self { method: Method::POST, path, body, key: None }
    }

    /// `place`, `complete`, `cancel`, `patch` or `delete`.
    pub(crate) fn kind(&self) -> &'static str {
        match self.path.rsplit('/').next() {
            Some("orders") => "place",
            Some("complete") => "complete",
            Some("cancel") => "cancel",
            _ if self.method == Method::DELETE => "delete",
            _ => "patch",
        }
    }

    pub(crate) fn with_key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }

    pub(crate) async fn try_send(self, client: Client) -> Result<Answer, reqwest::Error> {
        client
            .try_send(self.method, &self.path, |request| {
                let request = match self.body {
                    Value::Null => request,
                    body => request.header("content-type", "application/json").body(body.to_string()),
                };
                self.key.into_iter().fold(request, |request, key| request.header("idempotency-key", key))
            })
            .await
    }

    pub(crate) async fn send(&self, client: &Client) -> Answer {
        self.clone().try_send(client.clone()).await.unwrap()
    }

    /// Sends it until it does not wait for a lock in vain: on a machine that stalls, a lock that is released at once may still
    /// be held for too long.
    pub(crate) async fn settle(&self, client: &Client) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.send(client).await;
            if !is_locked(&answer) || started.elapsed() > 2 * PROMPTLY {
                return answer;
            }
        }
    }

    /// Sends it in the background.
    pub(crate) fn spawn_once(&self, client: &Client) -> JoinHandle<Answer> {
        let (request, client) = (self.clone(), client.clone());
        tokio::spawn(async move { request.send(&client).await })
    }

    /// Settles it in the background.
    pub(crate) fn spawn(&self, client: &Client) -> JoinHandle<Answer> {
        let (request, client) = (self.clone(), client.clone());
        tokio::spawn(async move { request.settle(&client).await })
    }
}

/// Waits for a sign that a request waits. It fails if the request is answered instead.
pub(crate) async fn while_waiting<A: Debug, T>(
    answer: &mut JoinHandle<A>,
    sign: impl Future<Output = T>,
) -> T {
    tokio::select! {
        found = sign => found,
        answer = answer => panic!("it did not wait: {answer:?}"),
    }
}

pub(crate) fn place(pet: i64) -> Request {
    Request::post(ORDERS.into(), json!({"petId": pet}))
}

pub(crate) fn complete(order: i64) -> Request {
    Request::post(format!("{ORDERS}/{order}/complete"), Value::Null)
}

pub(crate) fn cancel(order: i64) -> Request {
    Request::post(format!("{ORDERS}/{order}/cancel"), Value::Null)
}

pub(crate) fn patch(pet: i64, body: Value) -> Request {
    Request { method: Method::PATCH, path: format!("/v1/pets/{pet}"), body, key: None }
}

pub(crate) fn rename(pet: i64) -> Request {
    patch(pet, json!({"name": "Bello"}))
}

pub(crate) fn delete(pet: i64) -> Request {
    Request { method: Method::DELETE, path: format!("/v1/pets/{pet}"), body: Value::Null, key: None }
}

pub(crate) async fn add(client: &Client) -> i64 {
    client.add("Rex", Some("available")).await
}

/// Adds a pet and places an order for it; returns both ids.
pub(crate) async fn add_ordered(client: &Client) -> (i64, i64) {
    let pet = add(client).await;
    let placed = place(pet).settle(client).await;
    assert_eq!(placed.status, 201, "{}", placed.body);
    (pet, placed.json()["id"].as_i64().unwrap())
}

pub(crate) async fn status_of_pet(client: &Client, pet: i64) -> Value {
    client.get(&format!("/v1/pets/{pet}")).await.json()["status"].clone()
}

pub(crate) async fn status_of_order(client: &Client, order: i64) -> Value {
    client.get(&format!("{ORDERS}/{order}")).await.json()["status"].clone()
}

/// The name and status of a pet and the statuses of its orders, if it exists, and how many idempotency keys are stored.
pub(crate) async fn stored(session: &Session, pet: i64) -> String {
    let state = "SELECT concat_ws(' ', name, status, \
          (SELECT string_agg(status::text, ' ' ORDER BY id) FROM orders WHERE pet_id = pets.id), \
          (SELECT count(*) FROM idempotency_keys)) \
        FROM (SELECT $1::bigint AS id) AS wanted LEFT JOIN pets USING (id)";
    session.query_one(state, &[&pet]).await.unwrap().get(0)
}
