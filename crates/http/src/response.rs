//! Responses: a status, headers and a whole body.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use petstore_wire::json;

/// The number of headers of most responses, at most.
const USUAL_HEADERS: usize = 12;

/// A response. Every body is in memory: none is streamed.
pub(crate) type Response = hyper::Response<Full<Bytes>>;

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    with_status(status, Bytes::new())
}

/// Sends the client to another path of this service.
pub(crate) fn see_other(path: &'static str) -> Response {
    let mut response = empty(StatusCode::SEE_OTHER);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(path));
    response
}

/// A response with a JSON body.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    with_media_type(status, json::MEDIA_TYPE, body)
}

/// A response with a body of this media type.
pub(crate) fn with_media_type(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response {
    let mut response = with_status(status, body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The ids of what a request has changed, for the access log. An extension of the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessLogIds {
    pub(crate) pet: i64,
    pub(crate) order: Option<i64>,
}

/// How long a request has waited for an event, as its client wanted. An extension of the response.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waited(pub(crate) Duration);

/// A header value from text that the service wrote itself: ASCII, so always a valid one.
pub(crate) fn ascii_value(text: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn with_status(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = HeaderMap::with_capacity(USUAL_HEADERS);
    response
}
