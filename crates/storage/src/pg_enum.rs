//! Maps domain enums to PostgreSQL enum types with the same labels.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use bytes::BytesMut;
use petstore_domain::event::EventType;
use petstore_domain::order::OrderStatus;
use petstore_domain::pet::PetStatus;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A domain enum as a parameter or a column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PgEnum<T>(pub(crate) T);

/// A domain enum that is stored, with its own spellings as labels.
pub(crate) trait StoredEnum:
    FromStr<Err: Error + Send + Sync + 'static> + Into<&'static str> + Copy + fmt::Debug
{
    /// The name of its type in the database.
    const TYPE_NAME: &str;
}

impl StoredEnum for PetStatus {
    const TYPE_NAME: &str = "pet_status";
}

impl StoredEnum for OrderStatus {
    const TYPE_NAME: &str = "order_status";
}

impl StoredEnum for EventType {
    const TYPE_NAME: &str = "event_type";
}

impl<'a, T: StoredEnum> FromSql<'a> for PgEnum<T> {
    fn from_sql(_: &Type, label: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(label)?.parse()?))
    }

    fn accepts(sql_type: &Type) -> bool {
        sql_type.name() == T::TYPE_NAME
    }
}

impl<T: StoredEnum> ToSql for PgEnum<T> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let label: &str = self.0.into();
        out.extend_from_slice(label.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        <Self as FromSql>::accepts(sql_type)
    }

    to_sql_checked!();
}
