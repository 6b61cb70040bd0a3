//! The routes of the private listener: liveness, startup, readiness and metrics.
//!
//! **Invariant:** no check depends on whether the database is there *now*. If it did, every node would leave the load
//! balancer at the same time, and clients would get the balancer's error instead of ours.

use hyper::StatusCode;

use super::error::ApiError;
use super::response::{self, Response};
use super::state::AppState;

/// Liveness: the process answers.
pub(super) fn livez() -> Response {
    ok()
}

/// Startup: the database was reached once, with a usable schema.
pub(super) fn startupz(app: &AppState) -> Result<Response, ApiError> {
    app.startup().map_err(|reason| ApiError::NotReady { reason })?;
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
