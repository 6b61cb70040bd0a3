//! The description of an event.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use thiserror::Error;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::field_value::Scalar;
use super::resource_description::{
    ResourceDescription, ResourceField, date_time, identifier, keyword, reference, string,
};
use crate::domain::event::{Event, EventPosition, EventType};

/// The fields of an event.
pub(crate) const EVENT: ResourceDescription<Event, ()> = ResourceDescription(&[
    ResourceField {
        name: "id",
        required: true,
        get: |event| Some(Scalar::Text(encode_position(&event.position).into())),
        schema: Some(|| {
            string("Identifies the event, and is the `after` with which to go on after it. Opaque: its form may change.")
                .into()
        }),
        input: None,
    },
    ResourceField {
        name: "type",
        required: true,
        get: |event| Some(Scalar::Keyword(event.event_type.as_str())),
        schema: Some(|| {
            reference("EventType", "What happened. Ignore types that you do not know: some may be added.")
        }),
        input: None,
    },
    ResourceField {
        name: "petId",
        required: true,
        get: |event| Some(Scalar::Integer(event.pet_id.get())),
        schema: Some(|| identifier("Identifier of the pet; of `pets.imported`, of the first one.")),
        input: None,
    },
    ResourceField {
        name: "lastPetId",
        required: false,
        get: |event| event.last_pet_id.map(|id| Scalar::Integer(id.get())),
        schema: Some(|| {
            identifier(
                "Identifier of the last pet; only of `pets.imported`. Some identifiers in between may belong to pets that \
                 were added by other requests at the same time.",
            )
        }),
        input: None,
    },
    ResourceField {
        name: "orderId",
        required: false,
        get: |event| event.order_id.map(|id| Scalar::Integer(id.get())),
        schema: Some(|| identifier("Identifier of the order; only of events of orders.")),
        input: None,
    },
    ResourceField {
        name: "at",
        required: true,
        get: |event| Some(Scalar::Time(event.at)),
        schema: Some(|| date_time("When it happened (RFC 3339, UTC).")),
        input: None,
    },
]);

impl PartialSchema for Event {
    fn schema() -> RefOr<Schema> {
        let example = json!({"id": "AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAc", "type": "order.placed", "petId": 7,
            "orderId": 4711, "at": "2026-11-15T09:30:00.000Z"});
        EVENT.schema("Something that happened to a pet or an order.", example)
    }
}

impl PartialSchema for EventType {
    fn schema() -> RefOr<Schema> {
        keyword(Self::ALL.map(Self::as_str), "Type of an event.")
    }
}

impl ToSchema for Event {}
impl ToSchema for EventType {}

/// The first byte of a position, so that its format can change without misreading old ones.
const POSITION_VERSION: u8 = 2;

/// A position as text. It is opaque to clients but not secret: it grants nothing.
pub(crate) fn encode_position(position: &EventPosition) -> String {
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
#[error("was not issued by this service: take the `id` of an event, or the `after` in a `Link` header")]
pub(crate) struct PositionError;

/// The position that a text from [`encode_position`] stands for.
pub(crate) fn decode_position(text: &str) -> Result<EventPosition, PositionError> {
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
