//! The event: what happened to a pet or an order, for those who follow the changes.

use std::time::{Duration, SystemTime};

use super::order::{OrderEnd, OrderId};
use super::page::PageLimit;
use super::pet::PetId;
use crate::keywords;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// A pet was added.
    PetCreated,
    /// A pet was changed, by an order or otherwise.
    PetUpdated,
    /// A pet was deleted.
    PetDeleted,
    /// A thousand pets were added at once.
    PetsImported,
    /// An order was placed.
    OrderPlaced,
    /// An order was completed.
    OrderCompleted,
    /// An order was cancelled.
    OrderCancelled,
    /// An order was not completed in time.
    OrderExpired,
    /// An order was changed, but not its status, which only an operator can do.
    OrderUpdated,
    /// An order was deleted, which only an operator can do.
    OrderDeleted,
}

keywords!(
    EventType {
        PetCreated => "pet.created",
        PetUpdated => "pet.updated",
        PetDeleted => "pet.deleted",
        PetsImported => "pets.imported",
        OrderPlaced => "order.placed",
        OrderCompleted => "order.completed",
        OrderCancelled => "order.cancelled",
        OrderExpired => "order.expired",
        OrderUpdated => "order.updated",
        OrderDeleted => "order.deleted"
    },
    EventTypeError
);

impl From<OrderEnd> for EventType {
    fn from(end: OrderEnd) -> Self {
        match end {
            OrderEnd::Complete => Self::OrderCompleted,
            OrderEnd::Cancel => Self::OrderCancelled,
            OrderEnd::Expire => Self::OrderExpired,
        }
    }
}

/// A position in the feed: that of an event, or one after which none has happened yet. Its order is that of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPosition {
    /// Which history the position belongs to: a restored database begins a new one.
    pub epoch: i32,
    /// The transaction, of which later ones have larger numbers.
    pub transaction: u64,
    /// Orders what the transaction did. 0 is before all of it.
    pub number: i64,
    /// The pet: one statement may change several.
    pub pet: i64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its position, which identifies it.
    pub position: EventPosition,
    /// What happened.
    pub event_type: EventType,
    /// The pet, or the first of several.
    pub pet_id: PetId,
    /// The last of several pets.
    pub last_pet_id: Option<PetId>,
    /// The order.
    pub order_id: Option<OrderId>,
    /// When it happened.
    pub at: SystemTime,
}

/// Where a reader of the feed starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedStart {
    /// At the oldest event that is kept.
    Oldest,
    /// After everything that has happened so far.
    Now,
    /// After this position.
    After(EventPosition),
}

/// A page of the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// The events, in their order.
    pub events: Vec<Event>,
    /// Where to ask next.
    pub next: EventPosition,
    /// Whether the feed had no events after these.
    pub is_end: bool,
    /// How long the oldest event that is not shown yet has waited for a running transaction. Zero if none waits.
    pub lag: Duration,
}

/// A request for a page of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FeedRequest {
    /// Where the page starts.
    pub start: FeedStart,
    /// The maximum number of events.
    pub limit: PageLimit,
}
