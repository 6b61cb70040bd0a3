//! The interface document, the page at `/docs` that shows it, and the files of the page.

mod openapi;
mod page;
mod precompressed;

pub(crate) use openapi::{ServedDocument, complete, describe, openapi_json, preamble};
pub(crate) use page::{DocsPage, routes};
