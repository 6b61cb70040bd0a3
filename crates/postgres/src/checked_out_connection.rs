//! Connections in use.
//!
//! **Invariants:**
//! - a connection returns to the pool only when its statement has finished, even if the caller is gone;
//! - a write that was given up keeps its place in the pool until the server has finished it. A commit that waits for a standby
//!   cannot be cancelled safely, and its server process stays even if the connection is closed: so the pool limits the server
//!   processes, too;
//! - writes use at most three quarters of the connections, transactions of several statements at most half, and writes that wait
//!   for the locks of others for longer than [`BRIEF_LOCK_WAIT`] at most a quarter, those of one operation half of that. So commits that
//!   wait for a standby never delay reads, and what somebody has locked never delays requests that do not need it.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool::managed::{PoolError, TimeoutType};
use futures_util::future::{join_all, try_join_all};
use petstore_config::PoolSettings;
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::error::StatementError::{self, Deadline, NotSent, Sent};
use super::pool::{Connection, ConnectionPool, GetConnectionError, POOL_WAIT, Session};

/// How long a write waits for a lock of another transaction on any connection. Longer than a commit usually takes.
pub const BRIEF_LOCK_WAIT: Duration = Duration::from_millis(50);
/// How long it waits on one of the few connections for that, and to get one.
pub const LONG_LOCK_WAIT: Duration = Duration::from_secs(1);

/// A server that has not answered anything for this long is gone, and with it what it was doing. While it is there, the metrics
/// are read from it every few seconds.
const SILENCE: Duration = Duration::from_secs(15);
const SILENCE_CHECK: Duration = Duration::from_secs(1);

/// A connection on which a statement may be in progress.
///
/// If it is dropped during a statement, because its caller gave up, a background task waits for the statement's end. The statement is not cancelled, and no other statement waits behind it.
pub(crate) struct CheckedOutConnection {
    connection: Option<Connection>,
    /// How long a statement may take before its connection is closed.
    deadline: Duration,
    /// Whether BEGIN was sent, and neither COMMIT nor ROLLBACK. If it is dropped then, it is rolled back.
    in_transaction: AtomicBool,
    /// Of a write.
    permit: Option<DatabaseWritePermit>,
}

/// The parameters of a statement.
pub type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement and its parameters.
pub type Step<'a> = (&'static str, Parameters<'a>);

impl CheckedOutConnection {
    pub(crate) fn new(connection: Connection, deadline: Duration) -> Self {
        Self { connection: Some(connection), deadline, in_transaction: AtomicBool::new(false), permit: None }
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

    /// Prepares the statements that this connection has not used yet.
    pub(super) async fn prepare(&self, steps: &[Step<'_>]) -> Result<Vec<Statement>, StatementError> {
        try_join_all(steps.iter().map(|(statement, _)| self.prepare_cached(statement))).await.map_err(NotSent)
    }

    /// Runs prepared statements, and returns the rows of each. Pipelined: when this is first polled, all are sent, in this order.
    /// The error is that of the first that failed; in a transaction, those after it fail only because of that.
    pub(super) async fn run_all(
        &self,
        prepared: &[Statement],
        steps: &[Step<'_>],
    ) -> Result<Vec<Vec<Row>>, StatementError> {
        let running =
            prepared.iter().zip(steps).map(|(statement, (_, parameters))| self.query(statement, parameters));
        join_all(running).await.into_iter().collect::<Result<_, _>>().map_err(Sent)
    }

    /// Records that BEGIN is being sent.
    pub(super) fn begins(&self) {
        self.in_transaction.store(true, Ordering::Relaxed);
    }

    /// Records that COMMIT or ROLLBACK is being sent: whatever the outcome, there is nothing to roll back afterwards.
    pub(super) fn ends(&self) {
        self.in_transaction.store(false, Ordering::Relaxed);
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
        } else if self.in_transaction.load(Ordering::Relaxed) {
            // Rolls back, in the background.
            drop(self);
        } else {
            self.finished();
        }
    }
}

impl Deref for CheckedOutConnection {
    type Target = Session;

    fn deref(&self) -> &Session {
        let Some(connection) = &self.connection else {
            unreachable!("only methods that consume self take the connection");
        };
        connection
    }
}

impl Drop for CheckedOutConnection {
    fn drop(&mut self) {
        let (Some(connection), Ok(runtime)) = (self.connection.take(), Handle::try_current()) else { return };
        let (deadline, permit) = (self.deadline, self.permit.take());
        // Responses come in the order of the statements: this one's comes after that of the abandoned one.
        let last = if self.in_transaction.load(Ordering::Relaxed) { "ROLLBACK" } else { "" };
        runtime.spawn(async move {
            let finished = match &permit {
                None => {
                    timeout(deadline, connection.batch_execute(last)).await.is_ok_and(|ended| ended.is_ok())
                }
                Some(permit) => {
                    let _abandoned = permit.abandoned();
                    outlasts_abandoned_write(&connection, last).await
                }
            };
            if !finished {
                drop(Connection::take(connection));
            }
            drop(permit);
        });
    }
}

/// Waits until the server has finished the write on this connection, or is gone. Returns whether the connection is usable.
async fn outlasts_abandoned_write(connection: &Connection, last: &str) -> bool {
    let mut ending = pin!(connection.batch_execute(last));
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
    transactions: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    waits_of_one_operation: usize,
    abandoned: Arc<AtomicUsize>,
}

/// Limits how many writes of one operation wait for the locks of others. Cheap to clone.
#[derive(Clone)]
pub struct WaitLimit(Arc<Semaphore>);

/// What allows a write more than others, until dropped.
pub(super) type ExtraPermits = Vec<OwnedSemaphorePermit>;

/// Allows a write until dropped.
pub(super) struct DatabaseWritePermit {
    _write: OwnedSemaphorePermit,
    _extra: ExtraPermits,
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
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.max(1)));
        Self {
            writes: semaphore(connections - (connections / 4).max(1)),
            transactions: semaphore(connections / 2),
            waits: semaphore(connections / 4),
            waits_of_one_operation: (connections / 8).max(1),
            abandoned: Arc::default(),
        }
    }

    /// The limit for one operation.
    pub(crate) fn wait_limit(&self) -> WaitLimit {
        WaitLimit(Arc::new(Semaphore::new(self.waits_of_one_operation)))
    }

    /// How many writes were given up and are still in progress at the server.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Allows a write to be a transaction of several statements, unless too many are until then.
    pub(crate) async fn transaction_permit(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        timeout_at(until, self.transactions.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Allows a write of an operation to wait, unless too many do until then.
    pub(crate) async fn wait_permits(&self, operation: &WaitLimit, until: Instant) -> Option<ExtraPermits> {
        let of_operation = timeout_at(until, operation.0.clone().acquire_owned()).await.ok()?.ok()?;
        let of_all = timeout_at(until, self.waits.clone().acquire_owned()).await.ok()?.ok()?;
        Some(vec![of_operation, of_all])
    }

    /// Gets a connection for a write.
    pub(crate) async fn connection(
        &self,
        pool: &ConnectionPool,
        extra: ExtraPermits,
        deadline: Duration,
    ) -> Result<CheckedOutConnection, GetConnectionError> {
        let Ok(Ok(write)) = timeout(POOL_WAIT, self.writes.clone().acquire_owned()).await else {
            return Err(PoolError::Timeout(TimeoutType::Wait));
        };
        let mut connection = CheckedOutConnection::new(pool.get().await?, deadline);
        connection.permit =
            Some(DatabaseWritePermit { _write: write, _extra: extra, abandoned: self.abandoned.clone() });
        Ok(connection)
    }
}
