//! Pagination: a page of a list, and the request for one.

use serde::{Deserialize, Deserializer};
use thiserror::Error;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

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

impl PartialSchema for PageLimit {
    fn schema() -> RefOr<Schema> {
        let limit = ObjectBuilder::new().schema_type(Type::Integer);
        let limit = limit.minimum(Some(Self::MIN)).maximum(Some(Self::MAX));
        limit.default(Some(Self::DEFAULT.get().into())).into()
    }
}

impl ToSchema for PageLimit {}

/// An item of a list. Lists are sorted by id.
pub trait HasId {
    /// The type of its id.
    type Id: Copy;

    /// Its id.
    fn id(&self) -> Self::Id;
}

/// A request for one page. Keyset pagination: each page starts after the last id of the page before it, so rows
/// added in between neither shift nor repeat what a client sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRequest<Filter, Id> {
    /// Which items to list.
    pub filter: Filter,
    /// Start after this id; at the first item if absent.
    pub after: Option<Id>,
    /// The maximum number of items.
    pub limit: PageLimit,
}

/// One page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T: HasId> {
    /// The items, by ascending id.
    pub items: Vec<T>,
    /// The `after` of the next page; absent on the last page.
    pub next_after: Option<T::Id>,
}

impl<T: HasId> Page<T> {
    /// Makes a page from the result of a query for at least one row more than the limit, by ascending id.
    #[must_use]
    pub fn from_limit_plus_one(mut items: Vec<T>, limit: PageLimit) -> Self {
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
            let page = Page::from_limit_plus_one((1..=found).map(Numbered).collect(), limit);
            assert_eq!(page.items.len(), held);
            assert_eq!(page.next_after, next);
        }
    }
}
