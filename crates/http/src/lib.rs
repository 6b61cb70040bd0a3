//! The HTTP interface.
//!
//! **Must not know** SQL or the driver: [`petstore_storage`] answers in values of the domain.
//!
//! **Guarantees:**
//! - every error response has the Error body, whatever went wrong;
//! - everything under `/v1` except `OPTIONS` needs a key, unknown routes too;
//! - a status code is named in [`error`], and a JSON member in [`petstore_wire`].

mod admission_control;
mod api_docs;
mod authentication;
mod client_presence;
mod conditional;
mod cursor;
mod error;
mod events;
mod faults;
mod health;
mod hex;
mod idempotency;
mod incoming_body;
mod links;
mod orders;
mod pets;
mod pipeline;
mod query;
mod rate_limits;
mod request;
mod request_id;
mod response;
mod router;
mod transport;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use metrics::gauge;
use petstore_config::{InterfaceSettings, LimitSettings, ShopSettings, TimeoutSettings};
use petstore_domain::order::HoldDuration;
use petstore_storage::{Storage, StorageError};
use petstore_telemetry::metrics::{ACTIVE_REQUESTS, KEYS_REMEMBERED, WAITING_REQUESTS, count};
use tokio::sync::watch;
use tokio::time::sleep;

use admission_control::AdmissionControl;
use api_docs::{DocsPage, ServedDocument};
use authentication::KeyCache;
pub use faults::{FaultInjector, FaultKind, FaultShare, fault_option_help};
use health::Startup;
use links::Links;
use pets::{GetPetDeprecation, LastPetPage};
use pipeline::FailureLog;
pub use pipeline::RequestPipeline;
pub use router::interface_document;
pub use transport::{ConnectionLimiter, serve};

/// How often the database is asked until it is reached for the first time.
const STARTUP_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the current time. Passed in, so that a test can set it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The state that all handlers share. Cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<AppStateInner>);

/// The phases of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Load balancers are moving clients to other nodes; requests are still served.
    Draining,
    /// No more connections are accepted, and requests in flight finish.
    Closing,
}

/// The fields of [`AppState`].
pub struct AppStateInner {
    storage: Storage,
    keys: KeyCache,
    clock: Clock,
    links: Links,
    get_pet_deprecation: GetPetDeprecation,
    last_page: LastPetPage,
    body_timeout: Duration,
    order_hold: Option<HoldDuration>,
    document: ServedDocument,
    docs_page: DocsPage,
    startup: Startup,
    phase: watch::Sender<Phase>,
    admission: AdmissionControl,
    failures: FailureLog,
}

impl AppState {
    /// Creates the state from the settings.
    #[must_use]
    pub fn new(
        storage: Storage,
        clock: Clock,
        settings: &InterfaceSettings,
        timeouts: &TimeoutSettings,
        limits: &LimitSettings,
        shop: &ShopSettings,
    ) -> Self {
        let document = interface_document(settings);
        Self(Arc::new(AppStateInner {
            keys: KeyCache::new(storage.clone(), limits.default_rate_limit),
            storage,
            clock,
            links: Links::new(settings.public_base_url.as_ref()),
            get_pet_deprecation: GetPetDeprecation::new(settings.get_pet_removal),
            last_page: LastPetPage::default(),
            body_timeout: timeouts.body_timeout,
            order_hold: shop.order_hold,
            docs_page: DocsPage::new(settings, &document),
            document: ServedDocument::new(document),
            startup: Startup::new(),
            phase: watch::Sender::new(Phase::Serving),
            admission: AdmissionControl::new(limits.max_requests as usize),
            failures: FailureLog::default(),
        }))
    }

    /// Checks the database. Until that has succeeded once, `/startupz` and `/readyz` answer 503, with the reason.
    pub async fn check_database(&self) -> Result<(), StorageError> {
        let outcome = self.storage.check().await;
        self.startup.record(&outcome);
        outcome
    }

    /// Waits until the database has been reached, with a usable schema.
    pub async fn started(&self) {
        while self.startup.outcome().is_err() && self.check_database().await.is_err() {
            sleep(STARTUP_INTERVAL).await;
        }
    }

    /// Makes `/readyz` answer 503, and every response close its connection, so that a load balancer moves clients to
    /// another node. Requests are still served. Those that wait for an event keep waiting: their clients would ask this node
    /// again at once, until the load balancer has noticed.
    pub fn prepare_to_stop(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Answers the requests that wait for an event.
    pub fn end_waits(&self) {
        self.phase.send_replace(Phase::Closing);
    }

    fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    fn is_closing(&self) -> bool {
        *self.phase.borrow() == Phase::Closing
    }

    /// Waits until no request may wait for an event any longer.
    async fn closing(&self) {
        // It cannot fail: the sender is here.
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Closing).await;
    }

    /// Updates the gauges that are only read when metrics are scraped.
    fn measure(&self) {
        gauge!(ACTIVE_REQUESTS).set(count(self.admission.in_progress()));
        gauge!(WAITING_REQUESTS).set(count(self.admission.waiting()));
        gauge!(KEYS_REMEMBERED).set(count(self.keys.entry_count()));
        self.storage.record_pool_metrics();
    }

    /// Records when keys were last used, in the background, until it is dropped.
    pub async fn maintain_keys(&self) {
        self.keys.run().await;
    }

    /// Logs how many requests failed for the same cause, indefinitely.
    pub async fn log_failures(&self) {
        self.failures.run().await;
    }

    /// Records the last uses of keys before the service stops.
    pub async fn flush_last_used(&self) {
        self.keys.flush_last_used().await;
    }
}

impl Deref for AppState {
    type Target = AppStateInner;

    fn deref(&self) -> &AppStateInner {
        &self.0
    }
}
