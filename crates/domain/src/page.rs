//! Pagination: a page of a list, and the request for one.

use std::cmp::Reverse;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// The maximum number of items on a page: 1 to 100, 20 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageLimit(u8);

impl PageLimit {
    /// The smallest limit.
    pub const MIN: i64 = 1;
    /// The largest limit.
    pub const MAX: i64 = 100;
    /// The limit of a request that states none.
    pub const DEFAULT: Self = Self(20);
    /// The largest limit, as one.
    pub const LARGEST: Self = Self(100);

    /// The limit as a number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The number is not a valid limit.
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

impl<'de> Deserialize<'de> for PageLimit {
    /// Whatever is wrong with the value, the error says which integers are accepted.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let limit = i64::deserialize(deserializer).map_err(|_| PageLimitError);
        limit.and_then(Self::try_from).map_err(serde::de::Error::custom)
    }
}

/// The order of a list. Ids grow, so it is also the order in which the items were added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SortOrder {
    /// The smallest id first.
    #[default]
    Ascending,
    /// The largest id first.
    Descending,
}

impl SortOrder {
    /// Every order.
    pub const ALL: [Self; 2] = [Self::Ascending, Self::Descending];

    /// The spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ascending => "id",
            Self::Descending => "-id",
        }
    }

    /// The value for this order.
    pub fn choose<T>(self, ascending: T, descending: T) -> T {
        match self {
            Self::Ascending => ascending,
            Self::Descending => descending,
        }
    }

    /// Whether an item is listed after another one.
    pub fn is_after<Id: Copy + Ord>(self, id: Id, other: Id) -> bool {
        self.choose(id > other, id < other)
    }
}

/// The text is none of the spellings.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be `{}`, or `{}` for the newest first", SortOrder::Ascending.as_str(), SortOrder::Descending.as_str())]
pub struct SortOrderError;

impl FromStr for SortOrder {
    type Err = SortOrderError;

    fn from_str(text: &str) -> Result<Self, SortOrderError> {
        Self::ALL.into_iter().find(|order| order.as_str() == text).ok_or(SortOrderError)
    }
}

impl<'de> Deserialize<'de> for SortOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An item of a list. Lists are sorted by id.
pub trait HasId {
    /// The type of its id.
    type Id: Copy + Ord;

    /// Its id.
    fn id(&self) -> Self::Id;
}

/// A request for one page. Keyset pagination: each page starts after the last id of the page before it, so rows
/// added in between neither shift nor repeat what a client sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRequest<Filter, Id> {
    /// Which items to list.
    pub filter: Filter,
    /// In which order.
    pub sort: SortOrder,
    /// Start after this id, in this order; at the first item if absent.
    pub after: Option<Id>,
    /// The maximum number of items.
    pub limit: PageLimit,
}

impl<Filter, Id: Copy + Into<i64>> PageRequest<Filter, Id> {
    /// The number after which the page starts: that of an id, or one that is before every id that is issued.
    pub fn starts_after(&self) -> i64 {
        self.after.map_or(self.sort.choose(0, i64::MAX), Into::into)
    }
}

/// One page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T: HasId> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// The `after` of the next page; absent on the last page.
    pub next_after: Option<T::Id>,
}

impl<T: HasId> Page<T> {
    /// Makes a page from the result of a query for at least one row more than the limit, which need not be sorted.
    #[must_use]
    pub fn from_limit_plus_one(mut items: Vec<T>, sort: SortOrder, limit: PageLimit) -> Self {
        match sort {
            SortOrder::Ascending => items.sort_unstable_by_key(HasId::id),
            SortOrder::Descending => items.sort_unstable_by_key(|item| Reverse(item.id())),
        }
        let more = items.len() > usize::from(limit.get());
        items.truncate(limit.get().into());
        let next_after = if more { items.last().map(HasId::id) } else { None };
        Self { items, next_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something with an id.
    struct Numbered(i64);

    impl HasId for Numbered {
        type Id = i64;

        fn id(&self) -> i64 {
            self.0
        }
    }

    #[test]
    fn a_page_limit_is_1_to_100() {
        for good in [1, 20, 100] {
            assert_eq!(PageLimit::try_from(good).map(|limit| i64::from(limit.get())), Ok(good));
        }
        for bad in [i64::MIN, -1, 0, 101, 257, i64::MAX] {
            assert_eq!(PageLimit::try_from(bad), Err(PageLimitError), "{bad}");
        }
    }

    #[test]
    fn a_page_names_the_next_page_only_if_there_are_more_items() {
        let limit = PageLimit::try_from(2).unwrap();
        for (found, held, next) in [(0, 0, None), (1, 1, None), (2, 2, None), (3, 2, Some(2))] {
            for sort in SortOrder::ALL {
                let page = Page::from_limit_plus_one((1..=found).map(Numbered).collect(), sort, limit);
                assert_eq!(page.items.len(), held);
                assert_eq!(page.next_after, next);
            }
        }
    }

    #[test]
    fn a_page_is_sorted_in_the_order_of_the_list() {
        for (sort, ids, next) in [(SortOrder::Ascending, [1, 3], 3), (SortOrder::Descending, [9, 7], 7)] {
            let items = [7, 1, 9, 3].map(Numbered).into();
            let page = Page::from_limit_plus_one(items, sort, PageLimit::try_from(2).unwrap());
            assert_eq!(page.items.iter().map(HasId::id).collect::<Vec<_>>(), ids);
            assert_eq!(page.next_after, Some(next));
            assert!(sort.is_after(ids[1], ids[0]) && !sort.is_after(ids[0], ids[1]));
            assert!(!sort.is_after(ids[0], ids[0]));
        }
    }

    #[test]
    fn a_list_starts_after_the_given_id_or_before_all() {
        for (sort, after, starts_after) in [
            (SortOrder::Ascending, None, 0),
            (SortOrder::Descending, None, i64::MAX),
            (SortOrder::Ascending, Some(7), 7),
            (SortOrder::Descending, Some(7), 7),
        ] {
            let request = PageRequest::<(), i64> { filter: (), sort, after, limit: PageLimit::DEFAULT };
            assert_eq!(request.starts_after(), starts_after);
        }
    }

    #[test]
    fn an_order_is_parsed_from_its_exact_spelling_only() {
        for order in SortOrder::ALL {
            assert_eq!(order.as_str().parse(), Ok(order));
        }
        for text in ["", "ID", "+id", "--id", " -id", "-id ", "id,-id", "name", "asc"] {
            assert_eq!(text.parse::<SortOrder>(), Err(SortOrderError), "{text:?}");
        }
        assert_eq!(SortOrderError.to_string(), "must be `id`, or `-id` for the newest first");
    }
}
