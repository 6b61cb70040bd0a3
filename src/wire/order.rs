//! Orders as clients see them: JSON members and query parameters.

use std::time::SystemTime;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::domain::order::{Order, OrderFilter, OrderPageRequest};
use crate::domain::page::PageLimit;
use crate::domain::pet::PetId;
use crate::http::error::ApiError;
use crate::http::extractors::{FromMembers, Query, id_in_text, limit_schema};
use crate::http::json_members::Members;

/// How far an order has come.
#[derive(ToSchema)]
#[schema(as = OrderStatus, rename_all = "lowercase")]
#[expect(dead_code, reason = "describes the words for the document")]
pub(crate) enum OrderStatusWord {
    Placed,
    Completed,
    Cancelled,
}

/// An order for one animal.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Order, rename_all = "camelCase",
    example = json!({"id": 4711, "petId": 7, "status": "placed",
        "createdAt": "2026-11-15T09:30:00.000Z", "updatedAt": "2026-11-15T09:30:00.000Z"}))]
pub(crate) struct OrderBody {
    /// Unique identifier, assigned by the service.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// Identifier of the animal.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pet_id: i64,
    /// How far the order has come: `placed` is open, the others are its ends.
    #[schema(value_type = OrderStatusWord)]
    status: &'static str,
    /// When the order was placed (RFC 3339, UTC).
    #[schema(format = DateTime)]
    created_at: String,
    /// When its status last changed (RFC 3339, UTC).
    #[schema(format = DateTime)]
    updated_at: String,
}

impl From<&Order> for OrderBody {
    fn from(order: &Order) -> Self {
        Self {
            id: order.id.get(),
            pet_id: order.pet_id.get(),
            status: order.status.as_str(),
            created_at: rfc_3339(order.created_at),
            updated_at: rfc_3339(order.updated_at),
        }
    }
}

/// In milliseconds, which is what is kept.
fn rfc_3339(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::MAX))
}

/// An order to be placed.
#[derive(ToSchema)]
#[schema(as = NewOrder, rename_all = "camelCase", example = json!({"petId": 7}))]
#[expect(dead_code, reason = "describes the body for the document; NewOrder is read from it")]
pub(crate) struct NewOrderBody {
    /// Identifier of the animal. It must be there, and be `available`.
    #[schema(minimum = 1)]
    pet_id: i64,
}

/// What placeOrder is asked for.
pub(crate) struct NewOrder {
    pub(crate) pet_id: PetId,
}

impl FromMembers for NewOrder {
    fn from_members(members: &Members<'_>) -> Result<Self, ApiError> {
        members.refuse_unknown(&["petId"])?;
        let pet_id = members
            .get("/petId")
            .ok_or(ApiError::MissingField { pointer: "/petId", expected: "must be the id of a pet" })?;
        let number = pet_id.integer()?;
        Ok(Self { pet_id: number.try_into().map_err(|_| pet_id.invalid("must be at least 1"))? })
    }
}

/// The query parameters of listOrders.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "describes the query for the document; reading it goes straight to domain types"
)]
pub(crate) struct ListOrdersParameters {
    #[param(required = false, schema_with = limit_schema)]
    limit: Option<PageLimit>,
    /// Only the orders with this status.
    #[param(inline = false)]
    status: Option<OrderStatusWord>,
    /// Only the orders for this animal, whether there is one or not.
    #[param(nullable = false, minimum = 1)]
    pet_id: Option<i64>,
    /// Where the page begins: taken from the `Link` header of the page before. Opaque.
    #[param(nullable = false, pattern = "^AQ[A-Za-z0-9_-]{10}$", example = "AQAAAAAAAAAU")]
    cursor: Option<String>,
}

/// The page that listOrders was asked for.
pub(crate) struct ListOrdersQuery(pub(crate) OrderPageRequest);

impl<S: Sync> FromRequestParts<S> for ListOrdersQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::parse(parts, &["limit", "status", "petId", "cursor"])?;
        let (limit, status) = (query.limit()?, query.status()?);
        let problem = "must be a positive integer of 64 bits";
        let pet_id = |text| id_in_text(text).ok_or_else(|| ApiError::invalid_parameter("petId", &problem));
        let pet_id = query.one("petId")?.map(pet_id).transpose()?;
        Ok(Self(OrderPageRequest { filter: OrderFilter { status, pet_id }, after: query.after()?, limit }))
    }
}

/// The filters of a list, as its query has them.
pub(crate) fn filters(filter: OrderFilter) -> Vec<(&'static str, String)> {
    let status = filter.status.map(|status| ("status", status.as_str().to_owned()));
    let pet_id = filter.pet_id.map(|id| ("petId", id.get().to_string()));
    status.into_iter().chain(pet_id).collect()
}
