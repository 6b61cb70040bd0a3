//! Database errors, classified by what the caller can do about them.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::PoolError;
use metrics::counter;
use petstore_read_quorum::NotFresh;
use petstore_telemetry::metrics::DATABASE_ERRORS;
use petstore_telemetry::with_causes;
use thiserror::Error;
use tokio_postgres::error::SqlState;

use super::connect::ConnectError;
use super::pool::{GetConnectionError, OpenError};

/// The underlying error, with the server's own text. For the log, never for a client.
type UnderlyingError = Arc<dyn Error + Send + Sync>;

/// Why a statement failed.
#[derive(Debug, Clone, Error)]
pub enum StorageError {
    /// The database is unavailable and did nothing: the same request may succeed later.
    #[error("database unavailable")]
    Unavailable(#[source] UnderlyingError),
    /// A write was sent, but its outcome is unknown. A retry might apply it twice.
    #[error("outcome of the write is unknown")]
    OutcomeUnknown(#[source] UnderlyingError),
    /// Another transaction held a lock for too long. Nothing was done.
    #[error("timed out waiting for a lock held by another transaction")]
    Locked(#[source] UnderlyingError),
    /// A concurrent transaction made the same change first. Nothing was done.
    #[error("lost a race to a concurrent transaction")]
    Raced(#[source] UnderlyingError),
    /// This transaction and another one waited for each other, and PostgreSQL ended this one. Nothing was done.
    #[error("ended by a deadlock with another transaction")]
    Deadlock(#[source] UnderlyingError),
    /// The table has no partition for a row. Nothing was done, and whoever creates partitions is told.
    #[error("no partition for a row")]
    NoPartition(#[source] UnderlyingError),
    /// The database responds, but cannot be used: its schema is too old, for example. The text says what to do.
    #[error("{0}")]
    Unusable(String),
    /// Anything else: a bug, here or in the database.
    #[error("unexpected database error")]
    Unexpected(#[source] UnderlyingError),
}

impl StorageError {
    /// Whether the statement met another transaction's entry in an index with this name, or in one whose name starts with it: it
    /// violated the index, or waited for that transaction.
    #[must_use]
    pub fn names_index(&self, name: &str) -> bool {
        let (Self::Locked(source) | Self::Raced(source)) = self else { return false };
        let error =
            source.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::as_db_error);
        // PostgreSQL names the index of a wait only in the context, whose other words may be translated.
        error.is_some_and(|error| {
            let places = [error.constraint(), error.where_()];
            places.into_iter().flatten().any(|place| place.contains(name))
        })
    }
}

/// A failed statement, by how far it had got.
#[derive(Debug)]
pub enum StatementError {
    /// No connection was available.
    NoConnection(GetConnectionError),
    /// It failed before it was sent, or changes nothing.
    NotSent(tokio_postgres::Error),
    /// It was sent, and failed or got no answer.
    Sent(tokio_postgres::Error),
    /// It was sent, and got no answer in time.
    Deadline(Duration),
    /// No server takes writes.
    NoPrimary,
    /// No server is proven to have every acknowledged write.
    Unproven(NotFresh),
}

impl StatementError {
    /// The values of the metric label `kind`.
    pub(crate) const KINDS: [&str; 5] =
        ["no_connection", "deadline", "connection_lost", "refused", "unproven"];

    /// The label value of this error.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        let [no_connection, deadline, connection_lost, refused, unproven] = Self::KINDS;
        match self {
            Self::NoConnection(_) | Self::NoPrimary => no_connection,
            Self::Unproven(_) => unproven,
            Self::Deadline(_) => deadline,
            Self::NotSent(error) | Self::Sent(error) if error.code().is_none() => connection_lost,
            Self::NotSent(_) | Self::Sent(_) => refused,
        }
    }

    /// Adds the error to the metrics.
    #[must_use]
    pub fn counted(self) -> Self {
        counter!(DATABASE_ERRORS, "kind" => self.kind()).increment(1);
        self
    }

    /// Whether the connection must be closed: a response is still pending, or its server is read-only.
    #[must_use]
    pub(crate) fn invalidates_connection(&self) -> bool {
        match self {
            Self::Deadline(_) => true,
            Self::Sent(error) => {
                error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) || is_stale_session(error)
            }
            Self::NoConnection(_) | Self::NotSent(_) | Self::NoPrimary | Self::Unproven(_) => false,
        }
    }

    /// Whether a read may succeed if it is tried again.
    #[must_use]
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::NotSent(error) | Self::Sent(error) => is_transient(error),
            Self::NoConnection(_) | Self::Deadline(_) | Self::NoPrimary | Self::Unproven(_) => true,
        }
    }

    /// What it means for a caller that changes nothing.
    #[must_use]
    pub fn into_read_error(self) -> StorageError {
        match self {
            Self::NoConnection(PoolError::Backend(error)) => match &*error {
                OpenError::Unusable(message) => StorageError::Unusable(message.clone()),
                OpenError::Connect(error @ ConnectError::SettingLost { .. }) => {
                    StorageError::Unusable(error.to_string())
                }
                _ => StorageError::Unavailable(error),
            },
            // Also while it is prepared: that needs a lock on its tables.
            Self::NotSent(error) | Self::Sent(error)
                if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) =>
            {
                StorageError::Locked(Arc::new(error))
            }
            Self::Sent(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                StorageError::Raced(Arc::new(error))
            }
            Self::Sent(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {
                StorageError::Deadlock(Arc::new(error))
            }
            Self::Sent(error) if is_missing_partition(&error) => StorageError::NoPartition(Arc::new(error)),
            Self::NotSent(error) | Self::Sent(error) if is_transient(&error) => {
                StorageError::Unavailable(Arc::new(error))
            }
            Self::NotSent(error) | Self::Sent(error) => StorageError::Unexpected(Arc::new(error)),
            Self::NoConnection(_) | Self::Deadline(_) | Self::NoPrimary => {
                StorageError::Unavailable(error_message(self.to_string()))
            }
            Self::Unproven(reason) => StorageError::Unavailable(Arc::new(reason)),
        }
    }

    /// What it means for a caller that writes.
    #[must_use]
    pub fn into_write_error(self) -> StorageError {
        match self {
            Self::Sent(error) if !is_rejection(&error) => StorageError::OutcomeUnknown(Arc::new(error)),
            Self::Deadline(_) => StorageError::OutcomeUnknown(error_message(self.to_string())),
            other => other.into_read_error(),
        }
    }
}

impl fmt::Display for StatementError {
    /// With all causes, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without the pool's own words.
            Self::NoConnection(PoolError::Backend(error)) => f.write_str(&with_causes(error)),
            Self::NoConnection(PoolError::Timeout(_)) => f.write_str(
                "no database connection was free in time, because other statements are slow or wait for a lock: \
                 `petstore doctor` names the session that blocks",
            ),
            Self::NoConnection(error) => f.write_str(&with_causes(error)),
            Self::NotSent(error) | Self::Sent(error) => f.write_str(&with_causes(error)),
            Self::Deadline(limit) => write!(f, "no response within {limit:?}"),
            Self::NoPrimary => f.write_str("no server accepts writes"),
            Self::Unproven(reason) => reason.fmt(f),
        }
    }
}

impl From<ConnectError> for StorageError {
    fn from(error: ConnectError) -> Self {
        Self::Unavailable(Arc::new(error))
    }
}

/// The error of a statement outside of the pool that did not commit anything.
#[must_use]
pub fn not_committed(error: tokio_postgres::Error) -> StorageError {
    StatementError::NotSent(error).into_read_error()
}

/// Wraps an error, or a message, that indicates a bug.
pub fn unexpected(error: impl Into<Box<dyn Error + Send + Sync>>) -> StorageError {
    StorageError::Unexpected(error.into().into())
}

/// Wraps an error after a statement has committed: whatever it is, the client does not learn the outcome.
pub(crate) fn outcome_unknown(error: StorageError) -> StorageError {
    StorageError::OutcomeUnknown(Arc::new(error))
}

/// An error that is only a message.
pub fn error_message(text: impl Into<String>) -> UnderlyingError {
    Box::<dyn Error + Send + Sync>::from(text.into()).into()
}

/// The server rejected the statement, so it had no effect. A broken connection proves nothing, and neither does a
/// server that is shutting down (57P…): it may have committed before.
fn is_rejection(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| !state.code().starts_with("57P") && !state.code().starts_with("08"))
}

/// PostgreSQL reports a missing partition as a violated check without a constraint name.
pub(super) fn is_missing_partition(error: &tokio_postgres::Error) -> bool {
    let check = error.as_db_error().filter(|error| *error.code() == SqlState::CHECK_VIOLATION);
    check.is_some_and(|error| error.constraint().is_none())
}

/// A retry may succeed: the server is unreachable, stopping, starting, full, overloaded, read-only or too slow, it has waited too long
/// for the next statement of a transaction, or the session is stale.
fn is_transient(error: &tokio_postgres::Error) -> bool {
    let Some(state) = error.code() else {
        let broken = error.source().is_some_and(<dyn Error>::is::<io::Error>);
        return broken || error.is_closed();
    };
    let class = &state.code()[..2];
    matches!(class, "08" | "40" | "53" | "57" | "58")
        || *state == SqlState::READ_ONLY_SQL_TRANSACTION
        || *state == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        || is_stale_session(error)
}

/// The session knows a table or a type as it was before somebody changed it: "cached plan must not change result type", "cache
/// lookup failed for type". A new session succeeds.
fn is_stale_session(error: &tokio_postgres::Error) -> bool {
    // The text of the first is translated, and no statement of ours uses what is not supported. Internal errors are not translated.
    error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED)
        || error.as_db_error().is_some_and(|error| error.message().starts_with("cache lookup failed"))
}
