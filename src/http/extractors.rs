//! From a request to what a handler takes: the body, the query, an id in the path.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use tokio::time::timeout;

use super::AppState;
use super::cursor::decode_cursor;
use super::error::ApiError;
use super::parameter_description::ParameterDescription;
use super::pipeline::header_limits::MAX_BODY_BYTES;
use super::pipeline::key_cache::Caller;
use crate::domain::order::OrderId;
use crate::domain::page::{PageLimit, PageLimitError};
use crate::domain::pet::PetId;
use crate::wire::json::{BodyError, FromObject, JsonObject};
use crate::wire::suggestions::{nearest, shown};

/// A request's JSON body: 415 for another media type, 413 if it is too large, 408 if it is too slow, 400 if
/// it is not what it should be; in this order.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: FromObject> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        if !is_sent_as(T::MEDIA_TYPES, request.headers()) {
            return Err(ApiError::UnsupportedMediaType { accepted: T::MEDIA_TYPES });
        }
        // What is announced as too large is not even asked for.
        if request.body().size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(ApiError::BodyTooLarge);
        }
        let caller = request.extensions().get::<Arc<Caller>>().ok_or(ApiError::MissingApiKey)?;
        let arriving = app.admission.admit_body(caller.key.id)?;
        let waiting = app.admission.suspend();
        let reading = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        let body = timeout(app.body_timeout, reading).await;
        drop(arriving);
        waiting.resume()?;
        let body: Bytes = match body {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(ApiError::BodyTooLarge),
            Ok(Err(_)) => {
                return Err(BodyError::InvalidJson { problem: "it did not arrive whole".into() }.into());
            }
            Err(_) => return Err(ApiError::RequestTimeout),
        };
        Ok(Self(T::from_object(&JsonObject::parse(&body)?)?))
    }
}

/// One of the media types, alone or with `charset=utf-8`.
fn is_sent_as(accepted: &[&str], headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Ok(value) = value.to_str() else { return false };
    let mut parts = value.split(';').map(str::trim);
    parts
        .next()
        .is_some_and(|essence| accepted.iter().any(|media_type| essence.eq_ignore_ascii_case(media_type)))
        && parts.all(|parameter| {
            ["charset=utf-8", "charset=\"utf-8\""].iter().any(|utf8| parameter.eq_ignore_ascii_case(utf8))
        })
}

/// The query parameters of a request, every one of them known to the operation.
pub(crate) struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    /// Splits a query; refuses a parameter that the operation does not have, so that a misspelt filter does not
    /// silently list everything.
    pub(crate) fn parse(parts: &Parts, parameters: &[ParameterDescription]) -> Result<Self, ApiError> {
        let known = parameters.iter().map(|parameter| parameter.name);
        let query = parts.uri.query().unwrap_or_default();
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        match pairs.iter().find(|(name, _)| !known.clone().any(|known| known == name)) {
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
            Some(_) => Err(ApiError::InvalidParameter { name, problem: "must be given only once".into() }),
        }
    }

    /// The values of a parameter that may be there many times.
    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// What every list takes besides its filters.
impl QueryParameters {
    /// `limit`: how many things the page may hold.
    pub(crate) fn limit(&self) -> Result<PageLimit, ApiError> {
        match self.one("limit")? {
            None => Ok(PageLimit::DEFAULT),
            Some(text) => decimal(text)
                .and_then(|number| number.try_into().ok())
                .ok_or_else(|| ApiError::invalid_parameter("limit", &PageLimitError)),
        }
    }

    /// `cursor`: what the page begins after.
    pub(crate) fn after<Id: TryFrom<i64>>(&self) -> Result<Option<Id>, ApiError> {
        let cursor = self.one("cursor")?;
        cursor.map(|text| decode_cursor(text).ok_or(ApiError::InvalidCursor)).transpose()
    }

    /// `status`, if it is given: one of the words.
    pub(crate) fn status<Status: FromStr<Err: ToString>>(&self) -> Result<Option<Status>, ApiError> {
        let status = self.one("status")?.map(str::parse).transpose();
        status.map_err(|problem| ApiError::invalid_parameter("status", &problem))
    }
}

/// For operations without query parameters: refuses any.
pub(crate) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        QueryParameters::parse(parts, &[]).map(|_| Self)
    }
}

/// The id of a pet in the path. What cannot be one is the id of no pet: 404.
pub(crate) struct PetIdInPath(pub(crate) PetId);

impl<S: Send + Sync> FromRequestParts<S> for PetIdInPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        id_in_path(parts, state).await.map(Self).ok_or(ApiError::PetNotFound)
    }
}

/// The id of an order in the path, likewise.
pub(crate) struct OrderIdInPath(pub(crate) OrderId);

impl<S: Send + Sync> FromRequestParts<S> for OrderIdInPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        id_in_path(parts, state).await.map(Self).ok_or(ApiError::OrderNotFound)
    }
}

async fn id_in_path<Id: TryFrom<i64>>(parts: &mut Parts, state: &(impl Send + Sync)) -> Option<Id> {
    let params = RawPathParams::from_request_parts(parts, state).await.ok()?;
    params.iter().find_map(|(_, text)| id_in_text(text))
}

/// The id that a text in a path or query stands for.
pub(crate) fn id_in_text<Id: TryFrom<i64>>(text: &str) -> Option<Id> {
    decimal(text)?.try_into().ok()
}

/// A whole number as people write it: digits, with neither sign nor leading zeros.
fn decimal(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) { None } else { text.parse().ok() }
}
