//! The digests in the `idempotency_keys` table. The statements that insert pets, place orders and end them read and write its
//! rows.
//!
//! Each of these statements has two equal CTEs: `stored`, the stored results of the digests that are requested, and `days`, the
//! days to store a digest for. Of two concurrent statements with the same digest, the second waits for the first and then fails
//! with a unique violation; a retry finds the stored result. Partitions cannot share a unique index, so in the last minute of a
//! day a digest is stored for the next day as well: there, two statements on either side of midnight conflict.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use petstore_domain::idempotency::Digest128;
use petstore_postgres::{StorageError, unexpected};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A digest as a parameter or a column of type `uuid`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredDigest(pub(crate) Digest128);

impl<'a> FromSql<'a> for StoredDigest {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Digest128(bytes.try_into()?)))
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::UUID
    }
}

impl ToSql for StoredDigest {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0.0);
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        <Self as FromSql>::accepts(sql_type)
    }

    to_sql_checked!();
}

/// Decodes a digest.
pub(crate) fn digest(row: &Row, column: &str) -> Result<Option<Digest128>, StorageError> {
    let stored: Option<StoredDigest> = row.try_get(column).map_err(unexpected)?;
    Ok(stored.map(|StoredDigest(digest)| digest))
}
