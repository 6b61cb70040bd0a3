//! Connections in use.
//!
//! **Invariants:**
//! - a connection returns to the pool only when its statement has finished, even if the caller is gone;
//! - statements that may wait for a row lock use at most half of the connections, so a locked row never delays
//!   statements that do not need it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{PoolError, TimeoutType};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::StatementError::{self, NotSent, Sent};
use super::pool::{Connection, ConnectionPool, GetConnectionError, Session};
use crate::config::PoolSettings;

/// How long a statement that may wait for a row lock waits for its turn: those before it may wait for the same row. With
/// the time for a connection and for the statement itself, a request still gets its response within 10 seconds.
const ROW_WRITER_WAIT: Duration = Duration::from_secs(3);

/// A connection on which a statement may be in progress.
///
/// If it is dropped during a statement, because the client closed its request, a background task waits for the
/// statement's end. The statement is not cancelled, and no other statement waits behind it.
pub(in crate::storage) struct BusyConnection {
    connection: Option<Connection>,
    /// How long a statement may take before its connection is closed.
    deadline: Duration,
    /// If it is dropped in a transaction, it is closed.
    pub(super) in_transaction: bool,
    row_writer: Option<OwnedSemaphorePermit>,
}

/// The parameters of a statement.
pub(in crate::storage) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl BusyConnection {
    pub(in crate::storage) fn new(connection: Connection, deadline: Duration) -> Self {
        Self { connection: Some(connection), deadline, in_transaction: false, row_writer: None }
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
    pub(in crate::storage) fn finished(mut self) {
        drop(self.connection.take());
    }

    /// Closes the connection.
    pub(in crate::storage) fn close(mut self) {
        drop(self.connection.take().map(Connection::take));
    }

    /// Releases the connection after its last statement.
    pub(in crate::storage) fn end<T>(self, outcome: Result<T, StatementError>) -> Result<T, StatementError> {
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
    pub(in crate::storage) fn failed(self, error: &StatementError) {
        if error.invalidates_connection() {
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
        let (deadline, in_transaction, row_writer) =
            (self.deadline, self.in_transaction, self.row_writer.take());
        runtime.spawn(async move {
            // Responses come in the order of the statements: an empty statement completes after the abandoned one.
            let finished = timeout(deadline, connection.batch_execute("")).await;
            if in_transaction || !matches!(finished, Ok(Ok(()))) {
                drop(Connection::take(connection));
            }
            drop(row_writer);
        });
    }
}

/// Limits the number of statements that may wait for a row lock at the same time. Cheap to clone.
#[derive(Clone)]
pub(in crate::storage) struct RowWriteLimiter(Arc<Semaphore>);

impl RowWriteLimiter {
    pub(in crate::storage) fn new(settings: &PoolSettings) -> Self {
        Self(Arc::new(Semaphore::new(usize::from(settings.database_connections / 2).max(1))))
    }

    /// Gets a connection for such a statement.
    pub(in crate::storage) async fn connection(
        &self,
        pool: &ConnectionPool,
        deadline: Duration,
    ) -> Result<BusyConnection, GetConnectionError> {
        let Ok(Ok(permit)) = timeout(ROW_WRITER_WAIT, self.0.clone().acquire_owned()).await else {
            return Err(PoolError::Timeout(TimeoutType::Wait));
        };
        let mut connection = BusyConnection::new(pool.get().await?, deadline);
        connection.row_writer = Some(permit);
        Ok(connection)
    }
}
