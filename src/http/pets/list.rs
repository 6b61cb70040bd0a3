//! `GET /pets`

use utoipa::openapi::schema::ArrayBuilder;

use crate::domain::page::PageLimit;
use crate::domain::pet::{Pet, PetFilter, PetId, PetPageRequest};
use crate::http::conditional::{IfNoneMatch, with_tag};
use crate::http::error::ApiError;
use crate::http::parameter_description::{ParameterDescription, document_parameters};
use crate::http::request::{ApiRequest, QueryParameters, id_in_text};
use crate::http::response::Response;
use crate::storage::RenderedPage;
use crate::wire::json::BodyError;
use crate::wire::pet::PET;
use crate::wire::resource_description::{integer, reference};

/// List all animals
///
/// Returns a page of pets in order of their identifiers. Follow the `Link` header with `rel="next"` to the
/// next page; it is absent on the last. A pet that existed when you read the first page, and still matches,
/// appears exactly once, even if others are added meanwhile.
#[utoipa::path(
    get,
    path = "/v1/pets",
    operation_id = "listPets",
    tag = "animals",
    params(ListPetsQuery, IfNoneMatch),
    responses(
        (status = 200, description = "A paginated list of animals.", body = [Pet], headers(
            ("Link" = String, description = "The next page, with `rel=\"next\"`. Absent on the last page."),
            ("ETag" = String, description = "Changes with the page; for `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_pets(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    let app = request.app;
    let wanted = page_request(&request.query(PARAMETERS)?)?;
    let shared = app.storage.list_pets(wanted.clone()).await?;
    let RenderedPage { body, tag, next } = shared.rendered(|page| {
        let next = app.links.next_page("/pets", wanted.limit, filters(&wanted.filter), page.next_after);
        let (body, tag) = with_tag(PET.render_list(&page.items), next.as_ref());
        RenderedPage { body, tag, next }
    });
    Ok(request.if_none_match().answer(body, tag, next))
}

/// The query parameters.
const PARAMETERS: &[ParameterDescription] = &[
    ParameterDescription::LIMIT,
    ParameterDescription::new(
        "status",
        "Filters by availability status. A pet without a status matches none.",
        || reference("PetStatus", ""),
    ),
    ParameterDescription::new(
        "id",
        "Only the pets with these identifiers, 1 to 100 of them, all in one response unless you set `limit`; combined \
         with `status` if both are given. Identifiers that do not exist are left out.",
        || {
            let id = integer(None).minimum(Some(1));
            ArrayBuilder::new().items(id).min_items(Some(1)).max_items(Some(MAX_IDS)).into()
        },
    ),
    ParameterDescription::CURSOR,
];

/// The maximum number of `id` parameters in a request.
const MAX_IDS: usize = 100;

/// Documents the query parameters.
pub(crate) struct ListPetsQuery;

document_parameters!(ListPetsQuery, Query, PARAMETERS);

/// The page that a query asks for.
fn page_request(query: &QueryParameters<'_>) -> Result<PetPageRequest, ApiError> {
    let ids: Option<Vec<PetId>> = query.all("id").map(id_in_text).collect();
    let ids = ids.filter(|ids| ids.len() <= MAX_IDS).ok_or_else(|| {
        let problem = "must be a positive 64-bit integer, given at most 100 times";
        ApiError::invalid_parameter("id", &problem)
    })?;
    let ids = if ids.is_empty() { None } else { Some(ids) };
    // All pets that are named, so that nobody takes the end of a page for the absence of a pet.
    let limit = query.limit(if ids.is_some() { PageLimit::LARGEST } else { PageLimit::DEFAULT })?;
    let status = query.status()?;
    Ok(PetPageRequest { filter: PetFilter { status, ids }, after: query.after()?, limit })
}

/// The filters of a list, as query parameters.
fn filters(filter: &PetFilter) -> Vec<(&'static str, String)> {
    let status = filter.status.map(|status| ("status", status.as_str().to_owned()));
    let ids = filter.ids.iter().flatten().map(|id| ("id", id.get().to_string()));
    status.into_iter().chain(ids).collect()
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn list_pets_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::InvalidParameter { name: "limit", problem: "must be an integer from 1 to 100".into() },
        ApiError::UnknownParameter { name: "stauts".into(), known: vec!["status"] },
        ApiError::InvalidCursor,
    ]
}
