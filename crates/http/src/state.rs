//! What the handlers share, and the phases of a node from its start to its end.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use metrics::gauge;
use petstore_config::ServeSettings;
use petstore_domain::order::HoldDuration;
use petstore_storage::{Storage, StorageError};
use petstore_telemetry::metrics::{ACTIVE_REQUESTS, KEYS_REMEMBERED, WAITING_REQUESTS, count};
use petstore_telemetry::with_causes;
use petstore_wire::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::admission_control::AdmissionControl;
use super::api_docs::{DocsPage, Precompressed};
use super::authentication::KeyCache;
use super::failure_log::FailureLog;
use super::get_pet_deprecation::GetPetDeprecation;
use super::links::Links;
use super::rendered_page_cache::RenderedPageCache;

/// How often the database is asked until it is reached for the first time.
const STARTUP_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the current time. Passed in, so that a test can set it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The phases of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Load balancers are moving clients to other nodes; requests are still served.
    Draining,
    /// No more connections are accepted, and requests in flight finish.
    Closing,
}

/// The state that all handlers share.
pub struct AppState {
    pub(crate) storage: Storage,
    pub(crate) keys: KeyCache,
    pub(crate) clock: Clock,
    pub(crate) links: Links,
    pub(crate) get_pet_deprecation: GetPetDeprecation,
    pub(crate) rendered_page: RenderedPageCache,
    pub(crate) body_timeout: Duration,
    pub(crate) order_hold: Option<HoldDuration>,
    pub(crate) document: Precompressed,
    pub(crate) docs_page: DocsPage,
    /// Whether the node has ever reached its database and found a usable schema, and if not, why.
    startup: RwLock<Result<(), String>>,
    phase: watch::Sender<Phase>,
    pub(crate) admission: AdmissionControl,
    pub(crate) failures: FailureLog,
}

impl AppState {
    /// Creates the state from the settings and the OpenAPI document.
    #[must_use]
    pub fn new(storage: Storage, clock: Clock, document: String, settings: &ServeSettings) -> Self {
        let ServeSettings { interface, timeouts, limits, shop, .. } = settings;
        Self {
            keys: KeyCache::new(storage.clone(), limits.default_rate_limit),
            storage,
            clock,
            links: Links::new(interface.public_base_url.as_ref()),
            get_pet_deprecation: GetPetDeprecation::new(interface.get_pet_removal),
            rendered_page: RenderedPageCache::default(),
            body_timeout: timeouts.body_timeout,
            order_hold: shop.order_hold,
            docs_page: DocsPage::new(interface, &document),
            document: Precompressed::from_plain(json::MEDIA_TYPE, document),
            startup: RwLock::new(Err("the database has not been checked yet".into())),
            phase: watch::Sender::new(Phase::Serving),
            admission: AdmissionControl::new(limits.max_requests as usize),
            failures: FailureLog::default(),
        }
    }

    /// Checks the database, and creates the partitions that are missing: after days off, there is none for today. Until the check
    /// has succeeded once, `/startupz` and `/readyz` answer 503, with the reason.
    pub async fn check_database(&self) -> Result<(), StorageError> {
        let outcome = self.storage.check().await;
        if outcome.is_ok() {
            // If that fails, the task that creates them every hour tries again and logs why.
            let _ = self.storage.create_partitions().await;
        }
        let mut startup = self.startup.write().unwrap_or_else(PoisonError::into_inner);
        // Success is final.
        if startup.is_err() {
            *startup = outcome.as_ref().copied().map_err(|error| with_causes(error));
        }
        outcome
    }

    /// Fails until the database has been reached once, with the reason.
    pub(crate) fn startup(&self) -> Result<(), String> {
        self.startup.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the database has been reached, with a usable schema.
    pub async fn started(&self) {
        while self.startup().is_err() && self.check_database().await.is_err() {
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

    pub(crate) fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.phase.borrow() == Phase::Closing
    }

    /// Waits until no request may wait for an event any longer.
    pub(crate) async fn closing(&self) {
        // It cannot fail: the sender is here.
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Closing).await;
    }

    /// Updates the gauges that are only read when metrics are scraped.
    pub(crate) fn measure(&self) {
        gauge!(ACTIVE_REQUESTS).set(count(self.admission.in_progress()));
        gauge!(WAITING_REQUESTS).set(count(self.admission.waiting()));
        gauge!(KEYS_REMEMBERED).set(count(self.keys.entry_count()));
        self.storage.record_pool_metrics();
    }

    /// Records when keys were last used, in the background, until it is dropped.
    pub async fn maintain_keys(&self) -> Infallible {
        self.keys.run().await
    }

    /// Logs how many requests failed for the same cause, indefinitely.
    pub async fn log_failures(&self) -> Infallible {
        self.failures.run().await
    }

    /// Records the last uses of keys before the service stops.
    pub async fn flush_last_used(&self) {
        self.keys.flush_last_used().await;
    }
}
