//! The pet: in responses, to create, and to change.

use petstore_domain::change::Change;
use petstore_domain::metadata::{Metadata, MetadataPatch};
use petstore_domain::pet::{self as domain, CategoryId, PetId, PetName, PetStatus};
use petstore_domain::reference::Reference;
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::json::MEDIA_TYPE;
use super::request_body::RequestBody;
use super::schema;

/// A pet in the inventory.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({"id": 7, "name": "Rex", "categoryId": 3, "status": "available"}))]
pub struct Pet<'a> {
    /// Unique identifier, assigned by the service on creation.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: PetId,
    /// The animal's name.
    #[schema(value_type = String, min_length = 1, max_length = 255)]
    name: &'a PetName,
    /// Identifier of the category the animal belongs to.
    #[schema(value_type = i64)]
    category_id: CategoryId,
    /// Availability status. Absent if none was set on creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::PetStatus>, nullable = false)]
    status: Option<PetStatus>,
    /// Your own number for this pet. Absent unless you set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255)]
    reference: Option<&'a Reference>,
    /// Your own data about this pet, such as its price. Absent unless you set it.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    #[schema(value_type = Option<schema::Metadata>, nullable = false)]
    metadata: &'a Metadata,
}

impl<'a> From<&'a domain::Pet> for Pet<'a> {
    fn from(pet: &'a domain::Pet) -> Self {
        let domain::Pet { id, name, category_id, status, reference, metadata } = pet;
        Self {
            id: *id,
            name,
            category_id: *category_id,
            status: *status,
            reference: reference.as_ref(),
            metadata,
        }
    }
}

/// A pet to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"name": "Rex", "categoryId": 3, "status": "available"}))]
pub struct NewPet {
    /// The pet's name: 1 to 255 characters, at least one of them not white space, and no control characters. Stored as sent.
    #[schema(value_type = String, min_length = 1, max_length = 255, pattern = r"\S")]
    name: PetName,
    /// The id of the pet's category. Any 64-bit integer is accepted.
    #[schema(value_type = i64)]
    category_id: CategoryId,
    /// Optional. Once set, the status can change but cannot be removed. A sold pet cannot become `pending`. While the pet has an open order, only the order changes the status.
    #[schema(value_type = Option<schema::PetStatus>, nullable = false)]
    status: Option<PetStatus>,
    /// Your own number for this pet, such as its chip or stock number. 1 to 255 characters, not all white space, no control characters. Unique among pets.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"\S")]
    reference: Option<Reference>,
    /// Your own data about this pet, such as its price.
    #[schema(value_type = Option<schema::NewMetadata>, nullable = false)]
    metadata: Option<Metadata>,
}

impl RequestBody for NewPet {
    type Resource = Pet<'static>;
    const EXPECTED: &'static [(&'static str, &'static str)] =
        &[("name", "must be a string of 1 to 255 characters"), ("categoryId", "must be an integer")];
}

/// A column of a file with new pets.
pub struct NewPetColumn {
    /// Its name in the first row.
    pub name: String,
    /// Whether a file must have it.
    pub is_required: bool,
}

impl NewPet {
    /// The columns of a CSV file, named as the members of the JSON.
    #[must_use]
    pub fn columns() -> Vec<NewPetColumn> {
        let RefOr::T(Schema::Object(schema)) = Self::schema() else { return Vec::new() };
        let column =
            |name: &String| NewPetColumn { name: name.clone(), is_required: schema.required.contains(name) };
        schema.properties.keys().map(column).collect()
    }
}

impl From<NewPet> for domain::NewPet {
    fn from(NewPet { name, category_id, status, reference, metadata }: NewPet) -> Self {
        Self { name, category_id, status, reference, metadata: metadata.unwrap_or_default() }
    }
}

/// A change to a pet: a field that is left out keeps its value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"status": "sold"}))]
pub struct PetPatch {
    /// The pet's name: 1 to 255 characters, at least one of them not white space, and no control characters. Stored as sent.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"\S")]
    name: Option<PetName>,
    /// The id of the pet's category. Any 64-bit integer is accepted.
    #[schema(value_type = Option<i64>, nullable = false)]
    category_id: Option<CategoryId>,
    /// Optional. Once set, the status can change but cannot be removed. A sold pet cannot become `pending`. While the pet has an open order, only the order changes the status.
    #[schema(value_type = Option<schema::PetStatus>, nullable = false)]
    status: Option<PetStatus>,
    /// Your own number for this pet, such as its chip or stock number. 1 to 255 characters, not all white space, no control characters. Unique among pets. `null` removes it.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"\S")]
    reference: Change<Reference>,
    /// Changes to your own data about this pet: a member replaces or adds a value, `null` removes it, and other members stay. `null` instead of the object removes all of it.
    #[schema(value_type = Option<schema::MetadataPatch>)]
    metadata: Change<MetadataPatch>,
}

/// A JSON merge patch (RFC 7396), under its own name or as plain JSON.
impl RequestBody for PetPatch {
    type Resource = Pet<'static>;
    const MEDIA_TYPES: &'static [&'static str] = &["application/merge-patch+json", MEDIA_TYPE];
    const EXPECTED: &'static [(&'static str, &'static str)] = &[];
}

impl From<PetPatch> for domain::PetPatch {
    fn from(PetPatch { name, category_id, status, reference, metadata }: PetPatch) -> Self {
        Self { name, category_id, status, reference, metadata }
    }
}
