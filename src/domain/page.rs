//! A page of a list, whatever it lists: how it is asked for, and how much at a time.

use thiserror::Error;

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

/// What lists hold: things in the order of their ids.
pub trait HasId {
    /// What tells them apart.
    type Id: Copy;

    /// The id of this one.
    fn id(&self) -> Self::Id;
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

/// One page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T: HasId> {
    /// What is on it, by ascending id.
    pub items: Vec<T>,
    /// Where the next page begins; absent on the last page.
    pub next_after: Option<T::Id>,
}

impl<T: HasId> Page<T> {
    /// Makes a page from what was found, by ascending id, when at least one more than the limit was looked for.
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
    fn a_limit_is_from_1_to_100() {
        for good in [1, 20, 100] {
            assert_eq!(PageLimit::try_from(good).map(|limit| i64::from(limit.get())), Ok(good));
        }
        for bad in [i64::MIN, -1, 0, 101, 257, i64::MAX] {
            assert_eq!(PageLimit::try_from(bad), Err(PageLimitError), "{bad}");
        }
    }

    #[test]
    fn a_page_names_the_next_one_only_if_there_is_more() {
        let limit = PageLimit::try_from(2).unwrap();
        for (found, held, next) in [(0, 0, None), (1, 1, None), (2, 2, None), (3, 2, Some(2))] {
            let page = Page::from_limit_plus_one((1..=found).map(Numbered).collect(), limit);
            assert_eq!(page.items.len(), held);
            assert_eq!(page.next_after, next);
        }
    }
}
