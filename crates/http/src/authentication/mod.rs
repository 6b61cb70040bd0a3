//! Authentication by API key.
//!
//! **Invariant:** a client cannot tell a malformed, an unknown, an expired and a revoked key apart; only that the header is
//! no `Bearer` token at all.

mod key_cache;
mod unknown_key_throttle;

use std::sync::Arc;

use hyper::Method;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use petstore_domain::key_record::{ActiveKey, Scope};

use super::error::ApiError;
use super::rate_limits::KeyRateLimiter;
pub(crate) use key_cache::KeyCache;

/// The caller of a request: a valid key and its rate limiter.
pub(crate) struct Caller {
    pub(crate) key: ActiveKey,
    pub(crate) limiter: Option<Arc<KeyRateLimiter>>,
}

impl Caller {
    /// Fails if the key lacks a scope.
    pub(crate) fn check_scope(&self, needed: Scope) -> Result<(), ApiError> {
        if self.key.scopes.contains(&needed) { Ok(()) } else { Err(ApiError::InsufficientScope { needed }) }
    }
}

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

/// The token in an `Authorization` header.
fn bearer_token(authorization: &HeaderValue) -> Result<&str, ApiError> {
    let text = authorization.to_str().map_err(|_| ApiError::InvalidApiKey)?;
    let (scheme, token) = text.split_once(' ').ok_or(ApiError::NotABearerToken)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(ApiError::NotABearerToken);
    }
    // RFC 9110 allows several spaces.
    Ok(token.trim_start_matches(' '))
}
