//! Examines a database for `petstore doctor`, in whatever state it is, without changing anything: the write that it tries is
//! rolled back.

use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant, UNIX_EPOCH};

use futures_util::future::{join_all, join3};
use petstore_config::{DatabaseUrl, PoolSettings};
use petstore_postgres::{
    AvailabilityLog, CONNECT_TIMEOUT, Cluster, ConnectError, Connector, DatabaseUrlError, Guarantee,
    NoSession, check_sessions, schema_version,
};
use petstore_read_quorum::Lsn;
use petstore_telemetry::with_causes;
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

use super::events::{EPOCH, FeedEpoch};
use super::migrations::SCHEMA_NEEDED;
use super::partitions::DAYS_PREPARED;
use super::privileges::missing_privileges;

/// How long a write may wait for a lock before its blockers are looked up: less than the `lock_timeout` of the write.
const BLOCKER_LOOKUP_DELAY: Duration = Duration::from_secs(1);

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
      receiver.sender_host || ':' || receiver.sender_port AS upstream,
      extract(epoch FROM clock_timestamp())::float8 AS clock
    FROM (SELECT pg_is_in_recovery() AS is_standby) AS role
    LEFT JOIN pg_stat_wal_receiver AS receiver ON receiver.status = 'streaming'";

/// The kind of the connection, as the server sees it: encrypted, and if not, whether it leaves the machine.
const ENCRYPTION: &str = "\
    SELECT ssl.version, coalesce(inet_server_addr() = inet_client_addr(), true) AS is_local
    FROM (SELECT pg_backend_pid() AS pid) AS own
    LEFT JOIN pg_stat_ssl AS ssl ON ssl.pid = own.pid AND ssl.ssl";

/// The builds of this program that are connected, from the `application_name` of their connections. 1.0.0 has no version in it.
const CONNECTED_VERSIONS: &str = "\
    SELECT application_name AS version, count(*) AS connections
    FROM pg_stat_activity
    WHERE datname = current_database() AND (application_name = 'petstore' OR application_name LIKE 'petstore/%')
    GROUP BY application_name
    ORDER BY application_name";

/// The size of the database, and where its files are, if the role may see that.
const SPACE: &str = "\
    SELECT pg_database_size(current_database()) AS size,
      CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') THEN current_setting('data_directory') END AS directory";

/// Takes the locks of every write, and writes what a request writes, in partitions that the service would create.
const TRIAL_WRITE: &str = "\
    BEGIN;
    SET LOCAL lock_timeout = '2s';
    SELECT create_idempotency_partitions(), create_event_partitions();
    LOCK TABLE pets, orders, api_keys, idempotency_keys IN ROW EXCLUSIVE MODE;
    INSERT INTO pets (name, category_id) VALUES ('petstore doctor', 0);
    ROLLBACK";

/// The sessions that the session `$1` or statements of the service wait for, and that wait for nobody themselves.
const BLOCKERS: &str = "\
    SELECT pid, application_name, usename::text AS role, state, extract(epoch FROM now() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE cardinality(pg_blocking_pids(pid)) = 0
      AND pid IN (
        SELECT unnest(pg_blocking_pids(waiting.pid))
        FROM pg_stat_activity AS waiting
        WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock'
          AND (waiting.pid = $1 OR waiting.application_name = 'petstore' OR waiting.application_name LIKE 'petstore/%'))
    ORDER BY xact_start";

/// The latest day after today that an event has, or an idempotency key, which may also be stored for tomorrow. Null if none is.
const FUTURE_ROWS: &str = "\
    SELECT greatest(
      (SELECT max(kept_on) FROM idempotency_keys WHERE kept_on > today + 1),
      (SELECT (max(happened_at) AT TIME ZONE 'UTC')::date FROM events
       WHERE happened_at >= (today + 1)::timestamp AT TIME ZONE 'UTC'))::text AS day
    FROM (SELECT (now() AT TIME ZONE 'UTC')::date AS today) AS clock";

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
    /// By how many seconds its clock is ahead of the local one; negative if it is behind.
    pub clock_ahead: f64,
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
    /// The latest day after today of a stored idempotency key or event, if there is one.
    pub future_day: Option<String>,
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
    /// Whether the connection is encrypted.
    pub encryption: Encryption,
    /// What became of a write that was rolled back; none on a standby, which is read-only.
    pub trial_write: Option<TrialWrite>,
    /// The size of the database in bytes, and how much is free where its files are, if that can be told from here.
    pub space: (i64, Option<u64>),
    /// The builds of this program that are connected, with the number of their connections.
    pub connected_versions: Vec<(String, i64)>,
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

/// The encryption of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encryption {
    /// The version of TLS, if it is encrypted.
    pub version: Option<String>,
    /// Whether the server's certificate was checked.
    pub is_verified: bool,
    /// Whether the connection stays on this machine.
    pub is_local: bool,
}

/// What became of a write.
#[derive(Debug)]
pub enum TrialWrite {
    /// It was written, and rolled back after this time. Statements of the service may wait for these sessions.
    Succeeded(Duration, Vec<BlockingSession>),
    /// It waited too long for these sessions.
    Blocked(Vec<BlockingSession>),
    /// The server refused it.
    Failed(String),
}

/// A session that blocks a write.
#[derive(Debug)]
pub struct BlockingSession {
    /// Its process id.
    pub pid: i32,
    /// Its `application_name`.
    pub application: String,
    /// Its role.
    pub role: String,
    /// What it is doing, such as `idle in transaction`, and for how long its transaction has been running. None if this role may not
    /// see that: of another role's session, only `pg_monitor` does.
    pub activity: Option<(String, Duration)>,
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
    // Not the name of a node: nodes are counted.
    let connector = Connector::new(url)?.named("petstore doctor");
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
    let cluster = Cluster::new(&connector, pool, SCHEMA_NEEDED, CONNECT_TIMEOUT, AvailabilityLog::default())?;
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
    let ClockReading { row, round_trip, clock_ahead } = read_clock(&client, SERVER_STATUS).await?;
    let schema = match schema_version(&client).await {
        Ok(version) => Some(version),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => None,
        Err(error) => return Err(error.into()),
    };
    let feed = client.query_opt(EPOCH, &[]).await.ok().flatten();
    let future = client.query_opt(FUTURE_ROWS, &[]).await.ok().flatten();
    let is_standby: bool = row.try_get("is_standby")?;
    let lacking = missing_privileges(&client).await?;
    // Otherwise the write fails for a reason that is reported anyway.
    let can_write = !is_standby && lacking.is_empty() && schema.is_some_and(|version| version > 0);
    let trial_write = if can_write { Some(trial_write(&connector, &client).await?) } else { None };
    let encryption = client.query_one(ENCRYPTION, &[]).await?;
    let encryption = Encryption {
        version: encryption.try_get("version")?,
        is_verified: connector.verifies_servers(),
        is_local: encryption.try_get("is_local")?,
    };
    let space = client.query_one(SPACE, &[]).await?;
    let directory: Option<String> = space.try_get("directory")?;
    // Of a server elsewhere, a directory of the same name here says nothing.
    let free =
        directory.filter(|_| encryption.is_local).and_then(|directory| free_space(Path::new(&directory)));
    let versions = client.query(CONNECTED_VERSIONS, &[]).await?;
    Ok(Diagnosis {
        servers,
        feed: feed.and_then(|row| FeedEpoch::read(&row).ok()),
        future_day: future.map(|row| row.try_get("day")).transpose()?.flatten(),
        enabled_triggers: client.query_one(ENABLED_TRIGGERS, &[]).await?.try_get("triggers")?,
        reads,
        connecting,
        round_trip,
        version: (row.try_get("version")?, row.try_get("version_number")?),
        role: row.try_get("role")?,
        encoding: row.try_get("encoding")?,
        is_standby,
        encryption,
        trial_write,
        space: (space.try_get("size")?, free),
        connected_versions: versions
            .iter()
            .map(|row| Ok((row.try_get("version")?, row.try_get("connections")?)))
            .collect::<Result<_, tokio_postgres::Error>>()?,
        standbys: row.try_get("standbys")?,
        synchronous: row.try_get("synchronous")?,
        connections: (row.try_get("max_connections")?, row.try_get("connections")?),
        clock_ahead,
        schema,
        lacking,
        days_prepared: client.query_one(DAYS_PREPARED, &[]).await?.try_get("days")?,
    })
}

/// The row of a statement that has the column `clock`.
struct ClockReading {
    row: Row,
    round_trip: Duration,
    /// By how many seconds the server's clock is ahead of the local one.
    clock_ahead: f64,
}

/// Runs a statement, and compares the server's clock with the local one.
async fn read_clock(client: &Client, statement: &str) -> Result<ClockReading, tokio_postgres::Error> {
    // Prepared first, so that one round trip is measured.
    let statement = client.prepare(statement).await?;
    let started = Instant::now();
    let row = client.query_one(&statement, &[]).await?;
    let round_trip = started.elapsed();
    // The server read its clock about half a round trip ago.
    let local_clock = UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(round_trip / 2);
    let server_clock: f64 = row.try_get("clock")?;
    Ok(ClockReading { row, round_trip, clock_ahead: server_clock - local_clock.as_secs_f64() })
}

/// Tries a write, which is rolled back. If it has to wait, asks on the other connection for whom.
async fn trial_write(connector: &Connector, other: &Client) -> Result<TrialWrite, ExamineError> {
    let client = connector.open().await?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)?;
    let started = Instant::now();
    let mut writing = pin!(client.batch_execute(TRIAL_WRITE));
    let in_time = timeout(BLOCKER_LOOKUP_DELAY, &mut writing).await;
    let duration = started.elapsed();
    let blockers = other.query(BLOCKERS, &[&pid]).await?;
    let blockers: Vec<BlockingSession> = blockers.iter().map(blocking_session).collect::<Result<_, _>>()?;
    let written = match in_time {
        Ok(written) => written,
        Err(_) => writing.await,
    };
    Ok(match written {
        Ok(()) => TrialWrite::Succeeded(duration, blockers),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) && !blockers.is_empty() => {
            TrialWrite::Blocked(blockers)
        }
        Err(error) => TrialWrite::Failed(with_causes(&error)),
    })
}

fn blocking_session(row: &Row) -> Result<BlockingSession, tokio_postgres::Error> {
    let text = |column: &str| row.try_get::<_, Option<String>>(column).map(Option::unwrap_or_default);
    let state: Option<String> = row.try_get("state")?;
    let running = row.try_get::<_, Option<f64>>("seconds")?.map(Duration::try_from_secs_f64);
    Ok(BlockingSession {
        pid: row.try_get("pid")?,
        application: text("application_name")?,
        role: text("role")?,
        activity: state.zip(running.and_then(Result::ok)),
    })
}

/// How many bytes are free in the file system of a directory, if it can be asked.
fn free_space(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

async fn server_role(any_role: &Connector, server: usize) -> Result<ServerRole, ExamineError> {
    let client = any_role.open_server(server).await?;
    let ClockReading { row, clock_ahead, .. } = read_clock(&client, SERVER_ROLE).await?;
    Ok(ServerRole {
        clock_ahead,
        is_standby: row.try_get("is_standby")?,
        timeline: row.try_get("timeline")?,
        position: Lsn(row.try_get::<_, PgLsn>("position")?.into()),
        upstream: row.try_get("upstream")?,
    })
}
