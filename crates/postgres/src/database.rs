//! Runs statements on pooled connections: with a deadline, measured, and with classified errors.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use deadpool::Status;
use deadpool::managed::Pool;
use futures_util::future::{BoxFuture, join, join3};
use metrics::{Histogram, counter, histogram};
use petstore_config::{DatabaseUrl, PoolSettings};
use petstore_read_quorum::NotFresh;
use petstore_telemetry::metrics::{DATABASE_ERRORS, STATEMENT_DURATION};
use petstore_telemetry::traces;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;

use super::availability::Availability;
use super::busy_connection::Parameters;
use super::busy_connection::{BusyConnection, WriteLimiter};
use super::cluster::{Cluster, Guarantee};
use super::connect::{Connector, Target};
use super::database_url::DatabaseUrlError;
use super::error::StatementError::{self, Deadline, NoConnection, NoPrimary, NotSent, Sent, Unproven};
use super::error::{StorageError, is_missing_partition, outcome_unknown};
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
    pub availability: Availability,
    write_limiter: WriteLimiter,
    connector: Connector,
    deadline: Duration,
    durations: Histogram,
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
        let availability = Availability::default();
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
    pub async fn read_primary(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        self.query(statement, parameters).await.map_err(StatementError::into_read_error)
    }

    /// The same for a statement that waits for replication like a write.
    pub async fn read_replicated(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        self.query_as_write(statement, parameters).await.map_err(StatementError::into_read_error)
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

    /// Runs a write whose outcome may be that there is nothing to do. PostgreSQL waits for a standby only if something is
    /// written: what was merely found, on a former primary perhaps, is proven to be fresh before it is returned.
    pub async fn write_or_find<T>(
        &self,
        write: impl Future<Output = Result<T, StorageError>>,
        acknowledges: impl FnOnce(&T) -> bool,
    ) -> Result<T, StorageError> {
        let server = self.primary().await.map_err(StatementError::into_read_error)?;
        let outcome = write.await?;
        let is_same = async || self.primary().await.is_ok_and(|primary| primary == server);
        if acknowledges(&outcome) || (is_same().await && self.is_still_primary(server).await) {
            return Ok(outcome);
        }
        Err(Unproven(NotFresh::TooFewReports).counted().into_read_error())
    }

    /// The pool for writes.
    async fn writers(&self) -> Result<&ConnectionPool, StatementError> {
        match (self.primary().await, &self.cluster) {
            (Ok(Target::Server(server)), Some(cluster)) => Ok(cluster.pool(server)),
            (Ok(_), _) => Ok(&self.pool),
            (Err(error), _) => Err(error.counted()),
        }
    }

    /// The server that takes writes.
    async fn primary(&self) -> Result<Target, StatementError> {
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

    /// The same for a statement that may wait for a row lock.
    pub async fn write_row<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        decode: impl FnOnce(&[Row]) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let connection = self.row_writer().await.map_err(StatementError::into_write_error)?;
        let rows = self
            .query_on(connection, statement, parameters)
            .await
            .map_err(StatementError::into_write_error)?;
        decode(&rows).map_err(outcome_unknown)
    }

    /// Starts a transaction: runs `lock`, which may wait for a row lock, then `read`, which sees what the previous holder
    /// committed. Both take the same parameters and share one round trip.
    pub async fn lock_row(
        &self,
        lock: &'static str,
        read: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<(RowLock<'_>, Vec<Row>), StorageError> {
        let mut connection = self.row_writer().await.map_err(StatementError::into_read_error)?;
        connection.in_transaction = true;
        let execution = async {
            let prepared = join(connection.prepare_cached(lock), connection.prepare_cached(read)).await;
            let lock = prepared.0.map_err(NotSent)?;
            let read = prepared.1.map_err(NotSent)?;
            // Pipelined: sent in this order without waiting for the responses in between.
            let (started, locked, rows) = join3(
                connection.batch_execute("BEGIN"),
                connection.query(&lock, parameters),
                connection.query(&read, parameters),
            )
            .await;
            started.and(locked).and(rows).map_err(Sent)
        };
        let rows = self.measured(read, pin!(execution)).await;
        match rows {
            Ok(rows) => Ok((RowLock { database: self, connection }, rows)),
            Err(error) => self.end(connection, Err(error)).map_err(StatementError::into_read_error),
        }
    }

    /// Gets a connection for a statement that may wait for a row lock.
    async fn row_writer(&self) -> Result<BusyConnection, StatementError> {
        let connection = self.write_limiter.row_connection(self.writers().await?, self.deadline).await;
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
            let connection = self.write_limiter.connection(self.writers().await?, self.deadline).await;
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
            self.query_on(BusyConnection::new(connection, self.deadline), statement, parameters).await
        })
    }

    async fn query_on(
        &self,
        connection: BusyConnection,
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
        let (started, span) = (Instant::now(), traces::statement(statement));
        let result = timeout(self.deadline, execution).await.unwrap_or(Err(Deadline(self.deadline)));
        self.durations.record(started.elapsed());
        span.end(result.is_ok());
        result
    }

    /// Releases a connection after its last statement.
    fn end<T>(
        &self,
        connection: BusyConnection,
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

/// A transaction that holds a row lock. If it is dropped before it ends, nothing is changed.
pub struct RowLock<'a> {
    database: &'a Database,
    connection: BusyConnection,
}

impl RowLock<'_> {
    /// Runs a statement and commits, in one round trip.
    pub async fn write_and_commit(
        self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<(), StorageError> {
        let Self { database, connection } = self;
        let execution = async {
            let prepared = connection.prepare_cached(statement).await.map_err(NotSent)?;
            let (written, committed) =
                join(connection.execute(&prepared, parameters), connection.batch_execute("COMMIT")).await;
            written.and(committed).map_err(Sent)
        };
        let outcome = database.measured(statement, pin!(execution)).await;
        database.end(connection, outcome).map_err(StatementError::into_write_error)
    }

    /// Ends the transaction without a change.
    pub async fn release(self) -> Result<(), StorageError> {
        let Self { database, connection } = self;
        let execution = async { connection.batch_execute("COMMIT").await.map_err(NotSent) };
        let ended = database.measured("COMMIT", pin!(execution)).await;
        database.end(connection, ended).map_err(StatementError::into_read_error)
    }
}
