//! The OpenAPI document, and the page at `/docs` that shows it.

mod docs_page;
mod openapi;
mod precompressed;
mod shared_components;

pub(crate) use docs_page::DocsPage;
pub(crate) use openapi::{ServedDocument, base_document, describe_operation, render};
