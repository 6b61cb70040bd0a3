//! The partitions of `idempotency_keys` and of `events`, one per day each.
//!
//! **Invariant:** creating partitions never waits for dropping them: each has its own transaction.

use std::time::Duration;

use petstore_postgres::{Parameters, StorageError};
use tokio::join;

use super::storage::Storage;

/// For how many days after today partitions of events are created. The functions in `migrations/` have the same number.
pub const DAYS_AHEAD: i32 = 7;
/// The same for idempotency keys, of which every lookup searches all partitions from yesterday on.
pub const KEY_DAYS_AHEAD: i32 = 2;

/// Concurrent calls wait for each other.
pub(super) const CREATE_FOR_KEYS: &str = "SELECT create_idempotency_partitions()";
pub(super) const CREATE_FOR_EVENTS: &str = "SELECT create_event_partitions()";

const DROP_FOR_KEYS: &str = "\
    SELECT drop_idempotency_partitions()
    -- Only one node at a time: the others return without waiting.
    WHERE pg_try_advisory_xact_lock($1)";

const DROP_FOR_EVENTS: &str = "\
    SELECT drop_event_partitions($2::float8 * interval '1 second')
    -- Only one node at a time, as above.
    WHERE pg_try_advisory_xact_lock($1)";

/// The number of consecutive days from today on that have a partition for events and, as far as tomorrow, one for keys. Null
/// without the tables.
pub(super) const DAYS_PREPARED: &str = "\
    SELECT min(n) AS days
    FROM generate_series(0, 100) AS n, unnest(ARRAY['idempotency_keys', 'events']) AS parent
    WHERE to_regclass(parent) IS NOT NULL
      -- Later partitions for keys may not exist yet.
      AND (parent = 'events' OR n <= 1)
      AND NOT EXISTS (
        SELECT FROM pg_inherits
        WHERE inhparent = to_regclass(parent)
          AND inhrelid = to_regclass(parent || to_char((now() AT TIME ZONE 'UTC')::date + n, '_YYYYMMDD')))";

/// The keys of the advisory locks: "petonce!" and "petevent" in ASCII.
const KEYS_LOCK: i64 = i64::from_be_bytes(*b"petonce!");
const EVENTS_LOCK: i64 = i64::from_be_bytes(*b"petevent");

pub(super) const STATEMENTS: &[&str] =
    &[CREATE_FOR_KEYS, CREATE_FOR_EVENTS, DROP_FOR_KEYS, DROP_FOR_EVENTS, DAYS_PREPARED];

impl Storage {
    /// Creates the missing partitions of the coming days, and prepares the feed of a restored database.
    pub async fn create_partitions(&self) -> Result<(), StorageError> {
        let keys = self.database.write(CREATE_FOR_KEYS, &[], |_| Ok(()));
        let events = self.database.write(CREATE_FOR_EVENTS, &[], |_| Ok(()));
        let (keys, events) = join!(keys, events);
        keys.and(events)
    }

    /// Waits until a request fails because its partition is missing.
    pub async fn partition_missing(&self) {
        self.database.partition_missing.notified().await;
    }

    /// Drops the partitions of idempotency keys from before yesterday, and of events that are older than this, unless another
    /// node is doing so.
    pub async fn drop_partitions(&self, event_retention: Duration) -> Result<(), StorageError> {
        let seconds = event_retention.as_secs_f64();
        let keys = self.database.write(DROP_FOR_KEYS, &[&KEYS_LOCK], |_| Ok(()));
        let parameters: Parameters<'_> = &[&EVENTS_LOCK, &seconds];
        let events = self.database.write(DROP_FOR_EVENTS, parameters, |_| Ok(()));
        let (keys, events) = join!(keys, events);
        keys.and(events)
    }
}
