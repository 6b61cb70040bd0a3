//! The `Idempotency-Key` header, which makes it safe to retry a request.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};

use super::error::ApiError;
use super::parameter_description::{ParameterDescription, document_parameters};
use crate::domain::idempotency::IdempotencyKey;
use crate::wire::resource_description::string;

/// The header of a response to a request that took effect before.
pub(crate) const REPLAYED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true"));

/// The idempotency key of a request, if there is one.
pub(crate) struct OptionalIdempotencyKey(pub(crate) Option<IdempotencyKey>);

const PARAMETER: ParameterDescription = ParameterDescription::new(
    "Idempotency-Key",
    "A unique key for this request, such as a UUID, remembered for 24 hours. A request that you retry with the same key \
     takes effect once.",
    || string(None).min_length(Some(1)).max_length(Some(255)).pattern(Some("^[!-~]+$")).into(),
)
.with_example("8e03978e-40d5-43e8-bc93-6894a57f9324");

document_parameters!(OptionalIdempotencyKey, Header, [PARAMETER]);

impl<S: Sync> FromRequestParts<S> for OptionalIdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(PARAMETER.name).iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let key = value.to_str().ok().and_then(|text| text.parse().ok());
        if key.is_none() || values.next().is_some() {
            return Err(ApiError::InvalidHeader {
                problem: "`Idempotency-Key` must be sent once, with 1 to 255 visible ASCII characters",
            });
        }
        Ok(Self(key))
    }
}
