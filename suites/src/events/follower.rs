//! A reader of the feed that goes on whatever happens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::http::Connection;

/// An event, as a client gets it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) pet_id: i64,
    pub(crate) last_pet_id: Option<i64>,
    pub(crate) order_id: Option<i64>,
    pub(crate) at: String,
}

/// What a reader has read.
#[derive(Default)]
pub(crate) struct Record {
    /// Each event, with the time at which it arrived.
    pub(crate) events: Vec<(Event, SystemTime)>,
    pub(crate) pages: u64,
    /// Answers of 503 and broken connections.
    pub(crate) failures: u64,
}

/// Follows the feed after this position on these nodes until it is told to stop. `count` is the number of events so far.
pub(crate) async fn follow(
    addresses: Vec<SocketAddr>,
    key: String,
    position: Option<String>,
    count: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
) -> Outcome<Record> {
    follow_pages(addresses, key, 100, position, count, stop).await
}

/// The same with pages of this size.
pub(super) async fn follow_pages(
    addresses: Vec<SocketAddr>,
    key: String,
    limit: u32,
    position: Option<String>,
    count: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
) -> Outcome<Record> {
    let mut record = Record::default();
    let (mut connection, mut node) = (None, 0);
    let mut after = position.map_or_else(String::new, |position| format!("&after={position}"));
    while !*stop.borrow() {
        let attempt = async {
            let open = match connection.take() {
                Some(open) => open,
                None => Connection::open(addresses[node], &key).await?,
            };
            let path = format!("/v1/events?limit={limit}&wait=5{after}");
            connection.insert(open).send("GET", &path, "").await
        };
        match timeout(Duration::from_secs(20), attempt).await {
            Ok(Ok((200, body))) => {
                let now = SystemTime::now();
                let events: Vec<Event> = serde_json::from_str(&body)?;
                if let Some(last) = events.last() {
                    after = format!("&after={}", last.id);
                }
                record.pages += 1;
                record.events.extend(events.into_iter().map(|event| (event, now)));
                count.store(record.events.len() as u64, Ordering::Relaxed);
            }
            Ok(Ok((503, _))) => {
                record.failures += 1;
                sleep(Duration::from_millis(50)).await;
            }
            Ok(Ok((status, body))) => return Err(format!("the feed answered {status}: {body}").into()),
            Ok(Err(_)) | Err(_) => {
                record.failures += 1;
                connection = None;
                node = (node + 1) % addresses.len();
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
    Ok(record)
}
