//! The id of a request, which its response and its log line share.

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::hex::hex_digits;
use super::response::ascii_value;

/// The header with the id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The client's request id if it is safe to echo, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    sent_request_id(headers).cloned().unwrap_or_else(new_request_id)
}

/// The client's request id, if it sent one that is safe to echo.
pub(crate) fn sent_request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let safe = |id: &&HeaderValue| {
        (1..=64).contains(&id.len())
            && id.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
    };
    headers.get(REQUEST_ID).filter(safe)
}

/// A new request id.
pub(crate) fn new_request_id() -> HeaderValue {
    ascii_value(Bytes::copy_from_slice(&hex_digits(rand::random::<u128>())))
}
