//! The animal.

use std::str::FromStr;

use thiserror::Error;

use super::identifier::identifier;
use super::page::{HasId, PageRequest};

/// The most characters that a name may have.
pub const PET_NAME_MAX_CHARS: usize = 255;

identifier!(
    /// Identifier of a pet.
    PetId,
    PetIdError,
    "a pet's id is at least 1"
);

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

    /// Whether an animal of this status, if it has one, may become of that one: every move but back to none, and but
    /// from sold to pending. To stay as it is is no move, and always allowed.
    #[must_use]
    pub fn may_become(from: Option<Self>, to: Self) -> bool {
        from != Some(Self::Sold) || to != Self::Pending
    }

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

/// A change of an animal: what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PetPatch {
    /// Its new name.
    pub name: Option<PetName>,
    /// The category it is to belong to.
    pub category_id: Option<CategoryId>,
    /// Its new status.
    pub status: Option<PetStatus>,
}

/// Why an animal cannot be changed so.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum PatchError {
    /// An order is open: what becomes of the animal is what becomes of the order.
    #[error("the pet has an open order")]
    OpenOrder,
    /// Its status may not become that one.
    #[error("the pet's status may not become that one")]
    Move {
        /// What it is.
        from: Option<PetStatus>,
        /// What it was to be.
        to: PetStatus,
    },
}

impl PetPatch {
    /// The pet to create, if everything that a pet must have is set.
    #[must_use]
    pub fn into_new_pet(self) -> Option<NewPet> {
        Some(NewPet { name: self.name?, category_id: self.category_id?, status: self.status })
    }

    /// The animal as it is after the change.
    pub fn apply(&self, pet: &Pet, has_open_order: bool) -> Result<Pet, PatchError> {
        if let Some(to) = self.status {
            if has_open_order {
                return Err(PatchError::OpenOrder);
            }
            if !PetStatus::may_become(pet.status, to) {
                return Err(PatchError::Move { from: pet.status, to });
            }
        }
        Ok(Pet {
            id: pet.id,
            name: self.name.as_ref().unwrap_or(&pet.name).clone(),
            category_id: self.category_id.unwrap_or(pet.category_id),
            status: self.status.or(pet.status),
        })
    }
}

/// Which pets a list holds. Both conditions must be met; an absent one is met by every pet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PetFilter {
    /// Only pets with this status. A pet without one is matched by no status.
    pub status: Option<PetStatus>,
    /// Only these pets.
    pub ids: Option<Vec<PetId>>,
}

impl HasId for Pet {
    type Id = PetId;

    fn id(&self) -> PetId {
        self.id
    }
}

/// A request for a page of pets.
pub type PetPageRequest = PageRequest<PetFilter, PetId>;

impl PetPageRequest {
    /// Whether the page may hold this pet: the list does, and the page does not begin after it.
    #[must_use]
    pub fn asks_for(&self, pet: &Pet) -> bool {
        let PetFilter { status, ids } = &self.filter;
        status.is_none_or(|status| pet.status == Some(status))
            && ids.as_ref().is_none_or(|ids| ids.contains(&pet.id))
            && self.after.is_none_or(|after| pet.id > after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::page::PageLimit;

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

    #[test]
    fn a_request_asks_for_pets_that_meet_every_condition() {
        let pet = Pet {
            id: 7.try_into().unwrap(),
            name: PetName::try_from("Rex".to_owned()).unwrap(),
            category_id: CategoryId(1),
            status: Some(PetStatus::Sold),
        };
        let request = |status, ids: Option<&[i64]>, after: Option<i64>| PetPageRequest {
            filter: PetFilter {
                status,
                ids: ids.map(|ids| ids.iter().map(|id| (*id).try_into().unwrap()).collect()),
            },
            after: after.map(|after| after.try_into().unwrap()),
            limit: PageLimit::DEFAULT,
        };
        for met in [
            request(None, None, None),
            request(Some(PetStatus::Sold), None, None),
            request(None, Some(&[1, 7]), None),
            request(Some(PetStatus::Sold), Some(&[7]), Some(6)),
        ] {
            assert!(met.asks_for(&pet), "{met:?}");
        }
        for unmet in [
            request(Some(PetStatus::Pending), None, None),
            request(None, Some(&[1, 2]), None),
            request(None, None, Some(7)),
        ] {
            assert!(!unmet.asks_for(&pet), "{unmet:?}");
        }
        let unset = Pet { status: None, ..pet };
        assert!(!request(Some(PetStatus::Sold), None, None).asks_for(&unset));
    }
}
