//! The storage: its connections and its queues. Each file with the statements of a table adds methods to it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use petstore_batcher::QueueLimits;
use petstore_config::{DatabaseUrl, PoolSettings, ReadFrom};
use petstore_postgres::{Database, DatabaseUrlError, KeyedLocks, StorageError, WaitLimit};

use super::api_keys::FindKeysBatch;
use super::create_pet_queue::CreatePetQueue;
use super::events::{FeedHead, ReadEventsBatch, start_counting_events};
use super::list_pets::ListPetsBatch;
use super::migrations::SCHEMA_NEEDED;
use super::pets::FindPetsBatch;
use super::queue::{LIMITS, Queue};

/// The stored data. Cheap to clone.
#[derive(Clone)]
pub struct Storage {
    pub(super) database: Database,
    pub(super) list_pets: Queue<ListPetsBatch>,
    pub(super) find_pet: Queue<FindPetsBatch>,
    pub(super) create_pet: CreatePetQueue,
    pub(super) waits: WaitLimits,
    pub(super) find_api_key: Queue<FindKeysBatch>,
    pub(super) read_events: Queue<ReadEventsBatch>,
    pub(super) feed_head: Arc<FeedHead>,
}

/// How requests wait: how many of each operation for the locks of others, and for each other. Cheap to clone.
#[derive(Clone)]
pub(super) struct WaitLimits {
    pub(super) update_pet: WaitLimit,
    pub(super) delete_pet: WaitLimit,
    pub(super) place_order: WaitLimit,
    pub(super) end_order: WaitLimit,
    pub(super) update_order: WaitLimit,
    /// The requests that change the same pet or the same order take turns.
    pub(super) pets: KeyedLocks,
    pub(super) orders: KeyedLocks,
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
            // A page can have 400 KB of metadata, in several copies.
            list_pets: Queue::new(
                "list_pets",
                ListPetsBatch(database.clone()),
                QueueLimits { batch_size: 64, ..reads },
            ),
            find_pet: Queue::new("find_pet", FindPetsBatch(database.clone()), reads),
            create_pet: CreatePetQueue::new(&database),
            waits: WaitLimits {
                update_pet: database.wait_limit(),
                delete_pet: database.wait_limit(),
                place_order: database.wait_limit(),
                end_order: database.wait_limit(),
                update_order: database.wait_limit(),
                pets: KeyedLocks::default(),
                orders: KeyedLocks::default(),
            },
            find_api_key: Queue::new("find_key", FindKeysBatch(database.clone()), LIMITS),
            read_events: Queue::new("read_events", ReadEventsBatch(database.clone()), LIMITS),
            feed_head: Arc::default(),
            database,
        })
    }

    /// Watches the servers of a cluster, indefinitely.
    pub async fn watch_servers(&self) -> Infallible {
        match &self.database.cluster {
            Some(cluster) => cluster.watch().await,
            None => pending().await,
        }
    }

    /// Logs when the database is lost and when it is back, indefinitely.
    pub async fn log_availability(&self) -> Infallible {
        self.database.availability.log().await
    }

    /// Checks that the database responds, its schema is new enough, the role has the privileges that the service needs, and
    /// connections are sessions.
    pub async fn check(&self) -> Result<(), StorageError> {
        self.check_privileges().await?;
        self.database.check_sessions().await
    }
}
