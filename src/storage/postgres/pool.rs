//! The connection pool.
//!
//! **Invariants:**
//! - a connection enters the pool only if its server accepts writes and its schema is new enough;
//! - while the database is unavailable, a circuit breaker makes about one connection attempt per second; all other
//!   requests fail at once;
//! - a connection returns to the pool only when its statement has finished, even if the caller is gone;
//! - statements that may wait for a row lock use at most half of the connections, so a locked row never delays
//!   statements that do not need it;
//! - a connection on which the server sends a warning is closed before the statement's result is returned. (PostgreSQL
//!   warns when it stops waiting for a standby: the commit is done, but a failover can still lose it.)

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

/// How long a request may wait in its queue, and then for a connection from the pool.
pub(in crate::storage) const POOL_WAIT: Duration = Duration::from_secs(1);
/// The interval between connection attempts while the circuit is open, counted from the start of an attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a statement that may wait for a row lock waits for its turn: those before it may wait for the same row. With
/// the time for a connection and for the statement itself, a request still gets its response within 10 seconds.
const ROW_WRITER_WAIT: Duration = Duration::from_secs(3);

pub(in crate::storage) type ConnectionPool = Pool<ConnectionManager>;
type Connection = Object<ConnectionManager>;
pub(in crate::storage) type GetConnectionError = PoolError<Arc<OpenError>>;

/// Creates a pool that opens connections on demand.
pub(in crate::storage) fn pool(
    connector: &Connector,
    settings: &PoolSettings,
) -> Result<ConnectionPool, DatabaseUrlError> {
    let connector = connector.for_requests(settings.database_timeout);
    Pool::builder(ConnectionManager { connector, circuit: CircuitBreaker::default() })
        .max_size(settings.database_connections.into())
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT))
        .build()
        .map_err(|_| DatabaseUrlError::Pool)
}

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

impl BusyConnection {
    pub(in crate::storage) fn new(connection: Connection, deadline: Duration) -> Self {
        Self { connection: Some(connection), deadline, in_transaction: false, row_writer: None }
    }

    /// Returns the connection, on which no statement is in progress, to the pool.
    pub(in crate::storage) fn finished(mut self) {
        drop(self.connection.take());
    }

    /// Closes the connection.
    pub(in crate::storage) fn close(mut self) {
        drop(self.connection.take().map(Connection::take));
    }
}

impl Deref for BusyConnection {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
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

/// Why no connection was opened.
#[derive(Debug, Error)]
pub(in crate::storage) enum OpenError {
    /// No server accepts connections and writes.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The schema version could not be read.
    #[error("cannot read the schema version")]
    SchemaVersion(#[from] tokio_postgres::Error),
    /// The schema is too old. The text says what to run.
    #[error("{0}")]
    SchemaTooOld(String),
    /// Connecting and reading the schema version took too long.
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    Timeout,
    /// The last attempt failed, and the next one is not due yet. The source is the error of that attempt.
    #[error("circuit open (next attempt within {RETRY_INTERVAL:?})")]
    CircuitOpen(#[source] Arc<OpenError>),
}

/// Opens and checks the connections of a pool.
pub(in crate::storage) struct ConnectionManager {
    connector: Connector,
    circuit: CircuitBreaker,
}

impl ConnectionManager {
    async fn open(&self) -> Result<ClientWrapper, OpenError> {
        let (client, task) = self.connector.open_closing_on_warning().await?;
        let found = migrations::schema_version(&client).await?;
        migrations::check_version(found, SCHEMA_NEEDED).map_err(OpenError::SchemaTooOld)?;
        Ok(ClientWrapper::new(client, task))
    }
}

impl Manager for ConnectionManager {
    type Type = ClientWrapper;
    type Error = Arc<OpenError>;

    async fn create(&self) -> Result<ClientWrapper, Arc<OpenError>> {
        self.circuit.allow_attempt()?;
        // Boxed: large and rarely used, it would otherwise be part of every request's future.
        let opened = timeout(CONNECT_TIMEOUT, Box::pin(self.open())).await.unwrap_or(Err(OpenError::Timeout));
        let opened = opened.map_err(Arc::new);
        self.circuit.record_outcome(opened.as_ref().err());
        opened
    }

    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<Arc<OpenError>> {
        if client.is_closed() { Err(RecycleError::message("closed")) } else { Ok(()) }
    }
}

/// Opens after a failed attempt: then allows one attempt per [`RETRY_INTERVAL`] until one succeeds.
#[derive(Default)]
struct CircuitBreaker(Mutex<Option<OpenCircuit>>);

struct OpenCircuit {
    next_attempt: Instant,
    last_error: Arc<OpenError>,
}

impl CircuitBreaker {
    fn allow_attempt(&self) -> Result<(), OpenError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *state else { return Ok(()) };
        let now = Instant::now();
        if now < open.next_attempt {
            return Err(OpenError::CircuitOpen(open.last_error.clone()));
        }
        // Counted from the start of the attempt: a slow attempt does not delay the next one.
        open.next_attempt = now + RETRY_INTERVAL;
        Ok(())
    }

    fn record_outcome(&self, error: Option<&Arc<OpenError>>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = error.map(|error| OpenCircuit {
            next_attempt: state.as_ref().map_or(Instant::now() + RETRY_INTERVAL, |open| open.next_attempt),
            last_error: error.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_one_attempt_a_second_is_made() {
        let circuit = CircuitBreaker::default();
        let allows = || circuit.allow_attempt().is_ok();
        let failure = Arc::new(OpenError::Timeout);
        assert!(allows() && allows(), "any number of attempts while the circuit is closed");
        circuit.record_outcome(Some(&failure));
        let open = circuit.allow_attempt().unwrap_err();
        assert_eq!(open.to_string(), "circuit open (next attempt within 1s)");
        assert!(matches!(open, OpenError::CircuitOpen(last) if Arc::ptr_eq(&last, &failure)));
        advance(RETRY_INTERVAL).await;
        assert!(allows(), "one attempt");
        assert!(!allows(), "others fail at once while it is in progress");
        advance(RETRY_INTERVAL / 2).await;
        circuit.record_outcome(Some(&failure));
        assert!(!allows());
        advance(RETRY_INTERVAL / 2).await;
        assert!(allows(), "a second after the attempt started, not after it ended");
        circuit.record_outcome(None);
        assert!(allows() && allows());
    }
}
