//! `GET /pets/{petId}`

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::domain::pet::{Pet, PetId};
use crate::http::AppState;
use crate::http::conditional::{IfNoneMatch, with_tag};
use crate::http::error::ApiError;
use crate::http::extractors::{NoQuery, PetIdInPath};
use crate::http::pipeline::key_cache::Caller;
use crate::wire::pet::PET;

/// Get an animal
///
/// Deprecated, to be removed on 5 December 2030. Use `GET /pets?id={petId}` instead, which also accepts the
/// `status` filter and many identifiers at once.
#[utoipa::path(
    get,
    path = "/v1/pets/{petId}",
    operation_id = "getPet",
    tag = "animals",
    params(
        ("petId" = i64, Path, description = "The identifier of the animal to retrieve.", example = 7),
        IfNoneMatch,
    ),
    responses(
        (status = 200, description = "The requested animal.", body = Pet, headers(
            ("ETag" = String, description = "Changes with the pet; for `If-None-Match`."),
            ("Deprecation" = String, description = "When the operation was deprecated (RFC 9745)."),
            ("Sunset" = String, description = "When the operation will be removed (RFC 8594)."),
            ("Link" = String, description = "The documentation, with `rel=\"deprecation\"`, and the \
                replacement, with `rel=\"successor-version\"`."),
        )),
        (status = 304, description = "The pet has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
#[deprecated]
pub(crate) async fn get_pet(
    State(app): State<AppState>,
    Extension(caller): Extension<Arc<Caller>>,
    known: IfNoneMatch,
    id: Result<PetIdInPath, ApiError>,
    query: Result<NoQuery, ApiError>,
) -> Response {
    caller.get_pet_calls().increment(1);
    let wanted = id.as_ref().ok().map(|id| id.0);
    let mut response = match app.get_pet_deprecation.check((app.clock)()).and(query).and(id) {
        Ok(PetIdInPath(id)) => fetch(&app, &known, id).await,
        Err(error) => Err(error),
    }
    .into_response();
    let successor = app.links.successor_of_get_pet(wanted);
    app.get_pet_deprecation.add_headers(response.headers_mut(), successor);
    response
}

async fn fetch(app: &AppState, known: &IfNoneMatch, id: PetId) -> Result<Response, ApiError> {
    let pet = app.storage.find_pet(id).await?.ok_or(ApiError::PetNotFound)?;
    let (body, tag) = with_tag(PET.render(&pet), None);
    Ok(known.answer(body, tag, None))
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn get_pet_errors() -> Vec<ApiError> {
    vec![
        ApiError::UnknownParameter { name: "fields".into(), nearest: None },
        ApiError::PetNotFound,
        ApiError::OperationRemoved,
    ]
}
