//! Reads a struct with a derived `Deserialize` from named values: a JSON object, a CSV row or a query.
//!
//! `serde_json` would accept `["Rex", 1]` as an object, `null` as an absent member and the last of two equal members, and would
//! refuse `7.0` as an integer; and no format's own reader says which field is wrong. The interface does none of that, so the
//! derived code gets its values from here, in the order of the struct's fields. Such a struct has neither `flatten` nor `alias`.

use std::fmt::Display;
use std::slice;

use serde::de::{self, Deserialize, DeserializeSeed, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use thiserror::Error;

use super::unparsed_value::{UnparsedValue, UnparsedValueError};

/// Values by name.
pub trait NamedValues<'a> {
    /// The names that may be unknown, none of them twice.
    fn names(&self) -> impl Iterator<Item = &str>;

    /// The value with this name.
    fn get(&self, name: &str) -> UnparsedValue<'a>;
}

/// Why named values are refused.
#[derive(Debug, Error)]
pub enum FieldsError {
    /// The struct has no field of this name.
    #[error("`{name}` is unknown")]
    Unknown {
        /// The name, as it was sent.
        name: String,
        /// The names of all fields.
        known: &'static [&'static str],
    },
    /// A field is missing, or its value is refused.
    #[error("`{name}` {error}")]
    Field {
        /// The field.
        name: &'static str,
        /// What is wrong with it.
        error: UnparsedValueError,
    },
    /// Any other error of the derived code, which has no other.
    #[error("{0}")]
    Other(String),
}

impl de::Error for FieldsError {
    fn custom<T: Display>(problem: T) -> Self {
        Self::Other(problem.to_string())
    }
}

/// Reads a struct. An unknown name is reported first, since it is most often a misspelt one; then the first wrong field, in
/// the order of the struct.
pub fn read<'a, T: Deserialize<'a>>(values: &impl NamedValues<'a>) -> Result<T, FieldsError> {
    T::deserialize(StructDeserializer(values))
}

struct StructDeserializer<'v, V>(&'v V);

impl<'de, N: NamedValues<'de>> de::Deserializer<'de> for StructDeserializer<'_, N> {
    type Error = FieldsError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldsError> {
        if let Some(name) = self.0.names().find(|name| !known.contains(name)) {
            return Err(FieldsError::Unknown { name: name.to_owned(), known });
        }
        visitor.visit_seq(FieldsInOrder { values: self.0, names: known.iter() })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, FieldsError> {
        unreachable!("it is a struct, without `flatten`")
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The value of each field of a struct, absent ones too.
struct FieldsInOrder<'v, N> {
    values: &'v N,
    names: slice::Iter<'static, &'static str>,
}

impl<'de, N: NamedValues<'de>> SeqAccess<'de> for FieldsInOrder<'_, N> {
    type Error = FieldsError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, FieldsError> {
        let Some(&name) = self.names.next() else { return Ok(None) };
        seed.deserialize(self.values.get(name)).map(Some).map_err(|error| FieldsError::Field { name, error })
    }
}
