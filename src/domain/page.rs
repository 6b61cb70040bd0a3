//! A page of a list: what is asked for, and how much at a time.

use thiserror::Error;

use super::order::{OrderFilter, OrderId};
use super::pet::{Pet, PetId, PetStatus};

/// How many things one page may hold: 1 to 100, 20 unless asked otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageLimit(u8);

impl PageLimit {
    /// The smallest page.
    pub const MIN: i64 = 1;
    /// The largest page.
    pub const MAX: i64 = 100;
    /// The page that a client gets who asks for none.
    pub const DEFAULT: Self = Self(20);

    /// The limit as a number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The number is not a page's limit.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be an integer from {min} to {max}", min = PageLimit::MIN, max = PageLimit::MAX)]
pub struct PageLimitError;

impl TryFrom<i64> for PageLimit {
    type Error = PageLimitError;

    fn try_from(limit: i64) -> Result<Self, PageLimitError> {
        match u8::try_from(limit) {
            Ok(small) if (Self::MIN..=Self::MAX).contains(&limit) => Ok(Self(small)),
            _ => Err(PageLimitError),
        }
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

/// What lists hold: things in the order of their ids.
pub trait Listed {
    /// What tells them apart.
    type Id: Copy;

    /// The id of this one.
    fn id(&self) -> Self::Id;
}

impl Listed for Pet {
    type Id = PetId;

    fn id(&self) -> PetId {
        self.id
    }
}

/// A request for one page. Pages are in the order of ids; each begins after the last id of the one before,
/// so what is added meanwhile neither shifts nor repeats what a walk meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRequest<Filter, Id> {
    /// Which of all.
    pub filter: Filter,
    /// Begin after this id; at the beginning if absent.
    pub after: Option<Id>,
    /// At most this many.
    pub limit: PageLimit,
}

/// A request for a page of pets.
pub type PetPageRequest = PageRequest<PetFilter, PetId>;

/// A request for a page of orders.
pub type OrderPageRequest = PageRequest<OrderFilter, OrderId>;

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

/// One page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T: Listed> {
    /// What is on it, by ascending id.
    pub items: Vec<T>,
    /// Where the next page begins; absent on the last page.
    pub next_after: Option<T::Id>,
}

impl<T: Listed> Page<T> {
    /// Makes a page from what was found, by ascending id, when at least one more than the limit was looked for.
    #[must_use]
    pub fn from_one_too_many(mut items: Vec<T>, limit: PageLimit) -> Self {
        let more = items.len() > usize::from(limit.get());
        items.truncate(limit.get().into());
        let next_after = if more { items.last().map(Listed::id) } else { None };
        Self { items, next_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::pet::{CategoryId, PetName};

    fn pets(count: i64) -> Vec<Pet> {
        (1..=count)
            .map(|id| Pet {
                id: id.try_into().unwrap(),
                name: PetName::try_from("Rex".to_owned()).unwrap(),
                category_id: CategoryId(1),
                status: None,
            })
            .collect()
    }

    #[test]
    fn a_limit_is_from_1_to_100() {
        for good in [1, 20, 100] {
            assert_eq!(PageLimit::try_from(good).map(|limit| i64::from(limit.get())), Ok(good));
        }
        for bad in [i64::MIN, -1, 0, 101, 257, i64::MAX] {
            assert_eq!(PageLimit::try_from(bad), Err(PageLimitError), "{bad}");
        }
    }

    #[test]
    fn a_request_asks_for_pets_that_meet_every_condition() {
        let pet = Pet { status: Some(PetStatus::Sold), ..pets(7).remove(6) };
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

    #[test]
    fn a_page_names_the_next_one_only_if_there_is_more() {
        let limit = PageLimit::try_from(2).unwrap();
        for (found, held, next) in [(0, 0, None), (1, 1, None), (2, 2, None), (3, 2, Some(2))] {
            let page = Page::from_one_too_many(pets(found), limit);
            assert_eq!(page.items.len(), held);
            assert_eq!(page.next_after.map(PetId::get), next);
        }
    }
}
