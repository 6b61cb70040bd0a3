//! From a request to what a handler takes: the body, the query, an id in the path.

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use tokio::time::timeout;

use super::AppState;
use super::error::ApiError;
use super::json::{self, Members};
use super::limits::MAX_BODY_BYTES;
use super::spelling::{nearest, shown};
use crate::domain::pet::PetId;

/// What can be read from the members of a JSON object.
pub(crate) trait FromMembers: Sized {
    /// Reads it, or says what is wrong with the first wrong member.
    fn from_members(members: &Members<'_>) -> Result<Self, ApiError>;
}

/// A request's JSON body: 415 for another media type, 413 if it is too large, 408 if it is too slow, 400 if
/// it is not what it should be; in this order.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: FromMembers> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::UnsupportedMediaType);
        }
        // What is announced as too large is not even asked for.
        if request.body().size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(ApiError::BodyTooLarge);
        }
        let reading = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        let body: Bytes = match timeout(app.body_timeout, reading).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(ApiError::BodyTooLarge),
            Ok(Err(_)) => {
                return Err(ApiError::InvalidJson { problem: "it did not arrive whole".into() });
            }
            Err(_) => return Err(ApiError::RequestTimeout),
        };
        T::from_members(&Members::parse(&body)?).map(Self)
    }
}

/// `application/json`, alone or with `charset=utf-8`.
fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Ok(value) = value.to_str() else { return false };
    let mut parts = value.split(';').map(str::trim);
    parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case(json::MEDIA_TYPE))
        && parts.all(|parameter| {
            ["charset=utf-8", "charset=\"utf-8\""].iter().any(|utf8| parameter.eq_ignore_ascii_case(utf8))
        })
}

/// The query parameters of a request, every one of them known to the operation.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Splits a query; refuses a parameter that is not among `known`, so that a misspelt filter does not
    /// silently list everything.
    pub(crate) fn parse(parts: &Parts, known: &[&'static str]) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        match pairs.iter().find(|(name, _)| !known.contains(&&**name)) {
            None => Ok(Self(pairs)),
            Some((name, _)) => {
                Err(ApiError::UnknownParameter { name: shown(name), nearest: nearest(name, known) })
            }
        }
    }

    /// The value of a parameter that may be there once.
    pub(crate) fn one(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        let mut values = self.all(name);
        let value = values.next();
        match values.next() {
            None => Ok(value),
            Some(_) => Err(ApiError::InvalidParameter { name, problem: "must be there only once".into() }),
        }
    }

    /// The values of a parameter that may be there many times.
    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// For operations without query parameters: refuses any.
pub(crate) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Query::parse(parts, &[]).map(|_| Self)
    }
}

/// The id of a pet in the path. What cannot be one is the id of no pet: 404.
pub(crate) struct PetIdInPath(pub(crate) PetId);

impl<S: Send + Sync> FromRequestParts<S> for PetIdInPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let params =
            RawPathParams::from_request_parts(parts, state).await.map_err(|_| ApiError::PetNotFound)?;
        params.iter().find_map(|(_, text)| pet_id(text)).map(Self).ok_or(ApiError::PetNotFound)
    }
}

/// The id that a text in a path or query stands for.
pub(crate) fn pet_id(text: &str) -> Option<PetId> {
    decimal(text)?.try_into().ok()
}

/// A whole number as people write it: digits, with neither sign nor leading zeros.
pub(crate) fn decimal(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) { None } else { text.parse().ok() }
}
