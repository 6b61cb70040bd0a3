//! The shop's own name for a pet or an order.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::short_text::is_short_text;

/// The maximum length of a reference, in characters.
pub(crate) const REFERENCE_MAX_CHARS: usize = 255;

/// The shop's own name for something: 1 to 255 characters, not blank, no control characters. Stored as given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Reference(String);

impl Reference {
    /// The reference as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is not a reference.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must have 1 to {REFERENCE_MAX_CHARS} characters, not all white space, and no control characters")]
pub struct ReferenceError;

impl TryFrom<String> for Reference {
    type Error = ReferenceError;

    fn try_from(text: String) -> Result<Self, ReferenceError> {
        if is_short_text(&text, REFERENCE_MAX_CHARS) { Ok(Self(text)) } else { Err(ReferenceError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_kept_as_given_and_has_1_to_255_characters() {
        for good in ["7", " chip 7 ", "🐕", &"x".repeat(255)] {
            assert_eq!(Reference::try_from(good.to_owned()).unwrap().as_str(), good);
        }
        for bad in ["", " \u{3000}", "a\nb", "\u{85}", &"x".repeat(256)] {
            assert_eq!(Reference::try_from(bad.to_owned()), Err(ReferenceError), "{bad:?}");
        }
    }
}
