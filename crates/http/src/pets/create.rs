//! `POST /pets`

use hyper::{StatusCode, header};
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::pet as domain;
use petstore_domain::version::Versioned;
use petstore_storage::InsertOutcome;
use petstore_wire::json;
use petstore_wire::pet::{NewPet, Pet};
use petstore_wire::request_body::{BodyError, RequestBody};

use crate::conditional::with_etag;
use crate::error::ApiError;
use crate::idempotency::{IdempotencyKeyHeader, mark_replayed};
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};
use crate::state::AppState;

/// Add an animal
///
/// Adds a pet. The service responds once the pet is stored durably. Ids are not reused, unless a backup is restored. With an
/// `Idempotency-Key`, a retry adds no second pet.
#[utoipa::path(
    post,
    path = "/v1/pets",
    operation_id = "createPet",
    tag = "animals",
    params(IdempotencyKeyHeader),
    request_body(content = NewPet, content_type = "application/json"),
    responses(
        (status = 201, description = "Animal added; the body includes the assigned `id`.", body = Pet, headers(
            ("Location" = String, description = "The URL of the new pet."),
            ("ETag" = String, description = "Identifies this version of the pet. Send it in `If-Match`."),
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn create_pet(mut request: ApiRequest<'_>) -> Result<Response, ApiError> {
    let new: domain::NewPet = request.json_body::<NewPet>().await?.into();
    request.refuse_query()?;
    let lineage = request.caller.key.lineage;
    let once = request.idempotency_key()?.map(|key| IdempotentRequest::create_pet(lineage, &key, &new));
    let app = request.app;
    match app.storage.insert_pet(new, once).await? {
        InsertOutcome::Inserted(pet) => Ok(created(app, &pet)),
        InsertOutcome::Replayed(pet) => Ok(mark_replayed(created(app, &pet))),
        InsertOutcome::KeyReused => Err(ApiError::IdempotencyKeyReused),
        InsertOutcome::InProgress => Err(ApiError::IdempotencyInProgress),
        InsertOutcome::ReferenceTaken => Err(ApiError::ReferenceTaken),
    }
}

fn created(app: &AppState, Versioned { content: pet, version }: &Versioned<domain::Pet>) -> Response {
    let id = pet.id;
    let (body, etag) = with_etag(json::render(&Pet::from(pet)), *version);
    let mut response = response::json(StatusCode::CREATED, body);
    response.headers_mut().insert(header::LOCATION, app.links.pet(id));
    response.headers_mut().insert(header::ETAG, etag);
    response.extensions_mut().insert(AccessLogIds { pet: id.get(), order: None });
    response
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn create_pet_errors() -> Vec<ApiError> {
    vec![
        BodyError::InvalidJson { problem: "it is empty".into() }.into(),
        BodyError::MissingField { name: "categoryId", expected: "must be an integer" }.into(),
        BodyError::InvalidField { name: "name", problem: "must have at most 255 characters".into() }.into(),
        BodyError::UnknownField { name: "nmae".into(), known: &["name"] }.into(),
        ApiError::UnknownParameter { name: "dryRun".into(), known: &[] },
        ApiError::RequestTimeout,
        ApiError::OutcomeUnknown { cause: String::new() },
        ApiError::IdempotencyInProgress,
        ApiError::ReferenceTaken,
        ApiError::IdempotencyKeyReused,
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType { sent: "text/plain".into(), accepted: NewPet::MEDIA_TYPES },
    ]
}
