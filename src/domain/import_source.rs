//! Where imported animals come from: a source, and the keys that it has for them itself.

use std::cmp::Ordering;
use std::str::FromStr;

use thiserror::Error;

/// The most characters of a source's name, and of a key.
pub const SOURCE_MAX_CHARS: usize = 200;

/// The text is neither the name of a source nor a key.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must have 1 to {SOURCE_MAX_CHARS} characters, none of them a control character")]
pub struct SourceError;

fn check(text: &str) -> Result<(), SourceError> {
    let good = !text.chars().any(char::is_control) && (1..=SOURCE_MAX_CHARS).contains(&text.chars().count());
    if good { Ok(()) } else { Err(SourceError) }
}

/// What a source is called, so that its keys are told apart from those of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceName(String);

impl SourceName {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SourceName {
    type Err = SourceError;

    fn from_str(name: &str) -> Result<Self, SourceError> {
        check(name).map(|()| Self(name.to_owned()))
    }
}

/// The key that a source has for an animal itself. Kept as given: `7`, `07` and `7 ` are three keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceKey(String);

impl SourceKey {
    /// The key as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SourceKey {
    type Error = SourceError;

    fn try_from(key: String) -> Result<Self, SourceError> {
        check(&key).map(|()| Self(key))
    }
}

/// Whether keys come one after another in ascending order, so that none can be there twice and nobody has to look.
///
/// Two orders count: that of the bytes, and that of the length first, in which numbers ascend (`9`, `10`).
#[derive(Debug, Default)]
pub struct KeyOrder {
    last: Option<String>,
    by_bytes_broken: bool,
    by_length_broken: bool,
}

impl KeyOrder {
    /// Takes the next key.
    pub fn push(&mut self, key: &SourceKey) {
        let key = key.as_str();
        if let Some(last) = &mut self.last {
            let by_bytes = last.as_str().cmp(key);
            let by_length = last.len().cmp(&key.len()).then(by_bytes);
            self.by_bytes_broken |= by_bytes != Ordering::Less;
            self.by_length_broken |= by_length != Ordering::Less;
            last.clear();
            last.push_str(key);
        } else {
            self.last = Some(key.to_owned());
        }
    }

    /// Whether each key so far came after the one before it.
    #[must_use]
    pub fn holds(&self) -> bool {
        !(self.by_bytes_broken && self.by_length_broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_kept_as_given_and_is_neither_empty_nor_endless() {
        for good in ["7", "07", " 7 ", "SKU/7-ä🐕", &"x".repeat(200)] {
            assert_eq!(SourceKey::try_from(good.to_owned()).unwrap().as_str(), good);
            assert_eq!(good.parse::<SourceName>().unwrap().as_str(), good);
        }
        for bad in ["", "a\nb", "\0", &"x".repeat(201)] {
            assert_eq!(SourceKey::try_from(bad.to_owned()), Err(SourceError), "{bad:?}");
            assert_eq!(bad.parse::<SourceName>(), Err(SourceError), "{bad:?}");
        }
    }

    #[test]
    fn keys_ascend_by_their_bytes_or_as_numbers_and_never_with_one_twice() {
        for (keys, ascend) in [
            (&[][..], true),
            (&["5"], true),
            (&["8", "9", "10", "100"], true),
            (&["10", "100", "8", "9"], true),
            (&["a", "aa", "b", "ba"], true),
            (&["1", "2", "2"], false),
            (&["2", "1", "3"], false),
            // In neither order all the way.
            (&["9", "10", "aa", "b", "ba"], false),
        ] {
            let mut key_order = KeyOrder::default();
            for key in keys {
                key_order.push(&SourceKey::try_from((*key).to_owned()).unwrap());
            }
            assert_eq!(key_order.holds(), ascend, "{keys:?}");
        }
    }
}
