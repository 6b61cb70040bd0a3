//! The interface: HTTP and JSON in front of the storage.
//!
//! **Invariants:**
//! - every error answer has the Error body, whatever went wrong;
//! - everything under `/v1` but `OPTIONS` needs a key, unknown routes too;
//! - a status code is named in [`error`], and a JSON member in [`crate::wire`].

mod admin;
mod conditional;
mod document;
mod error;
mod extractors;
mod idempotency;
mod links;
mod orders;
mod parameters;
mod pets;
mod pipeline;
mod router;
mod transport;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use metrics::gauge;

use crate::config::{InterfaceSettings, LimitSettings, TimeoutSettings};
use crate::storage::Storage;
use crate::telemetry::metrics::{ACTIVE_REQUESTS, KEYS_REMEMBERED, count};

pub use pipeline::Pipeline;
pub use router::{admin_routes, interface_document, public_routes};
pub use transport::{ConnectionLimiter, serve};

use document::{DocsPage, ServedDocument};
use links::Links;
use pets::Removal;
use pipeline::{Admission, KeyCache};

/// Tells the time. Passed in, so that a test can choose it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What handlers work with. Cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Parts>);

/// The parts of it.
pub struct Parts {
    storage: Storage,
    keys: KeyCache,
    clock: Clock,
    links: Links,
    get_pet_removal: Removal,
    body_timeout: Duration,
    document: ServedDocument,
    docs_page: DocsPage,
    stopping: AtomicBool,
    admission: Admission,
}

impl AppState {
    /// Brings together what handlers work with.
    #[must_use]
    pub fn new(
        storage: Storage,
        clock: Clock,
        settings: &InterfaceSettings,
        timeouts: &TimeoutSettings,
        limits: &LimitSettings,
    ) -> Self {
        Self(Arc::new(Parts {
            keys: KeyCache::new(storage.clone(), limits.default_rate_limit),
            storage,
            clock,
            links: Links::new(settings.public_base_url.as_ref()),
            get_pet_removal: Removal::new(settings.get_pet_removal),
            body_timeout: timeouts.body_timeout,
            document: ServedDocument::new(interface_document(settings)),
            docs_page: DocsPage::new(settings),
            stopping: AtomicBool::new(false),
            admission: Admission::new(limits.max_requests as usize),
        }))
    }

    /// From now on `/readyz` answers 503, and every answer asks its client to connect anew, elsewhere if a balancer is
    /// in between. Requests are still served.
    pub fn prepare_to_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Measures what is only looked at now and then.
    fn measure(&self) {
        gauge!(ACTIVE_REQUESTS).set(count(self.admission.in_progress()));
        gauge!(KEYS_REMEMBERED).set(count(self.keys.remembered()));
        self.storage.measure();
    }

    /// Runs beside the service, for ever: hears of changed keys, and writes down which were used.
    pub async fn maintain_keys(&self) {
        self.keys.look_after().await;
    }

    /// Writes down at the end which keys were used.
    pub async fn flush_last_used(&self) {
        self.keys.flush_last_used().await;
    }
}

impl Deref for AppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}
