//! The routes of the private listener: liveness, startup, readiness and metrics.
//!
//! **Invariant:** no check depends on whether the database is there *now*. If it did, every node would leave the load
//! balancer at the same time, and clients would get the balancer's error instead of ours.

use std::sync::{PoisonError, RwLock};

use hyper::StatusCode;
use petstore_storage::StorageError;
use petstore_telemetry::with_causes;

use super::AppState;
use super::error::ApiError;
use super::response::{self, Response};

/// Whether the node has ever reached its database and found a usable schema, and if not, why.
pub(super) struct Startup(RwLock<Result<(), String>>);

impl Startup {
    pub(super) fn new() -> Self {
        Self(RwLock::new(Err("the database has not been checked yet".into())))
    }

    /// Records the outcome of a check of the database. Success is final.
    pub(super) fn record(&self, outcome: &Result<(), StorageError>) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if state.is_err() {
            *state = outcome.as_ref().copied().map_err(|error| with_causes(error));
        }
    }

    pub(super) fn outcome(&self) -> Result<(), String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Liveness: the process answers.
pub(super) fn livez() -> Response {
    ok()
}

/// Startup: the database was reached once, with a usable schema.
pub(super) fn startupz(app: &AppState) -> Result<Response, ApiError> {
    app.startup.outcome().map_err(|reason| ApiError::NotReady { reason })?;
    Ok(ok())
}

/// Readiness: the node has started and is not stopping.
pub(super) fn readyz(app: &AppState) -> Result<Response, ApiError> {
    if app.is_stopping() {
        return Err(ApiError::NotReady { reason: "it is shutting down".into() });
    }
    startupz(app)
}

/// The metrics, in the Prometheus text format.
pub(super) fn metrics(app: &AppState) -> Response {
    app.measure();
    let text = petstore_telemetry::metrics::metrics().render();
    response::with_media_type(StatusCode::OK, "text/plain; version=0.0.4", text)
}

fn ok() -> Response {
    response::json(StatusCode::OK, r#"{"status":"ok"}"#)
}
