//! `GET /store/orders/{orderId}`

use axum::extract::State;
use axum::response::Response;

use super::wire::OrderBody;
use crate::http::AppState;
use crate::http::conditional::{IfNoneMatch, IfNoneMatchParameter, with_tag};
use crate::http::error::ApiError;
use crate::http::extractors::{NoQuery, OrderIdInPath};
use crate::http::json;

/// Get an order
#[utoipa::path(
    get,
    path = "/v1/store/orders/{orderId}",
    operation_id = "getOrder",
    tag = "store",
    extensions(("x-stability" = json!("experimental"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to retrieve.", example = 4711),
        IfNoneMatchParameter,
    ),
    responses(
        (status = 200, description = "The requested order.", body = OrderBody, headers(
            ("ETag" = String, description = "Changes with the order; for `If-None-Match`."),
        )),
        (status = 304, description = "The order has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn get_order(
    State(app): State<AppState>,
    known: IfNoneMatch,
    id: Result<OrderIdInPath, ApiError>,
    query: Result<NoQuery, ApiError>,
) -> Result<Response, ApiError> {
    let (NoQuery, OrderIdInPath(id)) = (query?, id?);
    let order = app.storage.find_order(id).await?.ok_or(ApiError::OrderNotFound)?;
    let (body, tag) = with_tag(json::render(&OrderBody::from(&order)), None);
    Ok(known.answer(body, tag, None))
}

/// The errors of this operation, besides those of every operation.
pub(crate) fn get_order_errors() -> Vec<ApiError> {
    vec![ApiError::UnknownParameter { name: "fields".into(), nearest: None }, ApiError::OrderNotFound]
}
