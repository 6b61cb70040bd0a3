//! `GET /store/orders`

use crate::domain::order::{Order, OrderFilter, OrderPageRequest, OrderReference};
use crate::domain::page::PageLimit;
use crate::http::conditional::{IfNoneMatch, with_tag};
use crate::http::error::ApiError;
use crate::http::parameter_description::{ParameterDescription, document_parameters};
use crate::http::request::{ApiRequest, QueryParameters, id_in_text};
use crate::http::response::Response;
use crate::wire::json::BodyError;
use crate::wire::order::{ORDER, reference_schema};
use crate::wire::resource_description::{integer, reference};

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
    params(ListOrdersQuery, IfNoneMatch),
    responses(
        (status = 200, description = "A page of orders.", body = [Order], headers(
            ("Link" = String, description = "The next page, with `rel=\"next\"`. Absent on the last page."),
            ("ETag" = String, description = "Changes with the page; for `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_orders(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    let app = request.app;
    let wanted = page_request(&request.query(PARAMETERS)?)?;
    let page = app.storage.list_orders(&wanted).await?;
    let next = app.links.next_page("/store/orders", wanted.limit, filters(&wanted.filter), page.next_after);
    let (body, tag) = with_tag(ORDER.render_list(&page.items), next.as_ref());
    Ok(request.if_none_match().answer(body, tag, next))
}

/// The query parameters.
const PARAMETERS: &[ParameterDescription] = &[
    ParameterDescription::LIMIT,
    ParameterDescription::new("status", "Only the orders with this status.", || reference("OrderStatus", "")),
    ParameterDescription::new("petId", "Only the orders for this pet, whether it exists or not.", || {
        integer(None).minimum(Some(1)).into()
    }),
    ParameterDescription::new("reference", "Only the orders with this `reference`.", || {
        reference_schema(None)
    }),
    ParameterDescription::CURSOR,
];

/// Documents the query parameters.
pub(crate) struct ListOrdersQuery;

document_parameters!(ListOrdersQuery, Query, PARAMETERS);

/// The page that a query asks for.
fn page_request(query: &QueryParameters<'_>) -> Result<OrderPageRequest, ApiError> {
    let (limit, status) = (query.limit(PageLimit::DEFAULT)?, query.status()?);
    let problem = "must be a positive 64-bit integer";
    let pet_id = |text| id_in_text(text).ok_or_else(|| ApiError::invalid_parameter("petId", &problem));
    let pet_id = query.one("petId")?.map(pet_id).transpose()?;
    let reference = query.one("reference")?.map(|text| OrderReference::try_from(text.to_owned())).transpose();
    let reference = reference.map_err(|problem| ApiError::invalid_parameter("reference", &problem))?;
    Ok(OrderPageRequest { filter: OrderFilter { status, pet_id, reference }, after: query.after()?, limit })
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
        ApiError::UnknownParameter { name: "petID".into(), known: vec!["petId"] },
        ApiError::InvalidCursor,
    ]
}
