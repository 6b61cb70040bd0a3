//! `DELETE /pets/{petId}`

use hyper::StatusCode;
use petstore_storage::DeleteOutcome;
use petstore_wire::request_body::BodyError;

use super::update::check_if_match;
use crate::conditional::IfMatchParameter;
use crate::error::ApiError;
use crate::request::ApiRequest;
use crate::response::{self, AccessLogIds, Response};

/// Delete a pet
///
/// Deletes a pet that has never been in an order, such as a duplicate. Its id is not reused, but its `reference` can be. To
/// delete the pet only if it is as you have read it, send its `ETag` in `If-Match`. If you retry, 404 means that the pet is
/// already deleted.
#[utoipa::path(
    delete,
    path = "/v1/pets/{petId}",
    operation_id = "deletePet",
    tag = "animals",
    extensions(("x-stability" = json!("beta"))),
    params(
        ("petId" = i64, Path, description = "The identifier of the pet to delete.", example = 7),
        IfMatchParameter,
    ),
    responses(
        (status = 204, description = "The pet is deleted."),
    ),
)]
pub(crate) async fn delete_pet(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    request.refuse_query()?;
    let (id, known) = (request.pet_id()?, request.if_match());
    match request.app.storage.delete_pet(id, |pet| check_if_match(&known, pet)).await? {
        DeleteOutcome::Deleted => {
            let mut response = response::empty(StatusCode::NO_CONTENT);
            response.extensions_mut().insert(AccessLogIds { pet: id.get(), order: None });
            Ok(response)
        }
        DeleteOutcome::Refused(refusal) => Err(refusal),
        DeleteOutcome::HasOrder => Err(ApiError::PetHasOrder),
        DeleteOutcome::PetNotFound => Err(ApiError::PetNotFound),
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
        ApiError::PreconditionFailed { what: "pet" },
    ]
}
