//! The description of an order.

use serde_json::json;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use super::field_value::{FieldValueError, Scalar};
use super::json::{BodyError, FromObject, JsonObject};
use super::resource_description::{
    FieldInput, ResourceDescription, ResourceField, identifier, integer, keyword, reference, string,
};
use crate::domain::order::{Order, OrderStatus};
use crate::domain::pet::PetId;

/// The body of placeOrder.
pub(crate) struct NewOrder {
    /// The pet that is ordered.
    pub(crate) pet_id: PetId,
}

/// What a client has set of an order so far.
#[derive(Default)]
pub(crate) struct OrderDraft {
    pet_id: Option<PetId>,
}

/// The fields of an order.
pub(crate) const ORDER: ResourceDescription<Order, OrderDraft> = ResourceDescription(&[
    ResourceField {
        name: "id",
        required: true,
        get: |order| Some(Scalar::Integer(order.id.get())),
        schema: || identifier("Unique identifier, assigned by the service."),
        input: None,
    },
    ResourceField {
        name: "petId",
        required: true,
        get: |order| Some(Scalar::Integer(order.pet_id.get())),
        schema: || identifier("Identifier of the pet."),
        input: Some(FieldInput {
            set: |order, value| {
                let id = PetId::try_from(value.integer()?);
                order.pet_id = Some(id.map_err(|_| FieldValueError::Invalid("must be at least 1".into()))?);
                Ok(())
            },
            expected: "must be the id of a pet",
            schema: || integer("Identifier of an existing pet that is `available`.").minimum(Some(1)).into(),
        }),
    },
    ResourceField {
        name: "status",
        required: true,
        get: |order| Some(Scalar::Keyword(order.status.as_str())),
        schema: || reference("OrderStatus", "`placed` while the order is open, then how it ended."),
        input: None,
    },
    ResourceField {
        name: "createdAt",
        required: true,
        get: |order| Some(Scalar::Time(order.created_at)),
        schema: || date_time("When the order was placed (RFC 3339, UTC)."),
        input: None,
    },
    ResourceField {
        name: "updatedAt",
        required: true,
        get: |order| Some(Scalar::Time(order.updated_at)),
        schema: || date_time("When its status last changed (RFC 3339, UTC)."),
        input: None,
    },
]);

fn date_time(description: &'static str) -> RefOr<Schema> {
    string(description).format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))).into()
}

impl FromObject for NewOrder {
    fn from_object(object: &JsonObject<'_>) -> Result<Self, BodyError> {
        let draft = ORDER.read(object, true)?;
        // Never absent: it is required above.
        let pet_id = draft.pet_id.ok_or(BodyError::InvalidJson { problem: "it is not an order".into() })?;
        Ok(Self { pet_id })
    }
}

impl PartialSchema for Order {
    fn schema() -> RefOr<Schema> {
        let example = json!({"id": 4711, "petId": 7, "status": "placed",
            "createdAt": "2026-11-15T09:30:00.000Z", "updatedAt": "2026-11-15T09:30:00.000Z"});
        ORDER.schema("An order for one pet.", example)
    }
}

impl PartialSchema for NewOrder {
    fn schema() -> RefOr<Schema> {
        ORDER.input_schema(true, "An order to place.", json!({"petId": 7}))
    }
}

impl PartialSchema for OrderStatus {
    fn schema() -> RefOr<Schema> {
        keyword(Self::ALL.map(Self::as_str), "Status of an order.")
    }
}

impl ToSchema for Order {}
impl ToSchema for NewOrder {}
impl ToSchema for OrderStatus {}
