//! `GET /store/orders`

use axum::extract::State;
use axum::response::Response;

use super::wire::{ListOrdersParameters, ListOrdersQuery, OrderBody, filters};
use crate::http::AppState;
use crate::http::conditional::{IfNoneMatch, IfNoneMatchParameter, with_tag};
use crate::http::error::ApiError;
use crate::http::json;

/// List all orders
///
/// Returns a page of orders by identifier, which is the order in which they were placed. Follow the `Link` header with
/// `rel="next"` to the next page; it is absent on the last.
#[utoipa::path(
    get,
    path = "/v1/store/orders",
    operation_id = "listOrders",
    tag = "store",
    extensions(("x-stability" = json!("experimental")), ("x-hideTryItPanel" = json!(true))),
    params(ListOrdersParameters, IfNoneMatchParameter),
    responses(
        (status = 200, description = "A page of orders.", body = [OrderBody], headers(
            ("Link" = String, description = "The next page, with `rel=\"next\"`. Absent on the last page."),
            ("ETag" = String, description = "Changes with the page; for `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_orders(
    State(app): State<AppState>,
    known: IfNoneMatch,
    ListOrdersQuery(request): ListOrdersQuery,
) -> Result<Response, ApiError> {
    let page = app.storage.list_orders(&request).await?;
    let next = app.links.next_page("/store/orders", request.limit, filters(request.filter), page.next_after);
    let orders: Vec<OrderBody> = page.items.iter().map(OrderBody::from).collect();
    let (body, tag) = with_tag(json::render(&orders), next.as_ref());
    Ok(known.answer(body, tag, next))
}

/// The errors of this operation, besides those of every operation.
pub(crate) fn list_orders_errors() -> Vec<ApiError> {
    vec![
        ApiError::InvalidParameter { name: "limit", problem: "must be an integer from 1 to 100".into() },
        ApiError::UnknownParameter { name: "petID".into(), nearest: Some("petId") },
        ApiError::InvalidCursor,
    ]
}
