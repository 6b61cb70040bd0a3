//! The pool of connections: which are kept, and when another is opened.
//!
//! **Invariants:**
//! - a connection comes into the pool only if its server takes writes and its schema is new enough;
//! - a database that is away costs about one attempt a second, however many requests come: all others fail at once;
//! - a connection returns to the pool only when its statement has finished, also if whoever sent the statement is gone;
//! - statements that may wait for a row hold at most half of the connections, so that a row that somebody holds never
//!   delays what does not need it;
//! - a connection on which the server warned is closed before the statement is answered. (PostgreSQL warns when it gives
//!   up waiting for a standby: it has committed, but a failover can still lose it.)

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{
    Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult, TimeoutType,
};
use deadpool_postgres::ClientWrapper;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::connect::{CONNECT_TIMEOUT, ConnectError, Connector, DatabaseUrlError};
use super::migrations::{self, SCHEMA_NEEDED};
use crate::config::PoolSettings;

/// How long a request waits for its turn, and how long its work waits for one of the pool's connections.
pub(in crate::storage) const POOL_WAIT: Duration = Duration::from_secs(1);
/// How long after the beginning of a failed attempt the next one is made.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a statement that may wait for a row waits for its turn: those before it may wait for the same row. With the
/// time for a connection and for the statement itself, a request is still answered within 10 seconds.
const ROW_WRITER_WAIT: Duration = Duration::from_secs(3);

pub(in crate::storage) type Connections = Pool<Opener>;
type Connection = Object<Opener>;
pub(in crate::storage) type NoConnection = PoolError<OpenError>;

/// A pool of connections that open when needed.
pub(in crate::storage) fn pool(
    connector: &Connector,
    settings: &PoolSettings,
) -> Result<Connections, DatabaseUrlError> {
    let opener =
        Opener { connector: connector.for_requests(settings.database_timeout), breaker: Breaker::default() };
    Pool::builder(opener)
        .max_size(settings.database_connections.into())
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT))
        .build()
        .map_err(|_| DatabaseUrlError::Pool)
}

/// A connection on which a statement may be in progress.
///
/// Dropped in the middle of one, as the future of a request is whose client has gone, it waits in the background for
/// the statement's end. The statement is not cancelled, and nobody else's waits behind it.
pub(in crate::storage) struct InUse {
    connection: Option<Connection>,
    /// How long a statement may take before its connection is closed instead.
    deadline: Duration,
    in_transaction: bool,
    row_writer: Option<OwnedSemaphorePermit>,
}

impl InUse {
    pub(in crate::storage) fn new(connection: Connection, deadline: Duration) -> Self {
        Self { connection: Some(connection), deadline, in_transaction: false, row_writer: None }
    }

    /// For more than one statement: the connection is closed if it is dropped in between.
    pub(in crate::storage) fn in_transaction(mut self) -> Self {
        self.in_transaction = true;
        self
    }

    pub(in crate::storage) fn is_in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Returns the connection to the pool: nothing is in progress on it.
    pub(in crate::storage) fn finished(mut self) {
        drop(self.connection.take());
    }

    /// Closes the connection.
    pub(in crate::storage) fn close(mut self) {
        drop(self.connection.take().map(Connection::take));
    }
}

impl Deref for InUse {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        let Some(connection) = &self.connection else {
            unreachable!("only what consumes this takes the connection out");
        };
        connection
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let (Some(connection), Ok(runtime)) = (self.connection.take(), Handle::try_current()) else { return };
        let (deadline, in_transaction, row_writer) =
            (self.deadline, self.in_transaction, self.row_writer.take());
        runtime.spawn(async move {
            // Answers come in the order of the statements, so that of an empty one comes after the abandoned one's.
            let finished = timeout(deadline, connection.batch_execute("")).await;
            if in_transaction || !matches!(finished, Ok(Ok(()))) {
                drop(Connection::take(connection));
            }
            drop(row_writer);
        });
    }
}

/// Bounds the statements that may wait for a row which another transaction holds. Cheap to clone.
#[derive(Clone)]
pub(in crate::storage) struct RowWriters(Arc<Semaphore>);

impl RowWriters {
    pub(in crate::storage) fn new(settings: &PoolSettings) -> Self {
        Self(Arc::new(Semaphore::new(usize::from(settings.database_connections / 2).max(1))))
    }

    /// A connection for such a statement.
    pub(in crate::storage) async fn connection(
        &self,
        pool: &Connections,
        deadline: Duration,
    ) -> Result<InUse, NoConnection> {
        let Ok(Ok(permit)) = timeout(ROW_WRITER_WAIT, self.0.clone().acquire_owned()).await else {
            return Err(PoolError::Timeout(TimeoutType::Wait));
        };
        let mut connection = InUse::new(pool.get().await?, deadline);
        connection.row_writer = Some(permit);
        Ok(connection)
    }
}

/// Why no connection was opened.
#[derive(Debug, Error)]
pub(in crate::storage) enum OpenError {
    /// There is no server that takes writes.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its schema could not be looked at.
    #[error("the database's schema could not be looked at")]
    Look(#[from] tokio_postgres::Error),
    /// Its schema is too old. The text says what to run.
    #[error("{0}")]
    Schema(String),
    /// All of that takes too long.
    #[error("no connection could be opened within {CONNECT_TIMEOUT:?}")]
    Slow,
    /// It was just tried.
    #[error("the database was not available a moment ago, and is not asked again yet")]
    TooSoon,
}

/// Opens the connections of a pool.
pub(in crate::storage) struct Opener {
    connector: Connector,
    breaker: Breaker,
}

impl Opener {
    async fn open(&self) -> Result<ClientWrapper, OpenError> {
        let (client, task) = self.connector.open_guarded().await?;
        let found = migrations::schema_version(&client).await?;
        migrations::check_version(found, SCHEMA_NEEDED).map_err(OpenError::Schema)?;
        Ok(ClientWrapper::new(client, task))
    }
}

impl Manager for Opener {
    type Type = ClientWrapper;
    type Error = OpenError;

    async fn create(&self) -> Result<ClientWrapper, OpenError> {
        if !self.breaker.lets_pass() {
            return Err(OpenError::TooSoon);
        }
        // Boxed: it is large and rare, and every request holds room for it otherwise.
        let opened = timeout(CONNECT_TIMEOUT, Box::pin(self.open())).await.unwrap_or(Err(OpenError::Slow));
        self.breaker.learn(opened.is_ok());
        opened
    }

    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<OpenError> {
        if client.is_closed() { Err(RecycleError::message("closed")) } else { Ok(()) }
    }
}

/// Remembers whether the last attempt failed, and when the next one may be made.
#[derive(Default)]
struct Breaker(Mutex<Option<Instant>>);

impl Breaker {
    fn lets_pass(&self) -> bool {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match *next {
            Some(moment) if now < moment => false,
            // Counted from its beginning: an attempt that takes its time is not waited for.
            Some(_) => {
                *next = Some(now + PAUSE);
                true
            }
            None => true,
        }
    }

    fn learn(&self, succeeded: bool) {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if succeeded {
            *next = None;
        } else if next.is_none() {
            *next = Some(Instant::now() + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_one_attempt_a_second_is_made() {
        let breaker = Breaker::default();
        assert!(breaker.lets_pass() && breaker.lets_pass(), "as many as like while all is well");
        breaker.learn(false);
        assert!(!breaker.lets_pass());
        advance(PAUSE).await;
        assert!(breaker.lets_pass(), "one attempt");
        assert!(!breaker.lets_pass(), "the others fail at once while it is made");
        advance(PAUSE / 2).await;
        breaker.learn(false);
        assert!(!breaker.lets_pass());
        advance(PAUSE / 2).await;
        assert!(breaker.lets_pass(), "a second after the attempt began, not after it ended");
        breaker.learn(true);
        assert!(breaker.lets_pass() && breaker.lets_pass());
    }
}
