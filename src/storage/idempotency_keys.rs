//! The `idempotency_keys` table: its pages of a day each. What is on them is written with the pets that it speaks of.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::{Storage, StorageError};
use crate::domain::idempotency::Hash;

/// Only one node at a time does it; the others have nothing to do.
const TURN_PAGES: &str = "SELECT turn_idempotency_pages() WHERE pg_try_advisory_xact_lock($1)";

pub(super) const STATEMENTS: &[&str] = &[TURN_PAGES];

/// A number of our own among PostgreSQL's advisory locks: "petonce!" in ASCII.
const LOCK: i64 = i64::from_be_bytes(*b"petonce!");

impl Storage {
    /// Makes room for the days to come, and forgets those before yesterday.
    pub async fn turn_idempotency_pages(&self) -> Result<(), StorageError> {
        self.database.write(TURN_PAGES, &[&LOCK]).await.map(drop)
    }
}

impl<'a> FromSql<'a> for Hash {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(bytes.try_into()?))
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::UUID
    }
}

impl ToSql for Hash {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        <Self as FromSql>::accepts(sql_type)
    }

    to_sql_checked!();
}
