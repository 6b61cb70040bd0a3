//! SQL on `events` and `event_feed`. The statements that change pets and orders write
//! the events.
//!
//! **Invariants:**
//! - an event is written by the statement that has the effect: both or neither;
//! - a reader that follows its position sees each event once. Transactions commit in another order than their ids, so only
//!   events of transactions that are older than every running one are shown;
//! - what a reader has seen is on a standby, if there are synchronous ones: otherwise a failover would reuse the transaction
//!   ids of events that it has seen for others, which it would miss;
//! - the events of a pet are in the order of their effects: a statement that changes a pet locks it ([`lock_pet`]) before it
//!   writes anything, so before it has a transaction id.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use metrics::counter;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_postgres::Row;

use super::postgres::error::{error_message, unexpected};
use super::postgres::executor::{Database, await_replication};
use super::postgres::pg_enum::impl_pg_enum;
use super::request_batcher::BatchHandler;
use super::{Storage, StorageError};
use crate::domain::event::{Event, EventPosition, EventType, FeedPage, FeedRequest, FeedStart};
use crate::domain::key_record::KeyId;
use crate::domain::page::PageLimit;
use crate::telemetry::metrics::EVENTS;

/// The columns of each event, in a row of its own.
macro_rules! event_columns {
    () => {
        "event.pet_id, happened_at, type, first_pet_id, order_id, event.key_id
          FROM events
          CROSS JOIN LATERAL unnest(
            coalesce(pet_ids, ARRAY[events.pet_id]), coalesce(key_ids, ARRAY[events.key_id])) AS event (pet_id, key_id)"
    };
}

/// The pages of many requests: `$1`, `$2` and `$3` have the position that each starts after, `$4` its number of rows. At least
/// one row, without an event if there is none; no row if the feed is not prepared.
const FEED: &str = concat!(
    "WITH page AS MATERIALIZED (
      SELECT requested.ordinality, page.*
      FROM unnest($1::text[]::xid8[], $2::bigint[], $3::timestamptz[], $4::bigint[])
        WITH ORDINALITY AS requested (after_xid, after_pet_id, after_time, row_limit, ordinality)
      CROSS JOIN LATERAL (
        SELECT * FROM (
          SELECT xid, ",
    event_columns!(),
    "
          WHERE (xid, events.pet_id) > (requested.after_xid, requested.after_pet_id)
            AND xid < pg_snapshot_xmin(pg_current_snapshot())
            -- Prunes older partitions. A day of margin: a transaction may have begun before one with a smaller id.
            AND happened_at >= requested.after_time - interval '1 day'
            -- Of a row that was read in part.
            AND (xid, event.pet_id) > (requested.after_xid, requested.after_pet_id)
          ORDER BY xid, event.pet_id
          -- The longest page.
          LIMIT 100) AS longest
        LIMIT requested.row_limit) AS page)
    SELECT epoch, kept_since, now() AS read_at,
      pg_snapshot_xmin(pg_current_snapshot())::text AS oldest_running,
      pg_snapshot_xmax(pg_current_snapshot())::text AS newest,
      page.ordinality, page.xid::text AS transaction, page.pet_id, page.happened_at, page.type, page.first_pet_id,
      page.order_id, page.key_id,
      -- Once, and only if a reader gets a new position.
      (SELECT ",
    await_replication!(),
    "
        WHERE EXISTS (SELECT FROM page)
          OR EXISTS (SELECT FROM unnest($3::timestamptz[]) AS after_time WHERE after_time < now() - interval '1 day'))
    FROM event_feed
    LEFT JOIN page ON true
    -- Not that of a restored dump, whose events have the transaction ids of another database.
    WHERE origin = event_origin()"
);

const _: () = assert!(PageLimit::MAX == 100, "FEED has the longest page");

/// The newest event that readers may see.
const HEAD: &str = "\
    SELECT xid::text AS transaction, pet_id
    FROM events
    WHERE events.xid < pg_snapshot_xmin(pg_current_snapshot())
      AND happened_at >= now() - interval '1 day'
    ORDER BY events.xid DESC, pet_id DESC
    LIMIT 1";

/// The newest events that readers may see, `$1` of them.
const NEWEST: &str = concat!(
    "SELECT epoch, newest.xid::text AS transaction, pet_id, happened_at, type, first_pet_id, order_id, key_id
    FROM event_feed
    CROSS JOIN (
      SELECT * FROM (
        SELECT xid, ",
    event_columns!(),
    "
        WHERE xid < pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY xid DESC, event.pet_id DESC
        LIMIT 1000) AS longest
      LIMIT $1) AS newest"
);

/// How long the oldest committed event has been waiting for a running transaction, in seconds. No row if none waits.
pub(super) const LAG: &str = "\
    SELECT extract(epoch FROM now() - happened_at)::float8 AS seconds
    FROM events
    WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())
      AND happened_at >= now() - interval '1 day'
    ORDER BY xid, pet_id
    LIMIT 1";

/// An expression that waits until no other transaction changes the pet. Statements evaluate it before they write anything.
///
/// A transaction gets its id with its first write, which may be before it waits for a row. (The other advisory locks have
/// keys that are larger than any id of a pet.)
macro_rules! lock_pet {
    ($pet:literal) => {
        concat!("pg_advisory_xact_lock(", $pet, ")")
    };
}

pub(super) use lock_pet;

pub(super) const STATEMENTS: &[&str] = &[FEED, HEAD, NEWEST, LAG];

/// How often the head of the feed is read while a request waits for it: half of what a reader may notice.
const HEAD_INTERVAL: Duration = Duration::from_millis(25);
/// The pause after it could not be read.
const HEAD_BACKOFF: Duration = Duration::from_secs(1);

/// A position older than this is replaced even if nothing has happened since, so that it never expires.
const POSITION_REFRESH: Duration = Duration::from_hours(24);

/// A page of the feed, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedOutcome {
    /// The page.
    Page(FeedPage),
    /// Events after this position are not kept any more, or belong to a database that was replaced by a backup.
    Expired,
}

impl Storage {
    /// A page of the feed. Concurrent requests for the same page share it.
    pub async fn read_events(&self, request: FeedRequest) -> Result<FeedOutcome, StorageError> {
        self.read_events.call(request).await?
    }

    /// Observes the head of the feed. Subscribe before you read a page, so that no event falls in between.
    #[must_use]
    pub fn subscribe_to_events(&self) -> FeedSubscription {
        let subscription = FeedSubscription(self.feed_head.position.subscribe());
        self.feed_head.wanted.notify_one();
        subscription
    }

    /// Reads the head of the feed while a request waits for it, indefinitely.
    pub async fn watch_events(&self) {
        let FeedHead { position, wanted } = &*self.feed_head;
        loop {
            if position.receiver_count() == 0 {
                wanted.notified().await;
                continue;
            }
            let pause = match self.read_head().await {
                Ok(head) => {
                    position.send_if_modified(|known| std::mem::replace(known, head) != head);
                    HEAD_INTERVAL
                }
                // The request that waits, or the next one, finds the database unavailable.
                Err(_) => HEAD_BACKOFF,
            };
            sleep(pause).await;
        }
    }

    async fn read_head(&self) -> Result<Option<(u64, i64)>, StorageError> {
        let rows = self.database.read_primary(HEAD, &[]).await?;
        let head = |row| Ok((number(row, "transaction")?, row.try_get("pet_id").map_err(unexpected)?));
        rows.first().map(head).transpose()
    }

    /// The newest events, at most 1,000, in their order.
    pub async fn newest_events(&self, count: u16) -> Result<Vec<Event>, StorageError> {
        let rows = self.database.read_primary(NEWEST, &[&i64::from(count)]).await?;
        let decode = |row| event(row, row.try_get("epoch").map_err(unexpected)?);
        let mut events = rows.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        events.sort_unstable_by_key(|event| event.position);
        Ok(events)
    }
}

/// Makes each counter start at 0: one that first appears with value 1 hides its first event from `rate()`.
pub(super) fn start_counting_events() {
    for event_type in EventType::ALL {
        count_events(event_type, 0);
    }
}

/// Counts events that were written.
pub(super) fn count_events(event_type: EventType, count: usize) {
    counter!(EVENTS, "type" => event_type.as_str()).increment(count as u64);
}

/// The newest event that readers may see, as far as this node knows.
#[derive(Default)]
pub(super) struct FeedHead {
    position: watch::Sender<Option<(u64, i64)>>,
    /// Wakes the task that reads it.
    wanted: Notify,
}

/// Observes the head of the feed.
pub struct FeedSubscription(watch::Receiver<Option<(u64, i64)>>);

impl FeedSubscription {
    /// Waits until the feed has an event after this position.
    pub async fn has_event_after(&mut self, position: EventPosition) {
        let after = Some((position.transaction, position.pet));
        // It ends with the service.
        while self.0.changed().await.is_ok() {
            if *self.0.borrow_and_update() > after {
                return;
            }
        }
    }
}

/// Handles batches of requests for pages of the feed with one statement, on the primary: the newest events are there.
pub(super) struct ReadEventsBatch(pub(super) Database);

impl BatchHandler for ReadEventsBatch {
    type Request = FeedRequest;
    type Response = Result<FeedOutcome, StorageError>;

    async fn handle(&self, requests: Vec<FeedRequest>) -> Vec<Self::Response> {
        let distinct: HashSet<FeedRequest> = requests.iter().copied().collect();
        let distinct: Vec<FeedRequest> = distinct.into_iter().collect();
        // An empty page is not acknowledged by a standby, so the server must be proven to be the primary.
        let reading = self.0.write_or_find(self.read(&distinct), |feed| feed.is_replicated);
        match reading.await.and_then(|feed| feed.pages(&distinct)) {
            Ok(pages) => requests.iter().map(|request| Ok(pages[request].clone())).collect(),
            Err(error) => vec![Err(error); requests.len()],
        }
    }
}

/// The rows of [`FEED`].
struct FeedRows {
    rows: Vec<Row>,
    is_replicated: bool,
}

impl ReadEventsBatch {
    async fn read(&self, requests: &[FeedRequest]) -> Result<FeedRows, StorageError> {
        let mut after: (Vec<String>, Vec<i64>, Vec<SystemTime>) = Default::default();
        let mut limits = Vec::with_capacity(requests.len());
        for request in requests {
            let (transaction, pet, time) = match request.start {
                FeedStart::After(position) => (position.transaction, position.pet, position.time()),
                FeedStart::Oldest | FeedStart::Now => (0, 0, SystemTime::UNIX_EPOCH),
            };
            after.0.push(transaction.to_string());
            after.1.push(pet);
            after.2.push(time);
            limits.push(if request.start == FeedStart::Now { 0 } else { i64::from(request.limit.get()) });
        }
        let rows = self.0.read_primary(FEED, &[&after.0, &after.1, &after.2, &limits]).await?;
        let Some(row) = rows.first() else {
            self.0.partition_missing.notify_one();
            return Err(StorageError::Unavailable(error_message("the feed is being prepared")));
        };
        let has_event: Option<i64> = row.try_get("ordinality").map_err(unexpected)?;
        let read_at: SystemTime = row.try_get("read_at").map_err(unexpected)?;
        let is_replicated = has_event.is_some() || after.2.iter().any(|time| needs_refresh(*time, read_at));
        Ok(FeedRows { rows, is_replicated })
    }
}

fn needs_refresh(position: SystemTime, now: SystemTime) -> bool {
    position + POSITION_REFRESH < now
}

impl FeedRows {
    /// The page of each request.
    fn pages(&self, requests: &[FeedRequest]) -> Result<HashMap<FeedRequest, FeedOutcome>, StorageError> {
        let Some(row) = self.rows.first() else { return Err(unexpected("the feed has no row")) };
        let epoch: i32 = row.try_get("epoch").map_err(unexpected)?;
        let kept_since: SystemTime = row.try_get("kept_since").map_err(unexpected)?;
        let read_at: SystemTime = row.try_get("read_at").map_err(unexpected)?;
        let newest = number(row, "newest")?;
        let head = EventPosition {
            epoch,
            transaction: number(row, "oldest_running")?,
            pet: 0,
            at: millis(read_at)?,
        };
        let mut pages: Vec<Vec<Event>> = requests.iter().map(|_| Vec::new()).collect();
        for row in &self.rows {
            let Some(ordinality) = row.try_get::<_, Option<i64>>("ordinality").map_err(unexpected)? else {
                continue;
            };
            let page = usize::try_from(ordinality - 1).ok().and_then(|index| pages.get_mut(index));
            page.ok_or_else(|| unexpected("a row for an unknown request"))?.push(event(row, epoch)?);
        }
        let outcome = |request: &FeedRequest, mut events: Vec<Event>| {
            // The statement does not guarantee the order of its rows.
            events.sort_unstable_by_key(|event| event.position);
            let next = match (request.start, events.last()) {
                (FeedStart::After(after), _)
                    if after.epoch != epoch || after.time() < kept_since || after.transaction > newest =>
                {
                    return FeedOutcome::Expired;
                }
                (_, Some(last)) => last.position,
                (FeedStart::Now, None) => head,
                (FeedStart::After(after), None) if needs_refresh(after.time(), read_at) => head,
                (FeedStart::After(after), None) => after,
                // The same for a whole day, so that the tag of the page is.
                (FeedStart::Oldest, None) => {
                    EventPosition { transaction: 0, at: head.at - head.at.rem_euclid(86_400_000), ..head }
                }
            };
            FeedOutcome::Page(FeedPage { events, next })
        };
        Ok(requests.iter().zip(pages).map(|(request, events)| (*request, outcome(request, events))).collect())
    }
}

fn event(row: &Row, epoch: i32) -> Result<Event, StorageError> {
    let pet: i64 = row.try_get("pet_id").map_err(unexpected)?;
    let first_pet: Option<i64> = row.try_get("first_pet_id").map_err(unexpected)?;
    let order: Option<i64> = row.try_get("order_id").map_err(unexpected)?;
    let key: Option<i64> = row.try_get("key_id").map_err(unexpected)?;
    let at = millis(row.try_get("happened_at").map_err(unexpected)?)?;
    Ok(Event {
        position: EventPosition { epoch, transaction: number(row, "transaction")?, pet, at },
        event_type: row.try_get("type").map_err(unexpected)?,
        pet_id: first_pet.unwrap_or(pet).try_into().map_err(unexpected)?,
        last_pet_id: first_pet.map(|_| pet.try_into()).transpose().map_err(unexpected)?,
        order_id: order.map(TryInto::try_into).transpose().map_err(unexpected)?,
        key_id: key.map(KeyId),
    })
}

/// A transaction id, which the driver has no type for.
fn number(row: &Row, column: &str) -> Result<u64, StorageError> {
    row.try_get::<_, &str>(column).map_err(unexpected)?.parse().map_err(unexpected)
}

fn millis(time: SystemTime) -> Result<i64, StorageError> {
    let elapsed = time.duration_since(SystemTime::UNIX_EPOCH).map_err(unexpected)?;
    elapsed.as_millis().try_into().map_err(unexpected)
}

impl_pg_enum!(EventType, "event_type");
