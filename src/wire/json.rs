//! JSON bodies. An object is read member by member, with errors that say what is wrong and where.
//!
//! A derived `Deserialize` would accept `["Rex", 1]` as an object, `null` as an absent member and the last of two equal
//! members, and would refuse `7.0` as an integer. The interface does none of that.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use thiserror::Error;

use super::field_value::FieldValue;
use super::suggestions::{listed, shown, similar};

/// The media type of every body.
pub(crate) const MEDIA_TYPE: &str = "application/json";

/// Renders a body. The types of the interface are plain data, which always renders.
pub(crate) fn render(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// Up to this number, comparing names with each other is faster than hashing them.
const FEW: usize = 8;

/// Why a body is refused. The message is for the client.
#[derive(Debug, Error)]
pub(crate) enum BodyError {
    /// It is not JSON, or not a JSON object.
    #[error("The body is not usable JSON: {problem}.")]
    InvalidJson { problem: String },
    /// A required member is missing.
    #[error("`/{name}` is required: it {expected}.")]
    MissingField { name: &'static str, expected: &'static str },
    /// A member breaks a rule.
    #[error("`/{name}` {problem}.")]
    InvalidField { name: &'static str, problem: String },
    /// The body has a member that does not exist, most likely a misspelt one.
    #[error("`/{name}` is not a field that you can set; {}.", meant(name, known))]
    UnknownField { name: String, known: Vec<&'static str> },
    /// The body has a member that only the service sets.
    #[error("`/{name}` is assigned by the service: leave it out.")]
    ReadOnlyField { name: &'static str },
    /// The operation takes no body.
    #[error("This operation takes no body: send the request without one.")]
    NotExpected,
}

impl BodyError {
    /// The error for a member that is not among those that can be set.
    pub(crate) fn unknown_field(name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        // The escapes of JSON Pointer.
        Self::UnknownField { name: shown(name).replace('~', "~0").replace('/', "~1"), known: known.collect() }
    }
}

/// What the client may have meant by the name of a member.
fn meant(name: &str, known: &[&'static str]) -> String {
    if let Some(similar) = similar(name, known.iter().copied()) {
        return format!("the nearest is `/{similar}`");
    }
    let pointers: Vec<String> = known.iter().map(|name| format!("/{name}")).collect();
    format!("you can set {}", listed(pointers.iter().map(String::as_str)))
}

/// A request body that is read from a JSON object.
pub(crate) trait FromObject: Sized {
    /// The media types that it may be sent as.
    const MEDIA_TYPES: &'static [&'static str] = &[MEDIA_TYPE];

    /// Reads it, or says what is wrong with the first wrong member.
    fn from_object(object: &JsonObject<'_>) -> Result<Self, BodyError>;
}

/// The members of a JSON object, no name twice, their values not yet parsed.
pub(crate) struct JsonObject<'a>(Vec<(String, &'a RawValue)>);

impl<'a> JsonObject<'a> {
    /// Parses a body that is one JSON object and nothing else.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, BodyError> {
        let problem = |problem: String| BodyError::InvalidJson { problem };
        if body.is_empty() {
            return Err(problem("it is empty".into()));
        }
        let text = std::str::from_utf8(body).map_err(|_| problem("it is not UTF-8".into()))?;
        let members: Members<'_> =
            serde_json::from_str(text).map_err(|error| problem(in_our_words(&error)))?;
        match members.duplicate {
            None => Ok(Self(members.list)),
            Some(name) => Err(problem(format!("`{}` appears twice", shown(&name)))),
        }
    }

    /// The first member whose name is not known.
    pub(crate) fn unknown_name(&self, is_known: impl Fn(&str) -> bool) -> Option<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).find(|name| !is_known(name))
    }

    /// Removes a member and returns its value.
    pub(crate) fn remove(&mut self, name: &str) -> Option<FieldValue<'a>> {
        let index = self.0.iter().position(|(member, _)| member == name)?;
        Some(FieldValue::Json(self.0.swap_remove(index).1.get()))
    }

    /// The value of a member.
    pub(crate) fn get(&self, name: &str) -> Option<FieldValue<'a>> {
        self.0.iter().find(|(member, _)| member == name).map(|(_, value)| FieldValue::Json(value.get()))
    }
}

/// What is wrong with a text that is not a JSON object.
fn in_our_words(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Eof => "it ends too early".into(),
        Category::Data => "it is not an object".into(),
        Category::Syntax | Category::Io => {
            format!("there is a syntax error at line {}, column {}", error.line(), error.column())
        }
    }
}

/// The members of an object as they come.
struct Members<'a> {
    list: Vec<(String, &'a RawValue)>,
    /// A name that appears twice.
    duplicate: Option<String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(String, &RawValue)> = Vec::new();
                let mut duplicate = None;
                // Used beyond a few members, so that the search for duplicates takes linear time.
                let mut names: HashSet<String> = HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    if members.len() == FEW {
                        names.extend(members.iter().map(|(name, _)| name.clone()));
                    }
                    let is_duplicate = if members.len() < FEW {
                        members.iter().any(|(other, _)| *other == name)
                    } else {
                        !names.insert(name.clone())
                    };
                    if is_duplicate {
                        duplicate.get_or_insert(name);
                    } else {
                        members.push((name, value));
                    }
                }
                Ok(Members { list: members, duplicate })
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CPU time of this thread so far, in nanoseconds.
    fn cpu_time() -> u64 {
        let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        statistics.split(' ').next().unwrap().parse().unwrap()
    }

    /// The CPU time to parse a body of 12,000 bytes with so many members a hundred times.
    fn time_to_parse(members: usize) -> u64 {
        let pad = "x".repeat(12_000 / members - 10);
        let body: Vec<String> = (0..members).map(|number| format!("\"{number:06}\":\"{pad}\"")).collect();
        let body = format!("{{{}}}", body.join(","));
        let start = cpu_time();
        for _ in 0..100 {
            assert!(JsonObject::parse(body.as_bytes()).is_ok());
        }
        cpu_time() - start
    }

    #[test]
    fn the_time_to_parse_an_object_is_linear_in_its_members() {
        let (few, many) = (time_to_parse(100), time_to_parse(1_000));
        assert!(many < 30 * few, "{many} ns against {few} ns");
    }
}
