//! A single value of a request, not yet parsed, and how each type reads it.

use std::borrow::Cow;
use std::fmt::Display;
use std::{slice, vec};

use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use thiserror::Error;

use super::json::JsonObject;
use super::suggestions::shown;

/// A value in a request body, a file or a query. As a `Deserializer`, it supports the types that fields have: strings, 64-bit
/// integers, what is made from these, and options, sequences and maps of them.
#[derive(Debug, Clone, Copy)]
pub enum UnparsedValue<'a> {
    /// There is none.
    Absent,
    /// The value as it stands in valid JSON.
    Json(&'a str),
    /// The text of a CSV cell.
    Csv(&'a str),
    /// The texts of several CSV cells, each with its name.
    CsvMembers(&'a [(&'a str, &'a str)]),
    /// The values of a query parameter, which may be repeated.
    Query(&'a [Cow<'a, str>]),
}

/// Why a value is refused. The text continues a sentence that starts with the field's name.
#[derive(Debug, Error)]
pub enum UnparsedValueError {
    /// There is none, and the field is required.
    #[error("is required")]
    Missing,
    /// It is not valid JSON after all: a Unicode escape encodes no character.
    #[error("has an invalid Unicode escape")]
    Malformed,
    /// It breaks a rule: "must be a string".
    #[error("{0}")]
    Invalid(String),
    /// One of its members breaks a rule.
    #[error("has the member `{name}`, which {problem}")]
    InvalidMember {
        /// The name of the member, as a message may repeat it.
        name: String,
        /// The rule.
        problem: String,
    },
}

impl UnparsedValueError {
    fn invalid(problem: &str) -> Self {
        Self::Invalid(problem.to_owned())
    }
}

impl de::Error for UnparsedValueError {
    fn custom<T: Display>(problem: T) -> Self {
        Self::Invalid(problem.to_string())
    }
}

impl<'a> UnparsedValue<'a> {
    /// The value as a string.
    pub fn string(self) -> Result<Cow<'a, str>, UnparsedValueError> {
        match self {
            Self::Absent | Self::Query([]) => Err(UnparsedValueError::Missing),
            Self::Csv(text) => Ok(text.into()),
            Self::Query([text, ..]) => Ok((&**text).into()),
            Self::Json(json) if json.starts_with('"') => {
                serde_json::from_str(json).map(Cow::Owned).map_err(|_| UnparsedValueError::Malformed)
            }
            Self::Json(_) | Self::CsvMembers(_) => Err(UnparsedValueError::invalid("must be a string")),
        }
    }

    /// The value as an integer. JSON may write it in any way: `7`, `7.0`, `70e-1`. A query has digits only, perhaps after a minus.
    pub fn integer(self) -> Result<i64, UnparsedValueError> {
        let range = || UnparsedValueError::invalid("must be an integer from -2^63 to 2^63 - 1");
        match self {
            Self::Absent | Self::Query([]) => Err(UnparsedValueError::Missing),
            Self::Csv(text) => text.parse().map_err(|_| range()),
            Self::Query([text, ..]) => signed_decimal(text).ok_or_else(range),
            Self::Json(json) => json_integer(json).ok_or_else(range),
            Self::CsvMembers(_) => Err(range()),
        }
    }

    /// The members of an object. A cell has it as JSON.
    fn members(self) -> Result<Vec<(String, Self)>, UnparsedValueError> {
        match self {
            Self::Absent | Self::Query(_) => Err(UnparsedValueError::Missing),
            Self::Json(json) | Self::Csv(json) => {
                let object = JsonObject::parse(json.as_bytes()).map_err(|problem| {
                    UnparsedValueError::Invalid(format!("must be an object of strings: {problem}"))
                })?;
                Ok(object.into_members().collect())
            }
            Self::CsvMembers(cells) => {
                Ok(cells.iter().map(|(name, text)| ((*name).to_owned(), Self::Csv(text))).collect())
            }
        }
    }
}

impl<'de> de::Deserializer<'de> for UnparsedValue<'de> {
    type Error = UnparsedValueError;

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        match self.string()? {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        visitor.visit_i64(self.integer()?)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, UnparsedValueError> {
        visitor.visit_newtype_struct(self)
    }

    /// An option is a field that may be absent. `null` is not absent.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        match self {
            // An empty cell is the absence of an optional value.
            Self::Absent | Self::Csv("") | Self::CsvMembers([]) => visitor.visit_none(),
            Self::Json("null") => Err(UnparsedValueError::invalid("must not be `null`: leave it out")),
            Self::Query([_, _, ..]) => Err(UnparsedValueError::invalid("must appear only once")),
            Self::Json(_) | Self::Csv(_) | Self::CsvMembers(_) | Self::Query(_) => visitor.visit_some(self),
        }
    }

    /// A sequence is a query parameter that may be repeated.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        let Self::Query(values) = self else { return visitor.visit_seq(QueryValues([].iter())) };
        visitor.visit_seq(QueryValues(values.iter()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        visitor.visit_map(Members { rest: self.members()?.into_iter(), current: None })
    }

    /// A change: none if the value is absent, a unit if it is `null`, else some.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, UnparsedValueError> {
        match self {
            Self::Absent => visitor.visit_none(),
            Self::Json("null") => visitor.visit_unit(),
            _ => visitor.visit_some(self),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct struct enum identifier ignored_any
    }
}

/// The values of a query parameter, one by one.
struct QueryValues<'de>(slice::Iter<'de, Cow<'de, str>>);

impl<'de> SeqAccess<'de> for QueryValues<'de> {
    type Error = UnparsedValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, UnparsedValueError> {
        self.0.next().map(|value| seed.deserialize(UnparsedValue::Query(slice::from_ref(value)))).transpose()
    }
}

/// The members of an object, one by one. An error names its member.
struct Members<'de> {
    rest: vec::IntoIter<(String, UnparsedValue<'de>)>,
    current: Option<(String, UnparsedValue<'de>)>,
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = UnparsedValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, UnparsedValueError> {
        self.current = self.rest.next();
        let Some((name, _)) = &self.current else { return Ok(None) };
        seed.deserialize(name.clone().into_deserializer()).map(Some).map_err(|error| of_member(name, error))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, UnparsedValueError> {
        let (name, value) = self.current.take().unwrap_or((String::new(), UnparsedValue::Absent));
        if let UnparsedValue::Json(json) = value
            && json.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | 't' | 'f'))
        {
            let problem = format!("must be a string: send \"{}\"", shown(json));
            return Err(UnparsedValueError::InvalidMember { name: shown(&name), problem });
        }
        seed.deserialize(value).map_err(|error| of_member(&name, error))
    }
}

fn of_member(name: &str, error: UnparsedValueError) -> UnparsedValueError {
    match error {
        UnparsedValueError::Invalid(problem) => {
            UnparsedValueError::InvalidMember { name: shown(name), problem }
        }
        other => other,
    }
}

/// A whole number as people write it: digits, with neither sign nor leading zeros.
#[must_use]
pub fn decimal(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) { None } else { text.parse().ok() }
}

/// The same, perhaps after a minus.
fn signed_decimal(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        None => decimal(text),
        Some(magnitude) if magnitude.starts_with(|first: char| matches!(first, '1'..='9')) => {
            text.parse().ok()
        }
        Some(_) => None,
    }
}

/// The value of a JSON number, if it is a 64-bit integer, however it is written.
fn json_integer(number: &str) -> Option<i64> {
    // JSON writes an integer as Rust does; only fractions and exponents need more.
    if let Ok(integer) = number.parse() {
        return Some(integer);
    }
    let (sign, magnitude) = number.strip_prefix('-').map_or(("", number), |magnitude| ("-", magnitude));
    if !magnitude.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = magnitude.split_once(['e', 'E']).unwrap_or((magnitude, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    // The number is `significant` times ten to this power; longer exponents than i32 are out of range anyway.
    let trailing_zeros = digits.len() - digits.trim_end_matches('0').len();
    let power = exponent.parse::<i32>().ok()?.checked_sub(fraction.len().try_into().ok()?)?;
    let power = usize::try_from(power.checked_add(trailing_zeros.try_into().ok()?)?).ok()?;
    if power > 18 {
        return None;
    }
    format!("{sign}{significant}{}", "0".repeat(power)).parse().ok()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[test]
    fn an_integer_may_be_written_in_any_way() {
        for (value, spellings) in [
            (7, "7 7.0 7.000 70e-1 0.7e1 700e-2"),
            (-7, "-7 -7.0"),
            (700, "7E+2"),
            (0, "0 -0 0.0e99999999999999999999"),
            (1_000_000_000_000_000_000, "1e18"),
            (i64::MAX, "9223372036854775807 9223372036854775807.0 9.223372036854775807e18"),
            (i64::MIN, "-9223372036854775808"),
        ] {
            for text in spellings.split(' ') {
                assert_eq!(json_integer(text), Some(value), "{text}");
            }
        }
    }

    #[test]
    fn an_integer_in_a_query_is_digits_after_an_optional_minus() {
        for (text, value) in [("0", 0), ("7", 7), ("12", 12), ("-7", -7), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(signed_decimal(text), Some(value), "{text}");
        }
        for text in ["", "-", "-0", "07", "-07", "+7", "--7", "7.0", "7e0", " 7", "9223372036854775808"] {
            assert_eq!(signed_decimal(text), None, "{text}");
        }
    }

    #[test]
    fn every_value_of_a_repeated_parameter_is_read() {
        let values = [Cow::from("available"), Cow::from("sold")];
        let read: Vec<String> = Deserialize::deserialize(UnparsedValue::Query(&values)).unwrap();
        assert_eq!(read, values);
    }

    #[test]
    fn anything_but_a_64_bit_integer_is_refused() {
        let fractions = "7.5 75e-1 1e-1 1e-99999999999999999999";
        let too_large = "9223372036854775808 -9223372036854775809 1e19 1e400 1e99999999999999999999";
        let others = "\"7\" null true [7] {}";
        for text in [fractions, too_large, others].iter().flat_map(|texts| texts.split(' ')) {
            assert_eq!(json_integer(text), None, "{text}");
        }
    }
}
