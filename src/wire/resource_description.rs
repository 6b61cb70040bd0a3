//! The description of a resource, field by field, and what is derived from it: JSON both ways, and schemas.

use serde_json::Value as Example;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, Type};
use utoipa::openapi::{KnownFormat, Ref, RefOr, SchemaFormat};

use super::field_value::{FieldValue, FieldValueError, Scalar};
use super::json::{BodyError, JsonObject};
use crate::domain::identifier::MAX_ISSUED;

/// One field of a resource: a member of its JSON, a column of its CSV, a property of its schema.
///
/// `Draft` collects what a client sets, every field optional.
pub(crate) struct ResourceField<Resource, Draft> {
    /// The name of the member, the column and the property.
    pub(crate) name: &'static str,
    /// Whether every resource has the field.
    pub(crate) required: bool,
    /// The value, if the resource has one.
    pub(crate) get: for<'a> fn(&'a Resource) -> Option<Scalar<'a>>,
    /// The schema in a response. Absent if a response never has the field.
    pub(crate) schema: Option<fn() -> RefOr<Schema>>,
    /// How a client sets the field. Absent if only the service does.
    pub(crate) input: Option<FieldInput<Draft>>,
}

/// How a client sets a field.
pub(crate) struct FieldInput<Draft> {
    /// Parses a value into the draft.
    pub(crate) set: fn(&mut Draft, &FieldValue<'_>) -> Result<(), FieldValueError>,
    /// What the value must be, for the client that left it out.
    pub(crate) expected: &'static str,
    /// The schema in a request.
    pub(crate) schema: fn() -> RefOr<Schema>,
}

/// A resource described by its fields, in the order in which they are written.
pub(crate) struct ResourceDescription<Resource: 'static, Draft: 'static>(
    pub(crate) &'static [ResourceField<Resource, Draft>],
);

/// At least one character that is not white space, and no control characters.
pub(crate) const LABEL_PATTERN: &str = r"^[^\u0000-\u001F\u007F-\u009F]*[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000][^\u0000-\u001F\u007F-\u009F]*$";

/// What is wrong with `null` for a field that may be absent.
const NOT_NULL: &str = "must not be `null`: leave it out";

/// Enough bytes for the JSON of most resources.
const USUAL_BYTES: usize = 128;

impl<Resource, Draft: Default> ResourceDescription<Resource, Draft> {
    /// The fields that a client can set.
    pub(crate) fn inputs(
        &self,
    ) -> impl Iterator<Item = (&'static ResourceField<Resource, Draft>, &'static FieldInput<Draft>)> + Clone
    {
        self.0.iter().filter_map(|field| Some((field, field.input.as_ref()?)))
    }

    /// One resource as JSON.
    pub(crate) fn render(&self, resource: &Resource) -> Vec<u8> {
        let mut json = Vec::with_capacity(USUAL_BYTES);
        self.write_json(&mut json, resource);
        json
    }

    /// Resources as a JSON array.
    pub(crate) fn render_list(&self, resources: &[Resource]) -> Vec<u8> {
        let mut json = Vec::with_capacity(2 + resources.len() * USUAL_BYTES);
        json.push(b'[');
        for (index, resource) in resources.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            self.write_json(&mut json, resource);
        }
        json.push(b']');
        json
    }

    /// Appends a resource as JSON. By hand, because a derived `Serialize` takes several times as many instructions, and
    /// a page has up to 100 resources.
    pub(crate) fn write_json(&self, json: &mut Vec<u8>, resource: &Resource) {
        let mut separator = b'{';
        for field in self.0 {
            let Some(value) = (field.get)(resource) else { continue };
            json.push(separator);
            json.push(b'"');
            json.extend_from_slice(field.name.as_bytes());
            json.extend_from_slice(b"\":");
            value.write_json(json);
            separator = b',';
        }
        json.push(b'}');
    }

    /// Reads what a client sets. An unknown member is reported first, since it is most often a misspelt one; then the
    /// first wrong field. With `complete`, the required fields must be there.
    pub(crate) fn read(&self, object: &JsonObject<'_>, complete: bool) -> Result<Draft, BodyError> {
        let settable = self.inputs().map(|(field, _)| field.name);
        if let Some(unknown) = object.unknown_name(|name| settable.clone().any(|known| known == name)) {
            return Err(match self.0.iter().find(|field| field.name == unknown) {
                Some(read_only) => BodyError::ReadOnlyField { name: read_only.name },
                None => BodyError::unknown_field(unknown, settable),
            });
        }
        let mut draft = Draft::default();
        for (&ResourceField { name, required, .. }, input) in self.inputs() {
            match object.get(name) {
                Some(value) if value.is_null() && !(complete && required) => {
                    return Err(BodyError::InvalidField { name, problem: NOT_NULL.into() });
                }
                Some(value) => (input.set)(&mut draft, &value).map_err(|error| match error {
                    FieldValueError::Malformed => {
                        BodyError::InvalidJson { problem: format!("`/{name}` {error}") }
                    }
                    FieldValueError::Invalid(problem) => BodyError::InvalidField { name, problem },
                })?,
                None if complete && required => {
                    return Err(BodyError::MissingField { name, expected: input.expected });
                }
                None => {}
            }
        }
        Ok(draft)
    }

    /// The schema of the resource in a response.
    pub(crate) fn schema(&self, description: &str, example: Example) -> RefOr<Schema> {
        let properties =
            self.0.iter().filter_map(|field| Some((field.name, field.required, (field.schema?)())));
        RefOr::T(Schema::Object(object(properties, description, example).build()))
    }

    /// The schema of a request that sets fields; with `complete`, all that are required.
    pub(crate) fn input_schema(&self, complete: bool, description: &str, example: Example) -> RefOr<Schema> {
        let properties =
            self.inputs().map(|(field, input)| (field.name, complete && field.required, (input.schema)()));
        let object = object(properties, description, example);
        RefOr::T(Schema::Object(
            object.additional_properties(Some(AdditionalProperties::FreeForm(false))).build(),
        ))
    }
}

#[expect(deprecated, reason = "the released document has `example`, not `examples`")]
fn object(
    properties: impl Iterator<Item = (&'static str, bool, RefOr<Schema>)>,
    description: &str,
    example: Example,
) -> ObjectBuilder {
    let object = ObjectBuilder::new().description(Some(description)).example(Some(example));
    properties.fold(object, |object, (name, required, schema)| {
        let object = object.property(name, schema);
        if required { object.required(name) } else { object }
    })
}

/// The schema of a 64-bit integer.
pub(crate) fn integer(description: impl Into<Option<&'static str>>) -> ObjectBuilder {
    let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
    ObjectBuilder::new().schema_type(Type::Integer).format(Some(format)).description(description.into())
}

/// The schema of an identifier that the service assigned.
pub(crate) fn identifier(description: &'static str) -> RefOr<Schema> {
    integer(description).minimum(Some(1)).maximum(Some(MAX_ISSUED)).into()
}

/// The schema of a text.
pub(crate) fn string(description: impl Into<Option<&'static str>>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(description.into())
}

/// The schema of a point in time.
pub(crate) fn date_time(description: &'static str) -> RefOr<Schema> {
    string(description).format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))).into()
}

/// The schema of one of these words.
pub(crate) fn keyword<const N: usize>(words: [&'static str; N], description: &'static str) -> RefOr<Schema> {
    string(description).enum_values(Some(words)).into()
}

/// A reference to the schema of this name.
pub(crate) fn reference(schema: &str, description: &str) -> RefOr<Schema> {
    let mut reference = Ref::from_schema_name(schema);
    description.clone_into(&mut reference.description);
    RefOr::Ref(reference)
}
