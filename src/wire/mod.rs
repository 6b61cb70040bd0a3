//! Resources as clients and files see them: the structs behind every JSON body, query and CSV row, and their schemas.
//!
//! A struct in a response derives `Serialize` and `ToSchema`, one in a request `Deserialize` and `ToSchema`; both convert to
//! and from the types of [`crate::domain`]. A request is not read by `serde_json` itself, but through
//! [`struct_deserializer`], which keeps the promises that a derived `Deserialize` alone does not.
//!
//! What to know before you add a field:
//! - its doc comment is its description in the OpenAPI document. It is one line, because utoipa keeps line breaks;
//! - utoipa accepts only literals for `pattern`, `minimum` and the like, and describes an `Option` as nullable unless it has
//!   `nullable = false`;
//! - a required field of a request body needs a line in [`RequestBody::EXPECTED`](request_body::RequestBody::EXPECTED).

pub(crate) mod event;
pub(crate) mod field_value;
pub(crate) mod json;
pub(crate) mod order;
pub(crate) mod pet;
pub(crate) mod request_body;
pub(crate) mod struct_deserializer;
pub(crate) mod suggestions;
pub(crate) mod time;
