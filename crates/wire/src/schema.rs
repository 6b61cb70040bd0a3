//! The OpenAPI schemas of types that belong to the domain, which knows nothing of OpenAPI.
//!
//! A field with a type of the domain names the schema of the same name: `#[schema(value_type = schema::PetStatus)]`.

use petstore_domain::{event, order, page, pet};
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{Object, ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Defines a schema: a type without values that has the name of the schema in the document.
macro_rules! schema {
    ($name:ident, $schema:expr) => {
        #[doc = concat!("The schema of the domain's `", stringify!($name), "`.")]
        #[derive(Debug)]
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $name {}
    };
}

schema!(PetStatus, closed("Availability status of a pet.", pet::PetStatus::ALL.map(pet::PetStatus::as_str)));
schema!(OrderStatus, closed("Status of an order.", order::OrderStatus::ALL.map(order::OrderStatus::as_str)));
schema!(EventType, {
    let about = "The type of an event. Types may be added, so ignore types that you do not know.";
    open(about, event::EventType::ALL.map(event::EventType::as_str))
});
schema!(PageLimit, {
    let limit = ObjectBuilder::new().schema_type(Type::Integer);
    let limit = limit.minimum(Some(page::PageLimit::MIN)).maximum(Some(page::PageLimit::MAX));
    limit.default(Some(page::PageLimit::DEFAULT.get().into()))
});
schema!(SortOrder, {
    let order = ObjectBuilder::new().schema_type(Type::String);
    let order = order.enum_values(Some(page::SortOrder::ALL.map(page::SortOrder::as_str)));
    order.default(Some(page::SortOrder::default().as_str().into()))
});

schema!(Metadata, {
    let members = ObjectBuilder::new().description(Some("Your own data: strings by name."));
    members.additional_properties(Some(ObjectBuilder::new().schema_type(Type::String)))
});
schema!(NewMetadata, {
    let about = "Your own data: up to 20 strings, with names of 1 to 40 characters (`A-Za-z0-9_-`). Names and values \
        together have at most 4,096 bytes of UTF-8. A string keeps a price exact.";
    members(about, value()).max_properties(Some(20))
});
schema!(MetadataPatch, {
    let about = "Changes to your own data, as in a JSON merge patch: a string adds or replaces a member, and `null` \
        removes it. The result must keep to the limits of `NewMetadata`.";
    members(about, value().schema_type(SchemaType::from_iter([Type::String, Type::Null])))
});

/// The schema of a value in the metadata.
fn value() -> ObjectBuilder {
    let about = "1 to 500 characters, and no control characters except line feed and tab. Stored as sent.";
    let value = ObjectBuilder::new().schema_type(Type::String).description(Some(about));
    value.min_length(Some(1)).max_length(Some(500))
}

/// The schema of an object with these values.
fn members(description: &str, value: ObjectBuilder) -> ObjectBuilder {
    let names = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9_-]{1,40}$"));
    let members = ObjectBuilder::new().description(Some(description)).property_names(Some(names));
    members.additional_properties(Some(value))
}

/// The schema of one of these keywords.
fn closed<const N: usize>(description: &str, keywords: [&str; N]) -> Object {
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    schema.enum_values(Some(keywords)).build()
}

/// The schema of a keyword to which others may be added: generated clients accept those, too.
#[must_use]
pub fn open<const N: usize>(description: &str, known: [&str; N]) -> Object {
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    let known = ExtensionsBuilder::new().add("x-extensible-enum", known.to_vec()).build();
    schema.extensions(Some(known)).build()
}
