//! A reader that must have every event once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::follower::{Record, follow};
use super::history::History;
use crate::Outcome;
use crate::tools::psql;

/// Follows the feed from its beginning, until it is finished.
pub(crate) struct Reader {
    reading: JoinHandle<Outcome<Record>>,
    count: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
}

/// Every event, in a row of its own.
pub(super) const EVENTS: &str = "
    SELECT type, event.pet_id, coalesce(order_id, 0)
    FROM events
    -- The pets that one statement changed share a row.
    CROSS JOIN LATERAL unnest(coalesce(pet_ids, ARRAY[events.pet_id])) AS event (pet_id)";

impl Reader {
    /// Reads from these nodes.
    pub(crate) fn start(addresses: Vec<SocketAddr>, key: &str) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = watch::channel(false);
        let reading = tokio::spawn(follow(addresses, key.to_owned(), None, count.clone(), stopped));
        Self { reading, count, stop }
    }

    /// The number of events so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits for the last event after all clients have stopped, and checks that the reader has each event of the database once,
    /// in an order that is possible.
    pub(crate) async fn finish(self, url: &str) -> Outcome<(Record, History)> {
        self.wait_for_the_last(url).await?;
        self.stop.send_replace(true);
        let record = self.reading.await??;
        let history = History::replay(record.events.iter().map(|(event, _)| event))?;
        let read = record.events.iter().map(|(event, _)| {
            format!("{}|{}|{}", event.kind, event.pet_id, event.order_id.unwrap_or_default())
        });
        let (mut read, stored) = (read.collect::<Vec<_>>(), psql(url, EVENTS)?);
        let mut stored: Vec<&str> = stored.lines().collect();
        read.sort_unstable();
        stored.sort_unstable();
        if read != stored {
            return Err(format!(
                "of {} events, the reader has {}, and not the same",
                stored.len(),
                read.len()
            )
            .into());
        }
        Ok((record, history))
    }

    /// Waits until all orders that are due have expired, and the reader has all events.
    async fn wait_for_the_last(&self, url: &str) -> Outcome {
        let deadline = Instant::now() + Duration::from_mins(2);
        // Those without `holdSeconds` wait for days.
        let left =
            "SELECT count(*) FROM orders WHERE status = 'placed' AND expires_at < now() + interval '1 hour'";
        let stored = format!("SELECT count(*) FROM ({EVENTS}) AS events");
        loop {
            let due: u64 = psql(url, left)?.trim().parse()?;
            let (stored, read): (u64, u64) = (psql(url, &stored)?.trim().parse()?, self.count());
            if due == 0 && stored == read {
                return Ok(());
            }
            if Instant::now() > deadline {
                let problem =
                    format!("{due} orders have not expired, and {read} of {stored} events were read");
                return Err(problem.into());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}
