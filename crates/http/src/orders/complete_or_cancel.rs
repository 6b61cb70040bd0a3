//! `POST /store/orders/{orderId}/complete` and `…/cancel`

use hyper::StatusCode;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::order::{self as domain, OrderEnd};
use petstore_storage::EndOrderRefusal;
use petstore_wire::json;
use petstore_wire::order::Order;
use petstore_wire::request_body::BodyError;

use crate::error::ApiError;
use crate::idempotency::{self, IdempotencyKeyHeader};
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};

/// Complete an order
///
/// Sells the pet: the order becomes `completed` and the pet `sold`, in one transaction. Completing an order twice has no
/// further effect and returns the same response. A cancelled or expired order cannot be completed.
#[utoipa::path(
    post,
    path = "/v1/store/orders/{orderId}/complete",
    operation_id = "completeOrder",
    tag = "store",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to complete.", example = 4711),
        IdempotencyKeyHeader,
    ),
    responses(
        (status = 200, description = "The completed order.", body = Order, headers(
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn complete_order(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    end(&request, OrderEnd::Complete).await
}

/// Cancel an order
///
/// Releases the pet: the order becomes `cancelled` and the pet `available` again, in one transaction. Cancelling an order twice
/// has no further effect and returns the same response. A completed or expired order cannot be cancelled.
#[utoipa::path(
    post,
    path = "/v1/store/orders/{orderId}/cancel",
    operation_id = "cancelOrder",
    tag = "store",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to cancel.", example = 4711),
        IdempotencyKeyHeader,
    ),
    responses(
        (status = 200, description = "The cancelled order.", body = Order, headers(
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn cancel_order(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    end(&request, OrderEnd::Cancel).await
}

async fn end(request: &ApiRequest<'_>, end: OrderEnd) -> Result<Response, ApiError> {
    request.refuse_body()?;
    request.refuse_query()?;
    let (key, id) = (request.idempotency_key()?, request.order_id()?);
    let lineage = request.caller.key.lineage;
    let once = key.map(|key| IdempotentRequest::end_order(lineage, &key, id, end));
    let ending = request.app.storage.end_order(id, end, once);
    idempotency::answer(ending.await?, ApiError::OrderNotFound, |order| ended(order.content))
}

impl From<EndOrderRefusal> for ApiError {
    fn from(refusal: EndOrderRefusal) -> Self {
        match refusal {
            EndOrderRefusal::OrderNotFound => Self::OrderNotFound,
            EndOrderRefusal::EndedOtherwise { from, to } => {
                Self::InvalidTransition { what: "order", from: from.as_str(), to: to.as_str() }
            }
        }
    }
}

fn ended(order: domain::Order) -> Response {
    let change = AccessLogIds { pet: order.pet_id.get(), order: Some(order.id.get()) };
    let mut response = response::json(StatusCode::OK, json::render(&Order::from(order)));
    response.extensions_mut().insert(change);
    response
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn end_order_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::UnknownParameter { name: "dryRun".into(), known: &[] },
        ApiError::OrderNotFound,
        ApiError::InvalidTransition { what: "order", from: "cancelled", to: "completed" },
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::OutcomeUnknown { cause: String::new() },
    ]
}
