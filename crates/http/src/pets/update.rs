//! `PATCH /pets/{petId}`

use hyper::{StatusCode, header};
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::metadata::MetadataError;
use petstore_domain::pet::{self as domain, PatchError, PetStatus};
use petstore_domain::version::Versioned;
use petstore_storage::UpdatePetRefusal;
use petstore_wire::json;
use petstore_wire::pet::{Pet, PetPatch};
use petstore_wire::request_body::{BodyError, RequestBody};

use crate::conditional::{IfMatch, IfMatchParameter, with_etag};
use crate::error::ApiError;
use crate::idempotency::{self, IdempotencyKeyHeader};
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};

/// Change a pet
///
/// Changes the fields in the body, and leaves all others unchanged. An empty object changes nothing, and returns the pet with
/// its `ETag`. To avoid overwriting another client's change, send the pet's `ETag` in `If-Match`. With an `Idempotency-Key`, a
/// retry changes nothing, and returns the pet as it is now. You can set any `status`, except `pending` for a sold pet. While the
/// pet has an open order, you cannot set `status`.
#[utoipa::path(
    patch,
    path = "/v1/pets/{petId}",
    operation_id = "updatePet",
    tag = "animals",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("petId" = i64, Path, description = "The identifier of the pet to change.", example = 7),
        IfMatchParameter,
        IdempotencyKeyHeader,
    ),
    request_body(content(
        (PetPatch = "application/merge-patch+json"),
        (PetPatch = "application/json"),
    )),
    responses(
        (status = 200, description = "The changed pet.", body = Pet, headers(
            ("ETag" = String, description = "Identifies this version of the pet. Send it in `If-Match`."),
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn update_pet(mut request: ApiRequest<'_>) -> Result<Response, ApiError> {
    let patch: domain::PetPatch = request.json_body::<PetPatch>().await?.into();
    request.refuse_query()?;
    let (key, id) = (request.idempotency_key()?, request.pet_id()?);
    let (lineage, known) = (request.caller.key.lineage, request.if_match());
    let once = key.map(|key| IdempotentRequest::update_pet(lineage, &key, id, &patch));
    let change = request.app.storage.change_pet(id, once, |pet, has_open_order| {
        check_if_match(&known, pet)?;
        patch.apply(&pet.content, has_open_order).map_err(ApiError::from)
    });
    idempotency::answer(change.await?, ApiError::PetNotFound, updated)
}

fn updated(Versioned { content: pet, version }: Versioned<domain::Pet>) -> Response {
    let (body, etag) = with_etag(json::render(&Pet::from(&pet)), version);
    let mut response = response::json(StatusCode::OK, body);
    response.headers_mut().insert(header::ETAG, etag);
    response.extensions_mut().insert(AccessLogIds { pet: pet.id.get(), order: None });
    response
}

/// Checks that the client knows the current version of the pet: as getPet, createPet and updatePet return it, or as
/// `GET /pets?id=…` does.
pub(super) fn check_if_match(known: &IfMatch<'_>, pet: &Versioned<domain::Pet>) -> Result<(), ApiError> {
    let representations = || {
        let pet = Pet::from(&pet.content);
        [json::render(&pet), json::render(&[pet])]
    };
    if known.is_satisfied_by(pet.version, representations) {
        Ok(())
    } else {
        Err(ApiError::PreconditionFailed { what: "pet" })
    }
}

impl From<UpdatePetRefusal<Self>> for ApiError {
    fn from(refusal: UpdatePetRefusal<Self>) -> Self {
        match refusal {
            UpdatePetRefusal::PetNotFound => Self::PetNotFound,
            UpdatePetRefusal::ReferenceTaken => Self::ReferenceTaken,
            UpdatePetRefusal::Rule(error) => error,
        }
    }
}

impl From<MetadataError> for ApiError {
    fn from(error: MetadataError) -> Self {
        BodyError::InvalidField { name: "metadata", problem: error.to_string() }.into()
    }
}

impl From<PatchError> for ApiError {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::OpenOrder => Self::PetHasOpenOrder,
            PatchError::Move { from, to } => Self::InvalidTransition {
                what: "pet",
                from: from.map_or("", PetStatus::as_str),
                to: to.as_str(),
            },
            PatchError::Metadata(error) => error.into(),
        }
    }
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn update_pet_errors() -> Vec<ApiError> {
    vec![
        BodyError::InvalidJson { problem: "it is empty".into() }.into(),
        BodyError::InvalidField { name: "name", problem: "must have at most 255 characters".into() }.into(),
        BodyError::UnknownField { name: "nmae".into(), known: &["name"] }.into(),
        ApiError::UnknownParameter { name: "dryRun".into(), known: &[] },
        ApiError::PetNotFound,
        ApiError::RequestTimeout,
        ApiError::OutcomeUnknown { cause: String::new() },
        ApiError::InvalidTransition { what: "pet", from: "sold", to: "pending" },
        ApiError::PetHasOpenOrder,
        ApiError::ReferenceTaken,
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::PreconditionFailed { what: "pet" },
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType { sent: "text/plain".into(), accepted: PetPatch::MEDIA_TYPES },
    ]
}
