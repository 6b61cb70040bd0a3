//! What every answer carries, and what every request leaves in the log, the metrics and the traces.

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
use crate::http::error::Cause;
use crate::telemetry::metrics::REQUEST_DURATION;
use crate::telemetry::traces;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A route as the log and the metrics know it. Its answers carry it outward.
#[derive(Default)]
pub(crate) struct Route {
    path: OnceLock<MatchedPath>,
    /// By what they measure, so that measuring is not looking up.
    durations: RwLock<HashMap<(&'static str, StatusCode), Histogram>>,
}

impl Route {
    /// Learns its pattern from a request that took it.
    pub(crate) fn taken_by(&self, request: &Request) {
        if self.path.get().is_none()
            && let Some(path) = request.extensions().get::<MatchedPath>()
        {
            // Another request may have told it meanwhile: the same.
            let _ = self.path.set(path.clone());
        }
    }

    /// The pattern, not the path or query as sent: a client may have put a secret there.
    fn pattern(&self) -> &str {
        self.path.get().map_or("-", MatchedPath::as_str)
    }

    fn duration(&self, method: &'static str, status: StatusCode) -> Histogram {
        let known =
            self.durations.read().unwrap_or_else(PoisonError::into_inner).get(&(method, status)).cloned();
        known.unwrap_or_else(|| {
            let measured = histogram!(
                REQUEST_DURATION,
                "http_route" => self.pattern().to_owned(),
                "http_request_method" => method,
                "http_response_status_code" => status.as_u16().to_string(),
            );
            let mut durations = self.durations.write().unwrap_or_else(PoisonError::into_inner);
            durations.insert((method, status), measured.clone());
            measured
        })
    }
}

/// A client may send any word as a method, and must not make a metric of each.
fn method_word(method: &Method) -> &'static str {
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

/// A request under way, from its arrival to its line in the log.
pub(crate) struct Observation {
    started: Instant,
    request_id: HeaderValue,
    method: &'static str,
    /// Its span, if traces are kept.
    pub(crate) trace: Option<Context>,
}

impl Observation {
    /// Gives the request an id, and a span if it is to be seen.
    pub(crate) fn begin<B>(request: &hyper::Request<B>, seen: bool) -> Self {
        let method = method_word(request.method());
        Self {
            started: Instant::now(),
            request_id: request_id(request.headers()),
            method,
            trace: seen.then(|| traces::request(&HeaderExtractor(request.headers()), method)).flatten(),
        }
    }

    /// Gives the answer of the private listener the headers that every answer has. Probes come every few seconds, and
    /// would hide what clients do.
    pub(crate) fn end_unseen(self, mut response: Response) -> Response {
        complete(response.headers_mut(), self.request_id.clone());
        let request_id = self.request_id.to_str().unwrap_or("-");
        let (method, status) = (self.method, response.status().as_u16());
        if let Some(Cause(cause)) = response.extensions().get::<Cause>() {
            tracing::warn!(request_id, method, status, cause, "a probe failed");
        }
        response
    }

    /// Gives the answer the headers that every answer has, logs one line, and measures. `elsewhere` is the route of
    /// requests that have none.
    pub(crate) fn end(self, mut response: Response, elsewhere: &Route) -> Response {
        complete(response.headers_mut(), self.request_id.clone());
        let (elapsed, status) = (self.started.elapsed(), response.status());
        let route = response.extensions().get::<Arc<Route>>().map_or(elsewhere, Arc::as_ref);
        route.duration(self.method, status).record(elapsed);
        let (method, route, status) = (self.method, route.pattern(), status.as_u16());
        let trace_id = self.trace.map(|trace| traces::end_request(&trace, method, route, status));
        let request_id = self.request_id.to_str().unwrap_or("-");
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let key = response.extensions().get::<Arc<Caller>>().map(|caller| caller.key.id.0);
        match response.extensions().get::<Cause>() {
            None => tracing::info!(request_id, trace_id, method, route, status, key, microseconds, "request"),
            Some(Cause(cause)) => {
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

fn complete(headers: &mut HeaderMap, request_id: HeaderValue) {
    headers.insert(REQUEST_ID, request_id);
    // What may be kept says so itself.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // The router lists the methods that have a handler; OPTIONS is answered on every path.
    if let Some(Ok(handled)) = headers.get(header::ALLOW).map(HeaderValue::to_str) {
        let allowed = format!("{handled},OPTIONS").replace(',', ", ");
        if let Ok(allowed) = allowed.parse() {
            headers.insert(header::ALLOW, allowed);
        }
    }
}

/// The client's own id if it is safe to repeat, else a new one.
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
