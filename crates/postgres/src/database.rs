//! Runs statements on pooled connections: with a deadline, measured, and with classified errors.
//!
//! | verb | runs on | promises |
//! |---|---|---|
//! | [`read`](Database::read) | a server that is proven to have every acknowledged write | what it returns is fresh |
//! | [`read_newest`](Database::read_newest) | the primary | what it returns is fresh, and no failover loses it |
//! | [`read_unproven`](Database::read_unproven) | the server that takes writes, perhaps a former primary | nothing: for what only that server knows |
//! | [`write`](Database::write) | the primary | what it returns has been committed, and a standby has it |
//! | [`write_waiting`](Database::write_waiting) | the primary | the same; it may wait for the locks of others |
//! | [`transact`](Database::transact) | the primary | the same, if it commits; otherwise, what it has found is fresh |
//!
//! A write is never repeated after its outcome has become unknown.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use deadpool::Status;
use deadpool::managed::{Pool, PoolError, TimeoutType};
use futures_util::future::BoxFuture;
use metrics::{Histogram, counter, histogram};
use petstore_config::{DatabaseUrl, PoolSettings};
use petstore_read_quorum::NotFresh;
use petstore_telemetry::metrics::{DATABASE_ERRORS, STATEMENT_DURATION};
use petstore_telemetry::traces;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::availability_log::AvailabilityLog;
use super::checked_out_connection::{
    CheckedOutConnection, ExtraPermits, Parameters, WaitLimit, WriteLimiter,
};
use super::cluster::{Cluster, Guarantee};
use super::connect::{Connector, Target};
use super::database_url::DatabaseUrlError;
use super::error::StatementError::{self, Deadline, NoConnection, NoPrimary, Sent, Unproven};
use super::error::{StorageError, error_message, is_missing_partition, outcome_unknown};
use super::pool::{self, ConnectionPool};
use super::pooler_check::check_sessions;

/// How much longer than `statement_timeout` to wait for a response: if the server itself ends a statement, it reports
/// so, and the outcome is known.
const GRACE: Duration = Duration::from_millis(500);

/// The database, on one server or several.
#[derive(Clone)]
pub struct Database {
    /// Leads to a server that accepts writes, whichever does.
    pool: ConnectionPool,
    /// None with a single server.
    pub cluster: Option<Cluster>,
    /// Whether the database responds.
    pub availability: AvailabilityLog,
    pub(super) write_limiter: WriteLimiter,
    connector: Connector,
    pub(super) deadline: Duration,
    pub(super) durations: Histogram,
    /// Wakes the task that creates partitions.
    pub partition_missing: Arc<Notify>,
}

impl Database {
    /// Sets up the pools. It opens no connection. Those that it opens later must have at least this schema version.
    pub fn new(
        url: &DatabaseUrl,
        settings: &PoolSettings,
        schema_needed: i32,
    ) -> Result<Self, DatabaseUrlError> {
        let connector = Connector::new(url)?;
        let availability = AvailabilityLog::default();
        let pool =
            pool::pool(&connector, Target::Writable, settings, schema_needed, Some(availability.clone()))?;
        // A counter that first appears with value 1 hides its first error from `rate()`.
        for kind in StatementError::KINDS {
            counter!(DATABASE_ERRORS, "kind" => kind).increment(0);
        }
        let deadline = settings.database_timeout + GRACE;
        Ok(Self {
            pool,
            cluster: Cluster::new(&connector, settings, schema_needed, deadline, availability.clone())?,
            availability,
            write_limiter: WriteLimiter::new(settings),
            connector,
            deadline,
            durations: histogram!(STATEMENT_DURATION),
            partition_missing: Arc::default(),
        })
    }

    /// Runs a read-only statement: on the only server, or on one that is proven to have every acknowledged write.
    pub async fn read(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        let rows = match &self.cluster {
            None => self.query(statement, parameters).await,
            Some(cluster) => self.read_cluster(cluster, statement, parameters).await,
        };
        rows.map_err(StatementError::into_read_error)
    }

    /// Runs a read-only statement on the server that takes writes, for what only that server knows. It may be a former
    /// primary.
    pub async fn read_unproven(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        self.query(statement, parameters).await.map_err(StatementError::into_read_error)
    }

    /// Runs a statement that reads what was written last. Either its commit waits for a standby, as `is_replicated` says of its
    /// result, or the server is proven to be the primary.
    pub async fn read_newest<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        decode: impl FnOnce(Vec<Row>) -> Result<T, StorageError>,
        is_replicated: impl FnOnce(&T) -> bool,
    ) -> Result<T, StorageError> {
        let server = self.primary().await.map_err(StatementError::into_read_error)?;
        let rows =
            self.query_as_write(statement, parameters).await.map_err(StatementError::into_read_error)?;
        let found = decode(rows)?;
        if !is_replicated(&found) {
            self.prove_primary(server).await?;
        }
        Ok(found)
    }

    fn read_cluster<'a>(
        &'a self,
        cluster: &'a Cluster,
        statement: &'static str,
        parameters: Parameters<'a>,
    ) -> BoxFuture<'a, Result<Vec<Row>, StatementError>> {
        Box::pin(async move {
            match cluster.guarantee().await {
                Guarantee::Unknown => Err(NoPrimary.counted()),
                Guarantee::Trusted(_) => self.query(statement, parameters).await,
                Guarantee::Proven { .. } => {
                    let reading = pin!(cluster.read(statement, parameters));
                    self.measured(statement, reading).await.map_err(StatementError::counted)
                }
            }
        })
    }

    /// Checks that connections are sessions, as far as servers can be reached.
    pub async fn check_sessions(&self) -> Result<(), StorageError> {
        let checked = check_sessions(&self.connector.for_requests(self.deadline)).await;
        checked.map_err(|error| StorageError::Unusable(error.to_string()))
    }

    /// The state of the pool with the most connections in use.
    pub fn busiest_pool(&self) -> Status {
        let used = |status: &Status| status.size.saturating_sub(status.available);
        let servers = self.cluster.iter().flat_map(Cluster::pools).map(Pool::status);
        servers.chain([self.pool.status()]).max_by_key(used).unwrap_or_else(|| self.pool.status())
    }

    /// Whether a server that took writes is still the primary. Then all that a statement has found there meanwhile was fresh.
    pub(crate) async fn is_still_primary(&self, server: Target) -> bool {
        match (&self.cluster, server) {
            (Some(cluster), Target::Server(server)) => cluster.confirms(server).await,
            _ => true,
        }
    }

    /// Proves that a server that took writes is still the primary. Then all that a statement has found there meanwhile is fresh.
    /// (PostgreSQL waits for a standby only if something is written.)
    pub(super) async fn prove_primary(&self, server: Target) -> Result<(), StorageError> {
        let is_same = self.primary().await.is_ok_and(|primary| primary == server);
        if is_same && self.is_still_primary(server).await {
            return Ok(());
        }
        Err(Unproven(NotFresh::TooFewReports).counted().into_read_error())
    }

    /// The pool for writes.
    async fn writers(&self) -> Result<&ConnectionPool, StatementError> {
        self.primary().await.map(|server| self.pool_of(server)).map_err(StatementError::counted)
    }

    pub(super) fn pool_of(&self, server: Target) -> &ConnectionPool {
        match (server, &self.cluster) {
            (Target::Server(server), Some(cluster)) => cluster.pool(server),
            _ => &self.pool,
        }
    }

    /// The server that takes writes.
    pub(super) async fn primary(&self) -> Result<Target, StatementError> {
        let Some(cluster) = &self.cluster else { return Ok(Target::Writable) };
        match cluster.guarantee().await {
            Guarantee::Unknown | Guarantee::Trusted(_) => Ok(Target::Writable),
            Guarantee::Proven { .. } => cluster.primary().map(Target::Server).ok_or(NoPrimary),
        }
    }

    /// Runs a statement as its own transaction, and decodes its rows. It is never retried: see
    /// [`StorageError::OutcomeUnknown`], which is also the error if the rows cannot be decoded, because the statement
    /// has committed by then.
    pub async fn write<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        decode: impl FnOnce(&[Row]) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let rows =
            self.query_as_write(statement, parameters).await.map_err(StatementError::into_write_error)?;
        decode(&rows).map_err(outcome_unknown)
    }

    /// The same for a statement that may wait for a lock of another transaction. [`StorageError::Locked`] if it could not start
    /// until then, because too many wait.
    pub async fn write_waiting<T>(
        &self,
        (operation, until): (&WaitLimit, Instant),
        statement: &'static str,
        parameters: Parameters<'_>,
        decode: impl FnOnce(&[Row]) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let permits = self.wait_permits(operation, until).await?;
        let server = self.primary().await.map_err(StatementError::into_read_error)?;
        let connection = match self.write_connection(server, permits, until).await {
            // The others have waited until now.
            Err(NoConnection(PoolError::Timeout(_))) => return Err(too_many_wait()),
            connection => connection.map_err(StatementError::into_read_error)?,
        };
        let rows = self.query_on(connection, statement, parameters).await;
        decode(&rows.map_err(StatementError::into_write_error)?).map_err(outcome_unknown)
    }

    /// A limit for the writes of an operation that wait for the locks of others.
    #[must_use]
    pub fn wait_limit(&self) -> WaitLimit {
        self.write_limiter.wait_limit()
    }

    pub(super) async fn wait_permits(
        &self,
        operation: &WaitLimit,
        until: Instant,
    ) -> Result<ExtraPermits, StorageError> {
        self.write_limiter.wait_permits(operation, until).await.ok_or_else(too_many_wait)
    }

    /// Gets a connection for a write.
    pub(super) async fn write_connection(
        &self,
        server: Target,
        extra: ExtraPermits,
        until: Instant,
    ) -> Result<CheckedOutConnection, StatementError> {
        let connecting = self.write_limiter.connection(self.pool_of(server), extra, self.deadline);
        let connection =
            timeout_at(until, connecting).await.unwrap_or(Err(PoolError::Timeout(TimeoutType::Wait)));
        connection.map_err(NoConnection).map_err(StatementError::counted)
    }

    /// How many writes were given up and are still in progress at the server.
    #[must_use]
    pub fn abandoned_writes(&self) -> usize {
        self.write_limiter.abandoned()
    }

    /// Boxed: the future is large, and would be part of those of all callers.
    fn query_as_write<'a>(
        &'a self,
        statement: &'static str,
        parameters: Parameters<'a>,
    ) -> BoxFuture<'a, Result<Vec<Row>, StatementError>> {
        Box::pin(async move {
            let connection =
                self.write_limiter.connection(self.writers().await?, Vec::new(), self.deadline).await;
            let connection = connection.map_err(NoConnection).map_err(StatementError::counted)?;
            self.query_on(connection, statement, parameters).await
        })
    }

    /// Boxed: the future is large, and would be part of those of all callers.
    fn query<'a>(
        &'a self,
        statement: &'static str,
        parameters: Parameters<'a>,
    ) -> BoxFuture<'a, Result<Vec<Row>, StatementError>> {
        Box::pin(async move {
            let connection = self.writers().await?.get().await;
            let connection = connection.map_err(NoConnection).map_err(StatementError::counted)?;
            self.query_on(CheckedOutConnection::new(connection, self.deadline), statement, parameters).await
        })
    }

    async fn query_on(
        &self,
        connection: CheckedOutConnection,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        let rows = self.measured(statement, pin!(connection.run(statement, parameters))).await;
        self.end(connection, rows)
    }

    /// Runs a statement with a deadline, and records its duration. The caller pins the future: passed by value, it would
    /// be part of the caller's future twice.
    async fn measured<T>(
        &self,
        statement: &'static str,
        execution: Pin<&mut impl Future<Output = Result<T, StatementError>>>,
    ) -> Result<T, StatementError> {
        let started = Instant::now();
        let result = self.traced(statement, started + self.deadline, execution).await;
        self.durations.record(started.elapsed());
        result
    }

    /// Runs statements that share a round trip, of which this is the first, until a deadline.
    pub(super) async fn traced<T>(
        &self,
        statement: &'static str,
        deadline: Instant,
        execution: Pin<&mut impl Future<Output = Result<T, StatementError>>>,
    ) -> Result<T, StatementError> {
        let span = traces::statement(statement);
        let result = timeout_at(deadline, execution).await.unwrap_or(Err(Deadline(self.deadline)));
        span.end(result.is_ok());
        result
    }

    /// Releases a connection after its last statement.
    pub(super) fn end<T>(
        &self,
        connection: CheckedOutConnection,
        outcome: Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        connection.end(outcome).map_err(|error| {
            if matches!(&error, Sent(error) if is_missing_partition(error)) {
                self.partition_missing.notify_one();
            }
            error.counted()
        })
    }
}

fn too_many_wait() -> StorageError {
    StorageError::Locked(error_message("too many requests wait for locks already"))
}
