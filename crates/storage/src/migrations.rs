//! Applies the migrations in `migrations/`, forward only.
//!
//! **Invariants:**
//! - one node migrates at a time; the others wait for it and then have nothing to do;
//! - a migration waits for a table lock so briefly that the requests queued behind it still succeed;
//! - an index on a table with rows is built without blocking writes, and before the next version is applied: a database
//!   at that version has it.

use std::error::Error;
use std::time::Duration;

use petstore_config::DatabaseUrl;
use petstore_postgres::{
    ConnectError, Connector, DatabaseUrlError, HISTORY, NoSession, StorageError, check_sessions,
    check_version, not_committed, schema_version, unexpected,
};
use refinery::Target;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::partitions::{CREATE_FOR_EVENTS, CREATE_FOR_KEYS};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The latest schema version that this program contains.
pub const SCHEMA_LATEST: i32 = 22;

/// The oldest schema version that this program runs on.
pub const SCHEMA_NEEDED: i32 = 22;

/// An index on a table that may have many rows. A migration file is one transaction, in which it could not be built
/// concurrently.
struct LaterIndex {
    /// The version that it is built after.
    version: i32,
    name: &'static str,
    is_unique: bool,
    definition: &'static str,
}

/// By ascending version.
const LATER_INDEXES: [LaterIndex; 4] = [
    // For finding the orders that are due.
    LaterIndex {
        version: 9,
        name: "orders_expires_at_idx",
        is_unique: false,
        definition: "orders (expires_at) WHERE status = 'placed' AND expires_at IS NOT NULL",
    },
    // For the list filtered by reference, with or without a status, in the order of its pages.
    LaterIndex {
        version: 9,
        name: "orders_reference_status_id_idx",
        is_unique: false,
        definition: "orders (reference, status, id) WHERE reference IS NOT NULL",
    },
    // Keeps references unique, and finds pets by them.
    LaterIndex {
        version: 12,
        name: "pets_reference_key",
        is_unique: true,
        definition: "pets (reference) WHERE reference IS NOT NULL",
    },
    // For the list filtered by category, with or without a status, in the order of its pages.
    LaterIndex {
        version: 12,
        name: "pets_category_id_status_id_idx",
        is_unique: false,
        definition: "pets (category_id, status, id)",
    },
];

/// The key of the advisory lock: "petstore" in ASCII.
const LOCK: i64 = i64::from_be_bytes(*b"petstore");

/// How long one attempt waits for a table lock. Requests on the same table queue behind it, and wait for at most a second.
const SET_LOCK_TIMEOUT: &str = "SET lock_timeout = '500ms'";
/// Reading a large table may take longer than the database allows other sessions.
const UNLIMITED: &str = "SET statement_timeout = 0";
/// How often to check whether another node has finished its migration.
const OTHER_NODE_PAUSE: Duration = Duration::from_millis(100);
/// The pause before the next attempt, for the requests that queued.
const LOCK_PAUSE: Duration = Duration::from_millis(1500);

/// Why a migration failed.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The database URL is invalid.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// The database is unreachable.
    #[error("cannot migrate the database")]
    Connect(#[from] ConnectError),
    /// A pooler shares server processes between connections. The lock that keeps two commands from migrating at the same time belongs
    /// to one process: it would neither work nor be released.
    #[error(transparent)]
    NoSession(#[from] NoSession),
    /// A statement outside of the migrations failed.
    #[error("cannot migrate the database")]
    Database(#[from] tokio_postgres::Error),
    /// A migration failed. The migrations before it are applied.
    #[error("migration failed")]
    Migration(#[from] refinery::Error),
    /// The database's encoding is not UTF-8.
    #[error("{0}")]
    Encoding(String),
    /// Another transaction held a lock that a migration needs. The migrations before it are applied.
    #[error(
        "other transactions hold locks that a migration needs (waited {0:?}): end them (see pg_stat_activity) and \
         migrate again"
    )]
    Locked(Duration, #[source] Box<dyn Error + Send + Sync>),
    /// Functions that this role would create could not be called by those of the owner.
    #[error(
        "the tables belong to the role {owner}, but this is {role}: migrate as {owner}, for example with \
         options=-c%20role%3D{owner} in the database URL"
    )]
    NotOwner {
        /// Who owns the tables.
        owner: String,
        /// Whom the database URL names.
        role: String,
    },
}

/// Applies the missing migrations up to and including version `up_to`, builds the missing indexes, and returns the names of
/// both. Other transactions may hold conflicting locks for a few seconds.
pub async fn migrate(url: &DatabaseUrl, up_to: i32) -> Result<Vec<String>, MigrateError> {
    let mut applied = Vec::new();
    migrate_within(url, up_to, Duration::from_secs(10), |name| applied.push(name.to_owned())).await?;
    Ok(applied)
}

/// The same, retrying for `patience` while other transactions hold conflicting locks. `applied` is called with each
/// name, also if a later one fails.
pub async fn migrate_within(
    url: &DatabaseUrl,
    up_to: i32,
    patience: Duration,
    mut applied: impl FnMut(&str),
) -> Result<(), MigrateError> {
    let connector = Connector::new(url)?;
    // First: where only one connection is left, the check cannot be completed, and passes.
    let mut client = connector.open().await?;
    check_sessions(&connector).await?;
    let encoding = client.query_one("SELECT current_setting('server_encoding') AS encoding", &[]).await?;
    check_encoding(encoding.try_get("encoding")?).map_err(MigrateError::Encoding)?;
    if schema_version(&client).await? < up_to {
        check_owner(&client).await?;
    }
    client.batch_execute(UNLIMITED).await?;
    // Not pg_advisory_lock: a session that waits in it has a snapshot, for which an index that is built concurrently would wait
    // in turn.
    while !client.query_one("SELECT pg_try_advisory_lock($1) AS locked", &[&LOCK]).await?.try_get("locked")? {
        sleep(OTHER_NODE_PAUSE).await;
    }
    let mut outcome = apply_missing(&mut client, up_to, patience, &mut applied).await;
    if outcome.is_ok() && up_to == SCHEMA_LATEST {
        outcome = create_partitions(&client).await;
    }
    // The connection closes some time after it is dropped. If this fails, it is closed.
    let _ = client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await;
    outcome
}

/// Checks that the tables, if there are any, belong to the role of this connection.
async fn check_owner(client: &Client) -> Result<(), MigrateError> {
    const OTHER_OWNER: &str = "\
        SELECT quote_ident(pg_get_userbyid(relowner)) AS owner, quote_ident(current_user) AS role
        FROM pg_class
        WHERE oid = to_regclass($1) AND pg_get_userbyid(relowner) <> current_user";
    match client.query_opt(OTHER_OWNER, &[&HISTORY]).await? {
        None => Ok(()),
        Some(row) => Err(MigrateError::NotOwner { owner: row.try_get("owner")?, role: row.try_get("role")? }),
    }
}

/// Creates the partitions that are missing, so that a database is ready before the first node starts.
async fn create_partitions(client: &Client) -> Result<(), MigrateError> {
    for statement in [CREATE_FOR_KEYS, CREATE_FOR_EVENTS] {
        client.execute(statement, &[]).await?;
    }
    Ok(())
}

async fn apply_missing(
    client: &mut Client,
    up_to: i32,
    patience: Duration,
    applied: &mut impl FnMut(&str),
) -> Result<(), MigrateError> {
    for index in LATER_INDEXES.iter().filter(|index| index.version <= up_to) {
        apply_files(client, index.version, patience, applied).await?;
        if build_index(client, index, patience).await? {
            applied(index.name);
        }
    }
    apply_files(client, up_to, patience, applied).await
}

/// Applies the missing migrations up to and including version `up_to`.
async fn apply_files(
    client: &mut Client,
    up_to: i32,
    patience: Duration,
    applied: &mut impl FnMut(&str),
) -> Result<(), MigrateError> {
    client.batch_execute(SET_LOCK_TIMEOUT).await?;
    let runner = embedded::migrations::runner()
        .set_target(Target::Version(up_to))
        // A newer version of this program may have applied migrations that this one does not contain.
        .set_abort_missing(false);
    let deadline = Instant::now() + patience;
    loop {
        let outcome = runner.run_async(client).await;
        let report = outcome.as_ref().map_or_else(refinery::Error::report, Some);
        for migration in report.iter().flat_map(|report| report.applied_migrations()) {
            applied(&migration.to_string());
        }
        match outcome {
            Ok(_) => return Ok(()),
            Err(error) if !is_lock_timeout(&error) => return Err(error.into()),
            Err(error) if Instant::now() >= deadline => {
                return Err(MigrateError::Locked(patience, error.into()));
            }
            Err(_) => {
                tracing::warn!("another transaction holds a lock that a migration needs: retrying");
                sleep(LOCK_PAUSE).await;
            }
        }
    }
}

/// Builds an index unless it exists, and returns whether it did not.
async fn build_index(client: &Client, index: &LaterIndex, patience: Duration) -> Result<bool, MigrateError> {
    let LaterIndex { name, is_unique, definition, .. } = index;
    let kind = if *is_unique { "UNIQUE INDEX" } else { "INDEX" };
    let is_valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)";
    let found = client.query_opt(is_valid, &[name]).await?.map(|row| row.get("indisvalid"));
    if found == Some(true) {
        return Ok(false);
    }
    // It waits for transactions that use the table. No request waits for it.
    let wait = patience.max(Duration::from_secs(1)).as_millis();
    client.batch_execute(&format!("SET lock_timeout = {wait}")).await?;
    if found == Some(false) {
        // Left by an attempt that failed.
        client.batch_execute(&format!("DROP INDEX CONCURRENTLY {name}")).await?;
    }
    match client.batch_execute(&format!("CREATE {kind} CONCURRENTLY {name} ON {definition}")).await {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            Err(MigrateError::Locked(patience, error.into()))
        }
        Err(error) => Err(error.into()),
    }
}

fn is_lock_timeout(error: &refinery::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    source.and_then(tokio_postgres::Error::code) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// The names of this program's tables: those that the migrations create, and the history.
pub(super) fn tables() -> Vec<String> {
    let runner = embedded::migrations::runner();
    let lines = runner.get_migrations().iter().filter_map(refinery::Migration::sql).flat_map(str::lines);
    let created = lines.filter_map(|line| line.strip_prefix("CREATE TABLE ")?.split_whitespace().next());
    created.chain([HISTORY]).map(ToOwned::to_owned).collect()
}

/// Checks that a database's encoding can store every name. If not, the error says how to create a database that can.
pub fn check_encoding(encoding: &str) -> Result<(), String> {
    if encoding == "UTF8" {
        return Ok(());
    }
    Err(format!(
        "the database's encoding is {encoding}, which cannot store every name and cannot be changed: create another \
         database with CREATE DATABASE petstore ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
    ))
}

/// Opens a connection outside of any pool, without a deadline, to a database whose schema is new enough.
pub(super) async fn open_migrated(url: &DatabaseUrl) -> Result<Client, StorageError> {
    let client = Connector::new(url).map_err(unexpected)?.open().await?;
    let found = schema_version(&client).await.map_err(not_committed)?;
    check_version(found, SCHEMA_NEEDED).map_err(StorageError::Unusable)?;
    Ok(client)
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
    fn the_tables_of_this_program_are_read_from_the_migrations() {
        let tables = tables();
        for table in ["pets", "api_keys", "api_key_events", "idempotency_keys", "orders", HISTORY] {
            assert!(tables.iter().any(|ours| ours == table), "{table} is not in {tables:?}");
        }
    }
}
