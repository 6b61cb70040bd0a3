//! The PostgreSQL engine: connecting, the pools, the servers of a cluster, fresh reads, errors.
//!
//! **Guarantees:**
//! - every statement has a deadline, and its connection returns to the pool only when the server has finished it;
//! - a connection is used only if its server accepts writes, or is the one that was asked for, and its schema is new enough;
//! - a read from a cluster runs on a server that is proven to have every acknowledged write, or fails
//!   ([`petstore_read_quorum`]);
//! - an error says what the caller can do about it ([`StorageError`]); a write whose outcome is unknown is never reported as failed.
//!
//! **Must not know** a table, a statement of the shop, or a type of the domain: `petstore-storage` has them.

mod availability_log;
mod checked_out_connection;
mod cluster;
mod connect;
mod credentials;
mod database;
mod database_url;
mod error;
mod keyed_lock;
mod pool;
mod pooler_check;
mod schema_version;
mod transaction;

pub use availability_log::AvailabilityLog;
pub use checked_out_connection::{BRIEF_LOCK_WAIT, LONG_LOCK_WAIT, Parameters, Step, WaitLimit};
pub use cluster::{Cluster, Guarantee};
pub use connect::{CONNECT_TIMEOUT, ConnectError, Connector, Target};
pub use credentials::PasswordSourceError;
pub use database::Database;
pub use database_url::{DatabaseUrlError, without_password};
pub use error::{StatementError, StorageError, error_message, not_committed, unexpected};
pub use keyed_lock::KeyedLocks;
pub use pool::POOL_WAIT;
pub use pooler_check::{NoSession, check_sessions};
pub use schema_version::{HISTORY, check_version, lacking_text, schema_version};
pub use transaction::{LockTimeout, Transaction};
