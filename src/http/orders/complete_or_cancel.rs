//! `POST /store/orders/{orderId}/complete` and `…/cancel`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::domain::idempotency::{IdempotencyKey, IdempotentRequest};
use crate::domain::order::{Order, OrderEnd, OrderId};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extractors::{NoQuery, OrderIdInPath};
use crate::http::idempotency::{self, OptionalIdempotencyKey};
use crate::http::pipeline::key_cache::Caller;
use crate::storage::EndOrderOutcome;
use crate::wire::json;
use crate::wire::order::ORDER;

/// Complete an order
///
/// Sells the pet: the order becomes `completed` and the pet `sold`, both or neither. Completing a completed order again
/// changes nothing, and the response is the same. A cancelled order cannot be completed.
#[utoipa::path(
    post,
    path = "/v1/store/orders/{orderId}/complete",
    operation_id = "completeOrder",
    tag = "store",
    extensions(("x-stability" = json!("experimental"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to complete.", example = 4711),
        OptionalIdempotencyKey,
    ),
    responses(
        (status = 200, description = "The completed order.", body = Order, headers(
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn complete_order(
    State(app): State<AppState>,
    Extension(caller): Extension<Arc<Caller>>,
    id: Result<OrderIdInPath, ApiError>,
    key: Result<OptionalIdempotencyKey, ApiError>,
    query: Result<NoQuery, ApiError>,
) -> Result<Response, ApiError> {
    let (NoQuery, OptionalIdempotencyKey(key), OrderIdInPath(id)) = (query?, key?, id?);
    end(&app, &caller, id, key, OrderEnd::Complete).await
}

/// Cancel an order
///
/// Releases the pet: the order becomes `cancelled` and the pet `available` again, both or neither. Cancelling a cancelled
/// order again changes nothing, and the response is the same. A completed order cannot be cancelled.
#[utoipa::path(
    post,
    path = "/v1/store/orders/{orderId}/cancel",
    operation_id = "cancelOrder",
    tag = "store",
    extensions(("x-stability" = json!("experimental"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to cancel.", example = 4711),
        OptionalIdempotencyKey,
    ),
    responses(
        (status = 200, description = "The cancelled order.", body = Order, headers(
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn cancel_order(
    State(app): State<AppState>,
    Extension(caller): Extension<Arc<Caller>>,
    id: Result<OrderIdInPath, ApiError>,
    key: Result<OptionalIdempotencyKey, ApiError>,
    query: Result<NoQuery, ApiError>,
) -> Result<Response, ApiError> {
    let (NoQuery, OptionalIdempotencyKey(key), OrderIdInPath(id)) = (query?, key?, id?);
    end(&app, &caller, id, key, OrderEnd::Cancel).await
}

async fn end(
    app: &AppState,
    caller: &Caller,
    id: OrderId,
    key: Option<IdempotencyKey>,
    end: OrderEnd,
) -> Result<Response, ApiError> {
    let once = key.map(|key| IdempotentRequest::end_order(caller.key.lineage, &key, id, end));
    match app.storage.end_order(id, end, once).await? {
        EndOrderOutcome::Ended(order) => Ok(ended(&order)),
        EndOrderOutcome::Replayed(order) => Ok(([idempotency::REPLAYED], ended(&order)).into_response()),
        EndOrderOutcome::OrderNotFound => Err(ApiError::OrderNotFound),
        EndOrderOutcome::EndedOtherwise(status) => Err(ApiError::InvalidTransition {
            what: "order",
            from: status.as_str(),
            to: end.status().as_str(),
        }),
        EndOrderOutcome::KeyReused => Err(ApiError::IdempotencyKeyReused),
        EndOrderOutcome::InProgress => Err(ApiError::IdempotencyInProgress),
    }
}

fn ended(order: &Order) -> Response {
    let media_type = (header::CONTENT_TYPE, HeaderValue::from_static(json::MEDIA_TYPE));
    ([media_type], ORDER.render(order)).into_response()
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn end_order_errors() -> Vec<ApiError> {
    vec![
        ApiError::UnknownParameter { name: "dryRun".into(), nearest: None },
        ApiError::OrderNotFound,
        ApiError::InvalidTransition { what: "order", from: "cancelled", to: "completed" },
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
    ]
}
