//! Calls from browser pages of other origins: off, unless the operator lists the origins.
//!
//! Written here because the usual layer answers every `OPTIONS` itself, and a plain one is ours to answer.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// What a page may ask for, and what it may read of an answer besides the body.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, PATCH, POST");
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, X-Request-Id",
);
const ANSWER_HEADERS: HeaderValue = HeaderValue::from_static(
    "Allow, Deprecation, ETag, Idempotent-Replayed, Link, Location, RateLimit, RateLimit-Policy, Retry-After, Sunset, WWW-Authenticate, \
     X-Request-Id",
);
/// How many seconds a browser may remember what it was told.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origins that may call.
pub(crate) struct Origins(Vec<String>);

/// Where a request comes from.
pub(crate) enum Origin {
    /// No origins are listed, so none matters.
    Off,
    /// Not a listed one, or not a browser's page.
    Unlisted,
    /// A listed one that asks whether it may call.
    Asking(HeaderValue),
    /// A listed one that calls.
    Calling(HeaderValue),
}

impl Origins {
    pub(crate) fn new(listed: &[String]) -> Self {
        Self(listed.to_vec())
    }

    /// Sorts a request by its origin.
    pub(crate) fn look_at(&self, request: &Request) -> Origin {
        if self.0.is_empty() {
            return Origin::Off;
        }
        let listed =
            |origin: &&HeaderValue| self.0.iter().any(|listed| listed.as_bytes() == origin.as_bytes());
        let Some(origin) = request.headers().get(header::ORIGIN).filter(listed).cloned() else {
            return Origin::Unlisted;
        };
        let asking = request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if asking { Origin::Asking(origin) } else { Origin::Calling(origin) }
    }
}

impl Origin {
    /// The answer to the question that a browser asks before a call; a call is answered elsewhere.
    pub(crate) fn answer_to_question(&self) -> Option<Response> {
        matches!(self, Self::Asking(_)).then(|| StatusCode::NO_CONTENT.into_response())
    }

    /// Tells the browser what it may do with the answer.
    pub(crate) fn allow(self, headers: &mut HeaderMap) {
        if matches!(self, Self::Off) {
            return;
        }
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        if matches!(self, Self::Asking(_)) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        }
        if let Self::Asking(origin) | Self::Calling(origin) = self {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, ANSWER_HEADERS);
        }
    }
}
