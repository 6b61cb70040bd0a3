//! Resources as clients and files see them: the structs behind every JSON body, query and CSV row, and their schemas.
//!
//! A struct in a response derives `Serialize` and `ToSchema`, one in a request `Deserialize` and `ToSchema`; both convert to
//! and from the types of [`petstore_domain`]. A request is not read by `serde_json` itself, but through
//! [`struct_deserializer`], which keeps the promises that a derived `Deserialize` alone does not.
//!
//! **Guarantees:** what is read is valid by the rules of the domain, and an error says which member is wrong and what to send.
//!
//! **Must not know** HTTP or SQL: files are read by the same types.
//!
//! What to know before you add a field:
//! - its doc comment is its description in the OpenAPI document. It is one line, because utoipa keeps line breaks;
//! - utoipa accepts only literals for `pattern`, `minimum` and the like, and describes an `Option` as nullable unless it has
//!   `nullable = false`;
//! - a required field of a request body needs a line in [`RequestBody::EXPECTED`](request_body::RequestBody::EXPECTED).

pub mod event;
pub mod json;
pub mod order;
pub mod pet;
pub mod request_body;
pub mod schema;
pub mod struct_deserializer;
pub mod suggestions;
pub mod time;
pub mod unparsed_value;
