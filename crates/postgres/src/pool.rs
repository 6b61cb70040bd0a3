//! The connection pool.
//!
//! **Invariants:**
//! - a connection enters a pool only if its server accepts writes, or is the one that the pool is for, and its schema is new
//!   enough;
//! - while the database is unavailable, a circuit breaker makes about one connection attempt per second; all other
//!   requests fail at once;
//! - a connection on which the server sends a warning is closed before the statement's result is returned. (PostgreSQL
//!   warns when it stops waiting for a standby: the commit is done, but a failover can still lose it.)

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use petstore_config::PoolSettings;
use petstore_read_quorum::ServerReport;
use petstore_telemetry::with_causes;
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;

use super::availability_log::AvailabilityLog;
use super::connect::{CONNECT_TIMEOUT, ConnectError, Connector, Target};
use super::database_url::DatabaseUrlError;
use super::schema_version::{HISTORY, check_version, lacking_text, schema_version};

/// How long a request may wait in its queue, and then for a connection from the pool.
pub const POOL_WAIT: Duration = Duration::from_secs(1);
/// The interval between connection attempts while the circuit is open, counted from the start of an attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) type ConnectionPool = Pool<ConnectionManager>;
pub(super) type Connection = Object<ConnectionManager>;
pub(crate) type GetConnectionError = PoolError<Arc<OpenError>>;

/// Creates a pool that opens connections on demand. Without this pool there is no database if it gets `availability`.
pub(crate) fn pool(
    connector: &Connector,
    target: Target,
    settings: &PoolSettings,
    schema_needed: i32,
    availability: Option<AvailabilityLog>,
) -> Result<ConnectionPool, DatabaseUrlError> {
    let connector = connector.for_requests(settings.database_timeout);
    let opener = ConnectionOpener {
        connector,
        target,
        schema_needed,
        circuit: CircuitBreaker::default(),
        availability,
        answered_at: Mutex::new(Instant::now()),
    };
    Pool::builder(ConnectionManager(Arc::new(opener)))
        .max_size(settings.database_connections.into())
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT))
        // The connection that was used last: its server process has the most in its caches.
        .queue_mode(QueueMode::Lifo)
        .build()
        .map_err(|_| DatabaseUrlError::Pool)
}

/// Why no connection was opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// No server accepts connections and writes.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The schema version could not be read.
    #[error("cannot read the schema version")]
    SchemaVersion(#[from] tokio_postgres::Error),
    /// The schema is too old. The text says what to do.
    #[error("{0}")]
    Unusable(String),
    /// Connecting and reading the schema version took too long.
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    Timeout,
    /// The last attempt failed, and the next one is not due yet. The source is the error of that attempt.
    #[error("circuit open (next attempt within {RETRY_INTERVAL:?})")]
    CircuitOpen(#[source] Arc<OpenError>),
}

/// A connection to a server.
pub(crate) struct Session {
    client: ClientWrapper,
    /// What the server has reported as a primary. It stays true for as long as the session lives: a server must restart to
    /// become a standby, or to get another timeline.
    pub(super) primary: OnceLock<ServerReport>,
}

impl Deref for Session {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}

/// Opens and checks the connections of a pool.
pub(crate) struct ConnectionManager(Arc<ConnectionOpener>);

struct ConnectionOpener {
    connector: Connector,
    target: Target,
    schema_needed: i32,
    circuit: CircuitBreaker,
    availability: Option<AvailabilityLog>,
    /// When the server last answered on a connection of the pool.
    answered_at: Mutex<Instant>,
}

impl ConnectionOpener {
    /// Makes an attempt, and records its outcome.
    async fn attempt(self: Arc<Self>) -> Result<Session, Arc<OpenError>> {
        let opened = timeout(CONNECT_TIMEOUT, self.open()).await.unwrap_or(Err(OpenError::Timeout));
        let opened = opened.map_err(Arc::new);
        self.circuit.record_outcome(opened.as_ref().err());
        if let Some(availability) = &self.availability {
            let server = self.connector.addresses_text();
            match &opened {
                Ok(_) => availability.found(&server),
                Err(error) => availability.lost(&server, || with_causes(error)),
            }
        }
        opened
    }

    async fn open(&self) -> Result<Session, OpenError> {
        let (client, task) = self.connector.open_closing_on_warning(self.target).await?;
        let found = match schema_version(&client).await {
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                let role: String = client.query_one("SELECT current_user::text", &[]).await?.try_get(0)?;
                return Err(OpenError::Unusable(lacking_text(&role, &[format!("SELECT on {HISTORY}")])));
            }
            found => found?,
        };
        check_version(found, self.schema_needed).map_err(OpenError::Unusable)?;
        Ok(Session { client: ClientWrapper::new(client, task), primary: OnceLock::new() })
    }
}

impl ConnectionManager {
    /// Records that the server has answered on one of the pool's connections.
    pub(super) fn answered(&self) {
        *self.0.answered_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.availability.iter().for_each(AvailabilityLog::answered);
    }

    /// For how long the server has not answered.
    pub(super) fn silence(&self) -> Duration {
        self.0.answered_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Manager for ConnectionManager {
    type Type = Session;
    type Error = Arc<OpenError>;

    async fn create(&self) -> Result<Session, Arc<OpenError>> {
        self.0.circuit.allow_attempt()?;
        // In its own task: an attempt is made only once per second, so it must not end with a caller that no longer waits.
        let attempt = tokio::spawn(self.0.clone().attempt());
        attempt.await.unwrap_or_else(|_| Err(Arc::new(OpenError::Timeout)))
    }

    async fn recycle(&self, client: &mut Session, _: &Metrics) -> RecycleResult<Arc<OpenError>> {
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
    use tokio::net::TcpListener;
    use tokio::time::{advance, sleep};

    use super::*;
    use petstore_config::{DatabaseUrl, ReadFrom};

    #[tokio::test]
    async fn an_attempt_runs_to_its_end_although_nobody_waits_for_it() {
        // It accepts connections, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgresql://petstore@{}/petstore", silent.local_addr().unwrap());
        let connector = Connector::new(&DatabaseUrl::from(url)).unwrap();
        let settings = PoolSettings {
            database_connections: 1,
            database_timeout: Duration::from_secs(1),
            reads: ReadFrom::Primary,
        };
        let pool = pool(&connector, Target::Server(0), &settings, 0, None).unwrap();
        assert!(timeout(Duration::from_millis(10), pool.get()).await.is_err());
        sleep(CONNECT_TIMEOUT).await;
        let open = pool.get().await.err().unwrap();
        assert!(matches!(open, PoolError::Backend(error) if matches!(*error, OpenError::CircuitOpen(_))));
    }

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
