//! The version of a row: the id of the transaction that wrote it, which PostgreSQL keeps in the system column `xmin`.
//!
//! Every committed change gives the row another one, whoever makes it, without a column or a trigger. Locking or freezing a row and
//! rewriting its table keep it, and a standby has the same. Ids have 32 bits and are used again after four billion transactions, so
//! an `ETag` covers the content, too.

use std::error::Error;

use petstore_domain::version::Version;
use tokio_postgres::types::{FromSql, Type};

/// A version in a column of type `xid`.
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionColumn(pub(super) Version);

impl<'a> FromSql<'a> for VersionColumn {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Version(u32::from_be_bytes(bytes.try_into()?))))
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::XID
    }
}
