//! Versions of what is stored.

use super::page::HasId;

/// Identifies a version of a pet or an order. Every committed change of its row gives it another one, whoever makes the change. It
/// does not say which of two versions is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version(pub u32);

/// A pet or an order, and the version that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The pet or the order.
    pub content: T,
    /// Its version.
    pub version: Version,
}

impl<T: HasId> HasId for Versioned<T> {
    type Id = T::Id;

    fn id(&self) -> T::Id {
        self.content.id()
    }
}
