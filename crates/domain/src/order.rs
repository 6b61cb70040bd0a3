//! The order: one pet, reserved for one buyer.
//!
//! A pet can be ordered while it is available. It is pending while its order is open. Completing the order makes it
//! sold; cancelling makes it available again, and so does not completing it in time. Nothing else changes the status of a
//! pet with an open order.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};
use thiserror::Error;

use super::identifier::identifier;
use super::page::{HasId, PageRequest};
use super::pet::{PetId, PetStatus};
use super::reference::Reference;
use crate::keywords;

identifier!(
    /// Identifier of an order.
    OrderId,
    OrderIdError
);

/// The status of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderStatus {
    /// Open.
    Placed,
    /// The buyer has the pet.
    Completed,
    /// Ended without a sale, by a request.
    Cancelled,
    /// Ended without a sale, because it was not completed in time.
    Expired,
}

keywords!(
    OrderStatus {
        Placed => "placed",
        Completed => "completed",
        Cancelled => "cancelled",
        Expired => "expired"
    },
    OrderStatusError,
    closed "Status of an order."
);

/// The status that a pet must have to be ordered.
pub const ORDERABLE: PetStatus = PetStatus::Available;

/// The status of a pet while its order is open.
pub const ORDERED: PetStatus = PetStatus::Pending;

/// The status of a pet whose order has expired.
pub const RELEASED: PetStatus = PetStatus::Available;

/// How long an order waits to be completed: 1 second to 7 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldDuration(u32);

impl HoldDuration {
    /// The shortest, in seconds.
    pub const MIN: i64 = 1;
    /// The longest, in seconds.
    pub const MAX: i64 = 7 * 24 * 60 * 60;

    /// The time in seconds.
    #[must_use]
    pub fn seconds(self) -> u32 {
        self.0
    }
}

/// The time is too short or too long.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be an integer from {min} to {max}", min = HoldDuration::MIN, max = HoldDuration::MAX)]
pub struct HoldDurationError;

impl TryFrom<i64> for HoldDuration {
    type Error = HoldDurationError;

    fn try_from(seconds: i64) -> Result<Self, HoldDurationError> {
        if !(Self::MIN..=Self::MAX).contains(&seconds) {
            return Err(HoldDurationError);
        }
        seconds.try_into().map(Self).map_err(|_| HoldDurationError)
    }
}

impl<'de> Deserialize<'de> for HoldDuration {
    /// Whatever is wrong with the value, the error says which integers are accepted.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = i64::deserialize(deserializer).map_err(|_| HoldDurationError);
        seconds.and_then(Self::try_from).map_err(serde::de::Error::custom)
    }
}

impl TryFrom<Duration> for HoldDuration {
    type Error = HoldDurationError;

    fn try_from(time: Duration) -> Result<Self, HoldDurationError> {
        i64::try_from(time.as_secs()).map_err(|_| HoldDurationError)?.try_into()
    }
}

/// An order to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    /// The pet that is ordered.
    pub pet_id: PetId,
    /// The shop's own name for the order, such as the number of a basket.
    pub reference: Option<Reference>,
    /// How long the order waits to be completed.
    pub hold: Option<HoldDuration>,
}

/// How an order ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderEnd {
    /// The pet is sold.
    Complete,
    /// The pet is available again.
    Cancel,
}

impl OrderEnd {
    /// The status of the order afterwards.
    #[must_use]
    pub fn status(self) -> OrderStatus {
        match self {
            Self::Complete => OrderStatus::Completed,
            Self::Cancel => OrderStatus::Cancelled,
        }
    }

    /// The status of the pet afterwards.
    #[must_use]
    pub fn pet_status(self) -> PetStatus {
        match self {
            Self::Complete => PetStatus::Sold,
            Self::Cancel => PetStatus::Available,
        }
    }
}

impl OrderStatus {
    /// Whether an order with this status may end this way. An order that already has is allowed and stays unchanged.
    #[must_use]
    pub fn may_end(self, end: OrderEnd) -> bool {
        self == Self::Placed || self == end.status()
    }
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Issued by the database.
    pub id: OrderId,
    /// The pet.
    pub pet_id: PetId,
    /// Its status.
    pub status: OrderStatus,
    /// When it was placed.
    pub created_at: SystemTime,
    /// When its status last changed.
    pub updated_at: SystemTime,
    /// When it ends unless it is completed before. Absent if it never does.
    pub expires_at: Option<SystemTime>,
    /// The shop's own name for it.
    pub reference: Option<Reference>,
}

impl HasId for Order {
    type Id = OrderId;

    fn id(&self) -> OrderId {
        self.id
    }
}

/// Selects the orders of a list. An order must meet all conditions; an absent one is always met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderFilter {
    /// Only orders with this status.
    pub status: Option<OrderStatus>,
    /// Only orders for this pet.
    pub pet_id: Option<PetId>,
    /// Only orders with this reference.
    pub reference: Option<Reference>,
}

/// A request for a page of orders.
pub type OrderPageRequest = PageRequest<OrderFilter, OrderId>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_parsed_from_its_exact_word_only() {
        for status in OrderStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        for word in ["", "Placed", " placed", "placed,completed", "canceled"] {
            assert_eq!(word.parse::<OrderStatus>(), Err(OrderStatusError), "{word:?}");
        }
    }

    #[test]
    fn every_status_change_by_an_order_is_allowed_for_the_pet() {
        assert!(PetStatus::may_become(Some(ORDERABLE), ORDERED));
        for end in [OrderEnd::Complete, OrderEnd::Cancel] {
            assert!(PetStatus::may_become(Some(ORDERED), end.pet_status()));
            assert_ne!(end.status(), OrderStatus::Placed, "an ended order is not open");
        }
    }
}
