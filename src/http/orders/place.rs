//! `POST /store/orders`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::domain::idempotency::IdempotentRequest;
use crate::domain::order::Order;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extractors::{JsonBody, NoQuery};
use crate::http::idempotency::{self, OptionalIdempotencyKey};
use crate::http::pipeline::key_cache::Caller;
use crate::storage::PlaceOrderOutcome;
use crate::wire::json::{self, BodyError, FromObject};
use crate::wire::order::{NewOrder, ORDER};

/// Place an order
///
/// Reserves a pet that is `available`: the order becomes `placed` and the pet `pending`, both or neither. Of concurrent
/// requests for the same pet, exactly one succeeds. Complete the order to sell the pet, or cancel it to make the pet
/// `available` again.
#[utoipa::path(
    post,
    path = "/v1/store/orders",
    operation_id = "placeOrder",
    tag = "store",
    extensions(("x-stability" = json!("experimental"))),
    params(OptionalIdempotencyKey),
    request_body(content = NewOrder, content_type = "application/json"),
    responses(
        (status = 201, description = "Order placed; the body includes the assigned `id`.", body = Order, headers(
            ("Location" = String, description = "The URL of the new order."),
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn place_order(
    State(app): State<AppState>,
    Extension(caller): Extension<Arc<Caller>>,
    key: Result<OptionalIdempotencyKey, ApiError>,
    query: Result<NoQuery, ApiError>,
    JsonBody(NewOrder { pet_id }): JsonBody<NewOrder>,
) -> Result<Response, ApiError> {
    let (NoQuery, OptionalIdempotencyKey(key)) = (query?, key?);
    let once = key.map(|key| IdempotentRequest::place_order(caller.key.lineage, &key, pet_id));
    match app.storage.place_order(pet_id, once).await? {
        PlaceOrderOutcome::Placed(order) => Ok(placed(&app, &order)),
        PlaceOrderOutcome::Replayed(order) => {
            Ok(([idempotency::REPLAYED], placed(&app, &order)).into_response())
        }
        PlaceOrderOutcome::PetNotFound => Err(no_such_pet()),
        PlaceOrderOutcome::NotAvailable => Err(ApiError::PetNotAvailable),
        PlaceOrderOutcome::KeyReused => Err(ApiError::IdempotencyKeyReused),
        PlaceOrderOutcome::InProgress => Err(ApiError::IdempotencyInProgress),
    }
}

fn placed(app: &AppState, order: &Order) -> Response {
    let location = (header::LOCATION, app.links.order(order.id));
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(json::MEDIA_TYPE)), location];
    (StatusCode::CREATED, headers, ORDER.render(order)).into_response()
}

fn no_such_pet() -> ApiError {
    BodyError::InvalidField { name: "petId", problem: "must be the id of an existing pet".into() }.into()
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn place_order_errors() -> Vec<ApiError> {
    vec![
        BodyError::InvalidJson { problem: "it is empty".into() }.into(),
        BodyError::MissingField { name: "petId", expected: "must be the id of a pet" }.into(),
        no_such_pet(),
        BodyError::UnknownField { pointer: "/petID".into(), nearest: "petId" }.into(),
        ApiError::UnknownParameter { name: "dryRun".into(), nearest: None },
        ApiError::RequestTimeout,
        ApiError::PetNotAvailable,
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType { accepted: NewOrder::MEDIA_TYPES },
    ]
}
