//! Maps domain enums to PostgreSQL enum types with the same labels.

/// Implements `FromSql` and `ToSql` for a domain enum as the PostgreSQL enum type of that name.
macro_rules! impl_pg_enum {
    ($domain:ty, $sql:literal) => {
        impl<'a> tokio_postgres::types::FromSql<'a> for $domain {
            fn from_sql(
                _: &tokio_postgres::types::Type,
                label: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Ok(std::str::from_utf8(label)?.parse()?)
            }

            fn accepts(sql_type: &tokio_postgres::types::Type) -> bool {
                sql_type.name() == $sql
            }
        }

        impl tokio_postgres::types::ToSql for $domain {
            fn to_sql(
                &self,
                _: &tokio_postgres::types::Type,
                out: &mut bytes::BytesMut,
            ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
                out.extend_from_slice(self.as_str().as_bytes());
                Ok(tokio_postgres::types::IsNull::No)
            }

            fn accepts(sql_type: &tokio_postgres::types::Type) -> bool {
                sql_type.name() == $sql
            }

            tokio_postgres::types::to_sql_checked!();
        }
    };
}

pub(in crate::storage) use impl_pg_enum;
