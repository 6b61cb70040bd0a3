//! Reads JSON as `serde_json` does, and refuses a member that appears twice, which `serde_json` accepts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses a single value. The error does not say where it is, so that equal errors are one finding.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let cause = |error: serde_json::Error| error.to_string().split(" at line").next().map(str::to_owned);
    serde_json::from_slice(bytes).map(|Unique(value)| value).map_err(|error| cause(error).unwrap_or_default())
}

/// A value in which no object has the same member twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Unique(value))) = members.next_entry::<String, _>()? {
            if object.insert(name, value).is_some() {
                return Err(Error::custom("a member appears twice"));
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_appears_twice_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":2}"#, r#"[{"a":{"b":1,"\u0062":1}}]"#] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let value = parse(br#"{"a":[null,true,-1,18446744073709551615,1.5,"x"],"b":{"a":1}}"#).unwrap();
        assert_eq!(value["a"][3], u64::MAX);
    }
}
