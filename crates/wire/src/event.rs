//! The event, in responses, and the text that stands for a position in the feed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use petstore_domain::event::{self as domain, EventPosition, EventType};
use petstore_domain::order::OrderId;
use petstore_domain::pet::PetId;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use super::schema;
use super::time::Time;

/// Something that happened to a pet or an order.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({"id": "AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAc", "type": "order.placed", "petId": 7,
    "orderId": 4711, "at": "2026-11-15T09:30:00.000Z"}))]
pub struct Event {
    /// The id of the event. Send it as `after` to continue after this event. Opaque; its format may change.
    id: String,
    /// What happened. Types may be added, so ignore types that you do not know.
    #[schema(value_type = schema::EventType)]
    r#type: EventType,
    /// The id of the pet, or of the first pet for `pets.imported`.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pet_id: PetId,
    /// Only for `pets.imported`: the id of the last pet. Some ids in the range may belong to other pets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    last_pet_id: Option<PetId>,
    /// Only for order events: the id of the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    order_id: Option<OrderId>,
    /// When it happened (RFC 3339, UTC).
    #[schema(value_type = String, format = DateTime)]
    at: Time,
}

impl From<domain::Event> for Event {
    fn from(event: domain::Event) -> Self {
        Self {
            id: encode_position(&event.position),
            r#type: event.event_type,
            pet_id: event.pet_id,
            last_pet_id: event.last_pet_id,
            order_id: event.order_id,
            at: Time(event.at),
        }
    }
}

/// The first byte of a position, so that its format can change without misreading old ones.
const POSITION_VERSION: u8 = 2;

/// A position as text. It is opaque to clients but not secret: it grants nothing.
#[must_use]
pub fn encode_position(position: &EventPosition) -> String {
    let EventPosition { epoch, transaction, number, pet } = position;
    let mut bytes = [POSITION_VERSION; 29];
    bytes[1..5].copy_from_slice(&epoch.to_be_bytes());
    bytes[5..13].copy_from_slice(&transaction.to_be_bytes());
    bytes[13..21].copy_from_slice(&number.to_be_bytes());
    bytes[21..].copy_from_slice(&pet.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The text is not a position.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("was not issued by this service: use the `id` of an event, or the `after` in a `Link` header")]
pub struct PositionError;

/// The position that a text from [`encode_position`] stands for.
pub fn decode_position(text: &str) -> Result<EventPosition, PositionError> {
    let decoded = URL_SAFE_NO_PAD.decode(text).map_err(|_| PositionError)?;
    let [POSITION_VERSION, rest @ ..] = &*decoded else { return Err(PositionError) };
    let (epoch, rest) = rest.split_first_chunk().ok_or(PositionError)?;
    let (transaction, rest) = rest.split_first_chunk().ok_or(PositionError)?;
    let (number, pet) = rest.split_first_chunk().ok_or(PositionError)?;
    Ok(EventPosition {
        epoch: i32::from_be_bytes(*epoch),
        transaction: u64::from_be_bytes(*transaction),
        number: i64::from_be_bytes(*number),
        pet: i64::from_be_bytes(pet.try_into().map_err(|_| PositionError)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back() {
        for position in [
            EventPosition { epoch: 7, transaction: 723, number: 42, pet: 7 },
            EventPosition { epoch: i32::MAX, transaction: u64::MAX, number: i64::MAX, pet: i64::MAX },
            EventPosition { epoch: 0, transaction: 0, number: 0, pet: 0 },
        ] {
            assert_eq!(decode_position(&encode_position(&position)), Ok(position));
        }
    }

    #[test]
    fn the_format_of_a_position_is_frozen() {
        let position = EventPosition { epoch: 7, transaction: 723, number: 42, pet: 7 };
        assert_eq!(encode_position(&position), "AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAc");
    }

    #[test]
    fn what_is_not_a_position_is_refused() {
        for text in [
            "",
            "now",
            "AQAAAAAAAAAU",
            "AQAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAc",
            "AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAcA",
            "AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAA",
        ] {
            assert_eq!(decode_position(text), Err(PositionError), "{text:?}");
        }
    }
}
