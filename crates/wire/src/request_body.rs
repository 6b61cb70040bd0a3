//! Request bodies, with errors that say what is wrong and where.

use serde::de::DeserializeOwned;
use thiserror::Error;
use utoipa::PartialSchema;
use utoipa::openapi::{RefOr, Schema};

use super::json::{JsonObject, MEDIA_TYPE, NotAnObject};
use super::struct_deserializer::{self, FieldsError};
use super::suggestions::{listed, shown, similar};
use super::unparsed_value::UnparsedValueError;

/// The longest body.
pub const MAX_BODY_BYTES: usize = 16_384;

/// Why a body is refused. The message is for the client.
#[derive(Debug, Error)]
pub enum BodyError {
    /// It is not JSON, or not a JSON object.
    #[error("The body is not valid: {problem}.")]
    InvalidJson {
        /// What is wrong with it.
        problem: String,
    },
    /// A required member is missing.
    #[error("`/{name}` is required: it {expected}.")]
    MissingField {
        /// The member.
        name: &'static str,
        /// What to send.
        expected: &'static str,
    },
    /// A member breaks a rule.
    #[error("`/{name}` {problem}.")]
    InvalidField {
        /// The member.
        name: &'static str,
        /// The rule.
        problem: String,
    },
    /// A member of a member breaks a rule.
    #[error("`/{name}/{}` {problem}.", pointer(member))]
    InvalidMember {
        /// The outer member.
        name: &'static str,
        /// The inner member.
        member: String,
        /// The rule.
        problem: String,
    },
    /// The body has a member that does not exist, most likely a misspelt one.
    #[error("`/{}` cannot be set: {}", pointer(name), meant(name, known))]
    UnknownField {
        /// The member.
        name: String,
        /// Those that exist.
        known: &'static [&'static str],
    },
    /// The body has a member that only the service sets.
    #[error("`/{name}` is assigned by the service: leave it out.")]
    ReadOnlyField {
        /// The member.
        name: String,
    },
    /// The operation accepts no body.
    #[error("This operation accepts no body: send the request without a body.")]
    NotExpected,
}

impl From<NotAnObject> for BodyError {
    fn from(error: NotAnObject) -> Self {
        Self::InvalidJson { problem: error.to_string() }
    }
}

impl BodyError {
    /// The member that is wrong, if it is one.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::InvalidJson { .. } | Self::NotExpected => None,
            Self::MissingField { name, .. }
            | Self::InvalidField { name, .. }
            | Self::InvalidMember { name, .. } => Some(name),
            Self::UnknownField { name, .. } | Self::ReadOnlyField { name } => Some(name),
        }
    }
}

/// The name of a member with the escapes of JSON Pointer.
fn pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// What the client may have meant by the name of a member, as the end of a sentence.
fn meant(name: &str, known: &[&'static str]) -> String {
    if let Some(similar) = similar(name, known.iter().copied()) {
        return format!("did you mean `/{similar}`?");
    }
    let pointers: Vec<String> = known.iter().map(|name| format!("/{name}")).collect();
    let pointers = listed(pointers.iter().map(String::as_str));
    let own_data = if known.contains(&"metadata") {
        ". Put your own data, such as a price, into `/metadata`"
    } else {
        ""
    };
    format!("you can set {pointers}{own_data}.")
}

/// A struct that is read from a request body, which is one JSON object. With `deny_unknown_fields`, its schema says that it has
/// no other members.
pub trait RequestBody: DeserializeOwned {
    /// What the request creates or changes. Members that this has, and the request has not, are assigned by the service.
    type Resource: PartialSchema;
    /// The media types that it may be sent as.
    const MEDIA_TYPES: &'static [&'static str] = &[MEDIA_TYPE];
    /// What each required member must be, for the client that left it out.
    const EXPECTED: &'static [(&'static str, &'static str)];

    /// Reads the body, or says what is wrong with it.
    fn parse(body: &[u8]) -> Result<Self, BodyError> {
        Self::from_object(&JsonObject::parse(body)?)
    }

    /// Reads the members of an object, or says what is wrong with the first wrong one.
    fn from_object(object: &JsonObject<'_>) -> Result<Self, BodyError> {
        struct_deserializer::read(object).map_err(|error| match error {
            FieldsError::Unknown { name, .. } if has_member::<Self::Resource>(&name) => {
                BodyError::ReadOnlyField { name }
            }
            FieldsError::Unknown { name, known } => BodyError::UnknownField { name: shown(&name), known },
            FieldsError::Field { name, error: UnparsedValueError::Missing } => {
                let expected = Self::EXPECTED.iter().find(|(field, _)| *field == name);
                BodyError::MissingField { name, expected: expected.map_or("must be set", |(_, must)| must) }
            }
            FieldsError::Field { name, error: error @ UnparsedValueError::Malformed } => {
                BodyError::InvalidJson { problem: format!("`/{name}` {error}") }
            }
            FieldsError::Field { name, error: UnparsedValueError::Invalid(problem) } => {
                BodyError::InvalidField { name, problem }
            }
            FieldsError::Field {
                name,
                error: UnparsedValueError::InvalidMember { name: member, problem },
            } => BodyError::InvalidMember { name, member, problem },
            FieldsError::Other(problem) => BodyError::InvalidJson { problem },
        })
    }
}

/// Whether a response with this resource may have a member of this name.
fn has_member<Resource: PartialSchema>(name: &str) -> bool {
    matches!(Resource::schema(), RefOr::T(Schema::Object(object)) if object.properties.contains_key(name))
}

#[cfg(test)]
mod tests {
    use petstore_domain::change::Change;
    use petstore_domain::pet as domain;
    use utoipa::PartialSchema;

    use super::*;
    use crate::order::{NewOrder, OrderPatch};
    use crate::pet::{NewPet, PetPatch};

    fn check<T: RequestBody + PartialSchema>() {
        let RefOr::T(Schema::Object(schema)) = T::schema() else { panic!("not an object") };
        let expected: Vec<&str> = T::EXPECTED.iter().map(|(name, _)| *name).collect();
        assert_eq!(schema.required, expected);
    }

    #[test]
    fn every_required_member_says_what_it_must_be() {
        check::<NewPet>();
        check::<PetPatch>();
        check::<NewOrder>();
        check::<OrderPatch>();
    }

    #[test]
    fn an_error_names_the_member_that_is_wrong() {
        for (body, field) in [
            (r#"{"categoryId": 7}"#, Some("name")),
            (r#"{"name": 7}"#, Some("name")),
            (r#"{"name": "Rex", "categoryId": 7, "metadata": {"price": 129}}"#, Some("metadata")),
            (r#"{"id": 7}"#, Some("id")),
            (r#"{"sku": "7"}"#, Some("sku")),
            ("[]", None),
        ] {
            assert_eq!(NewPet::parse(body.as_bytes()).unwrap_err().field(), field, "{body}");
        }
    }

    #[test]
    fn a_patch_keeps_what_it_leaves_out_and_removes_what_is_null() {
        let reference =
            |body: &str| domain::PetPatch::from(PetPatch::parse(body.as_bytes()).unwrap()).reference;
        assert_eq!(reference("{}"), Change::Keep);
        assert_eq!(reference(r#"{"reference": null}"#), Change::Remove);
        assert_eq!(reference(r#"{"reference": "A-1"}"#), Change::Set("A-1".to_owned().try_into().unwrap()));
    }

    #[test]
    fn the_first_wrong_member_is_reported_in_the_order_of_the_struct() {
        for (body, message) in [
            (
                r#"{"categoryId": "x", "status": 7}"#,
                "`/name` is required: it must be a string of 1 to 255 characters.",
            ),
            (
                r#"{"status": 7, "categoryId": null, "name": "Rex"}"#,
                "`/categoryId` must be an integer from -2^63 to 2^63 - 1.",
            ),
            (
                r#"{"status": null, "categoryId": 7.0, "name": "Rex"}"#,
                "`/status` must not be `null`: leave it out.",
            ),
            (r#"{"id": 7, "nmae": "Rex"}"#, "`/id` is assigned by the service: leave it out."),
            (r#"{"n/m~e": 7}"#, "`/n~1m~0e` cannot be set: did you mean `/name`?"),
            (r#"{"n\u0061me": "Rex", "name": "Tom"}"#, "The body is not valid: `name` appears twice."),
            (
                r#"{"name": "\ud800", "categoryId": 7}"#,
                "The body is not valid: `/name` has an invalid Unicode escape.",
            ),
            (r#"["Rex", 7]"#, "The body is not valid: it is not an object."),
            (
                r#"{"name": "Rex", "categoryId": 7, "metadata": {"price": 129.00}}"#,
                "`/metadata/price` must be a string: send \"129.00\".",
            ),
            (
                r#"{"name": "Rex", "categoryId": 7, "metadata": {"a/b": "x"}}"#,
                "`/metadata/a~1b` must have a name of 1 to 40 characters: `A-Z`, `a-z`, `0-9`, `_` and `-`.",
            ),
            (
                r#"{"name": "Rex", "categoryId": 7, "metadata": {"a": "x", "\u0061": "y"}}"#,
                "`/metadata` must be an object of strings: `a` appears twice.",
            ),
            (
                r#"{"name": "Rex", "categoryId": 7, "metadata": ["a"]}"#,
                "`/metadata` must be an object of strings: it is not an object.",
            ),
        ] {
            assert_eq!(NewPet::parse(body.as_bytes()).unwrap_err().to_string(), message, "{body}");
        }
    }
}
