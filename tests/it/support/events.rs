//! Reading the event feed.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::Client;

pub(crate) const EVENTS: &str = "/v1/events";

/// Reads the feed from this URL on until it has this many events, and returns them with the next URL. Transactions of other
/// tests hold the feed back for a while.
pub(crate) async fn follow(client: &Client, from: &str, wanted: usize) -> (Vec<Value>, String) {
    let (mut events, mut next) = (Vec::new(), from.to_owned());
    let started = Instant::now();
    while events.len() < wanted {
        assert!(started.elapsed() < Duration::from_mins(1), "only {} of {wanted} events", events.len());
        let page = client.get(&next).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let items = page.json().as_array().unwrap().clone();
        next = page.next().unwrap().to_owned();
        if items.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        events.extend(items);
    }
    (events, next)
}

/// The types of events, in their order.
pub(crate) fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// The pets of events, in their order.
pub(crate) fn pets(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["petId"].as_i64().unwrap()).collect()
}

/// The URL of what happens from now on.
pub(crate) async fn from_now(client: &Client) -> String {
    let page = client.get(&format!("{EVENTS}?after=now")).await;
    assert_eq!((page.status, page.body.as_str()), (200, "[]"));
    page.next().unwrap().to_owned()
}
