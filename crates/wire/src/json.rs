//! JSON: bodies of responses, and the members of one object in a request.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use thiserror::Error;

use super::struct_deserializer::NamedValues;
use super::suggestions::shown;
use super::unparsed_value::UnparsedValue;

/// The media type of every body.
pub const MEDIA_TYPE: &str = "application/json";

/// Renders a body. The types of the interface are plain data, which always renders.
pub fn render(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// Why a text is not one JSON object.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct NotAnObject(String);

/// The members of a JSON object, no name twice, their values not yet parsed.
pub struct JsonObject<'a>(Vec<(String, &'a RawValue)>);

impl<'a> JsonObject<'a> {
    /// Parses a text that is one JSON object and nothing else.
    pub fn parse(text: &'a [u8]) -> Result<Self, NotAnObject> {
        if text.is_empty() {
            return Err(NotAnObject("it is empty".into()));
        }
        let text = std::str::from_utf8(text).map_err(|_| NotAnObject("it is not UTF-8".into()))?;
        let members: JsonMembers<'_> = serde_json::from_str(text).map_err(|error| in_our_words(&error))?;
        match members.duplicate {
            None => Ok(Self(members.list)),
            Some(name) => Err(NotAnObject(format!("`{}` appears twice", shown(&name)))),
        }
    }

    /// Removes a member and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<UnparsedValue<'a>> {
        let index = self.0.iter().position(|(member, _)| member == name)?;
        Some(UnparsedValue::Json(self.0.swap_remove(index).1.get()))
    }

    /// The members, in their order.
    pub fn into_members(self) -> impl Iterator<Item = (String, UnparsedValue<'a>)> {
        self.0.into_iter().map(|(name, value)| (name, UnparsedValue::Json(value.get())))
    }
}

impl<'a> NamedValues<'a> for JsonObject<'a> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    fn get(&self, name: &str) -> UnparsedValue<'a> {
        let member = self.0.iter().find(|(member, _)| member == name);
        member.map_or(UnparsedValue::Absent, |(_, value)| UnparsedValue::Json(value.get()))
    }
}

/// What is wrong with a text that is not a JSON object.
fn in_our_words(error: &serde_json::Error) -> NotAnObject {
    NotAnObject(match error.classify() {
        Category::Eof => "it ends too early".into(),
        Category::Data => "it is not an object".into(),
        Category::Syntax | Category::Io => {
            format!("there is a syntax error at line {}, column {}", error.line(), error.column())
        }
    })
}

/// The members of an object as they come.
struct JsonMembers<'a> {
    list: Vec<(String, &'a RawValue)>,
    /// A name that appears twice.
    duplicate: Option<String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = JsonMembers<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut list, mut duplicate) = (Vec::new(), None);
                // A set, so that the search for duplicates takes linear time.
                let mut names: HashSet<String> = HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if names.insert(name.clone()) {
                        list.push((name, value));
                    } else {
                        duplicate.get_or_insert(name);
                    }
                }
                Ok(JsonMembers { list, duplicate })
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
    fn a_body_is_rendered_without_white_space() {
        assert_eq!(render(&[Some("Rex"), None]), br#"["Rex",null]"#);
    }

    #[test]
    fn the_time_to_parse_an_object_is_linear_in_its_members() {
        let (few, many) = (time_to_parse(100), time_to_parse(1_000));
        assert!(many < 30 * few, "{many} ns against {few} ns");
    }
}
