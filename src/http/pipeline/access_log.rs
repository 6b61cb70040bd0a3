//! The headers of every response, and the log line, metrics and trace of every request.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use metrics::{Histogram, histogram};
use opentelemetry::Context;
use opentelemetry_http::HeaderExtractor;
use tokio::time::Instant;

use super::failure_log::FailureLog;
use crate::domain::key_record::KeyId;
use crate::http::error::LoggedCause;
use crate::http::hex::hex_digits;
use crate::http::response::{LoggedChange, Response, Waited, ascii_value};
use crate::telemetry::metrics::REQUEST_DURATION;
use crate::telemetry::traces;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A route, as the log and the metrics label it.
pub(crate) struct RouteLabel {
    /// The pattern, not the path or query as sent: a client may have put a secret there.
    pattern: String,
    /// By method and status, so that recording a duration needs no lookup in the registry.
    durations: RwLock<Vec<(&'static str, StatusCode, Histogram)>>,
}

impl RouteLabel {
    pub(crate) fn new(pattern: &str) -> Self {
        Self { pattern: pattern.to_owned(), durations: RwLock::default() }
    }

    fn record(&self, method: &'static str, status: StatusCode, elapsed: Duration) {
        let durations = self.durations.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, histogram)) = durations.iter().find(|known| (known.0, known.1) == (method, status))
        {
            histogram.record(elapsed);
        } else {
            drop(durations);
            self.add_histogram(method, status).record(elapsed);
        }
    }

    fn add_histogram(&self, method: &'static str, status: StatusCode) -> Histogram {
        let histogram = histogram!(
            REQUEST_DURATION,
            "http_route" => self.pattern.clone(),
            "http_request_method" => method,
            "http_response_status_code" => status.as_u16().to_string(),
        );
        // A concurrent request may add the same one: both record to it, and the first is found.
        let mut durations = self.durations.write().unwrap_or_else(PoisonError::into_inner);
        durations.push((method, status, histogram.clone()));
        histogram
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
pub(crate) struct RequestLogEntry<'a> {
    started: Instant,
    request_id: HeaderValue,
    method: &'static str,
    pub(crate) route: &'a RouteLabel,
    pub(crate) operation: Option<&'static str>,
    pub(crate) key: Option<KeyId>,
    /// The span of the request, if traces are exported.
    pub(crate) trace: Option<Context>,
}

impl<'a> RequestLogEntry<'a> {
    /// Assigns a request id, and a span if `traced`. `unmatched` labels the request until its route is known.
    pub(crate) fn start(head: &Parts, unmatched: &'a RouteLabel, traced: bool) -> Self {
        let method = method_label(&head.method);
        Self {
            started: Instant::now(),
            request_id: request_id(&head.headers),
            method,
            route: unmatched,
            operation: None,
            key: None,
            trace: traced.then(|| traces::request(&HeaderExtractor(&head.headers), method)).flatten(),
        }
    }

    /// Finishes a request to the private listener. It is not logged: probes come every few seconds, and would hide what
    /// clients do.
    pub(crate) fn finish_admin(self, mut response: Response) -> Response {
        add_common_headers(response.headers_mut(), self.request_id);
        response
    }

    /// Adds the common headers, writes the log line and records the duration. A failure is logged unless the same cause has
    /// just been.
    pub(crate) fn finish(
        self,
        mut response: Response,
        client: Option<&str>,
        failures: &FailureLog,
    ) -> Response {
        add_common_headers(response.headers_mut(), self.request_id);
        let (elapsed, status) = (self.started.elapsed(), response.status());
        // A long poll is not slow.
        let Waited(waited) = response.extensions().get().copied().unwrap_or_default();
        self.route.record(self.method, status, elapsed.saturating_sub(waited));
        let (method, route, status) = (self.method, self.route.pattern.as_str(), status.as_u16());
        let trace_id = self.trace.map(|trace| traces::end_request(&trace, method, route, status));
        let request_id = request_id_of(&response);
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let (operation, key) = (self.operation, self.key.map(|key| key.0));
        let change = response.extensions().get::<LoggedChange>();
        let (pet, order) = (change.map(|change| change.pet), change.and_then(|change| change.order));
        match response.extensions().get::<LoggedCause>() {
            None => tracing::info!(
                request_id,
                trace_id,
                method,
                route,
                operation,
                status,
                key,
                client,
                pet,
                order,
                microseconds,
                "request"
            ),
            Some(LoggedCause(cause)) => {
                if let Some(others) = failures.record(cause) {
                    // Absent if there are none.
                    let others = (others > 0).then_some(others);
                    tracing::error!(
                        request_id,
                        trace_id,
                        method,
                        route,
                        operation,
                        status,
                        key,
                        client,
                        microseconds,
                        cause,
                        others,
                        "request"
                    );
                }
            }
        }
        response
    }
}

fn request_id_of(response: &Response) -> &str {
    response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or("-")
}

fn add_common_headers(headers: &mut HeaderMap, request_id: HeaderValue) {
    headers.insert(REQUEST_ID, request_id);
    // Cacheable responses set this header themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
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
    ascii_value(Bytes::copy_from_slice(&hex_digits(rand::random::<u128>())))
}
