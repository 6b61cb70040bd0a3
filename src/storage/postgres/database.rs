//! Statements on connections of the pool: each with a deadline, measured, and sorted by what its failure means.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join3};
use metrics::{Histogram, counter, histogram};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connect::{Connector, DatabaseUrlError};
use super::error::{Failure, StorageError, outcome_unknown};
use super::pool::{self, Connections, InUse, RowWriters};
use crate::config::{DatabaseUrl, PoolSettings};
use crate::telemetry::metrics::{DATABASE_ERRORS, STATEMENT_DURATION};
use crate::telemetry::traces;

/// How much longer than the server's own limit an answer is waited for: if the server ends a statement, it says
/// so, and then nothing is in doubt.
const GRACE: Duration = Duration::from_millis(500);

pub(in crate::storage) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The database, through a pool of connections that open when needed.
#[derive(Clone)]
pub(in crate::storage) struct Database {
    pub(in crate::storage) pool: Connections,
    row_writers: RowWriters,
    pub(in crate::storage) connector: Connector,
    deadline: Duration,
    durations: Histogram,
    /// Wakes whoever creates partitions.
    pub(in crate::storage) partition_missing: Arc<Notify>,
}

impl Database {
    pub(in crate::storage) fn new(
        url: &DatabaseUrl,
        settings: &PoolSettings,
    ) -> Result<Self, DatabaseUrlError> {
        let connector = Connector::new(url)?;
        let pool = pool::pool(&connector, settings)?;
        // A counter that appears with its first error hides that error from whoever compares it with before.
        for kind in Failure::KINDS {
            counter!(DATABASE_ERRORS, "kind" => kind).increment(0);
        }
        let deadline = settings.database_timeout + GRACE;
        Ok(Self {
            pool,
            row_writers: RowWriters::new(settings),
            connector,
            deadline,
            durations: histogram!(STATEMENT_DURATION),
            partition_missing: Arc::default(),
        })
    }

    /// Runs a statement that changes nothing.
    pub(in crate::storage) async fn read(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StorageError> {
        self.query(statement, parameters).await.map_err(Failure::of_read)
    }

    /// Runs a statement that is a transaction of its own, and decodes what it returns. It is never repeated: see
    /// [`StorageError::OutcomeUnknown`], which is also what becomes of rows that cannot be decoded, because by then the
    /// statement has committed.
    pub(in crate::storage) async fn write<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        decode: impl FnOnce(&[Row]) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let rows = self.query(statement, parameters).await.map_err(Failure::of_write)?;
        decode(&rows).map_err(outcome_unknown)
    }

    /// The same for a statement that waits for a row while another transaction holds it.
    pub(in crate::storage) async fn write_row<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        decode: impl FnOnce(&[Row]) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let connection = self.row_writer().await.map_err(Failure::of_write)?;
        let rows = self.query_on(connection, statement, parameters).await.map_err(Failure::of_write)?;
        decode(&rows).map_err(outcome_unknown)
    }

    /// Begins a transaction: runs `lock`, which waits for a row while another transaction holds it, then `read`, which
    /// sees what that transaction left. Both take the same parameters, and are one round trip.
    pub(in crate::storage) async fn lock_row(
        &self,
        lock: &'static str,
        read: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<(RowLock<'_>, Vec<Row>), StorageError> {
        let connection = self.row_writer().await.map_err(Failure::of_read)?.in_transaction();
        let rows = self
            .measured(
                read,
                pin!(async {
                    let prepared =
                        join(connection.prepare_cached(lock), connection.prepare_cached(read)).await;
                    let (lock, read) =
                        (prepared.0.map_err(Failure::NotSent)?, prepared.1.map_err(Failure::NotSent)?);
                    // Sent in this order without waiting for answers in between.
                    let (begun, locked, rows) = join3(
                        connection.batch_execute("BEGIN"),
                        connection.query(&lock, parameters),
                        connection.query(&read, parameters),
                    )
                    .await;
                    begun.and(locked).and(rows).map_err(Failure::Sent)
                }),
            )
            .await;
        match rows {
            Ok(rows) => Ok((RowLock { database: self, connection }, rows)),
            Err(failure) => Err(self.give_up(connection, failure).of_read()),
        }
    }

    /// A connection for a statement that may wait for a row.
    async fn row_writer(&self) -> Result<InUse, Failure> {
        let connection = self.row_writers.connection(&self.pool, self.deadline).await;
        connection.map_err(Failure::NoConnection).map_err(Failure::counted)
    }

    async fn query(&self, statement: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let connection = self.pool.get().await.map_err(Failure::NoConnection).map_err(Failure::counted)?;
        self.query_on(InUse::new(connection, self.deadline), statement, parameters).await
    }

    async fn query_on(
        &self,
        connection: InUse,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let rows = self
            .measured(
                statement,
                pin!(async {
                    let prepared = connection.prepare_cached(statement).await.map_err(Failure::NotSent)?;
                    connection.query(&prepared, parameters).await.map_err(Failure::Sent)
                }),
            )
            .await;
        self.end(connection, rows)
    }

    /// Runs a statement with a deadline, and records how long it takes. The work is pinned by the caller: passed by value,
    /// it would be in every future twice.
    async fn measured<T>(
        &self,
        statement: &'static str,
        work: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    ) -> Result<T, Failure> {
        let (begun, span) = (Instant::now(), traces::statement(statement));
        let answer = timeout(self.deadline, work).await.unwrap_or(Err(Failure::Deadline(self.deadline)));
        self.durations.record(begun.elapsed());
        span.end(answer.is_ok());
        answer
    }

    /// Leaves a connection after its last statement.
    fn end<T>(&self, connection: InUse, outcome: Result<T, Failure>) -> Result<T, Failure> {
        match outcome {
            Ok(answer) => {
                connection.finished();
                Ok(answer)
            }
            Err(failure) => Err(self.give_up(connection, failure)),
        }
    }

    /// Returns a connection to the pool after a failure, or closes it if it is of no more use.
    fn give_up(&self, connection: InUse, failure: Failure) -> Failure {
        if failure.lacks_partition() {
            self.partition_missing.notify_one();
        }
        if failure.spoils_the_connection() {
            connection.close();
            // The others most likely lead to the same server, and each would cost somebody the same wait.
            self.pool.retain(|_, _| false);
        } else if connection.is_in_transaction() {
            connection.close();
        } else {
            connection.finished();
        }
        failure.counted()
    }
}

/// A transaction that holds a row. Dropped before its end, it changes nothing.
pub(in crate::storage) struct RowLock<'a> {
    database: &'a Database,
    connection: InUse,
}

impl RowLock<'_> {
    /// Runs a statement and commits, in one round trip.
    pub(in crate::storage) async fn write_and_commit(
        self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<(), StorageError> {
        let Self { database, connection } = self;
        let outcome = database
            .measured(
                statement,
                pin!(async {
                    let prepared = connection.prepare_cached(statement).await.map_err(Failure::NotSent)?;
                    let (written, committed) =
                        join(connection.execute(&prepared, parameters), connection.batch_execute("COMMIT"))
                            .await;
                    written.and(committed).map_err(Failure::Sent)
                }),
            )
            .await;
        database.end(connection, outcome).map_err(Failure::of_write)
    }

    /// Ends the transaction, in which nothing was changed.
    pub(in crate::storage) async fn release(self) -> Result<(), StorageError> {
        let Self { database, connection } = self;
        let ended = database
            .measured(
                "COMMIT",
                pin!(async { connection.batch_execute("COMMIT").await.map_err(Failure::NotSent) }),
            )
            .await;
        database.end(connection, ended).map_err(Failure::of_read)
    }
}
