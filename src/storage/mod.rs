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
mod connect;
mod creations;
mod error;
mod examination;
mod exports;
mod holdings;
mod idempotency_keys;
mod imports;
mod key_changes;
mod migrations;
mod orders;
mod overview;
mod pets;
mod pool;
mod words;

use std::sync::Arc;
use std::time::Duration;

use metrics::{Histogram, counter, histogram};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::config::{DatabaseUrl, PoolSettings};
use crate::telemetry::metrics::{DATABASE_ERRORS, STATEMENT_DURATION};
use crate::telemetry::traces;

use connect::Connector;
pub use connect::{ConnectError, DatabaseUrlError};
pub use creations::Creation;
use error::Failure;
pub use error::StorageError;
pub use examination::{Examination, ExaminationError, examine};
pub use exports::Export;
pub use holdings::{Holdings, HoldingsError, holdings};
pub use imports::{Chunk, Chunks, Import};
pub use key_changes::{FollowError, KeyNews};
pub use migrations::{MigrateError, SCHEMA_LATEST, SCHEMA_NEEDED, check_encoding, migrate, migrate_within};
pub use orders::{Ending, Placement};
use pets::PetBatches;
pub use pets::{Change, SharedPage};
use pool::{Connection, Connections};

/// Every statement that serves requests, so that a test can look at the plan of each.
pub const STATEMENTS: [&[&str]; 4] =
    [pets::STATEMENTS, api_keys::STATEMENTS, idempotency_keys::STATEMENTS, orders::STATEMENTS];

/// How long a request waits for its turn, and how long its work waits for one of the pool's connections.
const POOL_WAIT: Duration = Duration::from_secs(1);
/// How long opening a connection may take, authentication and the look at the schema included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer than the server's own limit an answer is waited for: if the server ends a statement, it says
/// so, and then nothing is in doubt.
const GRACE: Duration = Duration::from_millis(500);

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Everything that is kept. Cheap to clone.
#[derive(Clone)]
pub struct Storage {
    database: Database,
    pets: PetBatches,
}

impl Storage {
    /// Prepares for work. Nothing is connected yet, so this works while the database is away.
    ///
    /// Must be called within the runtime that the work is to be done in.
    pub fn new(url: &DatabaseUrl, settings: &PoolSettings) -> Result<Self, DatabaseUrlError> {
        let database = Database::new(url, settings)?;
        Ok(Self { pets: PetBatches::start(&database), database })
    }

    /// Whether the database answers and its schema is new enough.
    pub async fn check(&self) -> Result<(), StorageError> {
        self.database.read("SELECT 1", &[]).await.map(drop)
    }
}

/// The database, through a pool of connections that open when needed.
#[derive(Clone)]
struct Database {
    pool: Connections,
    connector: Connector,
    deadline: Duration,
    durations: Histogram,
    /// Wakes whoever creates partitions.
    partition_missing: Arc<Notify>,
}

impl Database {
    fn new(url: &DatabaseUrl, settings: &PoolSettings) -> Result<Self, DatabaseUrlError> {
        let connector = Connector::new(url)?;
        let pool = pool::pool(&connector, settings)?;
        // A counter that appears with its first error hides that error from whoever compares it with before.
        for kind in Failure::KINDS {
            counter!(DATABASE_ERRORS, "kind" => kind).increment(0);
        }
        let deadline = settings.database_timeout + GRACE;
        let durations = histogram!(STATEMENT_DURATION);
        Ok(Self { pool, connector, deadline, durations, partition_missing: Arc::default() })
    }

    /// Runs a statement that changes nothing.
    async fn read(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        self.query(statement, parameters).await.map_err(Failure::of_read)
    }

    /// Runs a statement that is a transaction of its own. It is never repeated: see [`StorageError::OutcomeUnknown`].
    async fn write(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        self.query(statement, parameters).await.map_err(Failure::of_write)
    }

    async fn query(&self, statement: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let answer = self.query_unmeasured(statement, parameters).await;
        if let Err(failure) = &answer {
            counter!(DATABASE_ERRORS, "kind" => failure.kind()).increment(1);
            if failure.lacks_partition() {
                self.partition_missing.notify_one();
            }
        }
        answer
    }

    async fn query_unmeasured(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let client = self.pool.get().await.map_err(Failure::NoConnection)?;
        let (begun, span) = (Instant::now(), traces::statement(statement));
        let answer = timeout(self.deadline, async {
            let prepared = client.prepare_cached(statement).await.map_err(Failure::NotSent)?;
            client.query(&prepared, parameters).await.map_err(Failure::Sent)
        });
        let answer = answer.await.unwrap_or(Err(Failure::Deadline(self.deadline)));
        if answer.as_ref().is_err_and(Failure::spoils_the_connection) {
            drop(Connection::take(client));
            // The others most likely lead to the same server, and each would cost somebody the same wait.
            self.pool.retain(|_, _| false);
        }
        self.durations.record(begun.elapsed());
        span.end(answer.is_ok());
        answer
    }
}
