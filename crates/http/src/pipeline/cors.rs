//! Cross-origin resource sharing (CORS): off, unless the operator lists allowed origins.
//!
//! A plain `OPTIONS` request is answered by its route, whatever its origin.

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use crate::response::{self, Response};

const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("DELETE, GET, HEAD, PATCH, POST");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, X-Request-Id",
);
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Allow, Deprecation, ETag, Idempotent-Replayed, Link, Location, Petstore-Feed-Lag, RateLimit, RateLimit-Policy, Retry-After, Sunset, WWW-Authenticate, \
     X-Request-Id",
);
/// How many seconds a browser may cache a preflight response.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origins whose pages may call the service.
pub(crate) struct AllowedOrigins(Vec<String>);

/// A request, classified by its origin.
pub(crate) enum CorsRequest {
    /// No origins are allowed, so no response depends on the origin.
    Disabled,
    /// The origin is not allowed, or there is none.
    NotAllowed,
    /// A preflight request from an allowed origin.
    Preflight(HeaderValue),
    /// Any other request from an allowed origin.
    Actual(HeaderValue),
}

impl AllowedOrigins {
    pub(crate) fn new(origins: &[String]) -> Self {
        Self(origins.to_vec())
    }

    /// Classifies a request by its origin.
    pub(crate) fn classify(&self, head: &Parts) -> CorsRequest {
        if self.0.is_empty() {
            return CorsRequest::Disabled;
        }
        let is_allowed =
            |origin: &&HeaderValue| self.0.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes());
        let Some(origin) = head.headers.get(header::ORIGIN).filter(is_allowed).cloned() else {
            return CorsRequest::NotAllowed;
        };
        let is_preflight = head.method == Method::OPTIONS
            && head.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if is_preflight { CorsRequest::Preflight(origin) } else { CorsRequest::Actual(origin) }
    }
}

impl CorsRequest {
    /// The response to a preflight request; the router answers all others.
    pub(crate) fn preflight_response(&self) -> Option<Response> {
        matches!(self, Self::Preflight(_)).then(|| response::empty(StatusCode::NO_CONTENT))
    }

    /// Adds the CORS headers to the response.
    pub(crate) fn add_headers(self, headers: &mut HeaderMap) {
        if matches!(self, Self::Disabled) {
            return;
        }
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        if matches!(self, Self::Preflight(_)) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        }
        if let Self::Preflight(origin) | Self::Actual(origin) = self {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        }
    }
}
