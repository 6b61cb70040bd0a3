//! The columns `metadata`: jsonb, null without members.

use std::collections::BTreeMap;
use std::error::Error;

use bytes::{BufMut, BytesMut};
use petstore_domain::metadata::Metadata;
use serde_json::value::RawValue;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The version of the format, before the JSON.
const VERSION: u8 = 1;

/// Metadata as a parameter.
#[derive(Debug)]
pub(super) struct MetadataParameter<'a>(pub(super) &'a Metadata);

impl ToSql for MetadataParameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if self.0.is_empty() {
            return Ok(IsNull::Yes);
        }
        out.put_u8(VERSION);
        serde_json::to_writer(out.writer(), self.0)?;
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::JSONB
    }

    to_sql_checked!();
}

/// Metadata in a column. What is not a string was stored in SQL, and is left out, so that the row can be read.
pub(super) struct StoredMetadata(pub(super) Metadata);

impl<'a> FromSql<'a> for StoredMetadata {
    fn from_sql(_: &Type, value: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let Some((&VERSION, json)) = value.split_first() else {
            return Err("unknown format of jsonb".into());
        };
        // As they stand: whatever is nested in them is not parsed.
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(json)?;
        let text = |(name, value): (String, &RawValue)| Some((name, serde_json::from_str(value.get()).ok()?));
        Ok(Self(Metadata::from_stored(members.into_iter().filter_map(text).collect())))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Metadata::default()))
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::JSONB
    }
}
