//! `GET /docs`: a page that shows the interface document and calls the service.
//!
//! **Invariants:** everything that the page needs is in the binary and served from here, and its policy
//! (Content-Security-Policy) lets it load and call nothing else than this service and the servers of the document.

use std::iter;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::get;

use super::precompressed::{AcceptsGzip, Precompressed};
use crate::config::{BaseUrl, InterfaceSettings};
use crate::http::AppState;
use crate::http::conditional::IfNoneMatch;
use crate::http::extractors::NoQuery;
use crate::http::pipeline::authentication::RequireScope;

const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file in the binary, as it is or compressed.
#[derive(Clone, Copy)]
enum Embedded {
    Plain(&'static str),
    Gzip(&'static [u8]),
}

/// The page and its files: where each is served, and what it is.
const FILES: [(&str, &str, Embedded); 6] = [
    ("/docs", HTML, Embedded::Plain(include_str!("../../../assets/docs/page.html"))),
    ("/docs/page.js", JAVASCRIPT, Embedded::Plain(include_str!("../../../assets/docs/page.js"))),
    ("/docs/page.css", CSS, Embedded::Plain(include_str!("../../../assets/docs/page.css"))),
    ("/docs/icon.svg", SVG, Embedded::Plain(include_str!("../../../assets/docs/icon.svg"))),
    (
        "/docs/swagger-ui-bundle.js",
        JAVASCRIPT,
        Embedded::Gzip(include_bytes!("../../../assets/docs/swagger-ui/swagger-ui-bundle.js.gz")),
    ),
    ("/docs/licences.txt", TEXT, Embedded::Plain(LICENCES)),
];

/// Those of Swagger UI, and of what is in its script.
const LICENCES: &str = concat!(
    include_str!("../../../assets/docs/swagger-ui/NOTICE"),
    "\n",
    include_str!("../../../assets/docs/swagger-ui/LICENSE"),
    "\n",
    include_str!("../../../assets/docs/swagger-ui/swagger-ui-bundle.js.LICENSE.txt"),
);

/// The files as this service serves them, in the order of [`FILES`].
pub(crate) struct DocsPage {
    files: [Precompressed; FILES.len()],
    policy: HeaderValue,
}

impl DocsPage {
    pub(crate) fn new(settings: &InterfaceSettings) -> Self {
        let files = FILES.map(|(_, media_type, body)| match body {
            Embedded::Plain(text) => Precompressed::of_plain(media_type, text),
            Embedded::Gzip(bytes) => Precompressed::of_gzip(media_type, bytes),
        });
        Self { files, policy: policy(settings) }
    }

    fn answer(&self, file: usize, known: &IfNoneMatch, gzip: AcceptsGzip) -> Response {
        let mut response = self.files[file].answer(known, gzip);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }
}

/// What the page may load and call. No inline scripts or styles, and nothing that is made from text.
fn policy(settings: &InterfaceSettings) -> HeaderValue {
    let servers = [&settings.public_base_url, &settings.staging_base_url].into_iter().flatten();
    let callable: Vec<&str> = iter::once("'self'").chain(servers.map(BaseUrl::origin)).collect();
    let callable = callable.join(" ");
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src {callable}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    // Base addresses were checked at the start: always a header's value.
    HeaderValue::from_str(&policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
}

/// A route for each file, so that any other path is answered as everywhere.
pub(crate) fn routes() -> Router<AppState> {
    FILES.into_iter().enumerate().fold(Router::new(), |routes, (file, (path, _, _))| {
        let handler =
            async move |State(app): State<AppState>,
                        known: IfNoneMatch,
                        gzip: AcceptsGzip,
                        NoQuery: NoQuery| { app.docs_page.answer(file, &known, gzip) };
        routes.route(path, get(handler).route_layer(RequireScope::new(None)))
    })
}
