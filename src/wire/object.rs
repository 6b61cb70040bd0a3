//! Reading a JSON object member by member, with errors that say what is wrong and where.
//!
//! A derived structure would take `["Rex", 1]` for an object, `null` for an absent member, the last of two
//! equal members, and no `7.0` for an integer. None of that is the interface.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ApiError;
use super::spelling::{nearest, shown};

/// So many members are compared with each other faster than they are hashed.
const FEW: usize = 8;

/// The members of a JSON object, none of them twice, their values not yet looked into.
pub(crate) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads a body that is one JSON object and nothing else.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let problem = |problem: String| ApiError::InvalidJson { problem };
        if body.is_empty() {
            return Err(problem("it is empty".into()));
        }
        let text = std::str::from_utf8(body).map_err(|_| problem("it is not UTF-8".into()))?;
        serde_json::from_str(text).map_err(|error| problem(error.to_string()))
    }

    /// Refuses a member that is not among `known`.
    pub(crate) fn refuse_unknown(&self, known: &[&'static str]) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, _)| !known.contains(&&**name)) {
            None => Ok(()),
            Some((name, _)) => Err(ApiError::UnknownField {
                // The escapes of JSON Pointer.
                pointer: format!("/{}", shown(name).replace('~', "~0").replace('/', "~1")),
                nearest: nearest(name, known).unwrap_or_default(),
            }),
        }
    }

    /// Takes the member of this name out, if it is there: its value as it stands.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a str> {
        let place = self.0.iter().position(|(member, _)| member == name)?;
        Some(self.0.swap_remove(place).1.get())
    }

    /// The value of the member at `pointer`, such as `/name`, if it is there.
    pub(crate) fn get(&self, pointer: &'static str) -> Option<Member<'a>> {
        let name = &pointer[1..];
        self.0
            .iter()
            .find(|(member, _)| member == name)
            .map(|(_, value)| Member { pointer, value: value.get() })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Self::Value = Vec::new();
                // Of many members, so that the time to find one that is there twice does not grow with their square.
                let mut names: HashSet<String> = HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    if members.len() == FEW {
                        names.extend(members.iter().map(|(name, _)| name.clone()));
                    }
                    let is_known = if members.len() < FEW {
                        members.iter().any(|(other, _)| *other == name)
                    } else {
                        !names.insert(name.clone())
                    };
                    if is_known {
                        return Err(A::Error::custom(format_args!("`{}` is there twice", shown(&name))));
                    }
                    members.push((name, value));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Object).map(Members)
    }
}

/// One value, in JSON's own words.
pub(crate) struct Member<'a> {
    pointer: &'static str,
    value: &'a str,
}

impl Member<'_> {
    /// The value as text.
    pub(crate) fn string(&self) -> Result<String, ApiError> {
        if !self.value.starts_with('"') {
            return Err(self.invalid("must be a string"));
        }
        // What can still be wrong is an escape that stands for no character.
        serde_json::from_str(self.value).map_err(|error| ApiError::InvalidJson { problem: error.to_string() })
    }

    /// The value as an integer: any number without a fraction, however it is written.
    pub(crate) fn integer(&self) -> Result<i64, ApiError> {
        integer(self.value).ok_or_else(|| self.invalid("must be an integer from -2^63 to 2^63 - 1"))
    }

    /// The error that this value breaks a rule.
    pub(crate) fn invalid(&self, problem: &(impl ToString + ?Sized)) -> ApiError {
        ApiError::InvalidField { pointer: self.pointer, problem: problem.to_string() }
    }
}

/// The number that a JSON number stands for, if it is an integer of 64 bits: `7`, `7.0`, `70e-1`.
pub(crate) fn integer(number: &str) -> Option<i64> {
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
    fn an_integer_is_known_by_its_value_not_by_how_it_is_written() {
        for (text, value) in [
            ("7", 7),
            ("-7", -7),
            ("7.0", 7),
            ("7.000", 7),
            ("70e-1", 7),
            ("0.7e1", 7),
            ("7E+2", 700),
            ("700e-2", 7),
            ("0", 0),
            ("-0", 0),
            ("0.0e99999999999999999999", 0),
            ("9223372036854775807", i64::MAX),
            ("9223372036854775807.0", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("9.223372036854775807e18", i64::MAX),
            ("1e18", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_integer_of_64_bits_is_refused() {
        for text in [
            "7.5",
            "75e-1",
            "1e-1",
            "9223372036854775808",
            "-9223372036854775809",
            "1e19",
            "1e400",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "\"7\"",
            "null",
            "true",
            "[7]",
            "{}",
        ] {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
