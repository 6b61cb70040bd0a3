//! SQL on the `api_keys` table, and on what was done to keys.
//!
//! **Invariants:**
//! - what identifies a key here is its digest; the key itself never arrives;
//! - whatever is done to a key, and the note of who did it, are one statement: both are kept or neither.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::batch::{Batcher, Limits, Work};
use super::postgres::database::Database;
use super::postgres::error::{cause, unexpected};
use super::postgres::pool::POOL_WAIT;
use super::{Storage, StorageError};
use crate::domain::api_key::{ApiKey, KeyDigest};
use crate::domain::key_record::{Actor, IssuedKey, KeyEvent, KeyId, KeyRecord, NewKey};
use crate::domain::rate_limit::RateLimit;

const FIND: &str = "\
    SELECT digest, id, COALESCE(lineage_id, id) AS lineage_id, scopes, expires_at, rate_limit_requests, \
      rate_limit_seconds \
    FROM api_keys WHERE digest = ANY ($1) AND revoked_at IS NULL";

const INSERT: &str = "\
    WITH new AS ( \
      INSERT INTO api_keys (name, prefix, digest, scopes, expires_at, rate_limit_requests, rate_limit_seconds) \
      VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id) \
    INSERT INTO api_key_events (key_id, action, actor) SELECT id, 'created', $8 FROM new RETURNING key_id";

/// A part of all keys: those after an id.
const LIST: &str = "\
    SELECT id, prefix, name, scopes, created_at, expires_at, revoked_at, last_used_at, \
      rate_limit_requests, rate_limit_seconds \
    FROM api_keys WHERE id > $1 ORDER BY id LIMIT 1000";

const EVENTS: &str = "\
    SELECT happened_at, action, actor, successor_id FROM api_key_events WHERE key_id = $1 ORDER BY id";

const REVOKE: &str = "\
    WITH ended AS ( \
      UPDATE api_keys SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL RETURNING id) \
    INSERT INTO api_key_events (key_id, action, actor) SELECT id, 'revoked', $2 FROM ended RETURNING key_id";

/// The new key has the rights and the lineage of the old, and lives as long as the old was to live, unless told otherwise.
const ROTATE: &str = "\
    WITH old AS ( \
      SELECT id, COALESCE(lineage_id, id) AS lineage_id, name, scopes, expires_at - created_at AS lifetime, rate_limit_requests, rate_limit_seconds \
      FROM api_keys WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) \
      FOR UPDATE), \
    ending AS ( \
      UPDATE api_keys SET expires_at = LEAST(api_keys.expires_at, now() + make_interval(secs => $4)) \
      FROM old WHERE api_keys.id = old.id), \
    new AS ( \
      INSERT INTO api_keys \
        (name, prefix, digest, scopes, expires_at, lineage_id, rate_limit_requests, rate_limit_seconds) \
      SELECT name, $2, $3, scopes, COALESCE($5, now() + lifetime), lineage_id, rate_limit_requests, rate_limit_seconds \
      FROM old RETURNING id), \
    noted AS ( \
      INSERT INTO api_key_events (key_id, action, actor, successor_id) \
      SELECT old.id, 'rotated', $6, new.id FROM old, new \
      UNION ALL SELECT new.id, 'created', $6, NULL FROM new) \
    SELECT id FROM new";

const NOTE_USES: &str = "\
    UPDATE api_keys SET last_used_at = used.at FROM unnest($1::bigint[], $2::timestamptz[]) AS used (id, at) \
    WHERE api_keys.id = used.id AND (last_used_at IS NULL OR last_used_at < used.at)";

pub(super) const STATEMENTS: &[&str] = &[FIND, INSERT, LIST, EVENTS, REVOKE, ROTATE, NOTE_USES];

/// How much may wait, and how it is taken. However many unknown keys come, two connections look for them.
const LIMITS: Limits = Limits { waiting: 4_096, batch: 128, workers: 2, patience: POOL_WAIT };

/// Look-ups of keys. Those that arrive together share a statement.
pub(super) struct Find(Database);

impl Find {
    pub(super) fn start(database: &Database) -> Batcher<Self> {
        Batcher::start("find_key", Self(database.clone()), LIMITS)
    }

    async fn find(&self, digests: &[KeyDigest]) -> Result<Vec<Option<IssuedKey>>, StorageError> {
        let bytes: Vec<&[u8]> = digests.iter().map(KeyDigest::as_bytes).collect();
        let rows = self.0.read(FIND, &[&bytes]).await?;
        let key = |row| Ok::<_, tokio_postgres::Error>((Row::try_get(row, "digest")?, issued_key(row)?));
        let found: HashMap<&[u8], IssuedKey> =
            rows.iter().map(key).collect::<Result<_, _>>().map_err(unexpected)?;
        Ok(bytes.iter().map(|digest| found.get(digest).cloned()).collect())
    }
}

impl Work for Find {
    type Request = KeyDigest;
    type Answer = Result<Option<IssuedKey>, StorageError>;

    async fn run(&self, digests: Vec<KeyDigest>) -> Vec<Self::Answer> {
        match self.find(&digests).await {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); digests.len()],
        }
    }
}

impl Storage {
    /// The key with this digest, if one was issued and not revoked. It may have expired.
    pub async fn find_api_key(&self, digest: KeyDigest) -> Result<Option<IssuedKey>, StorageError> {
        self.find_api_key.call(digest).await?
    }

    /// Keeps a new key.
    pub async fn insert_api_key(
        &self,
        new: &NewKey,
        key: &ApiKey,
        actor: &Actor,
    ) -> Result<KeyId, StorageError> {
        let scopes: Vec<&str> = new.scopes.iter().map(|scope| scope.as_str()).collect();
        let (requests, seconds) = columns(new.rate_limit);
        self.database
            .write(
                INSERT,
                &[
                    &new.name.as_str(),
                    &key.prefix(),
                    &key.digest().as_bytes(),
                    &scopes,
                    &new.expires_at,
                    &requests,
                    &seconds,
                    &actor.as_str(),
                ],
                |rows| first_id(rows)?.ok_or_else(|| StorageError::Unexpected(cause("no key was kept"))),
            )
            .await
    }

    /// Every key, in the order in which they were issued.
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

    /// The key with this id, if there is one.
    pub async fn find_key_record(&self, id: KeyId) -> Result<Option<KeyRecord>, StorageError> {
        let rows = self.database.read(LIST, &[&(id.0 - 1)]).await?;
        let record = rows.first().map(key_record).transpose().map_err(unexpected)?;
        Ok(record.filter(|record| record.id == id))
    }

    /// What was done to a key, the first first.
    pub async fn key_events(&self, id: KeyId) -> Result<Vec<KeyEvent>, StorageError> {
        let rows = self.database.read(EVENTS, &[&id.0]).await?;
        rows.iter().map(key_event).collect::<Result<_, _>>().map_err(unexpected)
    }

    /// Takes a key back, and returns whether there was a key to take back.
    pub async fn revoke_api_key(&self, id: KeyId, actor: &Actor) -> Result<bool, StorageError> {
        self.database.write(REVOKE, &[&id.0, &actor.as_str()], |rows| Ok(!rows.is_empty())).await
    }

    /// Gives a key in force a successor with the same rights, and lets it end after `overlap`. Returns the
    /// successor's id, or nothing if there is no such key in force.
    pub async fn rotate_api_key(
        &self,
        id: KeyId,
        successor: &ApiKey,
        overlap: Duration,
        expires_at: Option<SystemTime>,
        actor: &Actor,
    ) -> Result<Option<KeyId>, StorageError> {
        self.database
            .write(
                ROTATE,
                &[
                    &id.0,
                    &successor.prefix(),
                    &successor.digest().as_bytes(),
                    &overlap.as_secs_f64(),
                    &expires_at,
                    &actor.as_str(),
                ],
                first_id,
            )
            .await
    }

    /// Notes when keys were used last.
    pub async fn record_key_uses(&self, uses: &[(KeyId, SystemTime)]) -> Result<(), StorageError> {
        let (ids, times): (Vec<i64>, Vec<SystemTime>) = uses.iter().map(|(id, at)| (id.0, *at)).unzip();
        self.database.write(NOTE_USES, &[&ids, &times], |_| Ok(())).await
    }
}

fn first_id(rows: &[Row]) -> Result<Option<KeyId>, StorageError> {
    rows.first().map(|row| row.try_get(0).map(KeyId)).transpose().map_err(unexpected)
}

fn issued_key(row: &Row) -> Result<IssuedKey, tokio_postgres::Error> {
    let words: Vec<&str> = row.try_get("scopes")?;
    Ok(IssuedKey {
        id: KeyId(row.try_get("id")?),
        lineage: KeyId(row.try_get("lineage_id")?),
        // A scope that this program does not know was issued by a newer one, and opens nothing here.
        scopes: words.into_iter().filter_map(|word| word.parse().ok()).collect(),
        expires_at: row.try_get("expires_at")?,
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
        happened_at: row.try_get(0)?,
        action: row.try_get(1)?,
        actor: row.try_get(2)?,
        successor: row.try_get::<_, Option<i64>>(3)?.map(KeyId),
    })
}

fn rate_limit(row: &Row) -> Result<Option<RateLimit>, tokio_postgres::Error> {
    let requests: Option<i32> = row.try_get("rate_limit_requests")?;
    let seconds: Option<i32> = row.try_get("rate_limit_seconds")?;
    // A constraint sees to it that both are there and make a limit, or neither is.
    Ok(requests.zip(seconds).and_then(|(requests, seconds)| {
        RateLimit::new(requests.try_into().ok()?, seconds.try_into().ok()?).ok()
    }))
}

fn columns(limit: Option<RateLimit>) -> (Option<i32>, Option<i32>) {
    let column = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    (limit.map(|limit| column(limit.requests().get())), limit.map(|limit| column(limit.seconds())))
}
