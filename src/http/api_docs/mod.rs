//! The OpenAPI document, and the page at `/docs` that shows it.

mod openapi;
mod page;
mod precompressed;

pub(crate) use openapi::{ServedDocument, base_document, describe_operation, openapi_json, render};
pub(crate) use page::{DocsPage, routes};
