//! The OpenAPI document, and the page at `/docs` that shows it.

mod docs_page;
mod openapi;
mod precompressed;

pub(crate) use docs_page::DocsPage;
pub(crate) use openapi::{ServedDocument, base_document, describe_operation, render};
