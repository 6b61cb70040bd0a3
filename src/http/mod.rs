//! The interface: HTTP and JSON in front of the storage.
//!
//! **Invariants:**
//! - every error answer has the Error body, whatever went wrong;
//! - everything under `/v1` but `OPTIONS` needs a key, unknown routes too;
//! - a status code is named in [`error`], and a JSON member in a resource's `wire` file.

mod admin;
mod auth;
mod caching;
mod cors;
mod docs;
mod error;
mod extract;
mod json;
mod limits;
mod links;
mod observe;
mod pets;
mod router;
mod server;
mod socket;
mod spelling;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::config::{InterfaceSettings, TimeoutSettings};
use crate::storage::Storage;

pub use docs::document;
pub use router::{admin_router, public_router};
pub use server::serve;

use auth::KeyRing;
use links::Links;
use pets::Removal;

/// Tells the time. Passed in, so that a test can choose it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What handlers work with. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    storage: Storage,
    keys: KeyRing,
    clock: Clock,
    interface: Arc<Interface>,
}

/// The operator's settings of the interface, made ready for use.
struct Interface {
    links: Links,
    get_pet_removal: Removal,
    body_timeout: Duration,
}

impl AppState {
    /// Brings together what handlers work with.
    #[must_use]
    pub fn new(
        storage: Storage,
        clock: Clock,
        settings: &InterfaceSettings,
        timeouts: &TimeoutSettings,
    ) -> Self {
        let interface = Interface {
            links: Links::new(settings.public_base_url.as_ref()),
            get_pet_removal: Removal::new(settings.get_pet_removal),
            body_timeout: timeouts.body_timeout,
        };
        Self { keys: KeyRing::new(storage.clone()), storage, clock, interface: Arc::new(interface) }
    }
}
