//! `GET /pets`

use petstore_domain::page::{PageLimit, SortOrder};
use petstore_domain::pet::{CategoryId, PetFilter, PetId, PetPage, PetPageRequest, PetStatus};
use petstore_domain::reference::{Reference, ReferenceError};
use petstore_wire::json;
use petstore_wire::pet::Pet;
use petstore_wire::request_body::BodyError;
use petstore_wire::schema;
use serde::Deserialize;
use thiserror::Error;

use crate::conditional::{IfNoneMatchParameter, with_tag};
use crate::cursor::after_cursor;
use crate::error::ApiError;
use crate::query::distinct;
use crate::rendered_page_cache::RenderedPetPage;
use crate::request::{ApiRequest, id_in_text};
use crate::response::Response;

/// List all animals
///
/// Returns a page of pets, sorted by id: the oldest first, or the newest first with `sort=-id`. Follow the `Link` header with
/// `rel="next"` to the next page. The last page has no such header. A pet that exists when you read the first page, and still
/// matches, appears exactly once, even if pets are added while you read.
#[utoipa::path(
    get,
    path = "/v1/pets",
    operation_id = "listPets",
    tag = "animals",
    params(ListPetsQuery, IfNoneMatchParameter),
    responses(
        (status = 200, description = "A paginated list of animals.", body = [Pet], headers(
            ("Link" = String, description = "The next page, with `rel=\"next\"`. Absent on the last page."),
            ("ETag" = String, description = "Identifies this version of the page. Send it in `If-None-Match`."),
        )),
        (status = 304, description = "The page has not changed since the response with the `ETag` in `If-None-Match`."),
    ),
)]
pub(crate) async fn list_pets(request: ApiRequest<'_>) -> Result<Response, ApiError> {
    request.refuse_body()?;
    let app = request.app;
    let wanted = request.query::<ListPetsQuery>()?.page_request()?;
    let page = app.storage.list_pets(wanted.clone()).await?;
    let RenderedPetPage { body, tag, next } =
        app.rendered_page.rendered(page, |PetPage { page, versions }| {
            let next = app.links.next_page("/pets", &wanted, filters(&wanted.filter), page.next_after)?;
            let pets: Vec<Pet<'_>> = page.items.iter().map(Pet::from).collect();
            let (body, tag) = with_tag(json::render(&pets), versions.iter().copied(), next.as_ref());
            Ok(RenderedPetPage { body, tag, next })
        })?;
    Ok(request.if_none_match().answer(body, tag, next))
}

/// The query parameters.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ListPetsQuery {
    /// Maximum number of items returned: 1 to 100, 20 by default.
    #[param(value_type = Option<schema::PageLimit>, inline, nullable = false)]
    limit: Option<PageLimit>,
    /// Only pets with this status. A pet without a status never matches.
    #[param(value_type = Option<schema::PetStatus>, nullable = false)]
    status: Option<PetStatus>,
    /// Only pets of this category. Any 64-bit integer is accepted.
    #[param(value_type = Option<i64>, nullable = false)]
    category_id: Option<CategoryId>,
    /// Only pets with these ids: 1 to 100 values. Unknown ids are left out. All matching pets are in one response, unless you set `limit`. Other filters also apply.
    #[param(value_type = Option<Vec<i64>>, nullable = false, minimum = 1, min_items = 1, max_items = 100)]
    id: PetIds,
    /// Only pets with these references: 1 to 100 values. Unknown references are left out. All matching pets are in one response, unless you set `limit`. Other filters also apply.
    #[param(value_type = Option<Vec<String>>, nullable = false, min_length = 1, max_length = 255, min_items = 1, max_items = 100, pattern = r"\S")]
    reference: References,
    /// Where the page starts. Copy it from the `Link` header of the previous page. The value is opaque, and its format may change.
    #[param(nullable = false, example = "AQAAAAAAAAAU")]
    cursor: Option<String>,
    /// The order: `id`, the default, is the oldest first, and `-id` is the newest first.
    #[param(value_type = Option<schema::SortOrder>, inline, nullable = false)]
    sort: Option<SortOrder>,
}

impl ListPetsQuery {
    fn page_request(self) -> Result<PetPageRequest, ApiError> {
        let (PetIds(ids), References(references)) = (self.id, self.reference);
        let ids = if ids.is_empty() { None } else { Some(ids) };
        let references = if references.is_empty() { None } else { Some(references) };
        // All pets that are named, so that nobody takes the end of a page for the absence of a pet.
        let are_named = ids.is_some() || references.is_some();
        let default = if are_named { PageLimit::LARGEST } else { PageLimit::DEFAULT };
        Ok(PetPageRequest {
            filter: PetFilter { status: self.status, category_id: self.category_id, ids, references },
            sort: self.sort.unwrap_or_default(),
            after: after_cursor(self.cursor.as_deref())?,
            limit: self.limit.unwrap_or(default),
        })
    }
}

/// The identifiers in a query: none, or up to 100.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct PetIds(Vec<PetId>);

/// One of the identifiers is invalid, or there are too many.
#[derive(Debug, Error)]
#[error("must be a positive 64-bit integer, and can appear up to 100 times")]
struct PetIdsError;

impl TryFrom<Vec<String>> for PetIds {
    type Error = PetIdsError;

    fn try_from(ids: Vec<String>) -> Result<Self, PetIdsError> {
        let ids: Option<Vec<PetId>> = ids.iter().map(|id| id_in_text(id)).collect();
        ids.filter(|ids| ids.len() <= 100).map(|ids| Self(distinct(ids))).ok_or(PetIdsError)
    }
}

/// The references in a query: none, or up to 100.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct References(Vec<Reference>);

/// One of the references is invalid, or there are too many.
#[derive(Debug, Error)]
#[error("{ReferenceError}, and can appear up to 100 times")]
struct ReferencesError;

impl TryFrom<Vec<String>> for References {
    type Error = ReferencesError;

    fn try_from(references: Vec<String>) -> Result<Self, ReferencesError> {
        let references: Result<Vec<Reference>, _> = references.into_iter().map(Reference::try_from).collect();
        let references = references.ok().filter(|references| references.len() <= 100);
        references.map(|references| Self(distinct(references))).ok_or(ReferencesError)
    }
}

/// The filters of a list, as query parameters.
fn filters(PetFilter { status, category_id, ids, references }: &PetFilter) -> Vec<(&'static str, String)> {
    let status = status.map(|status| ("status", status.as_str().to_owned()));
    let category_id = category_id.map(|id| ("categoryId", id.0.to_string()));
    let ids = ids.iter().flatten().map(|id| ("id", id.get().to_string()));
    let references = references.iter().flatten().map(|text| ("reference", text.as_str().to_owned()));
    status.into_iter().chain(category_id).chain(ids).chain(references).collect()
}

/// The errors of this operation, in addition to those of every operation.
pub(crate) fn list_pets_errors() -> Vec<ApiError> {
    vec![
        BodyError::NotExpected.into(),
        ApiError::InvalidParameter { name: "limit", problem: "must be an integer from 1 to 100".into() },
        ApiError::UnknownParameter { name: "stauts".into(), known: &["status"] },
        ApiError::InvalidCursor,
    ]
}
