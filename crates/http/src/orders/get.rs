//! `GET /store/orders/{orderId}`

use petstore_wire::json;
use petstore_wire::order::Order;
use petstore_wire::request_body::BodyError;

use crate::conditional::{IfNoneMatchParameter, with_tag};
use crate::error::ApiError;
use crate::request::ApiRequest;
use crate::response::Response;

/// Get an order
///
/// Returns the current state of the order. To poll for changes, send `If-None-Match`.
#[utoipa::path(
    get,
    path = "/v1/store/orders/{orderId}",
    operation_id = "getOrder",
    tag = "store",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to retrieve.", example = 4711),
        IfNoneMatchParameter,
    ),
    responses(
        (status = 200, description = "The requested order.", body = Order, headers(
            ("ETag" = String, description = "Identifies this version of the order. Send it in `If-None-Match`."),
        )),
        (status = 304, description = "The order has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn get_order(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    request.refuse_query()?;
    let order = request.app.storage.find_order(request.order_id()?).await?.ok_or(ApiError::OrderNotFound)?;
    let (body, tag) = with_tag(json::render(&Order::from(order.content)), [order.version], None);
    Ok(request.if_none_match().answer(body, tag, None))
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn get_order_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::UnknownParameter { name: "fields".into(), known: &[] },
        ApiError::OrderNotFound,
    ]
}
