//! Conditional requests (`ETag`, `If-None-Match`, `If-Match`) and the caching headers of responses.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::parameter_description::{ParameterDescription, document_parameters};
use crate::wire::json;
use crate::wire::resource_description::string;

/// The `If-None-Match` header, which may be absent. A malformed one matches nothing.
pub(crate) struct IfNoneMatch(Vec<HeaderValue>);

document_parameters!(
    IfNoneMatch,
    Header,
    [ParameterDescription::new(
        "If-None-Match",
        "The `ETag` of a response that you have. If it is still current, the response is 304 without a body.",
        || string(None).into(),
    )]
);

impl<S: Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.headers.get_all(header::IF_NONE_MATCH).iter().cloned().collect()))
    }
}

impl IfNoneMatch {
    /// Answers 200 with the body, or 304 without it if the client has the current one.
    pub(crate) fn answer(&self, body: Bytes, tag: Bytes, link: Option<HeaderValue>) -> Response {
        let etag = header_of(tag);
        let mut headers = HeaderMap::with_capacity(8);
        headers.extend(link.map(|link| (header::LINK, link)));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
        let known = self.matches(&etag);
        headers.insert(header::ETAG, etag);
        if known {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(json::MEDIA_TYPE));
        (headers, body).into_response()
    }

    fn matches(&self, etag: &HeaderValue) -> bool {
        // Weak comparison.
        tags(&self.0)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes())
    }
}

/// The tags in all values of a header.
fn tags(values: &[HeaderValue]) -> impl Iterator<Item = &str> {
    values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',').map(str::trim))
}

/// The `If-Match` header, which may be absent. A malformed one matches nothing.
pub(crate) struct IfMatch(Vec<HeaderValue>);

document_parameters!(
    IfMatch,
    Header,
    [ParameterDescription::new(
        "If-Match",
        "The `ETag` of the pet that you read. If the pet has changed since, nothing is changed and the response is 412.",
        || string(None).into(),
    )]
);

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.headers.get_all(header::IF_MATCH).iter().cloned().collect()))
    }
}

impl IfMatch {
    /// Whether the current body has one of the tags, or the header is absent.
    pub(crate) fn is_satisfied_by(&self, body: Vec<u8>) -> bool {
        let (_, etag) = with_etag(body);
        self.0.is_empty() || tags(&self.0).any(|tag| tag == "*" || tag.as_bytes() == etag.as_bytes())
    }
}

/// A body with its strong `ETag`. `link` is part of the representation: a page that gains a next page gets a new tag
/// even if its pets are the same.
///
/// A fast hash is enough: a tag is only compared with tags of the same URL, and a client gains nothing from a collision.
/// A new release may hash differently; then clients fetch once more, and a change with `If-Match` is refused once.
pub(crate) fn with_tag(body: impl Into<Bytes>, link: Option<&HeaderValue>) -> (Bytes, Bytes) {
    let body = body.into();
    let mut hasher = DefaultHasher::new();
    hasher.write(&body);
    hasher.write(link.map_or(&[][..], HeaderValue::as_bytes));
    let tag = hasher.finish();
    (body, Bytes::from(format!("\"{tag:016x}\"")))
}

/// The same as [`with_tag`], with the tag as a header value.
pub(crate) fn with_etag(body: impl Into<Bytes>) -> (Bytes, HeaderValue) {
    let (body, tag) = with_tag(body, None);
    (body, header_of(tag))
}

fn header_of(tag: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(tag).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
