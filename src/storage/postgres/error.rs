//! What can go wrong with the database, sorted by what the caller can do about it.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::PoolError;
use metrics::counter;
use thiserror::Error;
use tokio_postgres::error::SqlState;

use super::connect::ConnectError;
use super::pool::{NoConnection, OpenError};
use crate::telemetry::metrics::DATABASE_ERRORS;

/// The reasons, in the database's own words. For the log, never for a client.
type Cause = Arc<dyn Error + Send + Sync>;

/// Why the database did not do what it was asked.
#[derive(Debug, Clone, Error)]
pub enum StorageError {
    /// The database cannot do it now, and did nothing: the same request may succeed later.
    #[error("the database is not available")]
    Unavailable(#[source] Cause),
    /// A write was sent, and whether it took effect is not known. Repeating it might do it twice.
    #[error("the database did not say whether the write took effect")]
    OutcomeUnknown(#[source] Cause),
    /// Another transaction holds what the statement needs, for too long. Nothing was done.
    #[error("another transaction is in the way")]
    Locked(#[source] Cause),
    /// Another transaction did the same at the same time, and was first. Nothing was done.
    #[error("another transaction was faster")]
    Raced(#[source] Cause),
    /// There is no partition to remember the request in. Nothing was done, and one is created at once.
    #[error("there is no partition to remember the request in")]
    NoPartition(#[source] Cause),
    /// The database has not been migrated for this program. The text says what to run.
    #[error("{0}")]
    SchemaTooOld(String),
    /// Anything else is a bug, here or in the database.
    #[error("the database answered unexpectedly")]
    Unexpected(#[source] Cause),
}

/// How far a statement had come when it failed.
#[derive(Debug)]
pub(in crate::storage) enum Failure {
    NoConnection(NoConnection),
    NotSent(tokio_postgres::Error),
    Sent(tokio_postgres::Error),
    Deadline(Duration),
}

impl Failure {
    /// Words for the metrics.
    pub(in crate::storage) const KINDS: [&str; 4] =
        ["no_connection", "deadline", "connection_lost", "refused"];

    /// One of them.
    pub(in crate::storage) fn kind(&self) -> &'static str {
        let [no_connection, deadline, connection_lost, refused] = Self::KINDS;
        match self {
            Self::NoConnection(_) => no_connection,
            Self::Deadline(_) => deadline,
            Self::NotSent(error) | Self::Sent(error) if error.code().is_none() => connection_lost,
            Self::NotSent(_) | Self::Sent(_) => refused,
        }
    }

    /// Counts the failure.
    pub(in crate::storage) fn counted(self) -> Self {
        counter!(DATABASE_ERRORS, "kind" => self.kind()).increment(1);
        self
    }

    /// Whether the connection cannot be used any more: an answer is still to come, or its server takes no writes.
    pub(in crate::storage) fn spoils_the_connection(&self) -> bool {
        match self {
            Self::Deadline(_) => true,
            Self::Sent(error) => error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION),
            Self::NoConnection(_) | Self::NotSent(_) => false,
        }
    }

    /// Whether a row was refused because there is no partition for it.
    pub(in crate::storage) fn lacks_partition(&self) -> bool {
        matches!(self, Self::Sent(error) if lacks_partition(error))
    }

    pub(in crate::storage) fn of_read(self) -> StorageError {
        match self {
            Self::NoConnection(PoolError::Backend(OpenError::Schema(schema))) => {
                StorageError::SchemaTooOld(schema)
            }
            Self::NoConnection(PoolError::Backend(error)) => StorageError::Unavailable(Arc::new(error)),
            Self::NoConnection(error) => StorageError::Unavailable(Arc::new(error)),
            Self::Sent(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                StorageError::Locked(Arc::new(error))
            }
            Self::Sent(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                StorageError::Raced(Arc::new(error))
            }
            Self::Sent(error) if lacks_partition(&error) => StorageError::NoPartition(Arc::new(error)),
            Self::NotSent(error) | Self::Sent(error) if is_transient(&error) => {
                StorageError::Unavailable(Arc::new(error))
            }
            Self::NotSent(error) | Self::Sent(error) => StorageError::Unexpected(Arc::new(error)),
            Self::Deadline(limit) => StorageError::Unavailable(deadline(limit)),
        }
    }

    pub(in crate::storage) fn of_write(self) -> StorageError {
        match self {
            Self::Sent(error) if !is_refusal(&error) => StorageError::OutcomeUnknown(Arc::new(error)),
            Self::Deadline(limit) => StorageError::OutcomeUnknown(deadline(limit)),
            other => other.of_read(),
        }
    }
}

impl From<ConnectError> for StorageError {
    fn from(error: ConnectError) -> Self {
        Self::Unavailable(Arc::new(error))
    }
}

/// What should not happen.
pub(in crate::storage) fn unexpected(error: impl Error + Send + Sync + 'static) -> StorageError {
    StorageError::Unexpected(Arc::new(error))
}

/// An error after a statement has committed: what it did is not known, whatever the error is.
pub(in crate::storage) fn outcome_unknown(error: StorageError) -> StorageError {
    StorageError::OutcomeUnknown(Arc::new(error))
}

/// A reason of our own words.
pub(in crate::storage) fn cause(words: impl Into<String>) -> Cause {
    Box::<dyn Error + Send + Sync>::from(words.into()).into()
}

fn deadline(limit: Duration) -> Cause {
    cause(format!("no answer within {limit:?}"))
}

/// The server said no, so the statement had no effect. A broken connection says nothing, and neither does a
/// server that is going down: it may have committed before.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| !state.code().starts_with("57P") && !state.code().starts_with("08"))
}

/// PostgreSQL reports it as a violated check, but one without a name.
fn lacks_partition(error: &tokio_postgres::Error) -> bool {
    let check = error.as_db_error().filter(|error| *error.code() == SqlState::CHECK_VIOLATION);
    check.is_some_and(|error| error.constraint().is_none())
}

/// It may work later: the server is away, going down, coming up, full, overloaded, read-only or too slow.
fn is_transient(error: &tokio_postgres::Error) -> bool {
    let Some(state) = error.code() else {
        let broken = error.source().is_some_and(<dyn Error>::is::<io::Error>);
        return broken || error.is_closed();
    };
    let class = &state.code()[..2];
    matches!(class, "08" | "40" | "53" | "57" | "58") || *state == SqlState::READ_ONLY_SQL_TRANSACTION
}
