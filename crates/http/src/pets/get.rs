//! `GET /pets/{petId}`

use metrics::counter;
use petstore_domain::pet::PetId;
use petstore_telemetry::metrics::DEPRECATED_CALLS;
use petstore_wire::json;
use petstore_wire::pet::Pet;
use petstore_wire::request_body::BodyError;

use crate::conditional::{IfNoneMatchParameter, with_tag};
use crate::error::ApiError;
use crate::request::ApiRequest;
use crate::response::Response;

/// Get an animal
///
/// Deprecated. Will be removed on 5 December 2030. Use `GET /pets?id={petId}`, which also accepts several ids and other
/// filters.
#[utoipa::path(
    get,
    path = "/v1/pets/{petId}",
    operation_id = "getPet",
    tag = "animals",
    params(
        ("petId" = i64, Path, description = "The identifier of the animal to retrieve.", example = 7),
        IfNoneMatchParameter,
    ),
    responses(
        (status = 200, description = "The requested animal.", body = Pet, headers(
            ("ETag" = String, description = "Identifies this version of the pet. Send it in `If-None-Match`."),
            ("Deprecation" = String, description = "When the operation was deprecated (RFC 9745)."),
            ("Sunset" = String, description = "When the operation will be removed (RFC 8594)."),
            ("Link" = String, description = "The documentation, with `rel=\"deprecation\"`, and the \
                replacement, with `rel=\"successor-version\"`."),
        )),
        (status = 304, description = "The pet has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
#[deprecated]
pub(crate) async fn get_pet(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    let app = request.app;
    let key_id = request.caller.key.id.0.to_string();
    counter!(DEPRECATED_CALLS, "operation" => "getPet", "key_id" => key_id).increment(1);
    let id = request.pet_id();
    let successor = app.links.successor_of_get_pet(id.as_ref().ok().copied());
    // Every response announces the removal, errors too.
    let mut response = find_pet(&request, id).await.unwrap_or_else(ApiError::into_response);
    app.get_pet_deprecation.add_headers(response.headers_mut(), successor);
    Ok(response)
}

async fn find_pet(request: &ApiRequest<'_>, id: Result<PetId, ApiError>) -> Result<Response, ApiError> {
    request.app.get_pet_deprecation.check(request.now)?;
    request.refuse_body()?;
    request.refuse_query()?;
    let pet = request.app.storage.find_pet(id?).await?.ok_or(ApiError::PetNotFound)?;
    let (body, tag) = with_tag(json::render(&Pet::from(&pet.content)), [pet.version], None);
    Ok(request.if_none_match().answer(body, tag, None))
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn get_pet_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::UnknownParameter { name: "fields".into(), known: &[] },
        ApiError::PetNotFound,
        ApiError::OperationRemoved,
    ]
}
