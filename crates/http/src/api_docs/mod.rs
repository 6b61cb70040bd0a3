//! The OpenAPI document, the page at `/docs` that shows it, and the articles below that page.

mod articles;
mod docs_page;
mod extract_components;
mod openapi;
mod precompressed;

pub(crate) use docs_page::{DocsPage, MOVED_PAGES};
pub(crate) use openapi::{base_document, describe_operation, render};
pub(crate) use precompressed::Precompressed;
