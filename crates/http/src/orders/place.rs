//! `POST /store/orders`

use hyper::{StatusCode, header};
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::order::{self as domain, HoldRefusal, PlaceRefusal};
use petstore_storage::PlaceOrderRefusal;
use petstore_wire::json;
use petstore_wire::order::{NewOrder, Order};
use petstore_wire::request_body::{BodyError, RequestBody};

use crate::error::ApiError;
use crate::idempotency::{self, IdempotencyKeyHeader};
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};
use crate::state::AppState;

/// Place an order
///
/// Reserves an `available` pet. In one transaction, the order becomes `placed` and the pet `pending`. If several requests order
/// the same pet, one succeeds. Complete the order to sell the pet, or cancel it to make the pet `available` again. After
/// `expiresAt`, an open order expires, and its pet becomes `available` again.
#[utoipa::path(
    post,
    path = "/v1/store/orders",
    operation_id = "placeOrder",
    tag = "store",
    extensions(("x-stability" = json!("beta"))),
    params(IdempotencyKeyHeader),
    request_body(content = NewOrder, content_type = "application/json"),
    responses(
        (status = 201, description = "Order placed; the body includes the assigned `id`.", body = Order, headers(
            ("Location" = String, description = "The URL of the new order."),
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn place_order(mut request: ApiRequest<'_>) -> Result<Response, ApiError> {
    let new: domain::NewOrder = request.json_body::<NewOrder>().await?.into();
    request.refuse_query()?;
    let lineage = request.caller.key.lineage;
    let once = request.idempotency_key()?.map(|key| IdempotentRequest::place_order(lineage, &key, &new));
    let app = request.app;
    let placing = app.storage.place_order(&new, app.order_hold, once);
    idempotency::answer(placing.await?, ApiError::OrderNotFound, |order| placed(app, order.content))
}

fn placed(app: &AppState, order: domain::Order) -> Response {
    let (id, pet) = (order.id, order.pet_id.get());
    let mut response = response::json(StatusCode::CREATED, json::render(&Order::from(order)));
    response.headers_mut().insert(header::LOCATION, app.links.order(id));
    response.extensions_mut().insert(AccessLogIds { pet, order: Some(id.get()) });
    response
}

impl From<PlaceOrderRefusal> for ApiError {
    fn from(refusal: PlaceOrderRefusal) -> Self {
        match refusal {
            PlaceOrderRefusal::PetNotFound => Self::PetNotFound,
            PlaceOrderRefusal::Rule(PlaceRefusal::NotAvailable) => Self::PetNotAvailable,
            PlaceOrderRefusal::Rule(PlaceRefusal::HasOpenOrder) => Self::PetHasOpenOrder,
            PlaceOrderRefusal::Rule(PlaceRefusal::Hold(refusal)) => refusal.into(),
        }
    }
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn place_order_errors() -> Vec<ApiError> {
    vec![
        BodyError::InvalidJson { problem: "it is empty".into() }.into(),
        BodyError::MissingField { name: "petId", expected: "must be the id of a pet" }.into(),
        ApiError::PetNotFound,
        HoldRefusal::NeverExpires.into(),
        BodyError::UnknownField { name: "petID".into(), known: &["petId"] }.into(),
        ApiError::UnknownParameter { name: "dryRun".into(), known: &[] },
        ApiError::RequestTimeout,
        ApiError::OutcomeUnknown { cause: String::new() },
        ApiError::PetNotAvailable,
        ApiError::PetHasOpenOrder,
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType { sent: "text/plain".into(), accepted: NewOrder::MEDIA_TYPES },
    ]
}
