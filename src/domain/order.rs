//! The order: one animal, promised to one buyer.
//!
//! An animal can be ordered while it is available. It is pending while its order is open, and what ends the order
//! decides what it is afterwards. Nothing else changes the status of an animal with an open order.

use std::str::FromStr;
use std::time::SystemTime;

use thiserror::Error;

use super::identifier::identifier;
use super::page::{HasId, PageRequest};
use super::pet::{PetId, PetStatus};

identifier!(
    /// Identifier of an order.
    OrderId,
    OrderIdError,
    "an order's id is at least 1"
);

/// How far an order has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderStatus {
    /// Open.
    Placed,
    /// The animal is with its buyer.
    Completed,
    /// Nothing came of it.
    Cancelled,
}

impl OrderStatus {
    /// Every status, in the order in which they come.
    pub const ALL: [Self; 3] = [Self::Placed, Self::Completed, Self::Cancelled];

    /// The word for this status, the same in JSON, in a query and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The text is not the word for a status.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("must be one of `placed`, `completed`, `cancelled`")]
pub struct OrderStatusError;

impl FromStr for OrderStatus {
    type Err = OrderStatusError;

    fn from_str(word: &str) -> Result<Self, OrderStatusError> {
        Self::ALL.into_iter().find(|status| status.as_str() == word).ok_or(OrderStatusError)
    }
}

/// What an animal must be for an order to be placed for it.
pub const ORDERABLE: PetStatus = PetStatus::Available;

/// What an animal is while its order is open.
pub const ORDERED: PetStatus = PetStatus::Pending;

/// The two ends of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderEnd {
    /// The buyer takes the animal.
    Complete,
    /// The shop keeps it.
    Cancel,
}

impl OrderEnd {
    /// What becomes of the order.
    #[must_use]
    pub fn status(self) -> OrderStatus {
        match self {
            Self::Complete => OrderStatus::Completed,
            Self::Cancel => OrderStatus::Cancelled,
        }
    }

    /// What becomes of the animal.
    #[must_use]
    pub fn pet_status(self) -> PetStatus {
        match self {
            Self::Complete => PetStatus::Sold,
            Self::Cancel => PetStatus::Available,
        }
    }
}

impl OrderStatus {
    /// Whether an order of this status may be brought to that end. One that is there already may: nothing changes.
    #[must_use]
    pub fn may_end(self, end: OrderEnd) -> bool {
        self == Self::Placed || self == end.status()
    }
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Given out by the database when the order was placed.
    pub id: OrderId,
    /// The animal.
    pub pet_id: PetId,
    /// How far it has come.
    pub status: OrderStatus,
    /// When it was placed.
    pub created_at: SystemTime,
    /// When its status last changed.
    pub updated_at: SystemTime,
}

impl HasId for Order {
    type Id = OrderId;

    fn id(&self) -> OrderId {
        self.id
    }
}

/// Which orders a list holds. Both conditions must be met; an absent one is met by every order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrderFilter {
    /// Only orders with this status.
    pub status: Option<OrderStatus>,
    /// Only orders for this pet.
    pub pet_id: Option<PetId>,
}

/// A request for a page of orders.
pub type OrderPageRequest = PageRequest<OrderFilter, OrderId>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_exactly_one_word() {
        for status in OrderStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        for word in ["", "Placed", " placed", "placed,completed", "canceled"] {
            assert_eq!(word.parse::<OrderStatus>(), Err(OrderStatusError), "{word:?}");
        }
    }

    #[test]
    fn every_move_of_an_animal_with_its_order_is_one_that_its_status_allows() {
        assert!(PetStatus::may_become(Some(ORDERABLE), ORDERED));
        for end in [OrderEnd::Complete, OrderEnd::Cancel] {
            assert!(PetStatus::may_become(Some(ORDERED), end.pet_status()));
            assert_ne!(end.status(), OrderStatus::Placed, "an end is an end");
        }
    }
}
