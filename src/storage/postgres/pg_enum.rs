//! Statuses are words: the same in the domain and in PostgreSQL's enum types.

/// Lets a domain type of words travel as the PostgreSQL enum of that name.
macro_rules! stored_as_words {
    ($domain:ty, $sql:literal) => {
        impl<'a> tokio_postgres::types::FromSql<'a> for $domain {
            fn from_sql(
                _: &tokio_postgres::types::Type,
                word: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Ok(std::str::from_utf8(word)?.parse()?)
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

pub(in crate::storage) use stored_as_words;
