//! The database connection of a command.

use std::time::Duration;

use super::Failure;
use crate::config::{DatabaseSettings, PoolSettings};
use crate::storage::Storage;

/// Opens the storage with a single connection, which is enough for a command.
pub(super) fn storage(database: &DatabaseSettings) -> Result<Storage, Failure> {
    let pool = PoolSettings { database_connections: 1, database_timeout: Duration::from_secs(10) };
    Ok(Storage::new(&database.database_url, &pool)?)
}
