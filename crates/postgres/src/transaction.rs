//! Transactions that lock, read, decide, write and commit, each step in one round trip.
//!
//! **Invariants:**
//! - transactions of this process that change the same thing take turns, and use no connection while they wait;
//! - a transaction first waits only briefly for each lock. If that is not enough, it is run again on one of the few connections
//!   that may wait for longer;
//! - one deadline covers all runs, from the wait for the turn to the commit;
//! - until COMMIT is sent, every error means that nothing was changed. A transaction that is dropped is rolled back when its
//!   connection returns to the pool.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::checked_out_connection::{BRIEF_LOCK_WAIT, CheckedOutConnection, LONG_LOCK_WAIT, Step, WaitLimit};
use super::connect::Target;
use super::database::Database;
use super::error::StatementError::{self, NotSent, Sent};
use super::error::{StorageError, error_message, unexpected};
use super::keyed_lock::KeyedLocks;

/// How long a transaction waits until those before it have ended: those that change the same thing, and then any. Not until the
/// deadline: while commits wait for a standby, waiting requests would take the place of reads.
const QUEUE_WAIT: Duration = Duration::from_secs(3);

/// How long a run of a transaction may wait for the locks of others.
#[derive(Clone, Copy)]
pub struct LockTimeout<'a> {
    deadline: Instant,
    /// None if it waits only briefly.
    waits: Option<&'a WaitLimit>,
}

impl Database {
    /// Runs a transaction that changes the thing with this id. `run` begins the transaction with its argument, and commits it or
    /// rolls it back.
    ///
    /// There are up to four runs: two that wait briefly for locks, and two that wait for longer, if a lock was the reason. The second
    /// of two follows only if the first lost to a concurrent transaction, or a deadlock ended it: then the first has changed nothing,
    /// and the second finds what the other transaction did.
    pub async fn transact<'a, T, F: Future<Output = Result<T, StorageError>>>(
        &self,
        operation: &'a WaitLimit,
        (locks, id): (&KeyedLocks, i64),
        run: impl Fn(LockTimeout<'a>) -> F,
    ) -> Result<T, StorageError> {
        let brief = self.brief_lock_timeout();
        let Some(_lock) = locks.take(id, brief.deadline.min(Instant::now() + QUEUE_WAIT)).await else {
            return Err(StorageError::Locked(error_message(
                "too many requests wait to change the same thing",
            )));
        };
        match run_again_once(&run, brief).await {
            Err(StorageError::Locked(_)) => {
                run_again_once(&run, LockTimeout { waits: Some(operation), ..brief }).await
            }
            outcome => outcome,
        }
    }

    /// For a transaction that waits only briefly for the locks of others.
    #[must_use]
    pub fn brief_lock_timeout(&self) -> LockTimeout<'static> {
        LockTimeout { deadline: Instant::now() + self.deadline, waits: None }
    }

    /// Starts a transaction, and runs its first statements, in one round trip. Each sees what was committed before it started, so
    /// one that follows a lock sees what the previous holder did.
    pub async fn begin<const N: usize>(
        &self,
        LockTimeout { deadline, waits }: LockTimeout<'_>,
        steps: [Step<'_>; N],
    ) -> Result<(Transaction<'_>, [Vec<Row>; N]), StorageError> {
        let (lock_wait, mut permits) = match waits {
            None => (BRIEF_LOCK_WAIT, Vec::new()),
            Some(operation) => {
                let until = deadline.min(Instant::now() + LONG_LOCK_WAIT);
                (LONG_LOCK_WAIT, self.wait_permits(operation, until).await?)
            }
        };
        let until = deadline.min(Instant::now() + QUEUE_WAIT);
        let Some(permit) = self.write_limiter.transaction_permit(until).await else {
            return Err(StorageError::Unavailable(error_message("too many transactions are in progress")));
        };
        permits.push(permit);
        let server = self.primary().await.map_err(StatementError::into_read_error)?;
        let connection = self.write_connection(server, permits, deadline).await;
        let connection = connection.map_err(StatementError::into_read_error)?;
        let transaction = Transaction {
            database: self,
            connection,
            server,
            deadline,
            started: Instant::now(),
            has_written: false,
        };
        // The isolation level is named because the role may have another default: a statement must see what was committed while
        // an earlier one waited.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}",
            lock_wait.as_millis()
        );
        transaction.run_after(Some(&begin), steps).await
    }
}

async fn run_again_once<'a, T, F: Future<Output = Result<T, StorageError>>>(
    run: impl Fn(LockTimeout<'a>) -> F,
    lock_timeout: LockTimeout<'a>,
) -> Result<T, StorageError> {
    match run(lock_timeout).await {
        Err(StorageError::Raced(_) | StorageError::Deadlock(_)) => run(lock_timeout).await,
        outcome => outcome,
    }
}

/// A transaction in progress.
pub struct Transaction<'a> {
    database: &'a Database,
    connection: CheckedOutConnection,
    server: Target,
    deadline: Instant,
    started: Instant,
    has_written: bool,
}

impl Transaction<'_> {
    /// Runs statements that read, in one round trip.
    pub async fn read<const N: usize>(
        self,
        steps: [Step<'_>; N],
    ) -> Result<(Self, [Vec<Row>; N]), StorageError> {
        self.run_after(None, steps).await
    }

    /// Runs statements that change rows and return them, in one round trip. If a statement changes another number of rows than
    /// `rows`, the transaction is dropped, and so rolled back.
    pub async fn write<const N: usize>(
        mut self,
        rows: usize,
        steps: [Step<'_>; N],
    ) -> Result<(Self, [Vec<Row>; N]), StorageError> {
        self.has_written = true;
        let (transaction, changed) = self.run_after(None, steps).await?;
        match changed.iter().zip(steps).find(|(changed, _)| changed.len() != rows) {
            None => Ok((transaction, changed)),
            Some((changed, (statement, _))) => {
                let found = changed.len();
                Err(unexpected(format!("{found} rows instead of {rows} were changed by: {statement}")))
            }
        }
    }

    /// Runs the last statements and commits, in one round trip. The commit waits for a standby even if only a row was locked: that
    /// is in the WAL, too. So what the transaction has found is not lost by a failover either.
    pub async fn commit(mut self, last: &[Step<'_>]) -> Result<(), StorageError> {
        self.has_written |= !last.is_empty();
        if self.connection.is_closed() || Instant::now() >= self.deadline {
            return Err(StorageError::Unavailable(error_message(
                "the connection was lost, or the time was up, before the commit",
            )));
        }
        let connection = &self.connection;
        let execution = async {
            // First: `join` polls in order, but a statement that still has to be prepared would be overtaken by COMMIT.
            let prepared = connection.prepare(last).await?;
            connection.ends();
            let (ran, committed) =
                join(connection.run_all(&prepared, last), connection.batch_execute("COMMIT")).await;
            ran.and(committed.map_err(Sent))
        };
        let statement = last.first().map_or("COMMIT", |(statement, _)| statement);
        let outcome = self.database.traced(statement, self.deadline, pin!(execution)).await;
        let has_written = self.has_written;
        self.end(outcome)
            .map_err(|error| if has_written { error.into_write_error() } else { error.into_read_error() })
    }

    /// Ends the transaction without a change. What it has found is proven to be fresh.
    pub async fn roll_back(self) -> Result<(), StorageError> {
        self.connection.ends();
        let execution = async { self.connection.batch_execute("ROLLBACK").await.map_err(NotSent) };
        let outcome = self.database.traced("ROLLBACK", self.deadline, pin!(execution)).await;
        let (database, server) = (self.database, self.server);
        self.end(outcome).map_err(StatementError::into_read_error)?;
        database.prove_primary(server).await
    }

    async fn run_after<const N: usize>(
        self,
        begin: Option<&str>,
        steps: [Step<'_>; N],
    ) -> Result<(Self, [Vec<Row>; N]), StorageError> {
        let connection = &self.connection;
        let execution = async {
            let prepared = connection.prepare(&steps).await?;
            let Some(begin) = begin else { return connection.run_all(&prepared, &steps).await };
            connection.begins();
            // `join` polls the first future first, so BEGIN is sent before the statements.
            let (started, rows) =
                join(connection.batch_execute(begin), connection.run_all(&prepared, &steps)).await;
            started.map_err(Sent).and(rows)
        };
        let statement = steps.first().map_or("BEGIN", |(statement, _)| statement);
        let outcome = self.database.traced(statement, self.deadline, pin!(execution)).await;
        match outcome {
            Ok(rows) => Ok((self, rows.try_into().map_err(|_| unexpected("a statement has no result"))?)),
            Err(error) => {
                let (database, server) = (self.database, self.server);
                let Err(error) = self.end::<Infallible>(Err(error)).map_err(StatementError::into_read_error);
                // The caller learns what another transaction has committed, so the server must be proven to be the primary.
                if matches!(error, StorageError::Raced(_)) {
                    database.prove_primary(server).await?;
                }
                Err(error)
            }
        }
    }

    /// Releases the connection, and records the duration.
    fn end<T>(self, outcome: Result<T, StatementError>) -> Result<T, StatementError> {
        self.database.durations.record(self.started.elapsed());
        self.database.end(self.connection, outcome)
    }
}
