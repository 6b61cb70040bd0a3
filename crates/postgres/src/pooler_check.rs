//! Refuses a connection pooler that shares server processes: everything else here assumes that a connection is a session, with
//! its own server process, settings and prepared statements.

use futures_util::future::join_all;
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

use super::connect::{CONNECT_TIMEOUT, ConnectError, Connector, NO_POOLER};

/// Why connections cannot be used.
#[derive(Debug, Error)]
pub enum NoSession {
    /// Statements of one connection ran in different server processes, or those of two connections in the same.
    #[error("a connection is not a session of its own: {NO_POOLER}")]
    Shared,
    /// A setting was lost.
    #[error(transparent)]
    Setting(ConnectError),
}

/// What a check found, or why it was not completed.
enum PoolerCheckFailure {
    Found(NoSession),
    NotCompleted,
}

impl From<ConnectError> for PoolerCheckFailure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::SettingLost { .. } => Self::Found(NoSession::Setting(error)),
            _ => Self::NotCompleted,
        }
    }
}

impl From<tokio_postgres::Error> for PoolerCheckFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        // The last is PgBouncer's answer to a transaction in statement mode.
        let of_poolers = [
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::DUPLICATE_PSTATEMENT,
            SqlState::PROTOCOL_VIOLATION,
        ];
        if error.code().is_some_and(|code| of_poolers.contains(code)) {
            Self::Found(NoSession::Shared)
        } else {
            Self::NotCompleted
        }
    }
}

/// Checks every server that responds.
pub async fn check_sessions(connector: &Connector) -> Result<(), NoSession> {
    let connector = &connector.including_standbys();
    let servers = 0..connector.addresses().count();
    let checks = servers.map(|server| timeout(CONNECT_TIMEOUT, check_server(connector, server)));
    for checked in join_all(checks).await {
        if let Ok(Err(PoolerCheckFailure::Found(problem))) = checked {
            return Err(problem);
        }
    }
    Ok(())
}

/// Opens two connections, and interleaves what they do. A pooler that gives a server process to a connection for one
/// transaction gives that of the first to the second.
async fn check_server(connector: &Connector, server: usize) -> Result<(), PoolerCheckFailure> {
    let (one, other) = (connector.open_server(server).await?, connector.open_server(server).await?);
    let process = async |client: &Client, statement: &Statement| -> Result<i32, tokio_postgres::Error> {
        client.query_one(statement, &[]).await?.try_get(0)
    };
    let statement = one.prepare("SELECT pg_backend_pid()").await?;
    let before = process(&one, &statement).await?;
    other.batch_execute("BEGIN").await?;
    let others = other.prepare("SELECT pg_backend_pid()").await?;
    let others = process(&other, &others).await?;
    let after = process(&one, &statement).await?;
    other.batch_execute("COMMIT").await?;
    if before != after || before == others {
        return Err(PoolerCheckFailure::Found(NoSession::Shared));
    }
    Ok(())
}
