//! Pets as clients see them: JSON members and query parameters.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use utoipa::{IntoParams, ToSchema};

use crate::domain::page::PageLimit;
use crate::domain::pet::{
    CategoryId, NewPet, Pet, PetFilter, PetId, PetName, PetPageRequest, PetPatch, PetStatus,
};
use crate::http::error::ApiError;
use crate::http::extractors::{FromMembers, Query, id_in_text, limit_schema};
use crate::http::json;
use crate::http::json_members::Members;

/// The most `id` parameters of one request.
const MAX_IDS: usize = 100;

/// Availability status of an animal.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[schema(as = PetStatus, rename_all = "lowercase")]
#[cfg_attr(test, serde(rename_all = "lowercase"))]
#[cfg_attr(not(test), expect(dead_code, reason = "describes the words for the document"))]
pub(crate) enum StatusWord {
    Available,
    Pending,
    Sold,
}

/// An animal in the inventory.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[schema(as = Pet, rename_all = "camelCase",
    example = json!({"id": 7, "name": "Rex", "categoryId": 3, "status": "available"}))]
#[cfg_attr(test, serde(rename_all = "camelCase"))]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "describes the body for the document; render_pet writes it")
)]
pub(crate) struct PetBody<'a> {
    /// Unique identifier, assigned by the service on creation.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    /// The animal's name.
    #[schema(min_length = 1, max_length = 255)]
    name: &'a str,
    /// Identifier of the category the animal belongs to.
    category_id: i64,
    /// Availability status. Absent if none was stated on creation.
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    #[schema(nullable = false)]
    status: Option<StatusWord>,
}

/// An animal as JSON.
pub(crate) fn render_pet(pet: &Pet) -> Vec<u8> {
    let mut json = Vec::with_capacity(PET_BYTES);
    write_pet(&mut json, pet);
    json
}

/// A page of animals as a JSON array.
pub(crate) fn render_pets(pets: &[Pet]) -> Vec<u8> {
    let mut json = Vec::with_capacity(2 + pets.len() * PET_BYTES);
    json.push(b'[');
    for (place, pet) in pets.iter().enumerate() {
        if place > 0 {
            json.push(b',');
        }
        write_pet(&mut json, pet);
    }
    json.push(b']');
    json
}

/// Room for most animals.
const PET_BYTES: usize = 128;

/// By hand: a derived `Serialize` takes six times as many instructions, and a page has up to 100 animals.
pub(crate) fn write_pet(json: &mut Vec<u8>, pet: &Pet) {
    let mut digits = itoa::Buffer::new();
    json.extend_from_slice(br#"{"id":"#);
    json.extend_from_slice(digits.format(pet.id.get()).as_bytes());
    json.extend_from_slice(br#","name":"#);
    json::write_string(json, pet.name.as_str());
    json.extend_from_slice(br#","categoryId":"#);
    json.extend_from_slice(digits.format(pet.category_id.0).as_bytes());
    if let Some(status) = pet.status {
        json.extend_from_slice(br#","status":""#);
        json.extend_from_slice(status.as_str().as_bytes());
        json.push(b'"');
    }
    json.push(b'}');
}

/// An animal to be added.
#[derive(ToSchema)]
#[schema(as = NewPet, rename_all = "camelCase",
    example = json!({"name": "Rex", "categoryId": 3, "status": "available"}))]
#[expect(dead_code, reason = "describes the body for the document; reading it goes straight to domain types")]
pub(crate) struct NewPetBody {
    /// The animal's name: at least one character that is not white space, and no control characters.
    /// It is stored as sent.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = r"^[^\u0000-\u001F\u007F-\u009F]*[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000][^\u0000-\u001F\u007F-\u009F]*$"
    )]
    name: String,
    /// Identifier of the category the animal belongs to. Any 64-bit integer: it is not checked.
    category_id: i64,
    /// Availability status. Stays absent if it is left out.
    #[schema(nullable = false)]
    status: Option<StatusWord>,
}

impl FromMembers for NewPet {
    /// Reports what is not known first, since it is most often a misspelt field; then the fields in order.
    fn from_members(members: &Members<'_>) -> Result<Self, ApiError> {
        members.refuse_unknown(FIELDS)?;
        let missing = |pointer, expected| ApiError::MissingField { pointer, expected };
        Ok(Self {
            name: name(members)?.ok_or(missing("/name", "must be a string of 1 to 255 characters"))?,
            category_id: category_id(members)?.ok_or(missing("/categoryId", "must be an integer"))?,
            status: status(members)?,
        })
    }
}

/// Reads an animal to be added as createPet takes it, but for one member of that name besides, whose value is returned
/// as it stands. What is wrong is told as clients are told it.
pub(crate) fn read_new_pet<'a>(
    json: &'a [u8],
    besides: Option<&str>,
) -> Result<(NewPet, Option<&'a str>), String> {
    let read = || {
        let mut members = Members::parse(json)?;
        let besides = besides.and_then(|name| members.take(name));
        NewPet::from_members(&members).map(|pet| (pet, besides))
    };
    read().map_err(|error: ApiError| match error {
        ApiError::InvalidJson { problem } => {
            // The line is known to whoever reads lines, and is not this one.
            let problem = problem.replace(" at line 1 column ", " at column ");
            format!("The line is not usable JSON: {problem}.")
        }
        other => other.message(),
    })
}

/// A change of an animal: what is left out stays as it is.
#[derive(ToSchema)]
#[schema(as = PetPatch, rename_all = "camelCase", example = json!({"status": "sold"}))]
#[expect(dead_code, reason = "describes the body for the document; reading it goes straight to domain types")]
pub(crate) struct PetPatchBody {
    /// The animal's new name: at least one character that is not white space, and no control characters.
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = r"^[^\u0000-\u001F\u007F-\u009F]*[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000][^\u0000-\u001F\u007F-\u009F]*$"
    )]
    name: Option<String>,
    /// Identifier of the category that the animal is to belong to.
    #[schema(nullable = false)]
    category_id: Option<i64>,
    /// The new status. It cannot be taken away, a sold animal cannot become `pending`, and an open order decides alone.
    #[schema(nullable = false)]
    status: Option<StatusWord>,
}

impl FromMembers for PetPatch {
    /// A JSON merge patch (RFC 7396), under its own name or as plain JSON.
    const MEDIA_TYPES: &'static [&'static str] = &["application/merge-patch+json", json::MEDIA_TYPE];

    fn from_members(members: &Members<'_>) -> Result<Self, ApiError> {
        members.refuse_unknown(FIELDS)?;
        Ok(Self { name: name(members)?, category_id: category_id(members)?, status: status(members)? })
    }
}

/// What a client may set.
const FIELDS: &[&str] = &["name", "categoryId", "status"];

fn name(members: &Members<'_>) -> Result<Option<PetName>, ApiError> {
    let Some(member) = members.get("/name") else { return Ok(None) };
    PetName::try_from(member.string()?).map(Some).map_err(|problem| member.invalid(&problem))
}

fn category_id(members: &Members<'_>) -> Result<Option<CategoryId>, ApiError> {
    let Some(member) = members.get("/categoryId") else { return Ok(None) };
    Ok(Some(CategoryId(member.integer()?)))
}

fn status(members: &Members<'_>) -> Result<Option<PetStatus>, ApiError> {
    let Some(member) = members.get("/status") else { return Ok(None) };
    member.string()?.parse().map(Some).map_err(|problem| member.invalid(&problem))
}

/// The query parameters of listPets.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "describes the query for the document; reading it goes straight to domain types"
)]
pub(crate) struct ListPetsParameters {
    #[param(required = false, schema_with = limit_schema)]
    limit: Option<PageLimit>,
    /// Filters by availability status. An animal without a status is matched by none.
    #[param(inline = false)]
    status: Option<StatusWord>,
    /// Only the animals with these identifiers; combined with `status` if both are given. An identifier
    /// that does not exist is simply not in the list.
    #[param(min_items = 1, max_items = 100, minimum = 1)]
    id: Option<Vec<i64>>,
    /// Where the page begins: taken from the `Link` header of the page before. Opaque.
    #[param(pattern = "^AQ[A-Za-z0-9_-]{10}$", example = "AQAAAAAAAAAU")]
    cursor: Option<String>,
}

/// The page that listPets was asked for.
pub(crate) struct ListPetsQuery(pub(crate) PetPageRequest);

impl<S: Sync> FromRequestParts<S> for ListPetsQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::parse(parts, &["limit", "status", "id", "cursor"])?;
        let (limit, status) = (query.limit()?, query.status()?);
        let ids: Option<Vec<PetId>> = query.all("id").map(id_in_text).collect();
        let ids = ids.filter(|ids| ids.len() <= MAX_IDS).ok_or_else(|| {
            let problem = "must be a positive integer of 64 bits, given at most 100 times";
            ApiError::invalid_parameter("id", &problem)
        })?;
        let ids = if ids.is_empty() { None } else { Some(ids) };
        Ok(Self(PetPageRequest { filter: PetFilter { status, ids }, after: query.after()?, limit }))
    }
}

/// The filters of a list, as its query has them.
pub(crate) fn filters(filter: &PetFilter) -> Vec<(&'static str, String)> {
    let status = filter.status.map(|status| ("status", status.as_str().to_owned()));
    let ids = filter.ids.iter().flatten().map(|id| ("id", id.get().to_string()));
    status.into_iter().chain(ids).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_pet_is_rendered_as_it_is_described(
            id in 1..=i64::MAX,
            name in "[^\\p{Cc}]{0,20}\u{2028}?[\"\\\\/a-zé\u{1f415}][^\\p{Cc}]{0,20}",
            category_id: i64,
            status in proptest::option::of(proptest::sample::select(&PetStatus::ALL[..])),
        ) {
            let described = PetBody {
                id,
                name: &name,
                category_id,
                status: status.map(|status| match status {
                    PetStatus::Available => StatusWord::Available,
                    PetStatus::Pending => StatusWord::Pending,
                    PetStatus::Sold => StatusWord::Sold,
                }),
            };
            let pet = Pet {
                id: id.try_into().unwrap(),
                name: name.clone().try_into().unwrap(),
                category_id: CategoryId(category_id),
                status,
            };
            prop_assert_eq!(render_pet(&pet), serde_json::to_vec(&described).unwrap());
            prop_assert_eq!(render_pets(&[pet.clone(), pet]), serde_json::to_vec(&[&described, &described]).unwrap());
            prop_assert_eq!(render_pets(&[]), b"[]");
        }
    }
}
