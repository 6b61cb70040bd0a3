//! The pet.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::change::Change;
use super::identifier::identifier;
use super::metadata::{Metadata, MetadataError, MetadataPatch};
use super::page::{HasId, Page, PageRequest};
use super::reference::Reference;
use super::version::{Version, Versioned};
use crate::keywords;

/// The maximum length of a name, in characters.
pub(crate) const PET_NAME_MAX_CHARS: usize = 255;

identifier!(
    /// Identifier of a pet.
    PetId,
    PetIdError
);

/// Reference to a category. The specification defines no category resource, so any 64-bit integer is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CategoryId(pub i64);

/// A pet's name: 1 to 255 characters, at least one of them not white space, no control characters (so no
/// NUL, which PostgreSQL's `text` cannot hold). Stored as given: not trimmed, not normalised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct PetName(String);

impl PetName {
    /// The name as given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a text is not a valid name.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PetNameError {
    /// Empty or only white space.
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
        if name.chars().any(char::is_control) {
            Err(PetNameError::Control)
        } else if name.trim().is_empty() {
            Err(PetNameError::Blank)
        } else if name.chars().count() > PET_NAME_MAX_CHARS {
            Err(PetNameError::TooLong)
        } else {
            Ok(Self(name))
        }
    }
}

/// Whether a pet can be ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PetStatus {
    /// For sale.
    Available,
    /// Reserved by an open order, or by the shop.
    Pending,
    /// Sold.
    Sold,
}

keywords!(
    PetStatus { Available => "available", Pending => "pending", Sold => "sold" },
    PetStatusError
);

impl PetStatus {
    /// Whether a pet's status may change from `from` to `to`. Only sold to pending is forbidden. An unchanged status is
    /// always allowed.
    #[must_use]
    pub(crate) fn may_become(from: Option<Self>, to: Self) -> bool {
        from != Some(Self::Sold) || to != Self::Pending
    }
}

/// A pet to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPet {
    /// Its name.
    pub name: PetName,
    /// The category it belongs to.
    pub category_id: CategoryId,
    /// Absent if the client sent none.
    pub status: Option<PetStatus>,
    /// The shop's own number for this pet, such as its chip number. No two pets have the same.
    pub reference: Option<Reference>,
    /// The shop's own data about it.
    pub metadata: Metadata,
}

impl NewPet {
    /// The pet under the id that the database issued.
    #[must_use]
    pub fn with_id(&self, id: PetId) -> Pet {
        let Self { name, category_id, status, reference, metadata } = self.clone();
        Pet { id, name, category_id, status, reference, metadata }
    }
}

/// A pet in the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pet {
    /// Issued by the database.
    pub id: PetId,
    /// Its name.
    pub name: PetName,
    /// The category it belongs to.
    pub category_id: CategoryId,
    /// Absent if it was never set.
    pub status: Option<PetStatus>,
    /// The shop's own number for it, if it has one.
    pub reference: Option<Reference>,
    /// The shop's own data about it.
    pub metadata: Metadata,
}

/// A partial update of a pet. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PetPatch {
    /// Its new name.
    pub name: Option<PetName>,
    /// Its new category.
    pub category_id: Option<CategoryId>,
    /// Its new status.
    pub status: Option<PetStatus>,
    /// The shop's own number for it.
    pub reference: Change<Reference>,
    /// The shop's own data about it.
    pub metadata: Change<MetadataPatch>,
}

/// Why a patch is refused.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum PatchError {
    /// The pet has an open order, and only the order may change its status.
    #[error("the pet has an open order")]
    OpenOrder,
    /// The status may not change in this way.
    #[error("the pet's status may not become that one")]
    Move {
        /// The current status.
        from: Option<PetStatus>,
        /// The requested status.
        to: PetStatus,
    },
    /// The metadata would exceed its limits.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl PetPatch {
    /// Returns the pet after the change.
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
            reference: self.reference.apply(pet.reference.as_ref()),
            metadata: self.metadata.merge(&pet.metadata)?,
        })
    }
}

/// Selects the pets of a list. A pet must meet all conditions; an absent one is always met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PetFilter {
    /// Only pets with this status. A pet without a status matches none.
    pub status: Option<PetStatus>,
    /// Only pets of this category.
    pub category_id: Option<CategoryId>,
    /// Only these pets.
    pub ids: Option<Vec<PetId>>,
    /// Only the pets with these references.
    pub references: Option<Vec<Reference>>,
}

impl HasId for Pet {
    type Id = PetId;

    fn id(&self) -> PetId {
        self.id
    }
}

/// A page of pets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetPage {
    /// The pets.
    pub page: Page<Pet>,
    /// Their versions, if the request names the pets. Clients compare the other pages only to see whether their content has changed,
    /// and a page takes a twentieth more time with versions.
    pub versions: Vec<Version>,
}

impl From<Page<Pet>> for PetPage {
    fn from(page: Page<Pet>) -> Self {
        Self { page, versions: Vec::new() }
    }
}

impl From<Page<Versioned<Pet>>> for PetPage {
    fn from(Page { items, next_after }: Page<Versioned<Pet>>) -> Self {
        let versions = items.iter().map(|pet| pet.version).collect();
        let items = items.into_iter().map(|pet| pet.content).collect();
        Self { page: Page { items, next_after }, versions }
    }
}

/// A request for a page of pets.
pub type PetPageRequest = PageRequest<PetFilter, PetId>;

impl PetPageRequest {
    /// Whether this page or a later one contains the pet.
    #[must_use]
    pub fn asks_for(&self, pet: &Pet) -> bool {
        let PetFilter { status, category_id, ids, references } = &self.filter;
        status.is_none_or(|status| pet.status == Some(status))
            && category_id.is_none_or(|category_id| pet.category_id == category_id)
            && ids.as_ref().is_none_or(|ids| ids.contains(&pet.id))
            && references.as_ref().is_none_or(|known| pet.reference.iter().any(|own| known.contains(own)))
            && self.after.is_none_or(|after| self.sort.is_after(pet.id, after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PageLimit, SortOrder};

    #[test]
    fn a_name_is_kept_as_given() {
        for name in ["Rex", " Rex ", "x", "🐕", "\u{202e}xeR", "\u{feff}", "e\u{301}"] {
            assert_eq!(PetName::try_from(name.to_owned()).unwrap().as_str(), name);
        }
    }

    #[test]
    fn the_length_of_a_name_counts_characters_not_bytes() {
        assert!(PetName::try_from("🐕".repeat(255)).is_ok());
        assert_eq!(PetName::try_from("🐕".repeat(256)), Err(PetNameError::TooLong));
    }

    #[test]
    fn an_invalid_name_is_rejected_with_the_reason() {
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
    fn a_status_is_parsed_from_its_exact_word_only() {
        for status in PetStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        for word in ["", "Available", " sold", "available,sold"] {
            assert_eq!(word.parse::<PetStatus>(), Err(PetStatusError), "{word:?}");
        }
    }

    fn pet(status: Option<PetStatus>) -> Pet {
        Pet {
            id: 7.try_into().unwrap(),
            name: PetName::try_from("Rex".to_owned()).unwrap(),
            category_id: CategoryId(1),
            status,
            reference: Some("chip 7".to_owned().try_into().unwrap()),
            metadata: Metadata::default(),
        }
    }

    #[test]
    fn a_patch_changes_any_status_except_sold_to_pending_and_none_during_an_order() {
        for from in PetStatus::ALL.into_iter().map(Some).chain([None]) {
            for to in PetStatus::ALL {
                let patch = PetPatch { status: Some(to), ..PetPatch::default() };
                let expected = match (from, to) {
                    (Some(PetStatus::Sold), PetStatus::Pending) => Err(PatchError::Move { from, to }),
                    _ => Ok(Some(to)),
                };
                assert_eq!(patch.apply(&pet(from), false).map(|pet| pet.status), expected);
                assert_eq!(patch.apply(&pet(from), true), Err(PatchError::OpenOrder));
            }
            assert_eq!(PetPatch::default().apply(&pet(from), true), Ok(pet(from)), "nothing changes");
        }
    }

    #[test]
    fn a_pet_id_is_at_least_1() {
        assert_eq!(PetId::try_from(1).map(PetId::get), Ok(1));
        assert_eq!(PetId::try_from(0), Err(PetIdError));
        assert_eq!(PetId::try_from(-1), Err(PetIdError));
    }

    #[test]
    fn a_page_request_matches_pets_that_meet_every_condition() {
        let pet = pet(Some(PetStatus::Sold));
        let request = |status, ids: Option<&[i64]>, after: Option<i64>| PetPageRequest {
            filter: PetFilter {
                status,
                ids: ids.map(|ids| ids.iter().map(|id| (*id).try_into().unwrap()).collect()),
                ..PetFilter::default()
            },
            sort: SortOrder::Ascending,
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
        for (after, met) in [(8, true), (7, false), (6, false)] {
            let descending =
                PetPageRequest { sort: SortOrder::Descending, ..request(None, None, Some(after)) };
            assert_eq!(descending.asks_for(&pet), met, "{after}");
        }
        let filtered = |filter| PetPageRequest { filter, ..request(None, None, None) };
        for (category, met) in [(1, true), (2, false)] {
            let category_id = Some(CategoryId(category));
            assert_eq!(filtered(PetFilter { category_id, ..PetFilter::default() }).asks_for(&pet), met);
        }
        let references = |text: &str| Some(vec![text.to_owned().try_into().unwrap()]);
        for (reference, met) in [("chip 7", true), ("chip 8", false)] {
            let references = references(reference);
            assert_eq!(filtered(PetFilter { references, ..PetFilter::default() }).asks_for(&pet), met);
        }
        let unset = Pet { status: None, reference: None, ..pet };
        assert!(!request(Some(PetStatus::Sold), None, None).asks_for(&unset));
        let references = references("chip 7");
        assert!(!filtered(PetFilter { references, ..PetFilter::default() }).asks_for(&unset));
    }
}
