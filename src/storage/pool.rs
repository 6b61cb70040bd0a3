//! The pool of connections: which are kept, and when another is opened.
//!
//! **Invariants:**
//! - a connection comes into the pool only if its server takes writes and its schema is new enough;
//! - a database that is away costs about one attempt a second, however many requests come: all others fail at once;
//! - a connection on which the server warned is closed before the statement is answered. (PostgreSQL warns when it gives
//!   up waiting for a standby: it has committed, but a failover can still lose it.)

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::connect::{ConnectError, Connector};
use super::{CONNECT_TIMEOUT, DatabaseUrlError, POOL_WAIT, SCHEMA_NEEDED, migrations};
use crate::config::PoolSettings;

/// How long after a failed attempt the next one is made.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) type Connections = Pool<Opener>;
pub(super) type Connection = Object<Opener>;
pub(super) type NoConnection = PoolError<OpenError>;

/// A pool of connections that open when needed.
pub(super) fn pool(connector: &Connector, settings: &PoolSettings) -> Result<Connections, DatabaseUrlError> {
    let opener =
        Opener { connector: connector.for_requests(settings.database_timeout), breaker: Breaker::default() };
    Pool::builder(opener)
        .max_size(settings.database_connections.into())
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT))
        .build()
        .map_err(|_| DatabaseUrlError::Pool)
}

/// Why no connection was opened.
#[derive(Debug, Error)]
pub(super) enum OpenError {
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
pub(super) struct Opener {
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
            // The attempt that is made now may take its time: others wait for the one after it.
            Some(_) => {
                *next = Some(now + PAUSE);
                true
            }
            None => true,
        }
    }

    fn learn(&self, succeeded: bool) {
        let next = if succeeded { None } else { Some(Instant::now() + PAUSE) };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
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
        breaker.learn(false);
        advance(PAUSE / 2).await;
        assert!(!breaker.lets_pass());
        advance(PAUSE / 2).await;
        assert!(breaker.lets_pass());
        breaker.learn(true);
        assert!(breaker.lets_pass() && breaker.lets_pass());
    }
}
