//! `POST /pets`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::wire::{NewPetBody, PetBody, render_pet};
use crate::domain::idempotency::IdempotentRequest;
use crate::domain::pet::{NewPet, Pet};
use crate::http::AppState;
use crate::http::conditional::with_etag;
use crate::http::error::ApiError;
use crate::http::extractors::{FromMembers, JsonBody, NoQuery};
use crate::http::idempotency::{self, IdempotencyKeyParameter, OptionalIdempotencyKey};
use crate::http::json;
use crate::http::pipeline::key_cache::Caller;
use crate::storage::InsertOutcome;

/// Add an animal
///
/// Stores the animal durably before it answers, and gives it an identifier that is never used again. With an
/// `Idempotency-Key` the request can be sent again after a lost answer, and adds the animal once.
#[utoipa::path(
    post,
    path = "/v1/pets",
    operation_id = "createPet",
    tag = "animals",
    params(IdempotencyKeyParameter),
    request_body(content = NewPetBody, content_type = "application/json"),
    responses(
        (status = 201, description = "Animal added; the body includes the assigned `id`.", body = PetBody, headers(
            ("Location" = String, description = "The address of the new animal."),
            ("ETag" = String, description = "Changes with the animal; for `If-Match`."),
            ("Idempotent-Replayed" = String, description = "`true` if this is the answer to an earlier attempt."),
        )),
    ),
)]
pub(crate) async fn create_pet(
    State(app): State<AppState>,
    Extension(caller): Extension<Arc<Caller>>,
    key: Result<OptionalIdempotencyKey, ApiError>,
    query: Result<NoQuery, ApiError>,
    JsonBody(new): JsonBody<NewPet>,
) -> Result<Response, ApiError> {
    let (NoQuery, OptionalIdempotencyKey(key)) = (query?, key?);
    let once = key.map(|key| IdempotentRequest::create_pet(caller.key.lineage, &key, &new));
    match app.storage.insert_pet(new, once).await? {
        InsertOutcome::Inserted(pet) => Ok(created(&app, &pet)),
        InsertOutcome::Replayed(pet) => Ok(([idempotency::REPLAYED], created(&app, &pet)).into_response()),
        InsertOutcome::KeyReused => Err(ApiError::IdempotencyKeyReused),
        InsertOutcome::InProgress => Err(ApiError::IdempotencyInProgress),
    }
}

fn created(app: &AppState, pet: &Pet) -> Response {
    let (body, etag) = with_etag(render_pet(pet));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(json::MEDIA_TYPE)),
        (header::LOCATION, app.links.pet(pet.id)),
        (header::ETAG, etag),
    ];
    (StatusCode::CREATED, headers, body).into_response()
}

/// What can go wrong here, besides what can go wrong everywhere.
pub(crate) fn create_pet_errors() -> Vec<ApiError> {
    vec![
        ApiError::InvalidJson { problem: "it is empty".into() },
        ApiError::MissingField { pointer: "/categoryId", expected: "must be an integer" },
        ApiError::InvalidField { pointer: "/name", problem: "must have at most 255 characters".into() },
        ApiError::UnknownField { pointer: "/nmae".into(), nearest: "name" },
        ApiError::UnknownParameter { name: "dryRun".into(), nearest: None },
        ApiError::RequestTimeout,
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType { taken: NewPet::MEDIA_TYPES },
    ]
}
