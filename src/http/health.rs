//! The routes of the private listener: liveness, readiness and metrics.

use hyper::StatusCode;

use super::AppState;
use super::error::ApiError;
use super::response::{self, Response};
use crate::telemetry;

/// Liveness: the process answers. Never uses the database, so that its loss does not restart every node.
pub(super) fn livez() -> Response {
    ok()
}

/// Readiness: the database answers, its schema is new enough, and the service is not stopping.
pub(super) async fn readyz(app: &AppState) -> Result<Response, ApiError> {
    if app.is_stopping() {
        return Err(ApiError::Unavailable { cause: "the service is shutting down".into() });
    }
    app.storage.check().await?;
    Ok(ok())
}

/// The metrics, in the Prometheus text format.
pub(super) fn metrics(app: &AppState) -> Response {
    app.measure();
    let text = telemetry::metrics::metrics().render();
    response::with_media_type(StatusCode::OK, "text/plain; version=0.0.4", text)
}

fn ok() -> Response {
    response::json(StatusCode::OK, r#"{"status":"ok"}"#)
}
