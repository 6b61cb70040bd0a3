//! `GET /docs`: a page that shows the OpenAPI document and can call the service, and the articles below it.
//!
//! **Invariants:** the binary contains everything that the pages need, and their `Content-Security-Policy` lets them load
//! and call only this service and the servers of the document.

use std::iter;

use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use petstore_config::{BaseUrl, InterfaceSettings};
use petstore_wire::json;

use super::articles::{ARTICLES, operations_page, search_index};
use super::precompressed::Precompressed;
use crate::error::ApiError;
use crate::response::Response;

const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file that is embedded in the binary, plain or compressed.
#[derive(Clone, Copy)]
enum Asset {
    Plain(&'static str),
    Gzip(&'static [u8]),
}

/// The text of the articles, which the pages load when the reader searches.
const SEARCH_INDEX: &str = "/docs/search.json";

/// The other files that the pages load: path, media type and content.
const FILES: [(&str, &str, Asset); 11] = [
    ("/docs/page.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/page.js"))),
    ("/docs/samples.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/samples.js"))),
    ("/docs/languages.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/languages.js"))),
    ("/docs/article.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/article.js"))),
    ("/docs/navigation.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/navigation.js"))),
    ("/docs/openapi.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/openapi.js"))),
    ("/docs/search.js", JAVASCRIPT, Asset::Plain(include_str!("../../assets/search.js"))),
    ("/docs/page.css", CSS, Asset::Plain(include_str!("../../assets/page.css"))),
    ("/docs/icon.svg", SVG, Asset::Plain(include_str!("../../assets/icon.svg"))),
    (
        "/docs/swagger-ui-bundle.js",
        JAVASCRIPT,
        Asset::Gzip(include_bytes!("../../assets/swagger-ui/swagger-ui-bundle.js.gz")),
    ),
    ("/docs/licences.txt", TEXT, Asset::Plain(LICENCES)),
];

/// The pictures of the articles: path, media type and content.
const PICTURES: &[(&str, &str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/pictures.rs"));

/// The licences of Swagger UI and of the packages in its bundle.
const LICENCES: &str = concat!(
    include_str!("../../assets/swagger-ui/NOTICE"),
    "\n",
    include_str!("../../assets/swagger-ui/LICENSE"),
    "\n",
    include_str!("../../assets/swagger-ui/swagger-ui-bundle.js.LICENSE.txt"),
);

/// The pages that were renamed or merged into others, and where they lead: relative to the page, so that the link also works
/// behind a proxy that adds a path prefix. A browser keeps the fragment.
pub(crate) const MOVED_PAGES: [(&str, &str); 5] = [
    ("/docs/retries", "errors"),
    ("/docs/guide", "quickstart"),
    ("/docs/interface", "conventions"),
    ("/docs/testing", "sandbox"),
    ("/docs/sdks", "quickstart"),
];

/// The pages and files as served, in the order of [`DocsPage::paths`].
pub(crate) struct DocsPage {
    files: Vec<Precompressed>,
    policy: HeaderValue,
}

impl DocsPage {
    /// Renders the pages, with the operations of this OpenAPI document in their navigation.
    pub(crate) fn new(settings: &InterfaceSettings, document: &str) -> Self {
        let document = serde_json::from_str(document).unwrap_or_default();
        let pages = iter::once(operations_page(&document));
        let pages = pages.chain(ARTICLES.iter().map(|article| article.page(&document)));
        let files = FILES.into_iter().map(|(_, media_type, body)| match body {
            Asset::Plain(text) => Precompressed::from_plain(media_type, text),
            Asset::Gzip(bytes) => Precompressed::from_gzip(media_type, bytes),
        });
        let index = iter::once(Precompressed::from_plain(json::MEDIA_TYPE, search_index()));
        let pictures =
            PICTURES.iter().map(|(_, media_type, body)| Precompressed::from_plain(media_type, *body));
        let pages = pages.map(|page| Precompressed::from_plain(HTML, page));
        let files = pages.chain(index).chain(files).chain(pictures).collect();
        Self { files, policy: policy(settings) }
    }

    /// The path of each page and file. Any other path gets the usual 404.
    pub(crate) fn paths() -> impl Iterator<Item = &'static str> {
        let pages = iter::once("/docs").chain(ARTICLES.iter().map(|article| article.path));
        let files = FILES.into_iter().map(|(path, _, _)| path);
        pages.chain([SEARCH_INDEX]).chain(files).chain(PICTURES.iter().map(|(path, _, _)| *path))
    }

    /// Answers with a file: the index of its path in [`paths`](Self::paths).
    pub(crate) fn answer(&self, file: usize, head: &Parts) -> Result<Response, ApiError> {
        let mut response = self.files[file].answer(head)?;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        Ok(response)
    }
}

/// The `Content-Security-Policy` of the page. No inline scripts or styles, no `eval`.
fn policy(settings: &InterfaceSettings) -> HeaderValue {
    let servers = [&settings.public_base_url, &settings.staging_base_url].into_iter().flatten();
    let callable: Vec<&str> = iter::once("'self'").chain(servers.map(BaseUrl::origin)).collect();
    let callable = callable.join(" ");
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src {callable}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    // Base URLs were checked on startup: always a valid header value.
    HeaderValue::from_str(&policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
}
