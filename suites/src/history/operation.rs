//! What clients ask for, how it ends, and what is counted.

use serde::Deserialize;

/// How an order can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Cancelled,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Names are unique.
    Create {
        name: String,
        status: &'static str,
    },
    Patch {
        pet: i64,
        name: String,
        status: Option<&'static str>,
    },
    /// References are unique. An order that expires soon makes its pet available again by itself.
    Place {
        pet: i64,
        reference: String,
        expires: bool,
    },
    End {
        order: i64,
        end: End,
    },
    /// One pet, by its path.
    Get {
        pet: i64,
    },
    /// One pet, as a list.
    Find {
        pet: i64,
    },
    /// The pets after this id.
    Page {
        after: i64,
    },
    /// The first page of available pets, which is not compared with anything.
    Available,
}

impl Request {
    pub(crate) fn is_write(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::Patch { .. } | Self::Place { .. } | Self::End { .. })
    }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A write took effect; the id of the pet or the order in the answer.
    Done(i64),
    /// A read returned these pets.
    Pets(Vec<Found>),
    /// It had no effect, and never will.
    Refused,
    /// It may have taken effect, or may still.
    Unknown,
}

/// A pet in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Found {
    pub(crate) id: i64,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) status: String,
}

/// Something that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcknowledgedWrite {
    Created { name: String, pet: i64 },
    Patched { pet: i64, name: String, status: Option<&'static str> },
    Placed { order: i64, pet: i64, reference: String },
    Ended { order: i64, end: End },
}

/// How much was checked and what was found.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) stale: u64,
    pub(crate) backwards: u64,
    pub(crate) unknown: u64,
}
