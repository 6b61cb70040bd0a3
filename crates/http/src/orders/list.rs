//! `GET /store/orders`

use petstore_domain::order::{OrderFilter, OrderPageRequest, OrderStatus};
use petstore_domain::page::{PageLimit, SortOrder};
use petstore_domain::pet::PetId;
use petstore_domain::reference::Reference;
use petstore_domain::version::Version;
use petstore_wire::json;
use petstore_wire::order::Order;
use petstore_wire::request_body::BodyError;
use petstore_wire::schema;
use serde::Deserialize;

use crate::conditional::{IfNoneMatchParameter, with_tag};
use crate::cursor::after_cursor;
use crate::error::ApiError;
use crate::request::ApiRequest;
use crate::response::Response;

/// List all orders
///
/// Returns a page of orders, sorted by id: the oldest first, or the newest first with `sort=-id`. Follow the `Link` header with
/// `rel="next"` to the next page. The last page has no such header.
#[utoipa::path(
    get,
    path = "/v1/store/orders",
    operation_id = "listOrders",
    tag = "store",
    extensions(("x-stability" = json!("beta")), ("x-hideTryItPanel" = json!(true))),
    params(ListOrdersQuery, IfNoneMatchParameter),
    responses(
        (status = 200, description = "A page of orders.", body = [Order], headers(
            ("Link" = String, description = "The next page, with `rel=\"next\"`. Absent on the last page."),
            ("ETag" = String, description = "Identifies this version of the page. Send it in `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_orders(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    let app = request.app;
    let wanted = request.query::<ListOrdersQuery>()?.page_request()?;
    let page = app.storage.list_orders(&wanted).await?;
    let next = app.links.next_page("/store/orders", &wanted, filters(&wanted.filter), page.next_after)?;
    let versions: Vec<Version> = page.items.iter().map(|order| order.version).collect();
    let orders: Vec<Order> = page.items.into_iter().map(|order| Order::from(order.content)).collect();
    let (body, tag) = with_tag(json::render(&orders), versions, next.as_ref());
    Ok(request.if_none_match().answer(body, tag, next))
}

/// The query parameters.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ListOrdersQuery {
    /// Maximum number of items returned: 1 to 100, 20 by default.
    #[param(value_type = Option<schema::PageLimit>, inline, nullable = false)]
    limit: Option<PageLimit>,
    /// Only orders with this status.
    #[param(value_type = Option<schema::OrderStatus>, nullable = false)]
    status: Option<OrderStatus>,
    /// Only orders for this pet. The pet need not exist.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1)]
    pet_id: Option<PetId>,
    /// Only orders with this `reference`.
    #[param(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"\S")]
    reference: Option<Reference>,
    /// Where the page starts. Copy it from the `Link` header of the previous page. The value is opaque, and its format may change.
    #[param(nullable = false, example = "AQAAAAAAAAAU")]
    cursor: Option<String>,
    /// The order: `id`, the default, is the oldest first, and `-id` is the newest first.
    #[param(value_type = Option<schema::SortOrder>, inline, nullable = false)]
    sort: Option<SortOrder>,
}

impl ListOrdersQuery {
    fn page_request(self) -> Result<OrderPageRequest, ApiError> {
        Ok(OrderPageRequest {
            filter: OrderFilter { status: self.status, pet_id: self.pet_id, reference: self.reference },
            sort: self.sort.unwrap_or_default(),
            after: after_cursor(self.cursor.as_deref())?,
            limit: self.limit.unwrap_or(PageLimit::DEFAULT),
        })
    }
}

/// The filters of a list, as query parameters.
fn filters(filter: &OrderFilter) -> Vec<(&'static str, String)> {
    let status = filter.status.map(|status| ("status", status.as_str().to_owned()));
    let pet_id = filter.pet_id.map(|id| ("petId", id.get().to_string()));
    let reference = filter.reference.as_ref().map(|reference| ("reference", reference.as_str().to_owned()));
    status.into_iter().chain(pet_id).chain(reference).collect()
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn list_orders_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::InvalidParameter { name: "limit", problem: "must be an integer from 1 to 100".into() },
        ApiError::UnknownParameter { name: "petID".into(), known: &["petId"] },
        ApiError::InvalidCursor,
    ]
}
