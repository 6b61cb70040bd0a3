//! The digests in the `idempotency_keys` table. The statements that insert pets, place orders and end them read and write its
//! rows.
//!
//! Each of these statements has two equal CTEs: `stored`, the stored results of the digests that are requested, and `days`, the
//! days to store a digest for. Of two concurrent statements with the same digest, the second waits for the first and then fails
//! with a unique violation; a retry finds the stored result. Partitions cannot share a unique index, so in the last minute of a
//! day a digest is stored for the next day as well: there, two statements on either side of midnight conflict.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::domain::idempotency::Digest128;

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
