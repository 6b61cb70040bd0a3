//! The headers of every response, and the log line, metrics and trace of every request.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use metrics::{Histogram, histogram};
use opentelemetry::Context;
use opentelemetry_http::HeaderExtractor;

use super::key_cache::Caller;
use crate::http::error::LoggedCause;
use crate::telemetry::metrics::REQUEST_DURATION;
use crate::telemetry::traces;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The route of a request, as the log and the metrics label it. Passed outward as an extension of the response.
#[derive(Default)]
pub(crate) struct Route {
    path: OnceLock<MatchedPath>,
    /// Cached by label, so that recording a duration needs no lookup in the registry.
    durations: RwLock<HashMap<(&'static str, StatusCode), Histogram>>,
}

impl Route {
    /// Sets the pattern from the first request that matched this route.
    pub(crate) fn learn_pattern(&self, request: &Request) {
        if self.path.get().is_none()
            && let Some(path) = request.extensions().get::<MatchedPath>()
        {
            // A concurrent request may have set it: to the same value.
            let _ = self.path.set(path.clone());
        }
    }

    /// The pattern, not the path or query as sent: a client may have put a secret there.
    fn pattern(&self) -> &str {
        self.path.get().map_or("-", MatchedPath::as_str)
    }

    fn duration(&self, method: &'static str, status: StatusCode) -> Histogram {
        let cached =
            self.durations.read().unwrap_or_else(PoisonError::into_inner).get(&(method, status)).cloned();
        cached.unwrap_or_else(|| {
            let histogram = histogram!(
                REQUEST_DURATION,
                "http_route" => self.pattern().to_owned(),
                "http_request_method" => method,
                "http_response_status_code" => status.as_u16().to_string(),
            );
            let mut durations = self.durations.write().unwrap_or_else(PoisonError::into_inner);
            durations.insert((method, status), histogram.clone());
            histogram
        })
    }
}

/// The label of a method. Unknown methods share one, so that clients cannot create metrics.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}

/// Observes a request from its arrival to its log line.
pub(crate) struct RequestLogEntry {
    started: Instant,
    request_id: HeaderValue,
    method: &'static str,
    /// The span of the request, if traces are exported.
    pub(crate) trace: Option<Context>,
}

impl RequestLogEntry {
    /// Assigns a request id, and a span if `traced`.
    pub(crate) fn start<B>(request: &hyper::Request<B>, traced: bool) -> Self {
        let method = method_label(request.method());
        Self {
            started: Instant::now(),
            request_id: request_id(request.headers()),
            method,
            trace: traced.then(|| traces::request(&HeaderExtractor(request.headers()), method)).flatten(),
        }
    }

    /// Finishes a request to the private listener. Only failures are logged: probes come every few seconds, and would
    /// hide what clients do.
    pub(crate) fn finish_admin(self, mut response: Response) -> Response {
        add_common_headers(response.headers_mut(), self.request_id.clone());
        let request_id = self.request_id.to_str().unwrap_or("-");
        let (method, status) = (self.method, response.status().as_u16());
        if let Some(LoggedCause(cause)) = response.extensions().get::<LoggedCause>() {
            tracing::warn!(request_id, method, status, cause, "health check failed");
        }
        response
    }

    /// Adds the common headers, writes the log line and records the duration. `unmatched` is the route of requests that
    /// match none.
    pub(crate) fn finish(self, mut response: Response, unmatched: &Route) -> Response {
        add_common_headers(response.headers_mut(), self.request_id.clone());
        let (elapsed, status) = (self.started.elapsed(), response.status());
        let route = response.extensions().get::<Arc<Route>>().map_or(unmatched, Arc::as_ref);
        route.duration(self.method, status).record(elapsed);
        let (method, route, status) = (self.method, route.pattern(), status.as_u16());
        let trace_id = self.trace.map(|trace| traces::end_request(&trace, method, route, status));
        let request_id = self.request_id.to_str().unwrap_or("-");
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let key = response.extensions().get::<Arc<Caller>>().map(|caller| caller.key.id.0);
        match response.extensions().get::<LoggedCause>() {
            None => tracing::info!(request_id, trace_id, method, route, status, key, microseconds, "request"),
            Some(LoggedCause(cause)) => {
                tracing::error!(
                    request_id,
                    trace_id,
                    method,
                    route,
                    status,
                    key,
                    microseconds,
                    cause,
                    "request"
                );
            }
        }
        response
    }
}

fn add_common_headers(headers: &mut HeaderMap, request_id: HeaderValue) {
    headers.insert(REQUEST_ID, request_id);
    // Cacheable responses set this header themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // The router lists the methods that have a handler; OPTIONS is answered on every path.
    if let Some(Ok(handled)) = headers.get(header::ALLOW).map(HeaderValue::to_str) {
        let allowed = format!("{handled},OPTIONS").replace(',', ", ");
        if let Ok(allowed) = allowed.parse() {
            headers.insert(header::ALLOW, allowed);
        }
    }
}

/// The client's request id if it is safe to echo, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let safe = |id: &&HeaderValue| {
        (1..=64).contains(&id.len())
            && id.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
    };
    headers.get(REQUEST_ID).filter(safe).cloned().unwrap_or_else(new_request_id)
}

pub(crate) fn new_request_id() -> HeaderValue {
    let id = format!("{:032x}", rand::random::<u128>());
    HeaderValue::from_maybe_shared(Bytes::from(id)).unwrap_or_else(|_| HeaderValue::from_static("-"))
}
