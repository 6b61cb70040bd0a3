//! Conditional requests (`ETag`, `If-None-Match`, `If-Match`) and the caching headers of responses.

use std::hash::{DefaultHasher, Hasher};

use bytes::Bytes;
use hyper::header::{self, GetAll, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use petstore_domain::version::Version;

use super::hex::hex_digits;
use super::response::{self, Response, ascii_value};

/// The `If-None-Match` header, which may be absent. A malformed one matches nothing.
pub(crate) struct IfNoneMatch<'a>(GetAll<'a, HeaderValue>);

/// Documents the header.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct IfNoneMatchParameter {
    /// The `ETag` of an earlier response. If it is still current, you get 304 without a body.
    #[param(rename = "If-None-Match", nullable = false)]
    if_none_match: Option<String>,
}

impl<'a> IfNoneMatch<'a> {
    pub(crate) fn new(headers: &'a HeaderMap) -> Self {
        Self(headers.get_all(header::IF_NONE_MATCH))
    }

    /// Answers 200 with the JSON body, or 304 without it if the client has the current one.
    pub(crate) fn answer(&self, body: Bytes, tag: Bytes, link: Option<Bytes>) -> Response {
        let etag = ascii_value(tag);
        let mut response = if self.matches(&etag) {
            response::empty(StatusCode::NOT_MODIFIED)
        } else {
            response::json(StatusCode::OK, body)
        };
        let headers = response.headers_mut();
        headers.extend(link.map(|link| (header::LINK, ascii_value(link))));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
        headers.insert(header::ETAG, etag);
        response
    }

    fn matches(&self, etag: &HeaderValue) -> bool {
        // Weak comparison.
        tags(&self.0)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes())
    }
}

/// The tags in all values of a header.
fn tags<'a>(values: &GetAll<'a, HeaderValue>) -> impl Iterator<Item = &'a str> {
    values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',').map(str::trim))
}

/// The `If-Match` header, which may be absent. A malformed one matches nothing.
pub(crate) struct IfMatch<'a>(GetAll<'a, HeaderValue>);

/// Documents the header.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct IfMatchParameter {
    /// The `ETag` of what you read. If it has changed since, nothing is changed and the response is 412.
    #[param(rename = "If-Match", nullable = false)]
    if_match: Option<String>,
}

impl<'a> IfMatch<'a> {
    pub(crate) fn new(headers: &'a HeaderMap) -> Self {
        Self(headers.get_all(header::IF_MATCH))
    }

    /// Whether one of the current representations of this version has one of the tags, or the header is absent.
    pub(crate) fn is_satisfied_by(
        &self,
        version: Version,
        representations: impl FnOnce() -> [Vec<u8>; 2],
    ) -> bool {
        if self.0.iter().next().is_none() {
            return true;
        }
        let current = representations().map(|body| with_etag(body, version).1);
        tags(&self.0).any(|tag| tag == "*" || current.iter().any(|etag| tag.as_bytes() == etag.as_bytes()))
    }
}

/// A body with its strong `ETag`, which covers the body, the versions of what it shows, and the link to the next page: a page that
/// gains a next page gets a new tag even if its pets are the same.
///
/// The versions are what `If-Match` is for: a pet that has been sold and returned looks as before, but it is another version. The
/// body is covered because a version can come back after a restore.
///
/// A fast hash is enough: a tag is only compared with tags of the same URL, and a client gains nothing from a collision.
/// A new release may hash differently; then clients fetch once more, and a change with `If-Match` is refused once.
pub(crate) fn with_tag(
    body: impl Into<Bytes>,
    versions: impl IntoIterator<Item = Version>,
    link: Option<&Bytes>,
) -> (Bytes, Bytes) {
    let body = body.into();
    let mut hasher = DefaultHasher::new();
    hasher.write(&body);
    versions.into_iter().for_each(|Version(version)| hasher.write_u32(version));
    hasher.write(link.map_or(&[], |link| link));
    let digits = hex_digits(hasher.finish().into());
    let tag = [b"\"", &digits[16..], b"\""].concat();
    (body, tag.into())
}

/// The same for one pet or order, with the tag as a header value.
pub(crate) fn with_etag(body: impl Into<Bytes>, version: Version) -> (Bytes, HeaderValue) {
    let (body, tag) = with_tag(body, [version], None);
    (body, ascii_value(tag))
}
