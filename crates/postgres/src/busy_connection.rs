//! Connections in use.
//!
//! **Invariants:**
//! - a connection returns to the pool only when its statement has finished, even if the caller is gone;
//! - a write that was given up keeps its place in the pool until the server has finished it. A commit that waits for a standby
//!   cannot be cancelled safely, and its server process stays even if the connection is closed: so the pool limits the server
//!   processes, too;
//! - writes use at most three quarters of the connections, and those that may wait for a row lock at most half. So commits that
//!   wait for a standby never delay reads, and a locked row never delays statements that do not need it.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool::managed::{PoolError, TimeoutType};
use petstore_config::PoolSettings;
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::StatementError::{self, Deadline, NotSent, Sent};
use super::pool::{Connection, ConnectionPool, GetConnectionError, POOL_WAIT, Session};

/// How long a statement that may wait for a row lock waits for its turn: those before it may wait for the same row. With
/// the time for a connection and for the statement itself, a request still gets its response within 10 seconds.
const ROW_WRITER_WAIT: Duration = Duration::from_secs(3);

/// A server that has not answered anything for this long is gone, and with it what it was doing. While it is there, the metrics
/// are read from it every few seconds.
const SILENCE: Duration = Duration::from_secs(15);
const SILENCE_CHECK: Duration = Duration::from_secs(1);

/// A connection on which a statement may be in progress.
///
/// If it is dropped during a statement, because the client closed its request, a background task waits for the
/// statement's end. The statement is not cancelled, and no other statement waits behind it.
pub(crate) struct BusyConnection {
    connection: Option<Connection>,
    /// How long a statement may take before its connection is closed.
    deadline: Duration,
    /// If it is dropped in a transaction, it is closed.
    pub(super) in_transaction: bool,
    /// Of a write.
    permit: Option<DatabaseWritePermit>,
}

/// The parameters of a statement.
pub type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl BusyConnection {
    pub(crate) fn new(connection: Connection, deadline: Duration) -> Self {
        Self { connection: Some(connection), deadline, in_transaction: false, permit: None }
    }

    /// Runs a statement, prepared at its first use on this connection.
    pub(super) async fn run(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        let prepared = self.prepare_cached(statement).await.map_err(NotSent)?;
        self.query(&prepared, parameters).await.map_err(Sent)
    }

    /// Returns the connection, on which no statement is in progress, to the pool.
    pub(crate) fn finished(mut self) {
        drop(self.connection.take());
    }

    /// Closes the connection.
    pub(crate) fn close(mut self) {
        drop(self.connection.take().map(Connection::take));
    }

    /// Releases the connection after its last statement.
    pub(crate) fn end<T>(self, outcome: Result<T, StatementError>) -> Result<T, StatementError> {
        match &outcome {
            Ok(_) => {
                if let Some(pool) = self.connection.as_ref().and_then(Connection::pool) {
                    pool.manager().answered();
                }
                self.finished();
            }
            Err(error) => self.failed(error),
        }
        outcome
    }

    /// Returns the connection to its pool after an error, or closes it if it is no longer usable.
    pub(crate) fn failed(self, error: &StatementError) {
        if matches!(error, Deadline(_)) && self.permit.is_some() {
            // Waits for the server, in the background.
            drop(self);
        } else if error.invalidates_connection() {
            let pool = self.connection.as_ref().and_then(Connection::pool);
            self.close();
            // The others most likely lead to the same server, and each would cost another request the same wait.
            pool.inspect(|pool| drop(pool.retain(|_, _| false)));
        } else if self.in_transaction {
            self.close();
        } else {
            self.finished();
        }
    }
}

impl Deref for BusyConnection {
    type Target = Session;

    fn deref(&self) -> &Session {
        let Some(connection) = &self.connection else {
            unreachable!("only methods that consume self take the connection");
        };
        connection
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        let (Some(connection), Ok(runtime)) = (self.connection.take(), Handle::try_current()) else { return };
        let (deadline, in_transaction, permit) = (self.deadline, self.in_transaction, self.permit.take());
        runtime.spawn(async move {
            let finished = match &permit {
                None => {
                    timeout(deadline, connection.batch_execute("")).await.is_ok_and(|ended| ended.is_ok())
                }
                Some(permit) => {
                    let _abandoned = permit.abandoned();
                    outlasts_abandoned_write(&connection).await
                }
            };
            if in_transaction || !finished {
                drop(Connection::take(connection));
            }
            drop(permit);
        });
    }
}

/// Waits until the server has finished the write on this connection, or is gone. Returns whether the connection is usable.
async fn outlasts_abandoned_write(connection: &Connection) -> bool {
    // Responses come in the order of the statements: an empty statement completes after the abandoned one.
    let mut ending = pin!(connection.batch_execute(""));
    loop {
        select! {
            ended = &mut ending => return ended.is_ok(),
            () = sleep(SILENCE_CHECK) => {}
        }
        if Connection::pool(connection).is_none_or(|pool| pool.manager().silence() > SILENCE) {
            return false;
        }
    }
}

/// Limits the writes at the server, finished for their callers or not. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WriteLimiter {
    writes: Arc<Semaphore>,
    row_writes: Arc<Semaphore>,
    abandoned: Arc<AtomicUsize>,
}

/// Allows a write until dropped.
pub(super) struct DatabaseWritePermit {
    _write: OwnedSemaphorePermit,
    _row_write: Option<OwnedSemaphorePermit>,
    abandoned: Arc<AtomicUsize>,
}

impl DatabaseWritePermit {
    /// Counts the write as abandoned until dropped.
    fn abandoned(&self) -> AbandonedWrite {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        AbandonedWrite(self.abandoned.clone())
    }
}

struct AbandonedWrite(Arc<AtomicUsize>);

impl Drop for AbandonedWrite {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WriteLimiter {
    pub(crate) fn new(settings: &PoolSettings) -> Self {
        let connections = usize::from(settings.database_connections);
        let writes = connections - (connections / 4).max(1);
        Self {
            writes: Arc::new(Semaphore::new(writes.max(1))),
            row_writes: Arc::new(Semaphore::new((connections / 2).max(1))),
            abandoned: Arc::default(),
        }
    }

    /// How many writes were given up and are still in progress at the server.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Gets a connection for a write.
    pub(crate) async fn connection(
        &self,
        pool: &ConnectionPool,
        deadline: Duration,
    ) -> Result<BusyConnection, GetConnectionError> {
        self.connect(pool, deadline, None).await
    }

    /// Gets a connection for a write that may wait for a row lock.
    pub(crate) async fn row_connection(
        &self,
        pool: &ConnectionPool,
        deadline: Duration,
    ) -> Result<BusyConnection, GetConnectionError> {
        let row_write = acquire(&self.row_writes, ROW_WRITER_WAIT).await?;
        self.connect(pool, deadline, Some(row_write)).await
    }

    async fn connect(
        &self,
        pool: &ConnectionPool,
        deadline: Duration,
        row_write: Option<OwnedSemaphorePermit>,
    ) -> Result<BusyConnection, GetConnectionError> {
        let write = acquire(&self.writes, POOL_WAIT).await?;
        let mut connection = BusyConnection::new(pool.get().await?, deadline);
        connection.permit = Some(DatabaseWritePermit {
            _write: write,
            _row_write: row_write,
            abandoned: self.abandoned.clone(),
        });
        Ok(connection)
    }
}

async fn acquire(
    semaphore: &Arc<Semaphore>,
    wait: Duration,
) -> Result<OwnedSemaphorePermit, GetConnectionError> {
    match timeout(wait, semaphore.clone().acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(PoolError::Timeout(TimeoutType::Wait)),
    }
}
