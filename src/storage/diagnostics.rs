//! Examines a database for `petstore doctor`, in whatever state it is, without changing anything.

use std::time::{Duration, Instant, UNIX_EPOCH};

use futures_util::future::{join_all, join3};
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;

use super::DatabaseUrlError;
use super::events::{EPOCH, FeedEpoch};
use super::partitions::DAYS_PREPARED;
use super::postgres::availability::Availability;
use super::postgres::cluster::{Cluster, Guarantee};
use super::postgres::connect::{CONNECT_TIMEOUT, ConnectError, Connector};
use super::postgres::migrations;
use super::postgres::pooler_check::{NoSession, check_sessions};
use super::privileges::missing_privileges;
use super::read_quorum::Lsn;
use crate::config::{DatabaseUrl, PoolSettings};

const SERVER_STATUS: &str = "\
    SELECT
      current_setting('server_version') AS version,
      current_setting('server_version_num')::int AS version_number,
      current_user::text AS role,
      current_setting('server_encoding') AS encoding,
      pg_is_in_recovery() AS is_standby,
      (SELECT count(*) FROM pg_stat_replication) AS standbys,
      current_setting('synchronous_standby_names') AS synchronous,
      current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        -- Since PostgreSQL 16.
        - coalesce(current_setting('reserved_connections', true)::int, 0) AS max_connections,
      (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
      extract(epoch FROM clock_timestamp())::float8 AS clock";

/// The role and the position of one server. Only `pg_monitor` sees whom a standby follows.
const SERVER_ROLE: &str = "\
    SELECT
      is_standby,
      CASE
        WHEN is_standby THEN receiver.received_tli
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int
      END AS timeline,
      CASE WHEN is_standby THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS position,
      receiver.sender_host || ':' || receiver.sender_port AS upstream
    FROM (SELECT pg_is_in_recovery() AS is_standby) AS role
    LEFT JOIN pg_stat_wal_receiver AS receiver ON receiver.status = 'streaming'";

/// How many of the triggers that record events are enabled.
const ENABLED_TRIGGERS: &str = "\
    SELECT count(*) AS triggers
    FROM pg_trigger
    WHERE tgrelid IN (to_regclass('pets'), to_regclass('orders'))
      AND starts_with(tgname, tgrelid::regclass || '_record_')
      AND tgenabled = 'O'";

/// The state of one server.
#[derive(Debug)]
pub struct ServerDiagnosis {
    /// Host and port, as in the database URL.
    pub address: String,
    /// Its role, or the error if it could not be asked.
    pub role: Result<ServerRole, ExamineError>,
}

/// The role of a server.
#[derive(Debug)]
pub struct ServerRole {
    /// Whether it is a standby, which is read-only.
    pub is_standby: bool,
    /// Its timeline, if the role may see it. A standby has one while it receives.
    pub timeline: Option<i32>,
    /// How much of the write-ahead log a primary has flushed, or a standby has replayed.
    pub position: Lsn,
    /// The address of the server that a standby follows, if the role may see it.
    pub upstream: Option<String>,
}

/// The state of a database.
#[derive(Debug)]
pub struct Diagnosis {
    /// The servers of the database URL, in its order.
    pub servers: Vec<ServerDiagnosis>,
    /// How long it took to connect.
    pub connecting: Duration,
    /// How long one statement took.
    pub round_trip: Duration,
    /// The server's version as text, and as a number such as 150004.
    pub version: (String, i32),
    /// The schema version, 0 without a schema; none if the role may not read it.
    pub schema: Option<i32>,
    /// The role of the connection.
    pub role: String,
    /// The privileges that the service needs and the role lacks, such as `INSERT on pets`.
    pub lacking: Vec<String>,
    /// The database's encoding.
    pub encoding: String,
    /// The number of days from today on that have a partition for idempotency keys and one for events; none without the
    /// tables.
    pub days_prepared: Option<i32>,
    /// When and why the feed of events began; none without the feed, or if the role may not read it.
    pub feed: Option<FeedEpoch>,
    /// How many of the [`EVENT_TRIGGERS`] are enabled.
    pub enabled_triggers: i64,
    /// Whether the server is a standby, which is read-only.
    pub is_standby: bool,
    /// The number of its standbys.
    pub standbys: i64,
    /// The setting `synchronous_standby_names`; empty for none.
    pub synchronous: String,
    /// The maximum number of connections for roles that are not superusers, and the current number.
    pub connections: (i32, i64),
    /// What is promised of reads; none with a single server.
    pub reads: Option<ReadFreshness>,
    /// By how many seconds the server's clock is ahead of the local one; negative if it is behind.
    pub clock_ahead: f64,
}

/// The number of triggers that record events.
pub const EVENT_TRIGGERS: i64 = 8;

/// What is promised of reads from a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFreshness {
    /// Whether reads are proven to be fresh and outlive the primary.
    pub is_proven: bool,
    /// What is promised, and what is missing.
    pub says: &'static str,
}

/// Why a database could not be examined.
#[derive(Debug, Error)]
pub enum ExamineError {
    /// The database URL is invalid.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// The database is unreachable.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement failed.
    #[error("cannot examine the database")]
    Database(#[from] tokio_postgres::Error),
    /// Its connections are not sessions.
    #[error(transparent)]
    Sessions(#[from] NoSession),
    /// The database did not respond in time.
    #[error("no response from the database within {0:?}")]
    Timeout(Duration),
}

/// Examines a database.
pub async fn diagnose(url: &DatabaseUrl, pool: &PoolSettings) -> Result<Diagnosis, ExamineError> {
    // To connect, once more without a primary, and as long again for the statements.
    let limit = CONNECT_TIMEOUT * 3;
    timeout(limit, examine(url, pool)).await.map_err(|_| ExamineError::Timeout(limit))?
}

async fn examine(url: &DatabaseUrl, pool: &PoolSettings) -> Result<Diagnosis, ExamineError> {
    let connector = Connector::new(url)?;
    let any_role = connector.including_standbys();
    let servers =
        any_role.addresses().enumerate().map(|(server, address)| {
            let any_role = &any_role;
            async move {
                ServerDiagnosis { address: address.to_string(), role: server_role(any_role, server).await }
            }
        });
    check_sessions(&connector.for_requests(pool.database_timeout)).await?;
    let open = async |connector: &Connector| {
        let started = Instant::now();
        connector.open().await.map(|client| (client, started.elapsed()))
    };
    let cluster = Cluster::new(&connector, pool, CONNECT_TIMEOUT, Availability::new())?;
    let reads = async {
        let guarantee = cluster.as_ref()?.guarantee().await;
        let is_proven = guarantee == Guarantee::Proven { standbys: true };
        Some(ReadFreshness { is_proven, says: guarantee.text() })
    };
    let (servers, primary, reads) = join3(join_all(servers), open(&connector), reads).await;
    let (client, connecting) = match primary {
        // Without a primary, a standby can still tell what is wrong.
        Err(_) if servers.iter().any(|server| server.role.is_ok()) => open(&any_role).await?,
        primary => primary?,
    };
    // Prepared first, so that one round trip is measured.
    let statement = client.prepare(SERVER_STATUS).await?;
    let started = Instant::now();
    let row = client.query_one(&statement, &[]).await?;
    let round_trip = started.elapsed();
    // The server read its clock about half a round trip ago.
    let local_clock = UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(round_trip / 2);
    let server_clock: f64 = row.try_get("clock")?;
    let schema = match migrations::schema_version(&client).await {
        Ok(version) => Some(version),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => None,
        Err(error) => return Err(error.into()),
    };
    let feed = client.query_opt(EPOCH, &[]).await.ok().flatten();
    Ok(Diagnosis {
        servers,
        feed: feed.and_then(|row| FeedEpoch::read(&row).ok()),
        enabled_triggers: client.query_one(ENABLED_TRIGGERS, &[]).await?.try_get("triggers")?,
        reads,
        connecting,
        round_trip,
        version: (row.try_get("version")?, row.try_get("version_number")?),
        role: row.try_get("role")?,
        encoding: row.try_get("encoding")?,
        is_standby: row.try_get("is_standby")?,
        standbys: row.try_get("standbys")?,
        synchronous: row.try_get("synchronous")?,
        connections: (row.try_get("max_connections")?, row.try_get("connections")?),
        clock_ahead: server_clock - local_clock.as_secs_f64(),
        schema,
        lacking: missing_privileges(&client).await?,
        days_prepared: client.query_one(DAYS_PREPARED, &[]).await?.try_get("days")?,
    })
}

async fn server_role(any_role: &Connector, server: usize) -> Result<ServerRole, ExamineError> {
    let client = any_role.open_server(server).await?;
    let row = client.query_one(SERVER_ROLE, &[]).await?;
    Ok(ServerRole {
        is_standby: row.try_get("is_standby")?,
        timeline: row.try_get("timeline")?,
        position: Lsn(row.try_get::<_, PgLsn>("position")?.into()),
        upstream: row.try_get("upstream")?,
    })
}
