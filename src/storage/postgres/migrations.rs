//! Bringing the schema up to date, forward only, by the files in `migrations/`.
//!
//! **Invariants:**
//! - one node migrates at a time; the others wait for it and then find nothing to do;
//! - a migration waits for a lock only so long that requests, which wait behind it, are still answered.

use std::error::Error;
use std::time::Duration;

use refinery::Target;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connect::{ConnectError, Connector, DatabaseUrlError};
use crate::config::DatabaseUrl;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The version of the schema that this program brings.
pub const SCHEMA_LATEST: i32 = 7;

/// The oldest version that this program runs on.
pub const SCHEMA_NEEDED: i32 = 7;

/// The table in which the migrations that were applied are written down.
pub(in crate::storage) const HISTORY: &str = "refinery_schema_history";

/// A number of our own among PostgreSQL's advisory locks: "petstore" in ASCII.
const LOCK: i64 = i64::from_be_bytes(*b"petstore");

/// How long a migration waits for a lock at a time. Whoever asks for the same table meanwhile waits behind it, and
/// requests do so for a second at most.
const LOCK_WAIT: &str = "SET lock_timeout = '500ms'";
/// How long those who waited have to themselves before it tries again.
const LOCK_PAUSE: Duration = Duration::from_millis(1500);

/// Why the schema could not be brought up to date.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The database's address cannot be used.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// The database cannot be reached.
    #[error("the database could not be migrated")]
    Connect(#[from] ConnectError),
    /// The database refused.
    #[error("the database could not be migrated")]
    Database(#[from] tokio_postgres::Error),
    /// A migration failed. What came before it is in place.
    #[error("a migration failed")]
    Migration(#[from] refinery::Error),
    /// The database cannot hold every name.
    #[error("{0}")]
    Encoding(String),
    /// A transaction of somebody else's holds what a migration must lock. What came before it is in place.
    #[error(
        "other transactions were in the way for {0:?}: end them (pg_stat_activity has the oldest) and migrate again"
    )]
    Locked(Duration, #[source] refinery::Error),
}

/// Applies what is missing, up to and including version `up_to`, and returns the names of what was applied.
pub async fn migrate(url: &DatabaseUrl, up_to: i32) -> Result<Vec<String>, MigrateError> {
    migrate_within(url, up_to, Duration::ZERO).await
}

/// The same, trying again for as long as `patience` if transactions of others are in the way.
pub async fn migrate_within(
    url: &DatabaseUrl,
    up_to: i32,
    patience: Duration,
) -> Result<Vec<String>, MigrateError> {
    let mut client = Connector::new(url)?.open().await?;
    let encoding = client.query_one("SELECT current_setting('server_encoding')", &[]).await?;
    check_encoding(encoding.try_get(0)?).map_err(MigrateError::Encoding)?;
    // Held until the connection closes.
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await?;
    // Not before: another node may migrate for longer than that.
    client.batch_execute(LOCK_WAIT).await?;
    let runner = embedded::migrations::runner()
        .set_target(Target::Version(up_to))
        // A newer program may have been here already.
        .set_abort_missing(false);
    let deadline = Instant::now() + patience;
    let mut applied = Vec::new();
    loop {
        let outcome = runner.run_async(&mut client).await;
        let report = outcome.as_ref().map_or_else(refinery::Error::report, Some);
        applied.extend(report.iter().flat_map(|report| report.applied_migrations()).map(ToString::to_string));
        match outcome {
            Ok(_) => return Ok(applied),
            Err(error) if !is_locked_out(&error) => return Err(error.into()),
            Err(error) if Instant::now() >= deadline => return Err(MigrateError::Locked(patience, error)),
            Err(_) => {
                tracing::warn!("another transaction holds what a migration must lock: trying again");
                sleep(LOCK_PAUSE).await;
            }
        }
    }
}

fn is_locked_out(error: &refinery::Error) -> bool {
    let said = error.source().and_then(|cause| cause.downcast_ref::<tokio_postgres::Error>());
    said.and_then(tokio_postgres::Error::code) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// The tables that are ours: those that the migrations make, as they are written there, and the history.
pub(in crate::storage) fn tables() -> Vec<String> {
    let runner = embedded::migrations::runner();
    let lines = runner.get_migrations().iter().filter_map(refinery::Migration::sql).flat_map(str::lines);
    let made = lines.filter_map(|line| line.strip_prefix("CREATE TABLE ")?.split_whitespace().next());
    made.chain([HISTORY]).map(ToOwned::to_owned).collect()
}

/// Whether a database with this encoding can hold every name; if not, says how to create one that can.
pub fn check_encoding(encoding: &str) -> Result<(), String> {
    if encoding == "UTF8" {
        return Ok(());
    }
    Err(format!(
        "the database's encoding is {encoding}, which cannot hold every name, and cannot be changed: create another \
         database with CREATE DATABASE petstore ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
    ))
}

/// The version of the schema that the database has; 0 if it was never migrated.
pub(in crate::storage) async fn schema_version(client: &Client) -> Result<i32, tokio_postgres::Error> {
    let found = client.query_one("SELECT max(version) FROM refinery_schema_history", &[]).await;
    match found {
        Ok(row) => row.try_get::<_, Option<i32>>(0).map(Option::unwrap_or_default),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether a schema of the version found is new enough; if not, says what to do.
pub(in crate::storage) fn check_version(found: i32, needed: i32) -> Result<(), String> {
    if found >= needed {
        return Ok(());
    }
    Err(format!(
        "the database's schema is at version {found}, but this program needs {needed}: \
         run `petstore migrate` first"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_schema_is_the_last_file() {
        let versions: Vec<_> = embedded::migrations::runner()
            .get_migrations()
            .iter()
            .map(refinery::Migration::version)
            .collect();
        assert_eq!(versions.iter().max(), Some(&SCHEMA_LATEST));
    }

    #[test]
    fn the_tables_that_are_ours_are_read_from_the_migrations() {
        let tables = tables();
        for table in ["pets", "api_keys", "api_key_events", "idempotency_keys", "orders", HISTORY] {
            assert!(tables.iter().any(|ours| ours == table), "{table} is not in {tables:?}");
        }
    }

    #[test]
    fn an_old_schema_is_refused_with_what_to_run_and_a_newer_one_is_taken() {
        assert!(
            check_version(SCHEMA_NEEDED - 1, SCHEMA_NEEDED)
                .unwrap_err()
                .contains("run `petstore migrate` first")
        );
        assert_eq!(check_version(SCHEMA_NEEDED, SCHEMA_NEEDED), Ok(()));
        assert_eq!(check_version(SCHEMA_LATEST + 1, SCHEMA_NEEDED), Ok(()));
    }
}
