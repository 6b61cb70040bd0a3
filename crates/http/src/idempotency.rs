//! The `Idempotency-Key` header, which makes it safe to retry a request.

use std::borrow::Cow;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use petstore_domain::idempotency::IdempotencyKey;
use petstore_storage::Outcome;

use super::error::ApiError;
use super::response::Response;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Answers a request that may have an idempotency key. `gone` is the error if what an earlier attempt has changed was deleted since.
pub(crate) fn answer<T, R: Into<ApiError>>(
    outcome: Outcome<T, R>,
    gone: ApiError,
    render: impl FnOnce(T) -> Response,
) -> Result<Response, ApiError> {
    match outcome {
        Outcome::Done(changed) => Ok(render(changed)),
        Outcome::Replayed(Some(changed)) => Ok(mark_replayed(render(changed))),
        Outcome::Replayed(None) => Ok(mark_replayed(gone.into_response())),
        Outcome::Refused(refusal) => Err(refusal.into()),
        Outcome::KeyReused => Err(ApiError::IdempotencyKeyReused),
        Outcome::InProgress => Err(ApiError::IdempotencyInProgress),
    }
}

/// Marks the response to a request that took effect before.
pub(crate) fn mark_replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Documents the header.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct IdempotencyKeyHeader {
    /// A unique key for this request, such as a UUID: 1 to 255 visible ASCII characters, optionally in quotes. A retry with the same key takes effect once. The key is stored for at least 24 hours.
    #[param(
        rename = "Idempotency-Key",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$",
        example = "8e03978e-40d5-43e8-bc93-6894a57f9324"
    )]
    idempotency_key: Option<String>,
}

/// The text that a structured field's string (RFC 9651) stands for: `"k"` and `k` are the same key. Anything else stands for
/// itself.
fn unquoted(text: &str) -> Cow<'_, str> {
    let inside = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inside.and_then(unescaped).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// The text between the quotes without its escapes, if it is one.
fn unescaped(inside: &str) -> Option<String> {
    let mut text = String::with_capacity(inside.len());
    let mut characters = inside.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '\\' => characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?,
            '"' => return None,
            other => other,
        });
    }
    Some(text)
}

/// The idempotency key of a request, if there is one.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.to_str().ok().and_then(|text| unquoted(text).parse().ok());
    if key.is_none() || values.next().is_some() {
        return Err(ApiError::InvalidHeader {
            name: "Idempotency-Key",
            problem: "`Idempotency-Key` must appear only once and have 1 to 255 visible ASCII characters",
        });
    }
    Ok(key)
}
