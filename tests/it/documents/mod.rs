//! The OpenAPI document, the pages in `docs/` and the repository itself agree with the code.

mod consistency;
mod docs_page;
mod measurements;
mod numbers;
mod openapi;
mod openapi_compatibility;
mod openapi_statuses;
mod package_metadata;
