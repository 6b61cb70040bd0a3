//! The storage, as a command uses it.

use std::time::Duration;

use petstore_config::{DatabaseUrl, PoolSettings, ReadFrom};
use petstore_storage::Storage;

use super::error::CommandError;

/// Opens the storage with a single connection, which is enough for a command.
pub(super) fn storage(url: &DatabaseUrl) -> Result<Storage, CommandError> {
    let pool = PoolSettings {
        database_connections: 1,
        database_timeout: Duration::from_secs(10),
        reads: ReadFrom::default(),
    };
    Ok(Storage::new(url, &pool)?)
}
