//! `PATCH /store/orders/{orderId}`

use hyper::{StatusCode, header};
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::order::{self as domain, HoldRefusal, OrderPatchError};
use petstore_domain::version::Versioned;
use petstore_storage::UpdateOrderRefusal;
use petstore_wire::json;
use petstore_wire::order::{Order, OrderPatch};
use petstore_wire::request_body::{BodyError, RequestBody};

use crate::conditional::{IfMatchParameter, with_etag};
use crate::error::ApiError;
use crate::idempotency::{self, IdempotencyKeyHeader};
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};

/// Change an order
///
/// Changes the fields in the body, and leaves all others unchanged. To give a buyer more time, send `holdSeconds` while the order
/// is `placed`. To avoid overwriting another client's change, send the order's `ETag` in `If-Match`. With an `Idempotency-Key`, a
/// retry changes nothing, and returns the order as it is now.
#[utoipa::path(
    patch,
    path = "/v1/store/orders/{orderId}",
    operation_id = "updateOrder",
    tag = "store",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("orderId" = i64, Path, description = "The identifier of the order to change.", example = 4711),
        IfMatchParameter,
        IdempotencyKeyHeader,
    ),
    request_body(content(
        (OrderPatch = "application/merge-patch+json"),
        (OrderPatch = "application/json"),
    )),
    responses(
        (status = 200, description = "The changed order.", body = Order, headers(
            ("ETag" = String, description = "Identifies this version of the order. Send it in `If-Match`."),
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn update_order(mut request: ApiRequest<'_>) -> Result<Response, ApiError> {
    let patch: domain::OrderPatch = request.json_body::<OrderPatch>().await?.into();
    request.refuse_query()?;
    let (app, lineage, known) = (request.app, request.caller.key.lineage, request.if_match());
    let (key, id) = (request.idempotency_key()?, request.order_id()?);
    let once = key.map(|key| IdempotentRequest::update_order(lineage, &key, id, &patch));
    let change = app.storage.update_order(id, once, |order| {
        // As getOrder and updateOrder return it, and as a page with this order alone does.
        let representations = || {
            let order = Order::from(order.content.clone());
            [json::render(&order), json::render(&[order])]
        };
        if !known.is_satisfied_by(order.version, representations) {
            return Err(ApiError::PreconditionFailed { what: "order" });
        }
        patch.apply(&order.content, app.order_hold).map_err(ApiError::from)
    });
    idempotency::answer(change.await?, ApiError::OrderNotFound, updated)
}

fn updated(Versioned { content: order, version }: Versioned<domain::Order>) -> Response {
    let ids = AccessLogIds { pet: order.pet_id.get(), order: Some(order.id.get()) };
    let (body, etag) = with_etag(json::render(&Order::from(order)), version);
    let mut response = response::json(StatusCode::OK, body);
    response.headers_mut().insert(header::ETAG, etag);
    response.extensions_mut().insert(ids);
    response
}

impl From<UpdateOrderRefusal<Self>> for ApiError {
    fn from(refusal: UpdateOrderRefusal<Self>) -> Self {
        match refusal {
            UpdateOrderRefusal::OrderNotFound => Self::OrderNotFound,
            UpdateOrderRefusal::Rule(error) => error,
        }
    }
}

impl From<OrderPatchError> for ApiError {
    fn from(error: OrderPatchError) -> Self {
        match error {
            OrderPatchError::NotOpen(status) => Self::OrderNotHeld { status: status.as_str() },
            OrderPatchError::Hold(refusal) => refusal.into(),
            OrderPatchError::Metadata(error) => error.into(),
        }
    }
}

impl From<HoldRefusal> for ApiError {
    fn from(refusal: HoldRefusal) -> Self {
        BodyError::InvalidField { name: "holdSeconds", problem: refusal.to_string() }.into()
    }
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn update_order_errors() -> Vec<ApiError> {
    vec![
        BodyError::InvalidJson { problem: "it is empty".into() }.into(),
        HoldRefusal::NeverExpires.into(),
        BodyError::UnknownField { name: "hold".into(), known: &["holdSeconds"] }.into(),
        ApiError::UnknownParameter { name: "dryRun".into(), known: &[] },
        ApiError::OrderNotFound,
        ApiError::RequestTimeout,
        ApiError::OutcomeUnknown { cause: String::new() },
        ApiError::OrderNotHeld { status: "expired" },
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::PreconditionFailed { what: "order" },
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType { sent: "text/plain".into(), accepted: OrderPatch::MEDIA_TYPES },
    ]
}
