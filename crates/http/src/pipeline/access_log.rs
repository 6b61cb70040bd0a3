//! The headers of every response, and the log line, metrics and trace of every request.

use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use metrics::{SharedString, histogram};
use opentelemetry::Context;
use opentelemetry_http::HeaderExtractor;
use petstore_domain::key_record::KeyId;
use petstore_telemetry::metrics::REQUEST_DURATION;
use petstore_telemetry::traces;
use tokio::time::Instant;

use crate::error::LoggedCause;
use crate::failure_log::FailureLog;
use crate::request_id::{REQUEST_ID, request_id};
use crate::response::{AccessLogIds, Response, Waited};

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
    /// The pattern, not the path or query as sent: a client may have put a secret there. `-` if no route matches.
    pub(crate) route: SharedString,
    pub(crate) operation: Option<&'static str>,
    pub(crate) key: Option<KeyId>,
    /// The span of the request, if traces are exported.
    pub(crate) trace: Option<Context>,
}

impl RequestLogEntry {
    /// Assigns a request id, and a span if `traced`.
    pub(crate) fn start(head: &Parts, traced: bool) -> Self {
        let method = method_label(&head.method);
        Self {
            started: Instant::now(),
            request_id: request_id(&head.headers),
            method,
            route: SharedString::const_str("-"),
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
        histogram!(
            REQUEST_DURATION,
            "http_route" => self.route.clone(),
            "http_request_method" => self.method,
            "http_response_status_code" => status.as_u16().to_string(),
        )
        .record(elapsed.saturating_sub(waited));
        let (method, route, status) = (self.method, &*self.route, status.as_u16());
        let trace_id = self.trace.map(|trace| traces::end_request(&trace, method, route, status));
        let request_id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or("-");
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let (operation, key) = (self.operation, self.key.map(|key| key.0));
        let ids = response.extensions().get::<AccessLogIds>();
        let (pet, order) = (ids.map(|ids| ids.pet), ids.and_then(|ids| ids.order));
        macro_rules! log {
            ($level:ident $(, $other:ident)*) => {
                tracing::$level!(
                    request_id, trace_id, method, route, operation, status, key, client, pet, order, microseconds,
                    $($other,)* "request"
                )
            };
        }
        match response.extensions().get::<LoggedCause>() {
            None => log!(info),
            Some(LoggedCause(cause)) => {
                if let Some(others) = failures.record(cause) {
                    // Absent if there are none.
                    let others = (others > 0).then_some(others);
                    log!(error, cause, others);
                }
            }
        }
        response
    }
}

fn add_common_headers(headers: &mut HeaderMap, request_id: HeaderValue) {
    headers.insert(REQUEST_ID, request_id);
    // Cacheable responses set this header themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
