//! What every answer carries and what every request leaves in the log.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::MatchedPath;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::Response;
use bytes::Bytes;

use super::error::Cause;
use super::keys::Caller;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request under way, from its arrival to its line in the log.
pub(crate) struct Visit {
    started: Instant,
    request_id: HeaderValue,
    method: Method,
}

impl Visit {
    /// Gives the request an id.
    pub(crate) fn begin<B>(request: &hyper::Request<B>) -> Self {
        let request_id = request_id(request.headers());
        Self { started: Instant::now(), request_id, method: request.method().clone() }
    }

    /// Gives the answer the headers that every answer has, and logs one line.
    ///
    /// The line has the route's pattern, not the path or query as sent: a client may have put a secret there.
    pub(crate) fn end(self, mut response: Response) -> Response {
        complete(response.headers_mut(), self.request_id.clone());
        let method = self.method.as_str();
        let status = response.status().as_u16();
        let route = response.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str);
        let request_id = self.request_id.to_str().unwrap_or("-");
        let microseconds = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let key = response.extensions().get::<Arc<Caller>>().map(|caller| caller.key.id.0);
        match response.extensions().get::<Cause>() {
            None => tracing::info!(request_id, method, route, status, key, microseconds, "request"),
            Some(Cause(cause)) => {
                tracing::error!(request_id, method, route, status, key, microseconds, cause, "request");
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
