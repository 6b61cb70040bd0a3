//! A new API key is shown before the transaction that makes it valid commits.
//!
//! **Invariant:** no key is valid that nobody could see. If a key cannot be shown, or the program ends before it is shown,
//! nothing is changed.

use std::io;
use std::time::Duration;

use petstore_domain::key_record::KeyId;
use petstore_postgres::{Parameters, StatementError, StorageError, not_committed, unexpected};
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::{Client, Transaction};

/// How long to wait for each lock.
const LIMIT_WAIT: &str = "SELECT set_config('lock_timeout', '10s', true)";

/// How long the output may block. The open transaction delays the event feed.
const LIMIT_IDLE: &str = "SELECT set_config('idle_in_transaction_session_timeout', '10s', true)";

/// How long to wait for the commit, which may wait for a standby.
const COMMIT_WAIT: Duration = Duration::from_secs(10);

/// Why no key was issued.
#[derive(Debug, Error)]
pub enum IssueError {
    /// A statement failed before the key was shown. Nothing was changed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The key could not be shown.
    #[error("nothing was changed")]
    NotShown(#[source] io::Error),
    /// The key was shown, but the database rejected the commit.
    #[error("nothing was changed, so a key that was printed is not valid")]
    NotCommitted(#[source] StorageError),
    /// The key was shown, and the commit was not confirmed.
    #[error("a key that was printed may or may not be valid: see `petstore keys list`")]
    OutcomeUnknown(#[source] StorageError),
}

/// Begins a transaction that waits for each lock for a limited time.
pub(super) async fn begin(client: &mut Client) -> Result<Transaction<'_>, StorageError> {
    let transaction = client.transaction().await.map_err(not_committed)?;
    transaction.execute(LIMIT_WAIT, &[]).await.map_err(not_committed)?;
    Ok(transaction)
}

/// Runs a statement that inserts a key and returns its id, shows the key, and commits. Returns none if the statement inserted
/// nothing.
pub(super) async fn issue(
    transaction: Transaction<'_>,
    statement: &str,
    parameters: Parameters<'_>,
    show: impl FnOnce(KeyId) -> io::Result<()>,
) -> Result<Option<KeyId>, IssueError> {
    let row = transaction.query_opt(statement, parameters).await.map_err(not_committed)?;
    let Some(row) = row else { return Ok(None) };
    let id = KeyId(row.try_get("id").map_err(unexpected)?);
    commit_shown(transaction, || show(id)).await?;
    Ok(Some(id))
}

/// Commits a transaction once `show` has shown the keys that it issues. `show` blocks: the transaction waits for it.
pub(super) async fn commit_shown(
    transaction: Transaction<'_>,
    show: impl FnOnce() -> io::Result<()>,
) -> Result<(), IssueError> {
    transaction.execute(LIMIT_IDLE, &[]).await.map_err(not_committed)?;
    show().map_err(IssueError::NotShown)?;
    // If the session ended while the output was blocked, it is known that nothing was committed.
    transaction.batch_execute("").await.map_err(not_committed).map_err(IssueError::NotCommitted)?;
    let committed = timeout(COMMIT_WAIT, transaction.commit()).await;
    let error = match committed {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => StatementError::Sent(error),
        Err(_) => StatementError::Deadline(COMMIT_WAIT),
    };
    Err(match error.into_write_error() {
        error @ StorageError::OutcomeUnknown(_) => IssueError::OutcomeUnknown(error),
        error => IssueError::NotCommitted(error),
    })
}
