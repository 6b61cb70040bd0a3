//! SQL on the `idempotency_keys` table, but for the statement that adds pets once: that is with the pets.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Database, Storage, StorageError};

/// What was remembered of requests lately. A day before another does not count: see `INSERT_ONCE`.
const FIND: &str = "\
    SELECT DISTINCT ON (digest) digest, fingerprint, subject_id FROM idempotency_keys \
    WHERE digest = ANY ($1) \
      AND kept_on BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date + 1 \
      AND used_at > now() - interval '24 hours' \
    ORDER BY digest, kept_on DESC";

/// Only one node at a time does it; the others have nothing to do.
const TURN_PAGES: &str = "SELECT turn_idempotency_pages() WHERE pg_try_advisory_xact_lock($1)";

pub(super) const STATEMENTS: &[&str] = &[FIND, TURN_PAGES];

/// A number of our own among PostgreSQL's advisory locks: "petonce!" in ASCII.
const LOCK: i64 = i64::from_be_bytes(*b"petonce!");

/// What is remembered of a request: what it asked for, and what came of it.
pub(super) struct Remembered {
    pub(super) fingerprint: Vec<u8>,
    pub(super) subject_id: i64,
}

impl Storage {
    /// Makes room for the days to come, and forgets those before yesterday.
    pub async fn turn_idempotency_pages(&self) -> Result<(), StorageError> {
        self.database.write(TURN_PAGES, &[&LOCK]).await.map(drop)
    }
}

/// What is remembered of these requests, by digest.
pub(super) async fn find(
    database: &Database,
    digests: &[&[u8]],
) -> Result<HashMap<Vec<u8>, Remembered>, StorageError> {
    let rows = database.read(FIND, &[&digests]).await?;
    let remembered = rows.iter().map(|row| {
        Ok((row.try_get(0)?, Remembered { fingerprint: row.try_get(1)?, subject_id: row.try_get(2)? }))
    });
    remembered
        .collect::<Result<_, tokio_postgres::Error>>()
        .map_err(|error| StorageError::Unexpected(Arc::new(error)))
}
