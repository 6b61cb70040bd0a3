//! The order: one pet, reserved for one buyer.
//!
//! A pet can be ordered while it is available. It is pending while its order is open. Completing the order makes it
//! sold; cancelling makes it available again, and so does not completing it in time. Nothing else changes the status of a
//! pet with an open order.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};
use thiserror::Error;

use super::change::Change;
use super::identifier::identifier;
use super::metadata::{Metadata, MetadataError, MetadataPatch};
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
    OrderStatusError
);

/// The status that a pet must have to be ordered.
pub const ORDERABLE: PetStatus = PetStatus::Available;

/// The status of a pet while its order is open.
pub const ORDERED: PetStatus = PetStatus::Pending;

/// Why a pet cannot be ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceRefusal {
    /// Its status is not [`ORDERABLE`], or it has none.
    NotAvailable,
    /// Its status is [`ORDERABLE`], although it has an open order: somebody has set the status in SQL.
    HasOpenOrder,
    /// The shop does not grant this hold.
    Hold(HoldRefusal),
}

/// The hold of an order: how long it reserves the pet, 1 second to 7 days.
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

    /// Decides which hold an order gets. The hold of the shop is both the default and the maximum; without one, orders never expire.
    pub fn grant(asked: Option<Self>, of_shop: Option<Self>) -> Result<Option<Self>, HoldRefusal> {
        match (asked, of_shop) {
            (Some(_), None) => Err(HoldRefusal::NeverExpires),
            (Some(asked), Some(longest)) if asked > longest => Err(HoldRefusal::TooLong(longest)),
            (asked, of_shop) => Ok(asked.or(of_shop)),
        }
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
    /// How long the order waits to be completed. Absent if the client asks for no time.
    pub hold: Option<HoldDuration>,
    /// The shop's own data about the order.
    pub metadata: Metadata,
}

impl NewOrder {
    /// Decides whether the order is placed, and returns its hold and the status that its pet gets.
    pub fn decide(
        &self,
        pet_status: Option<PetStatus>,
        has_open_order: bool,
        hold_of_shop: Option<HoldDuration>,
    ) -> Result<(Option<HoldDuration>, PetStatus), PlaceRefusal> {
        let hold = HoldDuration::grant(self.hold, hold_of_shop).map_err(PlaceRefusal::Hold)?;
        match pet_status {
            Some(ORDERABLE) if has_open_order => Err(PlaceRefusal::HasOpenOrder),
            Some(ORDERABLE) => Ok((hold, ORDERED)),
            _ => Err(PlaceRefusal::NotAvailable),
        }
    }
}

/// Why a shop does not grant a hold.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum HoldRefusal {
    /// Orders in this shop never expire.
    #[error("is not allowed, because orders in this shop never expire: leave it out")]
    NeverExpires,
    /// It is longer than the hold of the shop.
    #[error("must be at most {}, the longest hold in this shop", .0.seconds())]
    TooLong(HoldDuration),
}

/// How an order ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderEnd {
    /// The pet is sold.
    Complete,
    /// The pet is available again.
    Cancel,
    /// Likewise, because the order was not completed in time.
    Expire,
}

/// What a request to end an order does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndDecision {
    /// The order and its pet get another status.
    End,
    /// Nothing changes: the order has ended in this way before.
    AlreadyEnded,
}

impl OrderEnd {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Complete, Self::Cancel, Self::Expire];

    /// The status of the order afterwards.
    #[must_use]
    pub fn status(self) -> OrderStatus {
        match self {
            Self::Complete => OrderStatus::Completed,
            Self::Cancel => OrderStatus::Cancelled,
            Self::Expire => OrderStatus::Expired,
        }
    }

    /// The status of the pet afterwards, if it is `now` before. An order that ends without a sale undoes only what placing it did: a
    /// pet that somebody has sold in SQL since is not [`ORDERED`] any more, and keeps its status.
    #[must_use]
    pub fn pet_status(self, now: Option<PetStatus>) -> Option<PetStatus> {
        match (self, now) {
            (Self::Complete, _) => Some(PetStatus::Sold),
            (Self::Cancel | Self::Expire, Some(ORDERED)) => Some(ORDERABLE),
            (Self::Cancel | Self::Expire, other) => other,
        }
    }

    /// Decides whether an order with this status can end in this way. The error is the status with which it has already ended.
    pub fn decide(self, status: OrderStatus) -> Result<EndDecision, OrderStatus> {
        match status {
            OrderStatus::Placed => Ok(EndDecision::End),
            ended if ended == self.status() => Ok(EndDecision::AlreadyEnded),
            ended => Err(ended),
        }
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
    /// When it last changed.
    pub updated_at: SystemTime,
    /// When it ends unless it is completed before. Absent if it never does.
    pub expires_at: Option<SystemTime>,
    /// The shop's own name for it.
    pub reference: Option<Reference>,
    /// The shop's own data about it.
    pub metadata: Metadata,
}

/// A partial update of an order. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderPatch {
    /// How long it waits to be completed, from now on.
    pub hold: Option<HoldDuration>,
    /// The shop's own name for it.
    pub reference: Change<Reference>,
    /// The shop's own data about it.
    pub metadata: Change<MetadataPatch>,
}

/// An order after a patch. Only the database knows the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchedOrder {
    /// How long it waits to be completed, from now on. Absent if that stays as it is.
    pub hold: Option<HoldDuration>,
    /// The shop's own name for it.
    pub reference: Option<Reference>,
    /// The shop's own data about it.
    pub metadata: Metadata,
}

/// Why a patch is refused.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum OrderPatchError {
    /// The order is not open, so it does not wait.
    #[error("the order is not open")]
    NotOpen(OrderStatus),
    /// The shop does not grant this hold.
    #[error(transparent)]
    Hold(#[from] HoldRefusal),
    /// The metadata would exceed its limits.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl OrderPatch {
    /// Decides what the order becomes in a shop with this hold.
    pub fn apply(
        &self,
        order: &Order,
        hold_of_shop: Option<HoldDuration>,
    ) -> Result<PatchedOrder, OrderPatchError> {
        if self.hold.is_some() {
            HoldDuration::grant(self.hold, hold_of_shop)?;
            if order.status != OrderStatus::Placed {
                return Err(OrderPatchError::NotOpen(order.status));
            }
        }
        Ok(PatchedOrder {
            hold: self.hold,
            reference: self.reference.apply(order.reference.as_ref()),
            metadata: self.metadata.merge(&order.metadata)?,
        })
    }
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
    fn only_an_available_pet_without_an_open_order_can_be_ordered() {
        let order = NewOrder {
            pet_id: PetId::try_from(1).unwrap(),
            reference: None,
            hold: None,
            metadata: Metadata::default(),
        };
        for status in PetStatus::ALL.into_iter().map(Some).chain([None]) {
            for has_open_order in [false, true] {
                let expected = match (status, has_open_order) {
                    (Some(PetStatus::Available), false) => Ok((None, PetStatus::Pending)),
                    (Some(PetStatus::Available), true) => Err(PlaceRefusal::HasOpenOrder),
                    _ => Err(PlaceRefusal::NotAvailable),
                };
                let decision = order.decide(status, has_open_order, None);
                assert_eq!(decision, expected, "{status:?}, {has_open_order}");
            }
        }
    }

    fn hold(seconds: i64) -> Option<HoldDuration> {
        HoldDuration::try_from(seconds).ok()
    }

    #[test]
    fn a_hold_is_1_second_to_7_days() {
        for good in [1, 2, 604_800] {
            assert_eq!(HoldDuration::try_from(good).map(|hold| i64::from(hold.seconds())), Ok(good));
        }
        for bad in [i64::MIN, 0, 604_801, i64::MAX] {
            assert_eq!(HoldDuration::try_from(bad), Err(HoldDurationError), "{bad}");
        }
        for (time, expected) in [(Duration::from_mins(1), Ok(60)), (Duration::MAX, Err(HoldDurationError))] {
            assert_eq!(HoldDuration::try_from(time).map(HoldDuration::seconds), expected);
        }
    }

    #[test]
    fn the_hold_of_the_shop_is_the_default_and_the_maximum() {
        for (asked, of_shop, granted) in [
            (None, None, Ok(None)),
            (None, hold(60), Ok(hold(60))),
            (hold(59), hold(60), Ok(hold(59))),
            (hold(60), hold(60), Ok(hold(60))),
            (hold(61), hold(60), Err(HoldRefusal::TooLong(hold(60).unwrap()))),
            (hold(1), None, Err(HoldRefusal::NeverExpires)),
        ] {
            assert_eq!(HoldDuration::grant(asked, of_shop), granted, "{asked:?} of {of_shop:?}");
        }
    }

    #[test]
    fn a_patch_prolongs_only_an_open_order_and_changes_the_reference_of_any() {
        let order = |status| Order {
            id: 1.try_into().unwrap(),
            pet_id: 1.try_into().unwrap(),
            status,
            created_at: SystemTime::UNIX_EPOCH,
            updated_at: SystemTime::UNIX_EPOCH,
            expires_at: None,
            reference: None,
            metadata: Metadata::default(),
        };
        let reference: Reference = "basket 7".to_owned().try_into().unwrap();
        for status in OrderStatus::ALL {
            let renamed = OrderPatch { reference: Change::Set(reference.clone()), ..OrderPatch::default() };
            let becomes = renamed.apply(&order(status), hold(60)).unwrap();
            assert_eq!((becomes.hold, becomes.reference.as_ref()), (None, Some(&reference)), "{status:?}");
            let prolonged = OrderPatch { hold: hold(30), ..OrderPatch::default() };
            let expected = match status {
                OrderStatus::Placed => Ok(hold(30)),
                ended => Err(OrderPatchError::NotOpen(ended)),
            };
            assert_eq!(prolonged.apply(&order(status), hold(60)).map(|becomes| becomes.hold), expected);
            let too_long = Err(OrderPatchError::Hold(HoldRefusal::TooLong(hold(20).unwrap())));
            assert_eq!(prolonged.apply(&order(status), hold(20)), too_long, "{status:?}");
        }
    }

    #[test]
    fn an_order_ends_once() {
        for end in OrderEnd::ALL {
            for status in OrderStatus::ALL {
                let expected = match status {
                    OrderStatus::Placed => Ok(EndDecision::End),
                    _ if status == end.status() => Ok(EndDecision::AlreadyEnded),
                    _ => Err(status),
                };
                assert_eq!(end.decide(status), expected, "{end:?}, {status:?}");
            }
        }
    }

    #[test]
    fn an_order_that_ends_without_a_sale_releases_only_a_pet_that_it_still_reserves() {
        for now in PetStatus::ALL.into_iter().map(Some).chain([None]) {
            let released = if now == Some(ORDERED) { Some(ORDERABLE) } else { now };
            assert_eq!(OrderEnd::Cancel.pet_status(now), released);
            assert_eq!(OrderEnd::Expire.pet_status(now), released);
            assert_eq!(OrderEnd::Complete.pet_status(now), Some(PetStatus::Sold));
        }
    }

    #[test]
    fn every_status_change_by_an_order_is_allowed_for_the_pet() {
        assert!(PetStatus::may_become(Some(ORDERABLE), ORDERED));
        for end in OrderEnd::ALL {
            let pet_status = end.pet_status(Some(ORDERED)).unwrap();
            assert!(PetStatus::may_become(Some(ORDERED), pet_status));
            assert_ne!(end.status(), OrderStatus::Placed, "an ended order is not open");
        }
    }
}
