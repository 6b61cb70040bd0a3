//! The routes of the private listener: liveness, readiness and metrics.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::AppState;
use super::error::ApiError;
use crate::telemetry;
use crate::wire::json;

/// Liveness: the process answers. Never uses the database, so that its loss does not restart every node.
pub(super) async fn livez() -> Response {
    ok()
}

/// Readiness: the database answers, its schema is new enough, and the service is not stopping.
pub(super) async fn readyz(State(app): State<AppState>) -> Result<Response, ApiError> {
    if app.is_stopping() {
        return Err(ApiError::Unavailable { cause: "the service is shutting down".into() });
    }
    app.storage.check().await?;
    Ok(ok())
}

/// The metrics, in the Prometheus text format.
pub(super) async fn metrics(State(app): State<AppState>) -> Response {
    app.measure();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], telemetry::metrics::metrics().render())
        .into_response()
}

fn ok() -> Response {
    ([(header::CONTENT_TYPE, json::MEDIA_TYPE)], r#"{"status":"ok"}"#).into_response()
}
