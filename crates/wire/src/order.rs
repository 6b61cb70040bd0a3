//! The order: in responses, and to place.

use petstore_domain::order::{self as domain, HoldDuration, OrderId, OrderStatus};
use petstore_domain::pet::PetId;
use petstore_domain::reference::Reference;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::request_body::RequestBody;
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
    status: OrderStatus,
    /// When the order was placed (RFC 3339, UTC).
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When its status last changed (RFC 3339, UTC).
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
    /// Your own name for the order, such as a basket number. Several orders can share it.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"^[^\u0000-\u001F\u007F-\u009F]*[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000][^\u0000-\u001F\u007F-\u009F]*$")]
    reference: Option<Reference>,
    /// How many seconds the order reserves the pet. The default is the shop's own hold, and a longer hold is reduced to it. `expiresAt` shows the result. Rejected if the shop sets no hold.
    #[schema(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 604_800)]
    hold_seconds: Option<HoldDuration>,
}

impl RequestBody for NewOrder {
    type Resource = Order;
    const EXPECTED: &'static [(&'static str, &'static str)] = &[("petId", "must be the id of a pet")];
}

impl From<NewOrder> for domain::NewOrder {
    fn from(NewOrder { pet_id, reference, hold_seconds }: NewOrder) -> Self {
        Self { pet_id, reference, hold: hold_seconds }
    }
}
