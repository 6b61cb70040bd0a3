//! Calls from browser pages of other origins: off, unless the operator lists the origins.
//!
//! Written here because the usual layer answers every `OPTIONS` itself, and a plain one is ours to answer.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// What a page may ask for, and what it may read of an answer besides the body.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST");
const REQUEST_HEADERS: HeaderValue =
    HeaderValue::from_static("Authorization, Content-Type, If-None-Match, X-Request-Id");
const ANSWER_HEADERS: HeaderValue = HeaderValue::from_static(
    "Allow, Deprecation, ETag, Link, Location, Retry-After, Sunset, WWW-Authenticate, X-Request-Id",
);
/// How many seconds a browser may remember what it was told.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origins that may call.
pub(crate) type Origins = Arc<[String]>;

/// Answers the question that a browser asks before a call, and allows the call itself, for listed origins.
pub(crate) async fn allow_origins(State(origins): State<Origins>, request: Request, next: Next) -> Response {
    let listed = |origin: &&HeaderValue| origins.iter().any(|listed| listed.as_bytes() == origin.as_bytes());
    let origin = request.headers().get(header::ORIGIN).filter(listed).cloned();
    let asks = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);

    let mut response = match origin {
        Some(_) if asks => StatusCode::NO_CONTENT.into_response(),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, ANSWER_HEADERS);
        if asks {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        }
    }
    response
}
