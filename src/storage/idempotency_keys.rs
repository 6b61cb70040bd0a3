//! SQL on `idempotency_keys`. The statements on pets and on orders read and write its rows; the fragments of them that
//! depend on its partitions are here.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::domain::idempotency::Digest128;

/// Two CTEs after one named `requested`: the stored results of its digests, and the days to store a digest for.
///
/// Of two concurrent statements with the same digest, the second waits for the first and then fails with a unique
/// violation; a retry finds the stored result. Partitions cannot share a unique index, so in the last minute of a day a
/// digest is stored for the next day as well: there, two statements on either side of midnight conflict.
macro_rules! idempotency_ctes {
    () => {
        "
    stored AS (
      SELECT requested.digest, result.fingerprint, result.subject_id
      FROM requested
      -- LATERAL: one index search per digest, where a join might read whole partitions.
      CROSS JOIN LATERAL (
        SELECT fingerprint, subject_id
        FROM idempotency_keys
        WHERE digest = requested.digest
          -- A minute more than a day: a digest that was stored for the next day must be found until that day ends.
          AND used_at > now() - interval '24 hours 1 minute'
          -- Prunes all partitions but two.
          AND kept_on BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date
        LIMIT 1) AS result),
    days AS (
      -- Reading this CTE also limits the wait for a concurrent statement to a second.
      SELECT (now() AT TIME ZONE 'UTC')::date AS day, set_config('lock_timeout', '1s', true)
      UNION
      SELECT ((now() + interval '1 minute') AT TIME ZONE 'UTC')::date, '1s'),"
    };
}

pub(super) use idempotency_ctes;

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
