//! `POST /pets`

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::wire::{NewPetBody, PetBody, render_pet};
use crate::domain::pet::NewPet;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{JsonBody, NoQuery};
use crate::http::json;

/// Add an animal
///
/// Stores the animal durably before it answers, and gives it an identifier that is never used again.
#[utoipa::path(
    post,
    path = "/v1/pets",
    operation_id = "createPet",
    tag = "animals",
    request_body(content = NewPetBody, content_type = "application/json"),
    responses(
        (status = 201, description = "Animal added; the body includes the assigned `id`.", body = PetBody, headers(
            ("Location" = String, description = "The address of the new animal."),
        )),
    ),
)]
pub(crate) async fn create_pet(
    State(app): State<AppState>,
    NoQuery: NoQuery,
    JsonBody(new): JsonBody<NewPet>,
) -> Result<Response, ApiError> {
    let pet = app.storage.insert_pet(new).await?;
    let location = app.links.pet(pet.id);
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static(json::MEDIA_TYPE)), (header::LOCATION, location)];
    Ok((StatusCode::CREATED, headers, render_pet(&pet)).into_response())
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
        ApiError::BodyTooLarge,
        ApiError::UnsupportedMediaType,
    ]
}
