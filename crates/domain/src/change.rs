//! What a patch does to a value that may be absent.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A change of a value that may be absent. As in a JSON merge patch (RFC 7396), a member that is left out keeps the value, `null`
/// removes it, and anything else replaces it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// The value stays as it is.
    #[default]
    Keep,
    /// Afterwards there is none.
    Remove,
    /// Afterwards it is this one.
    Set(T),
}

impl<T: Clone> Change<T> {
    /// The value afterwards.
    #[must_use]
    pub fn apply(&self, value: Option<&T>) -> Option<T> {
        match self {
            Self::Keep => value.cloned(),
            Self::Remove => None,
            Self::Set(new) => Some(new.clone()),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Change<T> {
    /// Needs a format that tells an absent value (none) from `null` (unit) and any other value (some).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChangeVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ChangeVisitor<T> {
            type Value = Change<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a value or null")
            }

            fn visit_none<E: Error>(self) -> Result<Change<T>, E> {
                Ok(Change::Keep)
            }

            fn visit_unit<E: Error>(self) -> Result<Change<T>, E> {
                Ok(Change::Remove)
            }

            fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Change<T>, D::Error> {
                T::deserialize(value).map(Change::Set)
            }
        }
        deserializer.deserialize_any(ChangeVisitor(PhantomData))
    }
}
