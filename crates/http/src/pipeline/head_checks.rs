//! Limits on the size of a request's head, and the checks of it that come before all others.

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::Version;
use hyper::http::request::Parts;

use crate::error::ApiError;
use crate::links::MAX_URI_BYTES;

/// The maximum size of all headers together, on the wire.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// Rejects a request whose head is too large, does not name exactly one host, or has a transfer coding that a proxy might
/// interpret differently.
pub(crate) fn check_head(head: &Parts) -> Result<(), ApiError> {
    if head.uri.path_and_query().map_or(0, |target| target.as_str().len()) > MAX_URI_BYTES {
        Err(ApiError::UriTooLong)
    } else if wire_bytes(&head.headers) > MAX_HEADER_BYTES {
        Err(ApiError::HeadersTooLarge)
    } else if !names_one_host(head) {
        Err(ApiError::InvalidHeader {
            name: "Host",
            problem: "The request must have exactly one `Host` header, with a host name or address and an optional port",
        })
    } else if !has_simple_coding(&head.headers) {
        Err(ApiError::InvalidFraming { problem: "`Transfer-Encoding` must be `chunked`" })
    } else {
        Ok(())
    }
}

fn wire_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + ": \r\n".len() + value.len()).sum()
}

fn names_one_host(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.as_bytes().iter().all(|byte| is_host_character(*byte)),
        (None, _) => head.version < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    }
}

/// Whether RFC 3986 allows the byte in a host and port.
fn is_host_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(&byte)
}

/// No transfer coding, or `chunked` once.
fn has_simple_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(is_chunked) && codings.next().is_none()
}
