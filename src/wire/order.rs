//! The description of an order.

use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::field_value::{FieldValueError, Scalar};
use super::json::{BodyError, FromObject, JsonObject};
use super::resource_description::{
    FieldInput, LABEL_PATTERN, ResourceDescription, ResourceField, date_time, identifier, integer, keyword,
    reference, string,
};
use crate::domain::order::{NewOrder, Order, OrderHold, OrderHoldError, OrderReference, OrderStatus};
use crate::domain::pet::PetId;

/// What a client has set of an order so far.
#[derive(Default)]
pub(crate) struct OrderDraft {
    pet_id: Option<PetId>,
    reference: Option<OrderReference>,
    hold: Option<OrderHold>,
}

/// The fields of an order.
pub(crate) const ORDER: ResourceDescription<Order, OrderDraft> = ResourceDescription(&[
    ResourceField {
        name: "id",
        required: true,
        get: |order| Some(Scalar::Integer(order.id.get())),
        schema: Some(|| identifier("Unique identifier, assigned by the service.")),
        input: None,
    },
    ResourceField {
        name: "petId",
        required: true,
        get: |order| Some(Scalar::Integer(order.pet_id.get())),
        schema: Some(|| identifier("Identifier of the pet.")),
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
        schema: Some(|| reference("OrderStatus", "`placed` while the order is open, then how it ended.")),
        input: None,
    },
    ResourceField {
        name: "createdAt",
        required: true,
        get: |order| Some(Scalar::Time(order.created_at)),
        schema: Some(|| date_time("When the order was placed (RFC 3339, UTC).")),
        input: None,
    },
    ResourceField {
        name: "updatedAt",
        required: true,
        get: |order| Some(Scalar::Time(order.updated_at)),
        schema: Some(|| date_time("When its status last changed (RFC 3339, UTC).")),
        input: None,
    },
    ResourceField {
        name: "expiresAt",
        required: false,
        get: |order| order.expires_at.map(Scalar::Time),
        schema: Some(|| {
            date_time(
                "When the order becomes `expired` and its pet `available` again, unless it is completed or cancelled \
                 before (RFC 3339, UTC). Absent if it never does.",
            )
        }),
        input: None,
    },
    ResourceField {
        name: "reference",
        required: false,
        get: |order| order.reference.as_ref().map(|reference| Scalar::Text(reference.as_str().into())),
        schema: Some(|| {
            string("Your own name for the order.").min_length(Some(1)).max_length(Some(255)).into()
        }),
        input: Some(FieldInput {
            set: |order, value| {
                order.reference = Some(value.text()?);
                Ok(())
            },
            expected: "must be a string",
            schema: || reference_schema("Your own name for the order, such as the number of a basket."),
        }),
    },
    ResourceField {
        name: "holdSeconds",
        required: false,
        get: |_| None,
        schema: None,
        input: Some(FieldInput {
            set: |order, value| {
                let hold = value.integer().map_err(|_| OrderHoldError).and_then(OrderHold::try_from);
                order.hold = Some(hold.map_err(|error| FieldValueError::Invalid(error.to_string()))?);
                Ok(())
            },
            expected: "must be an integer",
            schema: || {
                integer(
                    "After how many seconds the order expires if it is not completed. The shop may have a shorter time for \
                     all orders; `expiresAt` is what counts. By default the shop's, and without one never.",
                )
                .minimum(Some(OrderHold::MIN))
                .maximum(Some(OrderHold::MAX))
                .into()
            },
        }),
    },
]);

/// The schema of a reference in a request.
pub(crate) fn reference_schema(description: impl Into<Option<&'static str>>) -> RefOr<Schema> {
    string(description).min_length(Some(1)).max_length(Some(255)).pattern(Some(LABEL_PATTERN)).into()
}

impl FromObject for NewOrder {
    fn from_object(object: &JsonObject<'_>) -> Result<Self, BodyError> {
        let draft = ORDER.read(object, true)?;
        // Never absent: it is required above.
        let pet_id = draft.pet_id.ok_or(BodyError::InvalidJson { problem: "it is not an order".into() })?;
        Ok(Self { pet_id, reference: draft.reference, hold: draft.hold })
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
