//! The description of a pet.

use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::field_value::Scalar;
use super::json::{BodyError, FromObject, JsonObject, MEDIA_TYPE};
use super::resource_description::{
    FieldInput, LABEL_PATTERN, ResourceDescription, ResourceField, identifier, integer, keyword, reference,
    string,
};
use crate::domain::pet::{CategoryId, NewPet, PET_NAME_MAX_CHARS, Pet, PetPatch, PetStatus};

/// The fields of a pet.
pub(crate) const PET: ResourceDescription<Pet, PetPatch> = ResourceDescription(&[
    ResourceField {
        name: "id",
        required: true,
        get: |pet| Some(Scalar::Integer(pet.id.get())),
        schema: Some(|| identifier("Unique identifier, assigned by the service on creation.")),
        input: None,
    },
    ResourceField {
        name: "name",
        required: true,
        get: |pet| Some(Scalar::Text(pet.name.as_str().into())),
        schema: Some(|| name("The animal's name.").into()),
        input: Some(FieldInput {
            set: |pet, value| value.text().map(|name| pet.name = Some(name)),
            expected: "must be a string of 1 to 255 characters",
            schema: || {
                let rule = "The pet's name: 1 to 255 characters, at least one of them not white space, and no control \
                            characters. Stored as sent.";
                name(rule).pattern(Some(LABEL_PATTERN)).into()
            },
        }),
    },
    ResourceField {
        name: "categoryId",
        required: true,
        get: |pet| Some(Scalar::Integer(pet.category_id.0)),
        schema: Some(|| integer("Identifier of the category the animal belongs to.").into()),
        input: Some(FieldInput {
            set: |pet, value| value.integer().map(|id| pet.category_id = Some(CategoryId(id))),
            expected: "must be an integer",
            schema: || {
                integer("Identifier of the pet's category. Any 64-bit integer: it is not checked.").into()
            },
        }),
    },
    ResourceField {
        name: "status",
        required: false,
        get: |pet| pet.status.map(|status| Scalar::Keyword(status.as_str())),
        schema: Some(|| reference("PetStatus", "Availability status. Absent if none was set on creation.")),
        input: Some(FieldInput {
            set: |pet, value| value.keyword().map(|status| pet.status = Some(status)),
            expected: "must be one of `available`, `pending`, `sold`",
            schema: || {
                let rule = "Availability status. A pet can be created without one; once set, it cannot be removed. A \
                            sold pet cannot become `pending`, and an open order alone changes the status of its pet.";
                reference("PetStatus", rule)
            },
        }),
    },
]);

fn name(description: &'static str) -> ObjectBuilder {
    string(description).min_length(Some(1)).max_length(Some(PET_NAME_MAX_CHARS))
}

impl FromObject for NewPet {
    fn from_object(object: &JsonObject<'_>) -> Result<Self, BodyError> {
        let draft = PET.read(object, true)?;
        // Never absent: what a pet must have is required above.
        draft.into_new_pet().ok_or_else(|| BodyError::InvalidJson { problem: "it is not a pet".into() })
    }
}

impl FromObject for PetPatch {
    /// A JSON merge patch (RFC 7396), under its own name or as plain JSON.
    const MEDIA_TYPES: &'static [&'static str] = &["application/merge-patch+json", MEDIA_TYPE];

    fn from_object(object: &JsonObject<'_>) -> Result<Self, BodyError> {
        PET.read(object, false)
    }
}

impl PartialSchema for Pet {
    fn schema() -> RefOr<Schema> {
        let example = json!({"id": 7, "name": "Rex", "categoryId": 3, "status": "available"});
        PET.schema("A pet in the inventory.", example)
    }
}

impl PartialSchema for NewPet {
    fn schema() -> RefOr<Schema> {
        let example = json!({"name": "Rex", "categoryId": 3, "status": "available"});
        PET.input_schema(true, "A pet to create.", example)
    }
}

impl PartialSchema for PetPatch {
    fn schema() -> RefOr<Schema> {
        let description = "A change to a pet: a field that is left out keeps its value.";
        PET.input_schema(false, description, json!({"status": "sold"}))
    }
}

impl PartialSchema for PetStatus {
    fn schema() -> RefOr<Schema> {
        keyword(Self::ALL.map(Self::as_str), "Availability status of a pet.")
    }
}

impl ToSchema for Pet {}
impl ToSchema for NewPet {}
impl ToSchema for PetPatch {}
impl ToSchema for PetStatus {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_pet_is_rendered_as_json(
            id in 1..=i64::MAX,
            name in "[^\\p{Cc}]{0,20}\u{2028}?[\"\\\\/a-zé\u{1f415}][^\\p{Cc}]{0,20}",
            category_id: i64,
            status in proptest::option::of(proptest::sample::select(&PetStatus::ALL[..])),
        ) {
            let mut expected = json!({"id": id, "name": name, "categoryId": category_id});
            if let Some(status) = status {
                expected["status"] = status.as_str().into();
            }
            let pet = Pet {
                id: id.try_into().unwrap(),
                name: name.try_into().unwrap(),
                category_id: CategoryId(category_id),
                status,
            };
            prop_assert_eq!(PET.render(&pet), serde_json::to_vec(&expected).unwrap());
            let two = [pet.clone(), pet];
            prop_assert_eq!(PET.render_list(&two), serde_json::to_vec(&[&expected, &expected]).unwrap());
            prop_assert_eq!(PET.render_list(&[]), b"[]");
        }
    }
}
