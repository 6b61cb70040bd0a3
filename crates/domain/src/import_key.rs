//! Where imported pets come from: a named source and its keys.

use std::cmp::Ordering;
use std::str::FromStr;

use thiserror::Error;

/// The maximum length of a source's name and of a key, in characters.
pub(crate) const IMPORT_KEY_MAX_CHARS: usize = 200;

/// The text is not a valid source name or source key.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must have 1 to {IMPORT_KEY_MAX_CHARS} characters, none of them a control character")]
pub struct ImportKeyError;

fn check(text: &str) -> Result<(), ImportKeyError> {
    let good =
        !text.chars().any(char::is_control) && (1..=IMPORT_KEY_MAX_CHARS).contains(&text.chars().count());
    if good { Ok(()) } else { Err(ImportKeyError) }
}

/// The name of a source. Keys are unique per source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSourceName(String);

impl ImportSourceName {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImportSourceName {
    type Err = ImportKeyError;

    fn from_str(name: &str) -> Result<Self, ImportKeyError> {
        check(name).map(|()| Self(name.to_owned()))
    }
}

/// The source's own key for a pet. Stored as given: `7`, `07` and `7 ` are three keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportKey(String);

impl ImportKey {
    /// The key as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ImportKey {
    type Error = ImportKeyError;

    fn try_from(key: String) -> Result<Self, ImportKeyError> {
        check(&key).map(|()| Self(key))
    }
}

/// Detects keys in strictly ascending order, which cannot contain duplicates and need no check for them.
///
/// Two orders count: bytewise, and by length first, in which numbers ascend (`9`, `10`).
#[derive(Debug, Default)]
pub struct AscendingCheck {
    last: Option<String>,
    bytewise_broken: bool,
    by_length_broken: bool,
}

impl AscendingCheck {
    /// Compares the next key with the one before it.
    pub fn push(&mut self, key: &ImportKey) {
        let key = key.as_str();
        if let Some(last) = &mut self.last {
            let bytewise = last.as_str().cmp(key);
            let by_length = last.len().cmp(&key.len()).then(bytewise);
            self.bytewise_broken |= bytewise != Ordering::Less;
            self.by_length_broken |= by_length != Ordering::Less;
            last.clear();
            last.push_str(key);
        } else {
            self.last = Some(key.to_owned());
        }
    }

    /// Whether all keys so far ascend, in one order or the other.
    #[must_use]
    pub fn is_ascending(&self) -> bool {
        !(self.bytewise_broken && self.by_length_broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_key_is_kept_as_given_and_has_1_to_200_characters() {
        for good in ["7", "07", " 7 ", "SKU/7-ä🐕", &"x".repeat(200)] {
            assert_eq!(ImportKey::try_from(good.to_owned()).unwrap().as_str(), good);
            assert_eq!(good.parse::<ImportSourceName>().unwrap().as_str(), good);
        }
        for bad in ["", "a\nb", "\0", &"x".repeat(201)] {
            assert_eq!(ImportKey::try_from(bad.to_owned()), Err(ImportKeyError), "{bad:?}");
            assert_eq!(bad.parse::<ImportSourceName>(), Err(ImportKeyError), "{bad:?}");
        }
    }

    #[test]
    fn keys_ascend_bytewise_or_as_numbers_without_duplicates() {
        for (keys, ascend) in [
            (&[][..], true),
            (&["5"], true),
            (&["8", "9", "10", "100"], true),
            (&["10", "100", "8", "9"], true),
            (&["a", "aa", "b", "ba"], true),
            (&["1", "2", "2"], false),
            (&["2", "1", "3"], false),
            // First by length, then bytewise.
            (&["9", "10", "aa", "b", "ba"], false),
        ] {
            let mut check = AscendingCheck::default();
            for key in keys {
                check.push(&ImportKey::try_from((*key).to_owned()).unwrap());
            }
            assert_eq!(check.is_ascending(), ascend, "{keys:?}");
        }
    }
}
