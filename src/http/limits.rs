//! How large a request may be, and what its head must have: checked before anything else.

use axum::extract::Request;
use axum::http::{HeaderMap, Version, header};

use super::error::ApiError;

/// The most bytes of a body.
pub(crate) const MAX_BODY_BYTES: usize = 16 * 1024;
/// The most bytes of path and query.
const MAX_URI_BYTES: usize = 8 * 1024;
/// The most bytes of all headers together, as they stand on the wire.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// Refuses a request whose head is too large or does not name exactly one host.
pub(crate) fn check_head(request: &Request) -> Result<(), ApiError> {
    if request.uri().path_and_query().map_or(0, |target| target.as_str().len()) > MAX_URI_BYTES {
        Err(ApiError::UriTooLong)
    } else if wire_bytes(request.headers()) > MAX_HEADER_BYTES {
        Err(ApiError::HeadersTooLarge)
    } else if !names_one_host(request) {
        Err(ApiError::InvalidHeader { problem: "The request must have exactly one `Host` header" })
    } else {
        Ok(())
    }
}

fn wire_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + ": \r\n".len() + value.len()).sum()
}

fn names_one_host(request: &Request) -> bool {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11)
}
