//! Authentication by API key.
//!
//! **Invariant:** a client cannot tell a malformed, an unknown, an expired and a revoked key apart; only that the header is
//! no `Bearer` token at all.

use hyper::Method;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;

use crate::domain::api_key::ApiKey;
use crate::http::error::ApiError;

/// The `Authorization` header of a request that needs a key: everything under `/v1` does, except `OPTIONS`.
pub(crate) fn required_authorization(head: &Parts) -> Result<Option<&HeaderValue>, ApiError> {
    let path = head.uri.path();
    let protected = path == "/v1" || path.starts_with("/v1/");
    if !protected || head.method == Method::OPTIONS {
        return Ok(None);
    }
    let mut values = head.headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(ApiError::MissingApiKey)?;
    if values.next().is_some() { Err(ApiError::InvalidApiKey) } else { Ok(Some(value)) }
}

/// The API key in an `Authorization` header.
pub(super) fn bearer_token(authorization: &HeaderValue) -> Result<ApiKey, ApiError> {
    let text = authorization.to_str().map_err(|_| ApiError::InvalidApiKey)?;
    let (scheme, key) = text.split_once(' ').ok_or(ApiError::NotABearerToken)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(ApiError::NotABearerToken);
    }
    // RFC 9110 allows several spaces.
    key.trim_start_matches(' ').parse().map_err(|_| ApiError::InvalidApiKey)
}
