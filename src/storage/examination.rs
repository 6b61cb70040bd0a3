//! A look at one database from outside, for `petstore doctor`: whatever state it is in, it changes nothing.

use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tokio::time::timeout;

use super::connect::{ConnectError, Connector};
use super::{CONNECT_TIMEOUT, DatabaseUrlError, migrations};
use crate::config::DatabaseUrl;

/// What the server says of itself and of us.
const EXAMINE: &str = "\
    SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_user::text, \
      pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication), \
      current_setting('synchronous_standby_names'), \
      current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, \
      (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), clock_timestamp(), \
      current_setting('server_encoding')";

/// Those of our tables that this role may not use as the service does.
const FORBIDDEN: &str = "\
    SELECT name FROM unnest($1::text[]) AS name \
    WHERE to_regclass(name) IS NOT NULL \
      AND NOT has_table_privilege(to_regclass(name), 'SELECT, INSERT, UPDATE') ORDER BY name";

/// What was found.
#[derive(Debug)]
pub struct Examination {
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
    /// How the database encodes text.
    pub encoding: String,
    /// Tables of ours that the role may not read and write.
    pub forbidden: Vec<String>,
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
pub enum ExaminationError {
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
pub async fn examine(url: &DatabaseUrl) -> Result<Examination, ExaminationError> {
    // Once to connect, and as long again for the answers.
    let patience = CONNECT_TIMEOUT * 2;
    timeout(patience, examine_patiently(url)).await.map_err(|_| ExaminationError::Silence(patience))?
}

async fn examine_patiently(url: &DatabaseUrl) -> Result<Examination, ExaminationError> {
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
    let forbidden = client.query(FORBIDDEN, &[&migrations::tables()]).await?;
    Ok(Examination {
        connecting,
        round_trip,
        version: (row.try_get(0)?, row.try_get(1)?),
        role: row.try_get(2)?,
        is_standby: row.try_get(3)?,
        standbys: row.try_get(4)?,
        synchronous: row.try_get(5)?,
        connections: (row.try_get(6)?, row.try_get(7)?),
        clock_ahead,
        encoding: row.try_get(9)?,
        schema: if forbidden.is_empty() { Some(migrations::schema_version(&client).await?) } else { None },
        forbidden: forbidden.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?,
    })
}
