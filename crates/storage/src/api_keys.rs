//! SQL on the tables `api_keys` and `api_key_events`.
//!
//! **Invariants:**
//! - a key is identified by its digest; the key itself never reaches this file;
//! - one statement both changes a key and records the event: both happen or neither.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use petstore_batcher::BatchHandler;
use petstore_config::DatabaseUrl;
use petstore_domain::api_key::{ApiKey, KeyDigest};
use petstore_domain::key_record::{ActiveKey, Actor, KeyEvent, KeyId, KeyRecord, NewKey};
use petstore_domain::rate_limit::RateLimit;
use petstore_postgres::{Database, Parameters, StorageError, not_committed, unexpected};
use tokio_postgres::Row;

use super::migrations::open_migrated;
use super::show_then_commit::{IssueError, begin, issue};
use super::storage::Storage;

const FIND: &str = "\
    SELECT digest, id, COALESCE(lineage_id, id) AS lineage_id, scopes, rate_limit_requests, rate_limit_seconds,
      -- Of infinity, too, which cannot be subtracted from.
      (extract(epoch FROM expires_at) - extract(epoch FROM now()))::float8 AS expires_in
    FROM api_keys
    WHERE digest = ANY ($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())";

/// `$8` is the lineage that the key continues; null if it begins one.
pub(super) const INSERT: &str = "\
    WITH new AS (
      INSERT INTO api_keys
        (name, prefix, digest, scopes, expires_at, rate_limit_requests, rate_limit_seconds, lineage_id)
      VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
      RETURNING id)
    INSERT INTO api_key_events (key_id, action, actor)
    SELECT id, 'created', $9
    FROM new
    RETURNING key_id AS id";

/// The time by which keys expire.
const NOW: &str = "SELECT clock_timestamp() AS now";

/// A page of all keys: those after an id.
const LIST: &str = "\
    SELECT id, prefix, name, scopes, created_at, expires_at, revoked_at, last_used_at,
      rate_limit_requests, rate_limit_seconds
    FROM api_keys
    WHERE id > $1
    ORDER BY id
    LIMIT 1000";

const LIST_EVENTS: &str = "\
    SELECT happened_at, action, actor, successor_id
    FROM api_key_events
    WHERE key_id = $1
    ORDER BY id";

pub(super) const REVOKE: &str = "\
    WITH revoked AS (
      UPDATE api_keys
      SET revoked_at = now()
      WHERE id = $1 AND revoked_at IS NULL
      RETURNING id)
    INSERT INTO api_key_events (key_id, action, actor)
    SELECT id, 'revoked', $2
    FROM revoked
    RETURNING key_id";

/// Waits for other programs that rotate keys or apply a file. Release 1.2.0 takes this lock only to apply a file.
pub(super) const LOCK_LINEAGES: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('petstore keys apply', 0))";

/// Waits for a rotation by an older release. A statement of its own, so that the next one sees what was committed meanwhile.
const LOCK: &str = "SELECT id FROM api_keys WHERE id = $1 FOR UPDATE";

/// The newest key that works and continues the lineage of another.
const FIND_SUCCESSOR: &str = "\
    SELECT id
    FROM api_keys
    WHERE id > $1 AND COALESCE(lineage_id, id) = (SELECT COALESCE(lineage_id, id) FROM api_keys WHERE id = $1)
      AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
    ORDER BY id DESC
    LIMIT 1";

/// The successor inherits the key's rights, rate limit and lineage, and its lifetime unless `$5` sets another expiry. Without an
/// overlap (`$4`), the key is revoked: an expiry would depend on the clock of the server that looks the key up.
const ROTATE: &str = "\
    WITH old AS (
      SELECT id, COALESCE(lineage_id, id) AS lineage_id, name, scopes, rate_limit_requests, rate_limit_seconds
      FROM api_keys
      WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
      -- A concurrent revocation either comes first, and there is no successor, or waits.
      FOR UPDATE),
    terms AS (
      -- In seconds: the days of an interval have 23 to 25 hours where the clocks change.
      SELECT extract(epoch FROM expires_at) - extract(epoch FROM created_at) AS lifetime
      FROM api_keys
      WHERE id >= $1 AND COALESCE(lineage_id, id) = (SELECT lineage_id FROM old)
        -- A key that was rotated before expires early. Its lifetime was passed on, to the newest key of the lineage.
        AND (id = $1 OR EXISTS (SELECT FROM api_key_events WHERE key_id = $1 AND action = 'rotated'))
      ORDER BY id DESC
      LIMIT 1),
    ending AS (
      UPDATE api_keys
      SET expires_at = CASE WHEN $4::float8 > 0 THEN LEAST(api_keys.expires_at, now() + make_interval(secs => $4))
          ELSE api_keys.expires_at END,
        revoked_at = CASE WHEN $4::float8 > 0 THEN NULL ELSE now() END
      FROM old
      WHERE api_keys.id = old.id),
    new AS (
      INSERT INTO api_keys
        (name, prefix, digest, scopes, expires_at, lineage_id, rate_limit_requests, rate_limit_seconds)
      SELECT name, $2, $3, scopes,
        COALESCE($5, CASE WHEN lifetime IS NOT NULL
          -- The last second that a key can expire in.
          THEN LEAST(now() + make_interval(secs => lifetime::float8), '9999-12-30 22:00:00Z') END),
        lineage_id, rate_limit_requests, rate_limit_seconds
      FROM old, terms
      RETURNING id),
    events AS (
      INSERT INTO api_key_events (key_id, action, actor, successor_id)
      SELECT old.id, 'rotated', $6, new.id FROM old, new
      UNION ALL
      SELECT old.id, 'revoked', $6, NULL FROM old, new WHERE $4::float8 <= 0
      UNION ALL
      SELECT new.id, 'created', $6, NULL FROM new)
    SELECT id FROM new";

const UPDATE_LAST_USED: &str = "\
    UPDATE api_keys
    SET last_used_at = used.at
    FROM unnest($1::bigint[], $2::float8[]) AS elapsed (id, seconds)
    -- To the minute, so that a busy key is updated once a minute.
    CROSS JOIN LATERAL date_trunc('minute', now() - elapsed.seconds * interval '1 second') AS used (at)
    WHERE api_keys.id = elapsed.id
      -- Another node may have recorded a later use. A use in the future is that of a clock that was set back since.
      AND (last_used_at IS NULL OR last_used_at < used.at OR last_used_at > now())";

pub(super) const STATEMENTS: &[&str] = &[
    FIND,
    INSERT,
    NOW,
    LIST,
    LIST_EVENTS,
    REVOKE,
    LOCK_LINEAGES,
    LOCK,
    FIND_SUCCESSOR,
    ROTATE,
    UPDATE_LAST_USED,
];

type KeyResult = Result<Option<ActiveKey>, StorageError>;

/// Inserts a new key, after `show` has shown it.
pub async fn insert_api_key(
    url: &DatabaseUrl,
    new: &NewKey,
    key: &ApiKey,
    actor: &Actor,
    show: impl FnOnce(KeyId) -> io::Result<()>,
) -> Result<KeyId, IssueError> {
    let scopes: Vec<&str> = new.scopes.iter().map(|scope| scope.as_str()).collect();
    let ((requests, seconds), digest) = (columns(new.rate_limit), key.digest());
    let parameters: Parameters<'_> = &[
        &new.name.as_str(),
        &key.prefix(),
        &digest.as_bytes(),
        &scopes,
        &new.expires_at,
        &requests,
        &seconds,
        &None::<i64>,
        &actor.as_str(),
    ];
    let mut client = open_migrated(url).await?;
    let id = issue(begin(&mut client).await?, INSERT, parameters, show).await?;
    id.ok_or_else(|| unexpected("no key was inserted").into())
}

/// What became of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// This key replaces the old one.
    Rotated(KeyId),
    /// The key was rotated before, and this newer key of its lineage works. Nothing was changed.
    AlreadyRotated(KeyId),
    /// No key that works has this id. Nothing was changed.
    NoActiveKey,
}

/// Replaces a valid key with a successor that has the same rights, after `show` has shown the successor; the old key expires
/// after `overlap`, and is revoked without one. A key that has a successor cannot get a second one, unless the first no longer
/// works: the keys of a lineage are a chain.
pub async fn rotate_api_key(
    url: &DatabaseUrl,
    id: KeyId,
    successor: &ApiKey,
    overlap: Duration,
    expires_at: Option<SystemTime>,
    actor: &Actor,
    show: impl FnOnce(KeyId) -> io::Result<()>,
) -> Result<Rotation, IssueError> {
    let mut client = open_migrated(url).await?;
    let transaction = begin(&mut client).await?;
    transaction.execute(LOCK_LINEAGES, &[]).await.map_err(not_committed)?;
    transaction.execute(LOCK, &[&id.0]).await.map_err(not_committed)?;
    if let Some(row) = transaction.query_opt(FIND_SUCCESSOR, &[&id.0]).await.map_err(not_committed)? {
        return Ok(Rotation::AlreadyRotated(KeyId(row.try_get("id").map_err(unexpected)?)));
    }
    let digest = successor.digest();
    let parameters: Parameters<'_> = &[
        &id.0,
        &successor.prefix(),
        &digest.as_bytes(),
        &overlap.as_secs_f64(),
        &expires_at,
        &actor.as_str(),
    ];
    let issued = issue(transaction, ROTATE, parameters, show).await?;
    Ok(issued.map_or(Rotation::NoActiveKey, Rotation::Rotated))
}

/// Handles batches of key lookups with one statement.
pub(super) struct FindKeysBatch(pub(super) Database);

impl FindKeysBatch {
    async fn find(&self, digests: &[KeyDigest]) -> Result<Vec<KeyResult>, StorageError> {
        let bytes: Vec<&[u8]> = digests.iter().map(KeyDigest::as_bytes).collect();
        let rows = self.0.read(FIND, &[&bytes]).await?;
        // A key that cannot be read fails no other.
        let key = |row| Ok((Row::try_get(row, "digest")?, active_key(row).map(Some).map_err(unexpected)));
        let found: HashMap<&[u8], KeyResult> = rows
            .iter()
            .map(key)
            .collect::<Result<_, _>>()
            .map_err(|error: tokio_postgres::Error| unexpected(error))?;
        Ok(bytes.iter().map(|digest| found.get(digest).cloned().unwrap_or(Ok(None))).collect())
    }
}

impl BatchHandler for FindKeysBatch {
    type Request = KeyDigest;
    type Response = KeyResult;

    async fn handle(&self, digests: Vec<KeyDigest>) -> Vec<KeyResult> {
        self.find(&digests).await.unwrap_or_else(|error| vec![Err(error); digests.len()])
    }
}

impl Storage {
    /// The key with this digest, if it exists and is neither revoked nor expired.
    pub async fn find_api_key(&self, digest: KeyDigest) -> Result<Option<ActiveKey>, StorageError> {
        self.find_api_key.read(digest).await?
    }

    /// The database's time, by which keys expire.
    pub async fn now(&self) -> Result<SystemTime, StorageError> {
        let rows = self.database.read_unproven(NOW, &[]).await?;
        let row = rows.first().ok_or_else(|| unexpected("the database has no time"))?;
        row.try_get("now").map_err(unexpected)
    }

    /// Every key, in order of issue.
    pub async fn list_api_keys(&self) -> Result<Vec<KeyRecord>, StorageError> {
        let mut keys: Vec<KeyRecord> = Vec::new();
        loop {
            let after = keys.last().map_or(0, |key| key.id.0);
            let rows = self.database.read(LIST, &[&after]).await?;
            if rows.is_empty() {
                return Ok(keys);
            }
            for row in &rows {
                keys.push(key_record(row).map_err(unexpected)?);
            }
        }
    }

    /// The key with this id, if it exists.
    pub async fn find_key_record(&self, id: KeyId) -> Result<Option<KeyRecord>, StorageError> {
        let rows = self.database.read(LIST, &[&(id.0 - 1)]).await?;
        let record = rows.first().map(key_record).transpose().map_err(unexpected)?;
        Ok(record.filter(|record| record.id == id))
    }

    /// The events of a key, the oldest first.
    pub async fn key_events(&self, id: KeyId) -> Result<Vec<KeyEvent>, StorageError> {
        let rows = self.database.read(LIST_EVENTS, &[&id.0]).await?;
        rows.iter().map(key_event).collect::<Result<_, _>>().map_err(unexpected)
    }

    /// Revokes a key. Returns whether the key existed and was not revoked yet.
    pub async fn revoke_api_key(&self, id: KeyId, actor: &Actor) -> Result<bool, StorageError> {
        self.database.write(REVOKE, &[&id.0, &actor.as_str()], |rows| Ok(!rows.is_empty())).await
    }

    /// Records when keys were last used: how long ago, by the monotonic clock. The database's clock tells when that was.
    pub async fn record_key_uses(&self, uses: &[(KeyId, Instant)]) -> Result<(), StorageError> {
        let elapsed = |(id, at): &(KeyId, Instant)| (id.0, at.elapsed().as_secs_f64());
        let (ids, seconds): (Vec<i64>, Vec<f64>) = uses.iter().map(elapsed).unzip();
        self.database.write(UPDATE_LAST_USED, &[&ids, &seconds], |_| Ok(())).await
    }
}

fn active_key(row: &Row) -> Result<ActiveKey, tokio_postgres::Error> {
    let scopes: Vec<&str> = row.try_get("scopes")?;
    Ok(ActiveKey {
        id: KeyId(row.try_get("id")?),
        lineage: KeyId(row.try_get("lineage_id")?),
        // An unknown scope comes from a newer version of this program, and permits nothing here.
        scopes: scopes.into_iter().filter_map(|scope| scope.parse().ok()).collect(),
        expires_in: row.try_get::<_, Option<f64>>("expires_in")?.map(|seconds| {
            // A time beyond what a duration can hold is as good as never.
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        }),
        rate_limit: rate_limit(row)?,
    })
}

fn key_record(row: &Row) -> Result<KeyRecord, tokio_postgres::Error> {
    Ok(KeyRecord {
        id: KeyId(row.try_get("id")?),
        prefix: row.try_get("prefix")?,
        name: row.try_get("name")?,
        scopes: row.try_get("scopes")?,
        created_at: row.try_get("created_at")?,
        expires_at: row.try_get("expires_at")?,
        revoked_at: row.try_get("revoked_at")?,
        last_used_at: row.try_get("last_used_at")?,
        rate_limit: rate_limit(row)?,
    })
}

fn key_event(row: &Row) -> Result<KeyEvent, tokio_postgres::Error> {
    Ok(KeyEvent {
        happened_at: row.try_get("happened_at")?,
        action: row.try_get("action")?,
        actor: row.try_get("actor")?,
        successor: row.try_get::<_, Option<i64>>("successor_id")?.map(KeyId),
    })
}

pub(super) fn rate_limit(row: &Row) -> Result<Option<RateLimit>, tokio_postgres::Error> {
    let requests: Option<i32> = row.try_get("rate_limit_requests")?;
    let seconds: Option<i32> = row.try_get("rate_limit_seconds")?;
    // A constraint ensures that both are set and valid, or neither is set.
    Ok(requests.zip(seconds).and_then(|(requests, seconds)| {
        RateLimit::new(requests.try_into().ok()?, seconds.try_into().ok()?).ok()
    }))
}

pub(super) fn columns(limit: Option<RateLimit>) -> (Option<i32>, Option<i32>) {
    let column = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    (limit.map(|limit| column(limit.requests().get())), limit.map(|limit| column(limit.seconds())))
}
