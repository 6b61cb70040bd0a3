//! SQL on `events` and `event_feed`. Triggers on `pets` and `orders` write the events.
//!
//! **Invariants:**
//! - every change is an event, whoever makes it, in the same transaction: both or neither;
//! - a reader that follows its position sees each event once. Transactions commit in another order than their ids, so only
//!   events of transactions that are older than every running one are shown;
//! - what a reader has seen is on a standby, if there are synchronous ones: otherwise a failover would reuse the transaction
//!   ids of events that it has seen for others, which it would miss;
//! - the events of a pet are in the order of their effects: a transaction that changes a pet locks it (`pets::ADVISORY_LOCK`) before it
//!   writes anything, so before it has an id. Changes in SQL and by nodes of 1.0.0 do not.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use metrics::{counter, gauge};
use petstore_batcher::BatchHandler;
use petstore_domain::event::{Event, EventPosition, EventType, FeedPage, FeedRequest, FeedStart};
use petstore_domain::page::PageLimit;
use petstore_postgres::{Database, Parameters, StorageError, error_message, unexpected};
use petstore_telemetry::metrics::{EVENTS, FEED_STARTED};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_postgres::Row;

use super::pg_enum::PgEnum;
use super::storage::Storage;

/// The pages of many requests: `$1`, `$2` and `$3` have the position that each starts after, null for the oldest event, and `$4`
/// its number of rows. `$5` is whether a request asks for the head of the feed. At least one row, without an event if there is
/// none; no row if the feed is not prepared.
const FEED: &str = "\
    WITH requested AS (
      -- The oldest event is the first after those that were dropped.
      SELECT ordinality, row_limit, coalesce(xid, dropped_xid) AS xid, coalesce(number, dropped_number) AS number,
        coalesce(pet_id, dropped_pet_id) AS pet_id
      FROM event_feed
      CROSS JOIN unnest($1::text[]::xid8[], $2::bigint[], $3::bigint[], $4::bigint[])
        WITH ORDINALITY AS after (xid, number, pet_id, row_limit, ordinality)),
    page AS MATERIALIZED (
      SELECT requested.ordinality, page.*
      FROM requested
      CROSS JOIN LATERAL (
        SELECT * FROM (
          SELECT xid, number, happened_at, type, event.pet_id, last_pet_id, order_id
          FROM events
          -- The pets that one statement changed share a row; each is an event.
          CROSS JOIN LATERAL unnest(coalesce(pet_ids, ARRAY[events.pet_id])) AS event (pet_id)
          -- A row may have been read in part.
          WHERE (xid, number) >= (requested.xid, requested.number)
            AND (xid, number, event.pet_id) > (requested.xid, requested.number, requested.pet_id)
            AND xid < pg_snapshot_xmin(pg_current_snapshot())
          ORDER BY xid, number, event.pet_id
          -- The longest page.
          LIMIT 100) AS longest
        LIMIT requested.row_limit) AS page),
    replication_wait AS MATERIALIZED (
      -- A message in the WAL makes the commit wait for a standby. Only if a reader gets a new position.
      SELECT pg_logical_emit_message(true, 'petstore', '') AS lsn
      WHERE $5 OR EXISTS (SELECT FROM page))
    SELECT epoch, dropped_xid::text AS dropped_transaction, dropped_number, dropped_pet_id,
      pg_snapshot_xmin(pg_current_snapshot())::text AS oldest_running,
      pg_snapshot_xmax(pg_current_snapshot())::text AS newest,
      page.ordinality, page.xid::text AS transaction, page.number, page.happened_at, page.type, page.pet_id,
      page.last_pet_id, page.order_id, (SELECT lsn FROM replication_wait),
      -- LAG.
      (SELECT extract(epoch FROM now() - happened_at)::float8
        FROM events
        WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY xid, number
        LIMIT 1) AS lag
    FROM event_feed
    LEFT JOIN page ON true
    -- Not that of a restored dump, whose events have the transaction ids of another database.
    WHERE origin = event_origin()";

const _: () = assert!(PageLimit::MAX == 100, "FEED has the longest page");

/// The newest event that readers may see. One that was held back for more than a day by a running transaction is not found;
/// the next page has it all the same.
const HEAD: &str = "\
    SELECT xid::text AS transaction, number
    FROM events
    WHERE events.xid < pg_snapshot_xmin(pg_current_snapshot())
      -- Leaves at most three partitions to read. Events that a clock has stamped with a later time wait for the next page: only
      -- pages must have every event.
      AND happened_at BETWEEN now() - interval '1 day' AND now() + interval '1 day'
    ORDER BY events.xid DESC, number DESC
    LIMIT 1";

/// The newest events that readers may see, `$1` of them.
const NEWEST: &str = "\
    SELECT epoch, newest.xid::text AS transaction, number, happened_at, type, pet_id, last_pet_id, order_id
    FROM event_feed
    CROSS JOIN (
      SELECT * FROM (
        SELECT xid, number, happened_at, type, event.pet_id, last_pet_id, order_id
        FROM events
        CROSS JOIN LATERAL unnest(coalesce(pet_ids, ARRAY[events.pet_id])) AS event (pet_id)
        WHERE xid < pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY xid DESC, number DESC, event.pet_id DESC
        LIMIT 1000) AS longest
      LIMIT $1) AS newest";

/// How long the oldest committed event has been waiting for a running transaction, in seconds. No row if none waits.
pub(super) const LAG: &str = "\
    SELECT extract(epoch FROM now() - happened_at)::float8 AS seconds
    FROM events
    WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY xid, number
    LIMIT 1";

/// When and why the current epoch began.
pub(super) const EPOCH: &str = "\
    SELECT epoch, reason, started_at, (extract(epoch FROM now()) - extract(epoch FROM started_at))::float8 AS age
    FROM event_feed";

pub(super) const STATEMENTS: &[&str] = &[FEED, HEAD, NEWEST, LAG, EPOCH];

/// How often the head of the feed is read while a request waits for it: half of what a reader may notice.
const HEAD_INTERVAL: Duration = Duration::from_millis(25);
/// The pause after it could not be read.
const HEAD_BACKOFF: Duration = Duration::from_secs(1);

/// An epoch of this age may have begun after this node started.
const JUST_STARTED: Duration = Duration::from_mins(1);

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
        self.read_events.read(request).await?
    }

    /// Observes the head of the feed. Subscribe before you read a page, so that no event falls in between.
    #[must_use]
    pub fn subscribe_to_events(&self) -> FeedSubscription {
        let subscription = FeedSubscription(self.feed_head.position.subscribe());
        self.feed_head.wanted.notify_one();
        subscription
    }

    /// Reads the head of the feed while a request waits for it, indefinitely.
    pub async fn watch_events(&self) -> Infallible {
        let FeedHead { position, wanted, .. } = &*self.feed_head;
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
        let rows = self.database.read_unproven(HEAD, &[]).await?;
        let head = |row| Ok((transaction(row, "transaction")?, row.try_get("number").map_err(unexpected)?));
        rows.first().map(head).transpose()
    }

    /// Records when the current epoch began, and logs it once: from then on, every reader from before gets 410.
    pub(super) async fn observe_epoch(&self) -> Result<(), StorageError> {
        let Some(epoch) =
            self.database.read_unproven(EPOCH, &[]).await?.first().map(FeedEpoch::read).transpose()?
        else {
            return Ok(());
        };
        let started = epoch.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        gauge!(FEED_STARTED).set(started.as_secs_f64());
        let known = self.feed_head.epoch.lock().unwrap_or_else(PoisonError::into_inner).replace(epoch.number);
        // This node may have started only now, and have begun the epoch itself.
        let is_new = known.map_or(epoch.age < JUST_STARTED, |known| known != epoch.number);
        if is_new && epoch.is_interruption() {
            tracing::warn!(reason = epoch.reason, "event feed restarted: every reader gets 410");
        }
        Ok(())
    }

    /// The newest events, at most 1,000, in their order.
    pub async fn newest_events(&self, count: u16) -> Result<Vec<Event>, StorageError> {
        let rows = self.database.read_unproven(NEWEST, &[&i64::from(count)]).await?;
        let decode = |row| readable_event(row, row.try_get("epoch").map_err(unexpected)?);
        let mut events = rows.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        events.sort_unstable_by_key(|(position, _)| *position);
        Ok(events.into_iter().filter_map(|(_, event)| event).collect())
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
    /// The last known epoch.
    epoch: Mutex<Option<i32>>,
}

/// A period of the feed. Its readers cannot continue in the next one.
#[derive(Debug)]
pub struct FeedEpoch {
    number: i32,
    /// When it began.
    pub started_at: SystemTime,
    /// Why it began.
    pub reason: String,
    /// How long ago it began.
    pub age: Duration,
}

impl FeedEpoch {
    /// Reads a row of [`EPOCH`].
    pub(super) fn read(row: &Row) -> Result<Self, StorageError> {
        let age: f64 = row.try_get("age").map_err(unexpected)?;
        Ok(Self {
            number: row.try_get("epoch").map_err(unexpected)?,
            started_at: row.try_get("started_at").map_err(unexpected)?,
            reason: row.try_get("reason").map_err(unexpected)?,
            age: Duration::try_from_secs_f64(age).unwrap_or_default(),
        })
    }

    /// Whether there were readers before it.
    #[must_use]
    pub fn is_interruption(&self) -> bool {
        // Of the first epoch, in create_event_partitions().
        self.reason != "the feed was created"
    }
}

/// Observes the head of the feed.
pub struct FeedSubscription(watch::Receiver<Option<(u64, i64)>>);

impl FeedSubscription {
    /// Waits until the feed has an event of a later statement than that of this position.
    pub async fn has_event_after(&mut self, position: EventPosition) {
        let after = Some((position.transaction, position.number));
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
        match self.read(&distinct).await.and_then(|feed| feed.pages(&distinct)) {
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
        let after = requests.iter().map(|request| match request.start {
            FeedStart::After(EventPosition { transaction, number, pet, .. }) => {
                (Some(transaction.to_string()), Some(number), Some(pet))
            }
            FeedStart::Oldest | FeedStart::Now => (None, None, None),
        });
        let (transactions, numbers, pets): (Vec<_>, Vec<_>, Vec<_>) = after.collect();
        let is_now = |request: &FeedRequest| request.start == FeedStart::Now;
        let limit = |request| if is_now(request) { 0 } else { i64::from(request.limit.get()) };
        let limits: Vec<i64> = requests.iter().map(limit).collect();
        let any_now = requests.iter().any(is_now);
        let decode = |rows: Vec<Row>| {
            let Some(row) = rows.first() else {
                self.0.partition_missing.notify_one();
                return Err(StorageError::Unavailable(error_message("the feed is being prepared")));
            };
            let has_event: Option<i64> = row.try_get("ordinality").map_err(unexpected)?;
            // No standby acknowledges an empty page.
            Ok(FeedRows { rows, is_replicated: any_now || has_event.is_some() })
        };
        let parameters: Parameters<'_> = &[&transactions, &numbers, &pets, &limits, &any_now];
        self.0.read_newest(FEED, parameters, decode, |feed| feed.is_replicated).await
    }
}

impl FeedRows {
    /// The page of each request.
    fn pages(&self, requests: &[FeedRequest]) -> Result<HashMap<FeedRequest, FeedOutcome>, StorageError> {
        let Some(row) = self.rows.first() else { return Err(unexpected("the feed has no row")) };
        let epoch: i32 = row.try_get("epoch").map_err(unexpected)?;
        let dropped = EventPosition {
            epoch,
            transaction: transaction(row, "dropped_transaction")?,
            number: row.try_get("dropped_number").map_err(unexpected)?,
            pet: row.try_get("dropped_pet_id").map_err(unexpected)?,
        };
        let head =
            EventPosition { epoch, transaction: transaction(row, "oldest_running")?, number: 0, pet: 0 };
        let newest = transaction(row, "newest")?;
        let lag: Option<f64> = row.try_get("lag").map_err(unexpected)?;
        // A clock may have been set back.
        let lag = Duration::try_from_secs_f64(lag.unwrap_or_default()).unwrap_or_default();
        let mut pages: Vec<Vec<(EventPosition, Option<Event>)>> =
            requests.iter().map(|_| Vec::new()).collect();
        for row in &self.rows {
            let Some(ordinality) = row.try_get::<_, Option<i64>>("ordinality").map_err(unexpected)? else {
                continue;
            };
            let page = usize::try_from(ordinality - 1).ok().and_then(|index| pages.get_mut(index));
            page.ok_or_else(|| unexpected("a row for an unknown request"))?.push(readable_event(row, epoch)?);
        }
        let outcome = |request: &FeedRequest, mut events: Vec<(EventPosition, Option<Event>)>| {
            // The statement does not guarantee the order of its rows.
            events.sort_unstable_by_key(|(position, _)| *position);
            let next = match (request.start, events.last()) {
                (FeedStart::After(after), _)
                    if after.epoch != epoch || after < dropped || after.transaction > newest =>
                {
                    return FeedOutcome::Expired;
                }
                (_, Some((last, _))) => *last,
                (FeedStart::Now, None) => head,
                (FeedStart::After(after), None) => after,
                (FeedStart::Oldest, None) => dropped,
            };
            let is_end = events.len() < usize::from(request.limit.get());
            let events = events.into_iter().filter_map(|(_, event)| event).collect();
            FeedOutcome::Page(FeedPage { events, next, is_end, lag })
        };
        Ok(requests.iter().zip(pages).map(|(request, events)| (*request, outcome(request, events))).collect())
    }
}

/// An event and its position. None for an event of a pet or an order whose id no request can name, because somebody has chosen
/// it in SQL: readers continue after it.
fn readable_event(row: &Row, epoch: i32) -> Result<(EventPosition, Option<Event>), StorageError> {
    let ids: [Option<i64>; 3] = [
        row.try_get("pet_id").map_err(unexpected)?,
        row.try_get("last_pet_id").map_err(unexpected)?,
        row.try_get("order_id").map_err(unexpected)?,
    ];
    let is_readable = ids.into_iter().flatten().all(|id| id >= 1);
    let event = if is_readable { Some(event(row, epoch)?) } else { None };
    Ok((position(row, epoch)?, event))
}

fn position(row: &Row, epoch: i32) -> Result<EventPosition, StorageError> {
    let (number, pet) =
        (row.try_get("number").map_err(unexpected)?, row.try_get("pet_id").map_err(unexpected)?);
    Ok(EventPosition { epoch, transaction: transaction(row, "transaction")?, number, pet })
}

fn event(row: &Row, epoch: i32) -> Result<Event, StorageError> {
    let pet: i64 = row.try_get("pet_id").map_err(unexpected)?;
    let last_pet: Option<i64> = row.try_get("last_pet_id").map_err(unexpected)?;
    let order: Option<i64> = row.try_get("order_id").map_err(unexpected)?;
    let PgEnum(event_type) = row.try_get("type").map_err(unexpected)?;
    Ok(Event {
        position: position(row, epoch)?,
        event_type,
        pet_id: pet.try_into().map_err(unexpected)?,
        last_pet_id: last_pet.map(TryInto::try_into).transpose().map_err(unexpected)?,
        order_id: order.map(TryInto::try_into).transpose().map_err(unexpected)?,
        at: row.try_get("happened_at").map_err(unexpected)?,
    })
}

/// A transaction id, which the driver has no type for.
fn transaction(row: &Row, column: &str) -> Result<u64, StorageError> {
    row.try_get::<_, &str>(column).map_err(unexpected)?.parse().map_err(unexpected)
}
