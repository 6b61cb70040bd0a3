//! A look at one database from outside, for `petstore doctor`: whatever state it is in, it changes nothing.

use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::DatabaseUrlError;
use super::idempotency_keys::DAYS_PREPARED;
use super::postgres::connect::{CONNECT_TIMEOUT, ConnectError, Connector};
use super::postgres::migrations;
use crate::config::DatabaseUrl;

/// What the server says of itself and of us.
const EXAMINE: &str = "\
    SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_user::text, \
      pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication), \
      current_setting('synchronous_standby_names'), \
      current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, \
      (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), clock_timestamp(), \
      current_setting('server_encoding')";

/// What the service needs of deploy/postgresql/roles.sql and this role lacks, of what there is. (A right to some columns
/// counts: of keys, only some are ever changed.)
const LACKING: &str = "\
    SELECT privilege || ' on ' || name FROM (VALUES \
      ('SELECT', 'refinery_schema_history'), ('SELECT', 'pets'), ('INSERT', 'pets'), ('UPDATE', 'pets'), \
      ('SELECT', 'orders'), ('INSERT', 'orders'), ('UPDATE', 'orders'), \
      ('SELECT', 'api_keys'), ('INSERT', 'api_keys'), ('UPDATE', 'api_keys'), \
      ('SELECT', 'api_key_events'), ('INSERT', 'api_key_events'), \
      ('SELECT', 'idempotency_keys'), ('INSERT', 'idempotency_keys'), \
      ('SELECT', 'imported_chunks'), ('INSERT', 'imported_chunks')) AS needed (privilege, name) \
    WHERE NOT has_any_column_privilege(to_regclass(name), privilege) \
    UNION ALL SELECT 'USAGE on ' || name FROM (VALUES ('pets_id_seq')) AS needed (name) \
    WHERE NOT has_sequence_privilege(to_regclass(name), 'USAGE') \
    UNION ALL SELECT 'EXECUTE on ' || name \
    FROM (VALUES ('create_idempotency_partitions()'), ('drop_idempotency_partitions()')) AS needed (name) \
    WHERE NOT has_function_privilege(to_regprocedure(name), 'EXECUTE')";

/// What was found.
#[derive(Debug)]
pub struct Diagnosis {
    /// How long it took to connect.
    pub connecting: Duration,
    /// How long a statement takes.
    pub round_trip: Duration,
    /// The server's version, as it writes it and as a number such as 150004.
    pub version: (String, i32),
    /// The version of the schema, 0 if there is none; unknown if the role may not see it.
    pub schema: Option<i32>,
    /// Who we are there.
    pub role: String,
    /// The rights that the service needs and the role lacks, such as `INSERT on pets`.
    pub lacking: Vec<String>,
    /// How the database encodes text.
    pub encoding: String,
    /// How many days from today on have a partition to remember requests in; unknown without the table.
    pub days_prepared: Option<i32>,
    /// Whether it follows another server, and takes no writes.
    pub is_standby: bool,
    /// How many servers follow it.
    pub standbys: i64,
    /// Which of them a commit waits for, in PostgreSQL's words; empty for none.
    pub synchronous: String,
    /// The most connections that it takes from such as us, and how many there are.
    pub connections: (i32, i64),
    /// By how much its clock is before ours, in seconds; negative if it is behind.
    pub clock_ahead: f64,
}

/// Why there is nothing to say.
#[derive(Debug, Error)]
pub enum DiagnosisError {
    /// Its address cannot be used.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It refused.
    #[error("the database refused to say how it is")]
    Database(#[from] tokio_postgres::Error),
    /// It does not answer.
    #[error("the database did not answer within {0:?}")]
    Silence(Duration),
}

/// Looks at a database.
pub async fn diagnose(url: &DatabaseUrl) -> Result<Diagnosis, DiagnosisError> {
    // Once to connect, and as long again for the answers.
    let patience = CONNECT_TIMEOUT * 2;
    timeout(patience, examine_patiently(url)).await.map_err(|_| DiagnosisError::Silence(patience))?
}

async fn examine_patiently(url: &DatabaseUrl) -> Result<Diagnosis, DiagnosisError> {
    let begun = Instant::now();
    let client = Connector::new(url)?.including_standbys().open().await?;
    let connecting = begun.elapsed();
    let statement = client.prepare(EXAMINE).await?;
    let begun = Instant::now();
    let row = client.query_one(&statement, &[]).await?;
    let (round_trip, now) = (begun.elapsed(), SystemTime::now());
    let theirs: SystemTime = row.try_get(8)?;
    let seconds = |later: SystemTime, earlier| later.duration_since(earlier).map(|time| time.as_secs_f64());
    // The server read its clock half a round trip ago, more or less.
    let ours = now - round_trip / 2;
    let clock_ahead =
        seconds(theirs, ours).or_else(|_| seconds(ours, theirs).map(|behind| -behind)).unwrap_or(0.0);
    let lacking = client.query(LACKING, &[]).await?;
    let schema = match migrations::schema_version(&client).await {
        Ok(version) => Some(version),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Diagnosis {
        connecting,
        round_trip,
        version: (row.try_get(0)?, row.try_get(1)?),
        role: row.try_get(2)?,
        is_standby: row.try_get(3)?,
        standbys: row.try_get(4)?,
        synchronous: row.try_get(5)?,
        connections: (row.try_get(6)?, row.try_get(7)?),
        clock_ahead,
        schema,
        lacking: lacking.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?,
        encoding: row.try_get(9)?,
        days_prepared: client.query_one(DAYS_PREPARED, &[]).await?.try_get(0)?,
    })
}
