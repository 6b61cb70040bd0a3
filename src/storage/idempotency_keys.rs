//! The `idempotency_keys` table: its partitions, one per day. Their rows are written by the statements on pets and on
//! orders; the parts of these that know about the partitions are here.
//!
//! **Invariant:** creating partitions never waits for dropping them: each is a transaction of its own.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::{Storage, StorageError};
use crate::domain::idempotency::Digest128;

/// Nodes that do it at once wait for each other.
const CREATE_PARTITIONS: &str = "SELECT create_idempotency_partitions()";

/// Only one node at a time does it; the others have nothing to do.
const DROP_PARTITIONS: &str = "SELECT drop_idempotency_partitions() WHERE pg_try_advisory_xact_lock($1)";

/// How many days from today on have a partition, up to the first that has none. Null without the table.
pub(super) const DAYS_PREPARED: &str = "\
    SELECT min(n) FROM generate_series(0, 100) AS n \
    WHERE to_regclass('idempotency_keys') IS NOT NULL AND NOT EXISTS ( \
      SELECT FROM pg_inherits WHERE inhparent = to_regclass('idempotency_keys') AND inhrelid = to_regclass( \
        'idempotency_keys_' || to_char((now() AT TIME ZONE 'UTC')::date + n, 'YYYYMMDD')))";

/// A query: what is remembered of the request `asked.digest` from the last 24 hours (and a minute, see below).
macro_rules! remembered_before {
    () => {
        "SELECT fingerprint, subject_id FROM idempotency_keys \
        WHERE digest = asked.digest AND used_at > now() - interval '24 hours 1 minute' \
          AND kept_on BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date \
        LIMIT 1"
    };
}

/// A query: the days to remember a request for. Whoever reads it waits for others' requests for a second at most.
///
/// If two statements run at once with the same digest, the second waits for the first, and is refused: then it can be
/// sent again, and finds what the first has remembered. Tables of two days cannot share a unique index, so in the last
/// minute of a day a digest is remembered for the next day as well: two statements on either side of midnight meet
/// there. (It would be in its own way at the end of that day, hence the other minute.)
macro_rules! days_to_remember {
    () => {
        "SELECT (now() AT TIME ZONE 'UTC')::date AS day, set_config('lock_timeout', '1s', true) \
        UNION SELECT ((now() + interval '1 minute') AT TIME ZONE 'UTC')::date, '1s'"
    };
}

pub(super) use {days_to_remember, remembered_before};

pub(super) const STATEMENTS: &[&str] = &[CREATE_PARTITIONS, DROP_PARTITIONS];

/// A number of our own among PostgreSQL's advisory locks: "petonce!" in ASCII.
const LOCK: i64 = i64::from_be_bytes(*b"petonce!");

impl Storage {
    /// Creates the partitions of the days to come that are missing.
    pub async fn create_idempotency_partitions(&self) -> Result<(), StorageError> {
        self.database.write(CREATE_PARTITIONS, &[], |_| Ok(())).await
    }

    /// Waits until a request was refused because its partition is missing.
    pub async fn idempotency_partition_missing(&self) {
        self.database.partition_missing.notified().await;
    }

    /// Drops the partitions of days before yesterday, unless another node is about to.
    pub async fn drop_idempotency_partitions(&self) -> Result<(), StorageError> {
        self.database.write(DROP_PARTITIONS, &[&LOCK], |_| Ok(())).await
    }
}

impl<'a> FromSql<'a> for Digest128 {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(bytes.try_into()?))
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::UUID
    }
}

impl ToSql for Digest128 {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        <Self as FromSql>::accepts(sql_type)
    }

    to_sql_checked!();
}
