//! The animal.

use std::str::FromStr;

use thiserror::Error;

/// The most characters that a name may have.
pub const PET_NAME_MAX_CHARS: usize = 255;

/// Identifier of a pet: at least 1, given out by the database, growing, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PetId(i64);

impl PetId {
    /// The largest id given out: 2^53 − 1, which JavaScript still holds exactly.
    pub const MAX_ISSUED: i64 = (1 << 53) - 1;

    /// The id as a number.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }
}

/// The number cannot be the id of a pet.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a pet's id is at least 1")]
pub struct PetIdError;

impl TryFrom<i64> for PetId {
    type Error = PetIdError;

    fn try_from(id: i64) -> Result<Self, PetIdError> {
        if id >= 1 { Ok(Self(id)) } else { Err(PetIdError) }
    }
}

/// Reference to a category. The category record is not described anywhere, so any 64-bit integer is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CategoryId(pub i64);

/// A pet's name: 1 to 255 characters, at least one of them not white space, no control characters (so no
/// NUL, which PostgreSQL's `text` cannot hold). Kept as given: not trimmed, not normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetName(String);

impl PetName {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a text is not a pet's name.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PetNameError {
    /// Empty, or white space alone.
    #[error("must have at least one character that is not white space")]
    Blank,
    /// More than [`PET_NAME_MAX_CHARS`] characters.
    #[error("must have at most {PET_NAME_MAX_CHARS} characters")]
    TooLong,
    /// A control character, such as a line break or NUL.
    #[error("must not contain control characters")]
    Control,
}

impl TryFrom<String> for PetName {
    type Error = PetNameError;

    fn try_from(name: String) -> Result<Self, PetNameError> {
        let (mut length, mut blank) = (0, true);
        for character in name.chars() {
            if character.is_control() {
                return Err(PetNameError::Control);
            }
            length += 1;
            blank &= character.is_whitespace();
        }
        if blank {
            Err(PetNameError::Blank)
        } else if length > PET_NAME_MAX_CHARS {
            Err(PetNameError::TooLong)
        } else {
            Ok(Self(name))
        }
    }
}

/// Whether an animal can be bought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PetStatus {
    /// On sale.
    Available,
    /// Promised to somebody.
    Pending,
    /// Gone.
    Sold,
}

impl PetStatus {
    /// Every status, in the order of an animal's way through the shop.
    pub const ALL: [Self; 3] = [Self::Available, Self::Pending, Self::Sold];

    /// The word for this status, the same in JSON, in a query and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Pending => "pending",
            Self::Sold => "sold",
        }
    }
}

/// The text is not the word for a status.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be one of `available`, `pending`, `sold`")]
pub struct PetStatusError;

impl FromStr for PetStatus {
    type Err = PetStatusError;

    fn from_str(word: &str) -> Result<Self, PetStatusError> {
        Self::ALL.into_iter().find(|status| status.as_str() == word).ok_or(PetStatusError)
    }
}

/// An animal about to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPet {
    /// Its name.
    pub name: PetName,
    /// The category it belongs to.
    pub category_id: CategoryId,
    /// Absent if the client stated none.
    pub status: Option<PetStatus>,
}

/// An animal in the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pet {
    /// Given out by the database when the animal was added.
    pub id: PetId,
    /// Its name.
    pub name: PetName,
    /// The category it belongs to.
    pub category_id: CategoryId,
    /// Absent if none was ever stated.
    pub status: Option<PetStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_given() {
        for name in ["Rex", " Rex ", "x", "🐕", "\u{202e}xeR", "\u{feff}", "e\u{301}"] {
            assert_eq!(PetName::try_from(name.to_owned()).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_name_counts_characters_not_bytes() {
        assert!(PetName::try_from("🐕".repeat(255)).is_ok());
        assert_eq!(PetName::try_from("🐕".repeat(256)), Err(PetNameError::TooLong));
    }

    #[test]
    fn a_bad_name_is_refused_with_its_reason() {
        for (name, reason) in [
            ("", PetNameError::Blank),
            ("  \u{3000}\u{a0}", PetNameError::Blank),
            ("Re\0x", PetNameError::Control),
            ("Rex\n", PetNameError::Control),
            ("\u{85}", PetNameError::Control),
        ] {
            assert_eq!(PetName::try_from(name.to_owned()), Err(reason), "{name:?}");
        }
    }

    #[test]
    fn a_status_has_exactly_one_word() {
        for status in PetStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        for word in ["", "Available", " sold", "available,sold"] {
            assert_eq!(word.parse::<PetStatus>(), Err(PetStatusError), "{word:?}");
        }
    }

    #[test]
    fn an_id_is_at_least_one() {
        assert_eq!(PetId::try_from(1).map(PetId::get), Ok(1));
        assert_eq!(PetId::try_from(0), Err(PetIdError));
        assert_eq!(PetId::try_from(-1), Err(PetIdError));
    }
}
