//! `GET /pets`

use axum::extract::State;
use axum::response::Response;

use super::wire::{ListPetsParameters, ListPetsQuery, PetBody, filters, render_pets};
use crate::http::AppState;
use crate::http::conditional::{IfNoneMatch, IfNoneMatchParameter, with_tag};
use crate::http::error::ApiError;

/// List all animals
///
/// Returns a page of pets in the order of their identifiers. Follow the `Link` header with `rel="next"` to the
/// next page; it is absent on the last. A pet that existed when you read the first page, and still matches,
/// appears exactly once, however many are added meanwhile.
#[utoipa::path(
    get,
    path = "/v1/pets",
    operation_id = "listPets",
    tag = "animals",
    params(ListPetsParameters, IfNoneMatchParameter),
    responses(
        (status = 200, description = "A paginated list of animals.", body = [PetBody], headers(
            ("Link" = String, description = "The next page, with `rel=\"next\"`. Absent on the last page."),
            ("ETag" = String, description = "Changes with the page; for `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_pets(
    State(app): State<AppState>,
    known: IfNoneMatch,
    ListPetsQuery(request): ListPetsQuery,
) -> Result<Response, ApiError> {
    let shared = app.storage.list_pets(request.clone()).await?;
    let next = app.links.next_page("/pets", request.limit, filters(&request.filter), shared.page.next_after);
    let (body, tag) = shared.rendered(|page| with_tag(render_pets(&page.items), next.as_ref()));
    Ok(known.answer(body, tag, next))
}

/// The errors of this operation, besides those of every operation.
pub(crate) fn list_pets_errors() -> Vec<ApiError> {
    vec![
        ApiError::InvalidParameter { name: "limit", problem: "must be an integer from 1 to 100".into() },
        ApiError::UnknownParameter { name: "stauts".into(), nearest: Some("status") },
        ApiError::InvalidCursor,
    ]
}
