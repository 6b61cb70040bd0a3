//! Stores everything in PostgreSQL. All SQL is here: one file per table.
//!
//! **Must not know** HTTP or JSON. Rows become values of the domain here.
//!
//! **Guarantees:**
//! - a connection is used only if its schema is new enough for this program;
//! - nothing waits longer than its deadline, and no statement is ever cancelled: at the deadline its connection is closed.
//!   (A cancel request that reaches PostgreSQL while it waits for a standby makes it acknowledge a commit that a failover
//!   can still lose.)
//! - a write whose outcome is unknown is reported as such, and never retried.
//!
//! A statement is one literal, which psql accepts once its parameters are filled in. Statements of several files repeat these
//! CTEs, which have effects where they are read:
//! - `pet_lock` waits until no other transaction changes the pet. A statement that changes a pet reads it before it writes
//!   anything: a transaction gets its id with its first write, which may be before it waits for a row. The first key of the
//!   advisory lock is "pets" in ASCII; no other lock has two keys. Two pets with the same hash wait for each other.
//! - `wait_limit` limits each wait for a lock, from then on, to a second.
//! - `replication_wait` makes the commit wait for a standby even if the statement changes nothing. A response that repeats an
//!   earlier one is an acknowledgement, too. PostgreSQL does not wait for what a statement only found, and after a crash of the
//!   primary that may be on no other server yet.
//!
//! PostgreSQL evaluates a CTE only as far as it is read, so each of them is read by what must come after it.

mod api_keys;
mod apply_keys;
mod database_metrics;
mod demo_database_check;
mod diagnostics;
mod events;
mod exports;
mod idempotency_keys;
mod imports;
mod insert_pets;
mod migrations;
mod orders;
mod partitions;
mod pets;
mod pg_enum;
mod privileges;
mod queue;

use std::future::pending;
use std::sync::Arc;

use petstore_batcher::QueueLimits;
use petstore_config::{DatabaseUrl, PoolSettings, ReadFrom};
pub use petstore_postgres::{
    ConnectError, CredentialsError, DatabaseUrlError, NoSession, StorageError, lacking_text,
};
use petstore_postgres::{Connector, Database, POOL_WAIT};

use api_keys::FindKeysBatch;
pub use apply_keys::{AppliedKeys, ApplyKeysError, KeysToApply, apply_keys, plan_keys};
pub use demo_database_check::{DatabaseContents, database_contents};
pub use diagnostics::{
    BlockingSession, Diagnosis, EVENT_TRIGGERS, Encryption, ExamineError, ReadFreshness, ServerDiagnosis,
    ServerRole, TrialWrite, diagnose,
};
pub use events::{FeedEpoch, FeedOutcome, FeedSubscription};
use events::{FeedHead, ReadEventsBatch, start_counting_events};
pub use exports::ExportStream;
pub use imports::{AddedChunk, CopyBuffer, CopyChunk, ImportMode, ImportSession, TakenReference};
pub use insert_pets::InsertOutcome;
use insert_pets::InsertPetsBatch;
pub use migrations::{MigrateError, SCHEMA_LATEST, SCHEMA_NEEDED, check_encoding, migrate, migrate_within};
pub use orders::{EXPIRE_LIMIT, EndOrderOutcome, PlaceOrderOutcome};
pub use partitions::DAYS_AHEAD;
pub use pets::UpdateOutcome;
use pets::{FindPetsBatch, ListPetsBatch};
pub use privileges::{GrantError, grant};
use queue::Queue;

/// Every statement that serves requests, so that tests can check each.
pub const STATEMENTS: [&[&str]; 7] = [
    pets::STATEMENTS,
    insert_pets::STATEMENTS,
    api_keys::STATEMENTS,
    apply_keys::STATEMENTS,
    orders::STATEMENTS,
    events::STATEMENTS,
    partitions::STATEMENTS,
];

/// The limits of each queue. However many unknown keys arrive, for example, their lookups use two connections.
const LIMITS: QueueLimits = QueueLimits { capacity: 4_096, batch_size: 128, slots: 2, max_wait: POOL_WAIT };

/// Checks a database URL, without connecting.
pub fn check_url(url: &DatabaseUrl) -> Result<(), DatabaseUrlError> {
    Connector::new(url).map(drop)
}

/// The stored data. Cheap to clone.
#[derive(Clone)]
pub struct Storage {
    database: Database,
    list_pets: Queue<ListPetsBatch>,
    find_pet: Queue<FindPetsBatch>,
    insert_pet: Queue<InsertPetsBatch>,
    find_api_key: Queue<FindKeysBatch>,
    read_events: Queue<ReadEventsBatch>,
    feed_head: Arc<FeedHead>,
}

impl Storage {
    /// Sets up the connection pool and the queues. It opens no connection, so it works while the database is down.
    ///
    /// Must be called within the Tokio runtime that is to run the batches.
    pub fn new(url: &DatabaseUrl, settings: &PoolSettings) -> Result<Self, DatabaseUrlError> {
        let database = Database::new(url, settings, SCHEMA_NEEDED)?;
        start_counting_events();
        // Each read from a cluster also asks a standby: one large batch costs less than two. Several standbys that are read
        // should work at the same time, though.
        let is_confirmed = database.cluster.is_some() && settings.reads == ReadFrom::Primary;
        let reads = QueueLimits { slots: if is_confirmed { 1 } else { LIMITS.slots }, ..LIMITS };
        Ok(Self {
            list_pets: Queue::new("list_pets", ListPetsBatch(database.clone()), reads),
            find_pet: Queue::new("find_pet", FindPetsBatch(database.clone()), reads),
            insert_pet: Queue::new("insert_pet", InsertPetsBatch(database.clone()), LIMITS),
            find_api_key: Queue::new("find_key", FindKeysBatch(database.clone()), LIMITS),
            read_events: Queue::new("read_events", ReadEventsBatch(database.clone()), LIMITS),
            feed_head: Arc::default(),
            database,
        })
    }

    /// Watches the servers of a cluster, indefinitely.
    pub async fn watch_servers(&self) {
        match &self.database.cluster {
            Some(cluster) => cluster.watch().await,
            None => pending().await,
        }
    }

    /// Logs when the database is lost and when it is back, indefinitely.
    pub async fn log_availability(&self) {
        self.database.availability.log().await;
    }

    /// Checks that the database responds, its schema is new enough, the role has the privileges that the service needs, and
    /// connections are sessions.
    pub async fn check(&self) -> Result<(), StorageError> {
        self.check_privileges().await?;
        self.database.check_sessions().await
    }
}
