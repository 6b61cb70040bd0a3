//! The order: one pet, reserved for one buyer.
//!
//! A pet can be ordered while it is available. It is pending while its order is open. Completing the order makes it
//! sold; cancelling makes it available again. Nothing else changes the status of a pet with an open order.

use std::time::SystemTime;

use super::identifier::identifier;
use super::keyword_enum::keywords;
use super::page::{HasId, PageRequest};
use super::pet::{PetId, PetStatus};

identifier!(
    /// Identifier of an order.
    OrderId,
    OrderIdError,
    "an order's id is at least 1"
);

/// The status of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderStatus {
    /// Open.
    Placed,
    /// The buyer has the pet.
    Completed,
    /// Ended without a sale.
    Cancelled,
}

keywords!(
    OrderStatus { Placed => "placed", Completed => "completed", Cancelled => "cancelled" },
    OrderStatusError
);

/// The status that a pet must have to be ordered.
pub const ORDERABLE: PetStatus = PetStatus::Available;

/// The status of a pet while its order is open.
pub const ORDERED: PetStatus = PetStatus::Pending;

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
}

impl HasId for Order {
    type Id = OrderId;

    fn id(&self) -> OrderId {
        self.id
    }
}

/// Selects the orders of a list. An order must meet both conditions; an absent one is always met.
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
