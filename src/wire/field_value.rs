//! Single values: as they are read from JSON or CSV, and as they are written to either.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::SystemTime;

use jiff::Timestamp;
use thiserror::Error;

/// A value in a request body or a file, not yet parsed.
pub(crate) enum FieldValue<'a> {
    /// The value as it stands in valid JSON.
    Json(&'a str),
    /// The text of a CSV cell.
    Csv(&'a str),
}

/// Why a value is refused. The text continues a sentence that starts with the field's name.
#[derive(Debug, Error)]
pub(crate) enum FieldValueError {
    /// It is not valid JSON after all: an escape encodes no character.
    #[error("has an escape that encodes no character")]
    Malformed,
    /// It breaks a rule: "must be a string".
    #[error("{0}")]
    Invalid(String),
}

impl FieldValue<'_> {
    /// Whether it is JSON's `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Json("null"))
    }

    /// The value as a string.
    pub(crate) fn string(&self) -> Result<String, FieldValueError> {
        match *self {
            Self::Csv(text) => Ok(text.to_owned()),
            Self::Json(json) if json.starts_with('"') => {
                serde_json::from_str(json).map_err(|_| FieldValueError::Malformed)
            }
            Self::Json(_) => Err(FieldValueError::Invalid("must be a string".into())),
        }
    }

    /// The value as a type that is a checked string.
    pub(crate) fn text<T: TryFrom<String, Error: ToString>>(&self) -> Result<T, FieldValueError> {
        self.string()?.try_into().map_err(|error: T::Error| FieldValueError::Invalid(error.to_string()))
    }

    /// The value as a member of an enumeration.
    pub(crate) fn keyword<T: FromStr<Err: ToString>>(&self) -> Result<T, FieldValueError> {
        self.string()?.parse().map_err(|error: T::Err| FieldValueError::Invalid(error.to_string()))
    }

    /// The value as an integer. JSON may write it in any way: `7`, `7.0`, `70e-1`.
    pub(crate) fn integer(&self) -> Result<i64, FieldValueError> {
        let integer = match *self {
            Self::Csv(text) => text.parse().ok(),
            Self::Json(json) => integer(json),
        };
        integer.ok_or_else(|| FieldValueError::Invalid("must be an integer from -2^63 to 2^63 - 1".into()))
    }
}

/// A value to be written.
pub(crate) enum Scalar<'a> {
    /// A number.
    Integer(i64),
    /// A member of an enumeration, which never needs escaping.
    Keyword(&'static str),
    /// Any text.
    Text(Cow<'a, str>),
    /// A point in time. RFC 3339 in UTC, to the millisecond, which is what the database keeps.
    Time(SystemTime),
}

impl Scalar<'_> {
    /// Appends the value as JSON.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Integer(number) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
            Self::Keyword(word) => {
                out.push(b'"');
                out.extend_from_slice(word.as_bytes());
                out.push(b'"');
            }
            Self::Text(text) => write_string(out, text),
            Self::Time(time) => {
                let time = Timestamp::try_from(*time).unwrap_or(Timestamp::MAX);
                out.extend_from_slice(format!("\"{time:.3}\"").as_bytes());
            }
        }
    }
}

/// Appends a text as a JSON string.
fn write_string(json: &mut Vec<u8>, text: &str) {
    let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        json.push(b'"');
        json.extend_from_slice(text.as_bytes());
        json.push(b'"');
    } else {
        // Writing a text to memory cannot fail.
        let _ = serde_json::to_writer(json, text);
    }
}

/// The value of a JSON number, if it is a 64-bit integer, however it is written.
fn integer(number: &str) -> Option<i64> {
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
                assert_eq!(integer(text), Some(value), "{text}");
            }
        }
    }

    #[test]
    fn anything_but_a_64_bit_integer_is_refused() {
        let fractions = "7.5 75e-1 1e-1 1e-99999999999999999999";
        let too_large = "9223372036854775808 -9223372036854775809 1e19 1e400 1e99999999999999999999";
        let others = "\"7\" null true [7] {}";
        for text in [fractions, too_large, others].iter().flat_map(|texts| texts.split(' ')) {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
