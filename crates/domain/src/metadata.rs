//! The shop's own data about a pet or an order, such as a price or the address of a photo.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::change::Change;

/// The name of a member: 1 to 40 of `A-Za-z0-9_-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct MetadataName(String);

impl MetadataName {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MetadataName {
    type Err = MetadataNameError;

    fn from_str(name: &str) -> Result<Self, MetadataNameError> {
        name.to_owned().try_into()
    }
}

/// The text is not a name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must have a name of 1 to 40 characters: `A-Z`, `a-z`, `0-9`, `_` and `-`")]
pub struct MetadataNameError;

impl TryFrom<String> for MetadataName {
    type Error = MetadataNameError;

    fn try_from(name: String) -> Result<Self, MetadataNameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if (1..=40).contains(&name.len()) && name.bytes().all(is_allowed) {
            Ok(Self(name))
        } else {
            Err(MetadataNameError)
        }
    }
}

/// The value of a member: 1 to 500 characters, no control characters except line feed and tab. Stored as given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MetadataValue(String);

/// The text is not a value.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must have 1 to 500 characters, and no control characters except line feed and tab")]
pub struct MetadataValueError;

impl TryFrom<String> for MetadataValue {
    type Error = MetadataValueError;

    fn try_from(value: String) -> Result<Self, MetadataValueError> {
        let is_allowed = |character: char| !character.is_control() || matches!(character, '\n' | '\t');
        if (1..=500).contains(&value.chars().count()) && value.chars().all(is_allowed) {
            Ok(Self(value))
        } else {
            Err(MetadataValueError)
        }
    }
}

/// Texts by name, in the order of the names. Without members, it is the same as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<MetadataName, MetadataValue>")]
pub struct Metadata(BTreeMap<String, String>);

/// There is too much of it.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum MetadataError {
    /// More than [`Metadata::MAX_MEMBERS`].
    #[error("must have at most {max} members, not {0}", max = Metadata::MAX_MEMBERS)]
    TooManyMembers(usize),
    /// More than [`Metadata::MAX_BYTES`].
    #[error("must have at most {max} bytes in its names and values together, not {0}", max = Metadata::MAX_BYTES)]
    TooLarge(usize),
}

impl Metadata {
    /// The most members.
    pub const MAX_MEMBERS: usize = 20;
    /// The most bytes of all names and values, in UTF-8.
    pub const MAX_BYTES: usize = 4_096;

    /// What is stored. Somebody may have stored in SQL what no request could.
    #[must_use]
    pub fn from_stored(members: BTreeMap<String, String>) -> Self {
        Self(members)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The members, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of the member with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The number of bytes of all names and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    fn check_limits(self) -> Result<Self, MetadataError> {
        if self.0.len() > Self::MAX_MEMBERS {
            return Err(MetadataError::TooManyMembers(self.0.len()));
        }
        match self.bytes() {
            bytes if bytes > Self::MAX_BYTES => Err(MetadataError::TooLarge(bytes)),
            _ => Ok(self),
        }
    }
}

impl TryFrom<BTreeMap<MetadataName, MetadataValue>> for Metadata {
    type Error = MetadataError;

    fn try_from(members: BTreeMap<MetadataName, MetadataValue>) -> Result<Self, MetadataError> {
        let members = members.into_iter().map(|(MetadataName(name), MetadataValue(value))| (name, value));
        Self(members.collect()).check_limits()
    }
}

/// What a patch does to each member that it names. Other members stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct MetadataPatch(BTreeMap<MetadataName, Change<MetadataValue>>);

impl MetadataPatch {
    #[cfg(test)]
    pub(crate) fn of(changes: &[(&str, Option<&str>)]) -> Self {
        let change = |text: &str| Change::Set(MetadataValue(text.to_owned()));
        let changes = changes
            .iter()
            .map(|(name, text)| (MetadataName((*name).to_owned()), text.map_or(Change::Remove, change)));
        Self(changes.collect())
    }

    /// The new value of each member that is set, and none for each that is removed, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().filter_map(|(name, change)| match change {
            Change::Keep => None,
            Change::Remove => Some((name.as_str(), None)),
            Change::Set(MetadataValue(value)) => Some((name.as_str(), Some(value.as_str()))),
        })
    }
}

impl Change<MetadataPatch> {
    /// The metadata afterwards, which must keep to the limits if it has changed.
    pub fn merge(&self, metadata: &Metadata) -> Result<Metadata, MetadataError> {
        let MetadataPatch(changes) = match self {
            Self::Keep => return Ok(metadata.clone()),
            Self::Remove => return Ok(Metadata::default()),
            Self::Set(patch) => patch,
        };
        let mut members = metadata.0.clone();
        for (MetadataName(name), change) in changes {
            match change {
                Change::Keep => {}
                Change::Remove => drop(members.remove(name)),
                Change::Set(MetadataValue(value)) => drop(members.insert(name.clone(), value.clone())),
            }
        }
        let merged = Metadata(members);
        if merged == *metadata { Ok(merged) } else { merged.check_limits() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Result<MetadataName, MetadataNameError> {
        text.to_owned().try_into()
    }

    fn value(text: &str) -> Result<MetadataValue, MetadataValueError> {
        text.to_owned().try_into()
    }

    fn metadata(members: &[(&str, &str)]) -> Result<Metadata, MetadataError> {
        let member = |(key, text): &(&str, &str)| (name(key).unwrap(), value(text).unwrap());
        members.iter().map(member).collect::<BTreeMap<_, _>>().try_into()
    }

    fn patch(changes: &[(&str, Option<&str>)]) -> Change<MetadataPatch> {
        Change::Set(MetadataPatch::of(changes))
    }

    #[test]
    fn a_name_has_up_to_40_letters_digits_and_two_signs() {
        for good in ["a", "price", "A-Z_0", "__proto__", &"x".repeat(40)] {
            assert_eq!(name(good).unwrap().as_str(), good);
        }
        for bad in ["", "a.b", "a[0]", "a b", "a/b", "é", "\n", &"x".repeat(41)] {
            assert_eq!(name(bad), Err(MetadataNameError), "{bad:?}");
        }
    }

    #[test]
    fn a_value_has_up_to_500_characters_and_may_have_lines() {
        for good in ["1", " ", "a\nb\tc", "\u{202e}abc", "</script>", "=1+1", &"🐕".repeat(500)] {
            assert_eq!(value(good), Ok(MetadataValue(good.to_owned())));
        }
        for bad in ["", "a\0b", "a\rb", "\u{7f}", "\u{85}", &"🐕".repeat(501)] {
            assert_eq!(value(bad), Err(MetadataValueError), "{bad:?}");
        }
    }

    #[test]
    fn metadata_has_up_to_20_members_and_4096_bytes() {
        let names: Vec<String> = (0..21).map(|number| format!("n{number}")).collect();
        let members: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        assert!(metadata(&members[..20]).is_ok());
        assert_eq!(metadata(&members), Err(MetadataError::TooManyMembers(21)));
        // Eight names of one byte, and values of 511 bytes: characters of four bytes, and three more.
        let long = format!("{}abc", "🐕".repeat(127));
        let members: Vec<(&str, &str)> =
            ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, &*long)).into();
        assert_eq!(metadata(&members).unwrap().bytes(), 4_096);
        let longer = format!("{long}d");
        assert_eq!(
            metadata(&[&members[..7], &[("h", &*longer)]].concat()),
            Err(MetadataError::TooLarge(4_097))
        );
    }

    #[test]
    fn members_are_found_by_name_and_listed_by_name() {
        let stored = metadata(&[("b", "2"), ("a", "1")]).unwrap();
        assert_eq!(stored.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert_eq!((stored.get("b"), stored.get("c")), (Some("2"), None));
        assert!(!stored.is_empty() && Metadata::default().is_empty());
    }

    #[test]
    fn a_patch_adds_replaces_and_removes_members() {
        let old = metadata(&[("a", "1"), ("b", "2")]).unwrap();
        let new = patch(&[("a", Some("9")), ("b", None), ("c", Some("3")), ("d", None)]).merge(&old);
        assert_eq!(new, metadata(&[("a", "9"), ("c", "3")]));
        assert_eq!(Change::Keep.merge(&old), Ok(old.clone()));
        assert_eq!(Change::Remove.merge(&old), Ok(Metadata::default()));
        assert_eq!(patch(&[]).merge(&old), Ok(old));
    }

    #[test]
    fn the_result_of_a_patch_must_keep_to_the_limits() {
        let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
        let full: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        let full = metadata(&full).unwrap();
        assert_eq!(patch(&[("new", Some("x"))]).merge(&full), Err(MetadataError::TooManyMembers(21)));
        assert!(patch(&[("new", Some("x")), ("n0", None)]).merge(&full).is_ok());
    }
}
