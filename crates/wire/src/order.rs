//! The order: in responses, to place, and to change.

use petstore_domain::change::Change;
use petstore_domain::metadata::{Metadata, MetadataPatch};
use petstore_domain::order::{self as domain, HoldDuration, OrderId, OrderStatus};
use petstore_domain::pet::PetId;
use petstore_domain::reference::Reference;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::json::MEDIA_TYPE;
use super::request_body::RequestBody;
use super::schema;
use super::time::Time;

/// An order for one pet.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({"id": 4711, "petId": 7, "status": "placed",
    "createdAt": "2026-11-15T09:30:00.000Z", "updatedAt": "2026-11-15T09:30:00.000Z"}))]
pub struct Order {
    /// Unique identifier, assigned by the service.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: OrderId,
    /// Identifier of the pet.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pet_id: PetId,
    /// `placed` while the order is open, then its final status.
    #[schema(value_type = schema::OrderStatus)]
    status: OrderStatus,
    /// When the order was placed (RFC 3339, UTC).
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it last changed (RFC 3339, UTC).
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
    /// When the order expires, unless it is completed or cancelled first (RFC 3339, UTC). Absent if the order never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = DateTime)]
    expires_at: Option<Time>,
    /// Your own name for the order, such as a basket number. Several orders can share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    reference: Option<Reference>,
    /// Your own data about the order, such as a payment's number. Absent unless you set it.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = Option<schema::Metadata>, nullable = false)]
    metadata: Metadata,
}

impl From<domain::Order> for Order {
    fn from(order: domain::Order) -> Self {
        Self {
            id: order.id,
            pet_id: order.pet_id,
            status: order.status,
            created_at: Time(order.created_at),
            updated_at: Time(order.updated_at),
            expires_at: order.expires_at.map(Time),
            reference: order.reference,
            metadata: order.metadata,
        }
    }
}

/// An order to place.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"petId": 7}))]
pub struct NewOrder {
    /// Identifier of an existing pet that is `available`.
    #[schema(value_type = i64, minimum = 1)]
    pet_id: PetId,
    /// Your own name for the order, such as a basket number. 1 to 255 characters, not all white space, no control characters. Several orders can share it.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"\S")]
    reference: Option<Reference>,
    /// How many seconds the order reserves the pet. The default is the shop's own hold, and a longer hold is rejected. `expiresAt` shows the result. Rejected if the shop sets no hold.
    #[schema(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 604_800)]
    hold_seconds: Option<HoldDuration>,
    /// Your own data about the order, such as a payment's number.
    #[schema(value_type = Option<schema::NewMetadata>, nullable = false)]
    metadata: Option<Metadata>,
}

impl RequestBody for NewOrder {
    type Resource = Order;
    const EXPECTED: &'static [(&'static str, &'static str)] = &[("petId", "must be the id of a pet")];
}

impl From<NewOrder> for domain::NewOrder {
    fn from(NewOrder { pet_id, reference, hold_seconds, metadata }: NewOrder) -> Self {
        Self { pet_id, reference, hold: hold_seconds, metadata: metadata.unwrap_or_default() }
    }
}

/// A change to an order: a field that is left out keeps its value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"holdSeconds": 600}))]
pub struct OrderPatch {
    /// How many seconds the order reserves the pet from now on. Only while the order is `placed`. At most the shop's own hold. `expiresAt` shows the result.
    #[schema(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 604_800)]
    hold_seconds: Option<HoldDuration>,
    /// Your own name for the order, such as a basket number. Several orders can share it. `null` removes it.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"\S")]
    reference: Change<Reference>,
    /// Changes to your own data about the order: a member replaces or adds a value, `null` removes it, and other members stay. `null` instead of the object removes all of it.
    #[schema(value_type = Option<schema::MetadataPatch>)]
    metadata: Change<MetadataPatch>,
}

/// A JSON merge patch (RFC 7396), under its own name or as plain JSON.
impl RequestBody for OrderPatch {
    type Resource = Order;
    const MEDIA_TYPES: &'static [&'static str] = &["application/merge-patch+json", MEDIA_TYPE];
    const EXPECTED: &'static [(&'static str, &'static str)] = &[];
}

impl From<OrderPatch> for domain::OrderPatch {
    fn from(OrderPatch { hold_seconds, reference, metadata }: OrderPatch) -> Self {
        Self { hold: hold_seconds, reference, metadata }
    }
}
