//! Static bodies in two forms: compressed for clients that accept gzip, plain for all others.
//!
//! **Invariants:** each form has its own `ETag`, and `Vary` names `Accept-Encoding`.

use std::io::{Read, Write};
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};

use crate::conditional::{IfNoneMatch, with_tag};
use crate::error::ApiError;
use crate::query;
use crate::response::Response;

/// Whether the client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT_ENCODING).iter();
    lists_gzip(lists.filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(',')))
}

/// gzip is accepted if it or `*` is listed with a weight above 0. An invalid weight counts as 0.
fn lists_gzip<'a>(codings: impl Iterator<Item = &'a str>) -> bool {
    let (mut gzip, mut any) = (None, None);
    for coding in codings {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim();
        let weight = weight.strip_prefix("q=").or_else(|| weight.strip_prefix("Q="));
        let accepted =
            weight.and_then(|weight| weight.parse::<f32>().ok()).is_some_and(|weight| weight > 0.0);
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => {
                gzip = Some(accepted);
            }
            "*" => any = Some(accepted),
            _ => {}
        }
    }
    gzip.or(any).unwrap_or(false)
}

/// A body in both forms. The missing one is derived on first use, and kept.
pub(crate) struct Precompressed {
    media_type: HeaderValue,
    plain: OnceLock<TaggedBody>,
    gzip: OnceLock<TaggedBody>,
}

/// A body and its `ETag`.
type TaggedBody = (Bytes, Bytes);

impl Precompressed {
    /// Creates it from the plain body.
    pub(crate) fn from_plain(media_type: &'static str, body: impl Into<Bytes>) -> Self {
        let plain = OnceLock::from(with_tag(body, [], None));
        Self { media_type: HeaderValue::from_static(media_type), plain, gzip: OnceLock::new() }
    }

    /// Creates it from the compressed body.
    pub(crate) fn from_gzip(media_type: &'static str, body: &'static [u8]) -> Self {
        let gzip = OnceLock::from(with_tag(body, [], None));
        Self { media_type: HeaderValue::from_static(media_type), plain: OnceLock::new(), gzip }
    }

    /// Answers 200 with the form that the client accepts, or 304 if the client has it already. Refuses any query.
    pub(crate) fn answer(&self, head: &Parts) -> Result<Response, ApiError> {
        query::refuse(&head.uri)?;
        let gzip = accepts_gzip(&head.headers);
        let (body, tag) = if gzip { self.gzip() } else { self.plain() }.clone();
        let mut response = IfNoneMatch::new(&head.headers).answer(body, tag, None);
        let found = response.status() == StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Authorization, Accept-Encoding"));
        if found {
            headers.insert(header::CONTENT_TYPE, self.media_type.clone());
            if gzip {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        Ok(response)
    }

    fn gzip(&self) -> &TaggedBody {
        self.gzip.get_or_init(|| with_tag(compress(&self.plain().0), [], None))
    }

    fn plain(&self) -> &TaggedBody {
        self.plain.get_or_init(|| with_tag(decompress(&self.gzip().0), [], None))
    }
}

fn compress(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default()
}

fn decompress(gzip: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    // The embedded files are valid gzip; a test checks that.
    let _ = GzDecoder::new(gzip).read_to_end(&mut plain);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_if_it_or_anything_is_listed_and_not_refused() {
        for (header, accepted) in [
            ("gzip", true),
            ("GZIP", true),
            ("x-gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("gzip, deflate, br, zstd", true),
            ("gzip ; Q=0.001", true),
            ("*", true),
            ("", false),
            ("identity", false),
            ("br", false),
            ("gzip;q=0", false),
            ("gzip;q=0.000, *", false),
            ("*;q=0", false),
            ("gzip;q=high", false),
            ("gzipped", false),
        ] {
            assert_eq!(lists_gzip(header.split(',')), accepted, "{header}");
        }
    }

    #[test]
    fn each_form_is_derived_from_the_other() {
        let plain = "dog, cat, dog, cat, ".repeat(100);
        let forms = Precompressed::from_plain("text/plain", plain.clone());
        let (gzip, gzip_tag) = forms.gzip();
        assert!(gzip.len() < plain.len() / 10);
        assert_ne!(*gzip_tag, forms.plain().1);
        assert_eq!(decompress(gzip), plain.as_bytes());
    }
}
