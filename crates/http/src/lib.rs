//! The HTTP interface.
//!
//! **Must not know** SQL or the driver: [`petstore_storage`] answers in values of the domain.
//!
//! **Guarantees:**
//! - every error response has the Error body, whatever went wrong;
//! - everything under `/v1` except `OPTIONS` needs a key, unknown routes too;
//! - a status code is named in [`error`], and a JSON member in [`petstore_wire`].

mod admin_routes;
mod admission_control;
mod api_docs;
mod authentication;
mod client_presence;
mod conditional;
mod cursor;
mod error;
mod events;
mod failure_log;
mod fault_injection;
mod get_pet_deprecation;
mod hex;
mod idempotency;
mod incoming_body;
mod links;
mod orders;
mod pets;
mod pipeline;
mod query;
mod rate_limits;
mod rendered_page_cache;
mod request;
mod request_id;
mod response;
mod router;
mod state;
mod transport;

pub use fault_injection::{FaultInjector, FaultKind, FaultRule, fault_option_help};
pub use pipeline::{Pipeline, admin_pipeline, public_pipeline};
pub use router::interface_document;
pub use state::{AppState, Clock};
pub use transport::{ConnectionLimiter, serve};
