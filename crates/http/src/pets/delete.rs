//! `DELETE /pets/{petId}`

use hyper::StatusCode;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_storage::DeletePetRefusal;
use petstore_wire::request_body::BodyError;

use super::update::check_if_match;
use crate::conditional::IfMatchParameter;
use crate::error::ApiError;
use crate::idempotency::{self, IdempotencyKeyHeader};
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};

/// Delete a pet
///
/// Deletes a pet that has never been in an order, such as a duplicate. Its id is not reused, but its `reference` can be. To
/// delete the pet only if it is as you have read it, send its `ETag` in `If-Match`. With an `Idempotency-Key`, a retry gets 204
/// again. Without one, 404 means that the pet is already deleted.
#[utoipa::path(
    delete,
    path = "/v1/pets/{petId}",
    operation_id = "deletePet",
    tag = "animals",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("petId" = i64, Path, description = "The identifier of the pet to delete.", example = 7),
        IfMatchParameter,
        IdempotencyKeyHeader,
    ),
    responses(
        (status = 204, description = "The pet is deleted.", headers(
            ("Idempotent-Replayed" = String, description = "`true` if an earlier attempt with the same key took effect."),
        )),
    ),
)]
pub(crate) async fn delete_pet(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    request.refuse_query()?;
    let (key, id) = (request.idempotency_key()?, request.pet_id()?);
    let (lineage, known) = (request.caller.key.lineage, request.if_match());
    let once = key.map(|key| IdempotentRequest::delete_pet(lineage, &key, id));
    let deletion = request.app.storage.delete_pet(id, once, |pet| check_if_match(&known, pet));
    idempotency::answer(deletion.await?, ApiError::PetNotFound, |()| {
        let mut response = response::empty(StatusCode::NO_CONTENT);
        response.extensions_mut().insert(AccessLogIds { pet: id.get(), order: None });
        response
    })
}

impl From<DeletePetRefusal<Self>> for ApiError {
    fn from(refusal: DeletePetRefusal<Self>) -> Self {
        match refusal {
            DeletePetRefusal::PetNotFound => Self::PetNotFound,
            DeletePetRefusal::HasOrder => Self::PetHasOrder,
            DeletePetRefusal::Rule(error) => error,
        }
    }
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn delete_pet_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::UnknownParameter { name: "force".into(), known: &[] },
        ApiError::PetNotFound,
        ApiError::OutcomeUnknown { cause: String::new() },
        ApiError::PetHasOrder,
        ApiError::IdempotencyInProgress,
        ApiError::IdempotencyKeyReused,
        ApiError::PreconditionFailed { what: "pet" },
    ]
}
