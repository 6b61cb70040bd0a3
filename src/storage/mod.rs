//! Everything that is kept, in PostgreSQL. All SQL is here: one file a table.
//!
//! **Invariants:**
//! - a connection is used only if its schema is new enough for this program;
//! - nothing waits longer than its deadline, and no statement is ever cancelled: on a deadline its
//!   connection is dropped. (A cancel that reaches PostgreSQL while it waits for a standby makes it
//!   acknowledge a commit that a failover can still lose.)
//! - a write whose outcome is unknown is reported as such and never repeated.

mod api_keys;
mod batch;
mod database_contents;
mod database_metrics;
mod diagnostics;
mod exports;
mod idempotency_keys;
mod imports;
mod insert_batch;
mod key_notifications;
mod orders;
mod pets;
mod postgres;

use crate::config::{DatabaseUrl, PoolSettings};

use batch::Batcher;
pub use database_contents::{DatabaseContents, DatabaseContentsError, database_contents};
pub use diagnostics::{Diagnosis, DiagnosisError, diagnose};
pub use exports::Export;
pub use imports::{CopyBuffer, CopyChunk, Import};
pub use insert_batch::InsertOutcome;
pub use key_notifications::{KeyNotification, ListenError};
pub use orders::{EndOrderOutcome, PlaceOrderOutcome};
pub use pets::{SharedPage, UpdateOutcome};
pub use postgres::connect::{ConnectError, DatabaseUrlError};
use postgres::database::Database;
pub use postgres::error::StorageError;
pub use postgres::migrations::{
    MigrateError, SCHEMA_LATEST, SCHEMA_NEEDED, check_encoding, migrate, migrate_within,
};

/// Every statement that serves requests, so that a test can look at the plan of each.
pub const STATEMENTS: [&[&str]; 4] =
    [pets::STATEMENTS, api_keys::STATEMENTS, idempotency_keys::STATEMENTS, orders::STATEMENTS];

/// Everything that is kept. Cheap to clone.
#[derive(Clone)]
pub struct Storage {
    database: Database,
    list_pets: Batcher<pets::List>,
    find_pet: Batcher<pets::Find>,
    insert_pet: Batcher<insert_batch::Insert>,
    find_api_key: Batcher<api_keys::Find>,
}

impl Storage {
    /// Prepares for work. Nothing is connected yet, so this works while the database is away.
    ///
    /// Must be called within the runtime that the work is to be done in.
    pub fn new(url: &DatabaseUrl, settings: &PoolSettings) -> Result<Self, DatabaseUrlError> {
        let database = Database::new(url, settings)?;
        Ok(Self {
            list_pets: pets::List::start(&database),
            find_pet: pets::Find::start(&database),
            insert_pet: insert_batch::Insert::start(&database),
            find_api_key: api_keys::Find::start(&database),
            database,
        })
    }

    /// Whether the database answers and its schema is new enough.
    pub async fn check(&self) -> Result<(), StorageError> {
        self.database.read("SELECT 1", &[]).await.map(drop)
    }
}
