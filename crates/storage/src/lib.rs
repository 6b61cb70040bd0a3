//! Stores everything in PostgreSQL. All SQL is here: one file per table.
//!
//! **Must not know** HTTP, nor the JSON of the interface. Rows become values of the domain here.
//!
//! **Guarantees:**
//! - a connection is used only if its schema is new enough for this program;
//! - nothing waits longer than its deadline, and PostgreSQL is never asked to cancel: at the deadline the connection is closed.
//!   (A cancel request that arrives while a commit waits for a standby makes PostgreSQL acknowledge a commit that a failover
//!   can still lose. `statement_timeout` does not apply to the commit.)
//! - a write whose outcome is unknown is reported as such, and never retried.
//!
//! A statement is one literal, which psql accepts once its parameters are filled in. createPet's has two CTEs with effects where
//! they are read (PostgreSQL evaluates a CTE only as far as it is read):
//! - `wait_limit` limits each wait for a lock, from then on;
//! - `replication_wait` makes the commit wait for a standby even if the statement changes nothing, as that of the feed does. A
//!   response that repeats an earlier one is an acknowledgement, too. PostgreSQL does not wait for what a statement only found, and
//!   after a crash of the primary that may be on no other server yet.

mod api_keys;
mod apply_keys;
mod create_pet_queue;
mod database_metrics;
mod delete_pet;
mod demo_database_check;
mod diagnostics;
mod events;
mod expire_orders;
mod exports;
mod idempotency_keys;
mod imports;
mod insert_pets;
mod list_pets;
mod migrations;
mod partitions;
mod pets;
mod pg_enum;
mod place_and_end_orders;
mod privileges;
mod queue;
mod read_orders;
mod row_version;
mod show_then_commit;
mod storage;
mod stored_metadata;
mod update_order;

use petstore_config::DatabaseUrl;
use petstore_postgres::Connector;
pub use petstore_postgres::{
    ConnectError, DatabaseUrlError, NoSession, PasswordSourceError, StorageError, lacking_text,
    without_password,
};

pub use api_keys::{Rotation, insert_api_key, rotate_api_key};
pub use apply_keys::{AppliedKeys, ApplyKeysError, KeysToApply, apply_keys, plan_keys};
pub use create_pet_queue::InsertOutcome;
pub use delete_pet::DeletePetRefusal;
pub use demo_database_check::{DatabaseContents, database_contents};
pub use diagnostics::{
    BlockingSession, Diagnosis, EVENT_TRIGGERS, Encryption, ExamineError, ReadFreshness, ServerDiagnosis,
    ServerRole, TrialWrite, diagnose,
};
pub use events::{FeedEpoch, FeedOutcome, FeedSubscription};
pub use exports::ExportStream;
pub use idempotency_keys::Outcome;
pub use imports::{AddedChunk, ChunkBuffer, ImportChunk, ImportMode, ImportSession, TakenReference};
pub use migrations::{MigrateError, SCHEMA_LATEST, SCHEMA_NEEDED, check_encoding, migrate, migrate_within};
pub use partitions::{DAYS_AHEAD, KEY_DAYS_AHEAD};
pub use pets::UpdatePetRefusal;
pub use place_and_end_orders::{EndOrderRefusal, PlaceOrderRefusal};
pub use privileges::{GrantPrivilegesError, grant};
pub use show_then_commit::IssueError;
pub use storage::Storage;
pub use update_order::UpdateOrderRefusal;

/// Every statement that serves requests, so that tests can check each.
pub const STATEMENTS: [&[&str]; 13] = [
    list_pets::STATEMENTS,
    pets::STATEMENTS,
    delete_pet::STATEMENTS,
    insert_pets::STATEMENTS,
    api_keys::STATEMENTS,
    apply_keys::STATEMENTS,
    read_orders::STATEMENTS,
    place_and_end_orders::STATEMENTS,
    expire_orders::STATEMENTS,
    update_order::STATEMENTS,
    idempotency_keys::STATEMENTS,
    events::STATEMENTS,
    partitions::STATEMENTS,
];

/// Checks a database URL, without connecting.
pub fn check_url(url: &DatabaseUrl) -> Result<(), DatabaseUrlError> {
    Connector::new(url).map(drop)
}
