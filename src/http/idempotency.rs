//! `Idempotency-Key`: a request that a client may send again without fear.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use utoipa::IntoParams;

use super::error::ApiError;
use crate::domain::idempotency::IdempotencyKey;

const NAME: &str = "idempotency-key";

/// What an answer carries that was given before.
pub(crate) const REPLAYED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true"));

/// The client's key for a request, if it sent one.
pub(crate) struct OptionalIdempotencyKey(pub(crate) Option<IdempotencyKey>);

/// The header, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header for the document; OptionalIdempotencyKey reads it")]
pub(crate) struct IdempotencyKeyParameter {
    /// A name of your choice for this request, such as a UUID, remembered for 24 hours: send the request again with
    /// the same one, and it takes effect once.
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

impl<S: Sync> FromRequestParts<S> for OptionalIdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(NAME).iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let key = value.to_str().ok().and_then(|text| text.parse().ok());
        if key.is_none() || values.next().is_some() {
            return Err(ApiError::InvalidHeader {
                problem: "`Idempotency-Key` must be there once, with 1 to 255 visible ASCII characters",
            });
        }
        Ok(Self(key))
    }
}
