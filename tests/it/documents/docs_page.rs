//! The page at `/docs` and the articles below it: complete, small, without external resources and dead links.
//! `tests/browser` checks how they behave.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::support::TestService;
use crate::support::openapi::DOCUMENT;

const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Loaded by search.js when the reader searches.
const SEARCH_INDEX: &str = "/docs/search.json";

/// The pages and all their files, with their media types.
const FILES: [(&str, &str); 34] = [
    ("/docs", HTML),
    ("/docs/quickstart", HTML),
    ("/docs/sandbox", HTML),
    ("/docs/errors", HTML),
    ("/docs/orders", HTML),
    ("/docs/events", HTML),
    ("/docs/conventions", HTML),
    ("/docs/keys", HTML),
    ("/docs/glossary", HTML),
    ("/docs/tour", HTML),
    ("/docs/page.js", JAVASCRIPT),
    ("/docs/samples.js", JAVASCRIPT),
    ("/docs/languages.js", JAVASCRIPT),
    ("/docs/article.js", JAVASCRIPT),
    ("/docs/navigation.js", JAVASCRIPT),
    ("/docs/openapi.js", JAVASCRIPT),
    ("/docs/search.js", JAVASCRIPT),
    (SEARCH_INDEX, "application/json"),
    ("/docs/page.css", "text/css; charset=utf-8"),
    ("/docs/icon.svg", "image/svg+xml"),
    ("/docs/img/batching.svg", "image/svg+xml"),
    ("/docs/img/event-order.svg", "image/svg+xml"),
    ("/docs/img/failover.svg", "image/svg+xml"),
    ("/docs/img/idempotency.svg", "image/svg+xml"),
    ("/docs/img/key-cache.svg", "image/svg+xml"),
    ("/docs/img/path.svg", "image/svg+xml"),
    ("/docs/img/quorum.svg", "image/svg+xml"),
    ("/docs/img/replication.svg", "image/svg+xml"),
    ("/docs/img/shop-dark.png", "image/png"),
    ("/docs/img/shop.png", "image/png"),
    ("/docs/img/states.svg", "image/svg+xml"),
    ("/docs/img/two-buyers.svg", "image/svg+xml"),
    ("/docs/swagger-ui-bundle.js", JAVASCRIPT),
    ("/docs/licences.txt", "text/plain; charset=utf-8"),
];

/// The paths of the pages.
fn pages() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().filter(|(_, media_type)| *media_type == HTML).map(|(path, _)| path)
}

/// An answer before decompression.
struct RawAnswer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl RawAnswer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn decompressed(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        match self.header("content-encoding") {
            "" => plain.clone_from(&self.body),
            "gzip" => drop(GzDecoder::new(&*self.body).read_to_end(&mut plain).unwrap()),
            other => panic!("{other}"),
        }
        plain
    }

    /// Status line, headers and body.
    fn bytes_on_the_wire(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
        "HTTP/1.1 200 OK\r\n\r\n".len() + headers.sum::<usize>() + self.body.len()
    }
}

/// Sends a request without a key, with these headers.
async fn send(service: &TestService, method: Method, path: &str, headers: &[(&str, &str)]) -> RawAnswer {
    let url = format!("http://{}{path}", service.address);
    let mut request = reqwest::Client::new().request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    RawAnswer { status, headers, body: response.bytes().await.unwrap().to_vec() }
}

const GZIP: (&str, &str) = ("accept-encoding", "gzip, deflate, br");

async fn html(service: &TestService, path: &str) -> String {
    String::from_utf8(send(service, Method::GET, path, &[]).await.body).unwrap()
}

/// The values of an attribute.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    html.split(start.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

/// What a page loads and links to: paths, with their fragments. Other hosts are left out.
fn references(page: &str, html: &str) -> BTreeSet<String> {
    let base = reqwest::Url::parse("http://service").unwrap().join(page).unwrap();
    let links = ["href", "src", "srcset"].into_iter().flat_map(|attribute| values(html, attribute));
    let urls = links.map(|link| base.join(link).unwrap());
    let inside = urls.filter(|url| url.host_str() == Some("service"));
    inside
        .map(|url| {
            let fragment = url.fragment().map(|fragment| format!("#{fragment}")).unwrap_or_default();
            format!("{}{fragment}", url.path())
        })
        .collect()
}

#[tokio::test]
async fn every_file_is_served_without_a_key_with_and_without_gzip() {
    let service = TestService::start().await;
    for (path, media_type) in FILES.into_iter().chain([("/openapi.json", "application/json")]) {
        let plain = send(&service, Method::GET, path, &[]).await;
        let gzip = send(&service, Method::GET, path, &[GZIP]).await;
        for answer in [&plain, &gzip] {
            assert_eq!((answer.status, answer.header("content-type")), (200, media_type), "{path}");
            assert_eq!(answer.header("content-length"), answer.body.len().to_string(), "{path}");
            assert_eq!(answer.header("cache-control"), "private, no-cache", "{path}");
            assert_eq!(answer.header("vary"), "Authorization, Accept-Encoding", "{path}");
        }
        assert_eq!(
            (plain.header("content-encoding"), gzip.header("content-encoding")),
            ("", "gzip"),
            "{path}"
        );
        assert!(gzip.body.len() < plain.body.len(), "{path}");
        assert_eq!(gzip.decompressed(), plain.body, "{path}");
        assert_ne!(gzip.header("etag"), plain.header("etag"), "{path}");
    }
}

#[tokio::test]
async fn a_cached_file_gets_304_only_in_the_encoding_that_the_client_accepts() {
    let service = TestService::start().await;
    for (path, _) in FILES.into_iter().chain([("/openapi.json", "")]) {
        let plain = send(&service, Method::GET, path, &[]).await;
        let gzip = send(&service, Method::GET, path, &[GZIP]).await;
        let (plain_tag, gzip_tag) = (plain.header("etag"), gzip.header("etag"));
        for (headers, status) in [
            (&[("if-none-match", plain_tag)][..], 304),
            (&[("if-none-match", gzip_tag), GZIP], 304),
            (&[("if-none-match", gzip_tag)], 200),
            (&[("if-none-match", plain_tag), GZIP], 200),
        ] {
            let answer = send(&service, Method::GET, path, headers).await;
            assert_eq!(answer.status, status, "{path} {headers:?}");
            assert_eq!(answer.body.is_empty(), status == 304, "{path} {headers:?}");
            assert_eq!(answer.header("vary"), "Authorization, Accept-Encoding", "{path}");
            if status == 304 {
                assert_eq!(
                    (answer.header("content-type"), answer.header("content-encoding")),
                    ("", ""),
                    "{path}"
                );
            }
        }
    }
}

#[tokio::test]
async fn head_answers_as_get_without_the_body_with_and_without_gzip() {
    let service = TestService::start().await;
    for (path, _) in FILES {
        for headers in [&[][..], &[GZIP]] {
            let get = send(&service, Method::GET, path, headers).await;
            let head = send(&service, Method::HEAD, path, headers).await;
            assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
            for name in
                ["content-type", "content-length", "content-encoding", "etag", "content-security-policy"]
            {
                assert_eq!(head.header(name), get.header(name), "{name} of {path}");
            }
        }
    }
}

#[tokio::test]
async fn every_file_has_a_strict_content_security_policy() {
    let service = TestService::start().await;
    for (path, _) in FILES {
        let answer = send(&service, Method::GET, path, &[]).await;
        assert_eq!(
            answer.header("content-security-policy"),
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "{path}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
    }
}

#[tokio::test]
async fn the_content_security_policy_allows_calls_to_the_documented_servers() {
    let service = TestService::start_with(&[
        "--public-base-url",
        "https://api.example.com/pets/v1",
        "--staging-base-url",
        "https://staging.example.com:8443/v1",
    ])
    .await;
    let answer = send(&service, Method::GET, "/docs", &[]).await;
    let policy = answer.header("content-security-policy");
    let calls = "; connect-src 'self' https://api.example.com https://staging.example.com:8443; ";
    assert!(policy.contains(calls), "{policy}");
    assert!(policy.contains("default-src 'none'; script-src 'self'; style-src 'self'; "), "{policy}");
}

#[tokio::test]
async fn each_page_and_everything_it_loads_is_small_on_the_wire() {
    let service = TestService::start().await;
    for page in pages() {
        let html = html(&service, page).await;
        let (head, body) = html.split_once("</head>").unwrap();
        let images: String = body.split("<img").skip(1).map(|rest| rest.split('>').next().unwrap()).collect();
        let loaded = references(page, &format!("{head}{images}"));
        let mut all = 0;
        let document = (page == "/docs").then_some("/openapi.json");
        for path in loaded.iter().map(String::as_str).chain([page]).chain(document) {
            let answer = send(&service, Method::GET, path, &[GZIP]).await;
            eprintln!("{path}: {} bytes", answer.bytes_on_the_wire());
            all += answer.bytes_on_the_wire();
        }
        eprintln!("{page}: {all} bytes");
        let screenshots = loaded.iter().filter(|path| FILES.contains(&(path, "image/png"))).count();
        let most = if page == "/docs" { 500_000 } else { 50_000 } + screenshots * 200_000;
        assert!(all < most, "{page}: {all} bytes");
    }
}

#[tokio::test]
async fn every_link_of_every_page_leads_to_something_and_every_file_is_used() {
    let service = TestService::start().await;
    let mut ids = BTreeMap::new();
    let mut used = BTreeSet::new();
    for page in pages() {
        let html = html(&service, page).await;
        used.extend(references(page, &html));
        ids.insert(page, values(&html, "id").into_iter().map(ToOwned::to_owned).collect::<BTreeSet<_>>());
    }
    let operations: BTreeSet<String> = DOCUMENT["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .map(|operation| {
            format!(
                "/{}/{}",
                operation["tags"][0].as_str().unwrap(),
                operation["operationId"].as_str().unwrap()
            )
        })
        .collect();
    let mut linked_operations = BTreeSet::new();
    for reference in &used {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        assert_eq!(send(&service, Method::GET, path, &[]).await.status, 200, "{reference}");
        if path == "/docs" && fragment.starts_with('/') {
            linked_operations.insert(fragment.to_owned());
        } else if !fragment.is_empty() {
            assert!(ids[path].contains(fragment), "{reference}");
        }
    }
    assert_eq!(linked_operations, operations);
    for (path, _) in FILES.into_iter().filter(|(path, _)| *path != SEARCH_INDEX) {
        assert!(used.contains(path), "{path}");
    }
    assert!(used.contains("/openapi.json"));
}

#[tokio::test]
async fn an_article_has_the_headings_of_its_source_and_no_link_to_files_that_are_not_served() {
    let service = TestService::start().await;
    let orders = html(&service, "/docs/orders").await;
    assert!(orders.contains("<h1 id=\"orders\">Orders</h1>"), "{orders}");
    assert!(orders.contains("<h2 id=\"state-transitions\">State transitions</h2>"));
    assert!(orders.contains("<title>Orders – Pet Store API</title>"));
    // Links to the READMEs of the examples in the source.
    assert!(!html(&service, "/docs/quickstart").await.contains(".md\""));
    let conventions = html(&service, "/docs/conventions").await;
    assert!(conventions.contains("<a href=\"errors\">Errors and retries</a>"));
}

#[tokio::test]
async fn every_error_code_can_be_linked_to_and_only_their_groups_are_in_the_navigation() {
    let service = TestService::start().await;
    let errors = html(&service, "/docs/errors").await;
    assert!(errors.contains("<h4 id=\"invalid_header\"><code>invalid_header</code></h4>"), "{errors}");
    assert!(errors.contains("<a href=\"../docs/errors#error-codes\">Error codes</a>"));
    assert!(!errors.contains("<a href=\"../docs/errors#invalid_header\">"));
}

#[tokio::test]
async fn a_page_that_has_moved_redirects() {
    let service = TestService::start().await;
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let moved = [
        ("/docs/retries", "errors"),
        ("/docs/guide", "quickstart"),
        ("/docs/interface", "conventions"),
        ("/docs/testing", "sandbox"),
        ("/docs/sdks", "quickstart"),
    ];
    for (path, target) in moved {
        let url = format!("http://{}{path}", service.address);
        let answer = client.get(&url).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers()["location"].to_str().unwrap()), (303, target));
        let page = reqwest::get(&url).await.unwrap();
        assert_eq!((page.status().as_u16(), page.url().path()), (200, &*format!("/docs/{target}")));
    }
}

#[tokio::test]
async fn our_files_reference_no_external_url_and_contain_no_inline_code() {
    let service = TestService::start().await;
    // Not Swagger UI's; and an article may link to another host, or mention one.
    let excluded = ["/docs/swagger-ui-bundle.js", "/docs/licences.txt", SEARCH_INDEX];
    let ours = FILES
        .into_iter()
        .filter(|(path, media_type)| ![HTML, "image/png"].contains(media_type) && !excluded.contains(path));
    for (path, _) in ours {
        // The SVG namespace is a name, not fetched; a marker is in the same file; `curl(` is a function.
        let text = html(&service, path).await;
        let text = text
            .replace("xmlns=\"http://www.w3.org/2000/svg\"", "")
            .replace("url(#", "")
            .replace("curl(", "");
        for outside in ["http:", "https:", "\"//", "url(", "@import", "sourceMappingURL"] {
            assert!(!text.contains(outside), "{path} has {outside}");
        }
    }
    for page in pages() {
        let html = html(&service, page).await;
        for inline in ["<style", " style=", "<script>", " onclick=", " onload=", "javascript:", " src=\"http"]
        {
            assert!(!html.contains(inline), "{page} has {inline}");
        }
        assert!(page != "/docs" || !html.contains("://"), "{page}");
    }
}

#[tokio::test]
async fn the_page_title_matches_the_document_title() {
    let service = TestService::start().await;
    let html = html(&service, "/docs").await;
    let title = format!("{} API", DOCUMENT["info"]["title"].as_str().unwrap());
    assert!(html.contains(&format!("<title>{title}</title>")));
    assert!(html.contains(&format!(">{title}</h1>")));
}

#[tokio::test]
async fn the_vendored_swagger_ui_has_the_pinned_version() {
    let script = include_str!("../../../scripts/vendor-swagger-ui");
    let version = script.lines().find_map(|line| line.strip_prefix("version=")).unwrap();
    let service = TestService::start().await;
    let script = send(&service, Method::GET, "/docs/swagger-ui-bundle.js", &[]).await.body;
    let script = String::from_utf8(script).unwrap();
    assert!(script.contains(&format!("PACKAGE_VERSION:\"{version}\"")), "run scripts/vendor-swagger-ui");
}

#[tokio::test]
async fn unknown_paths_parameters_and_methods_under_docs_get_the_usual_errors() {
    let service = TestService::start().await;
    let client = service.client.without_key();
    for path in [
        "/docs/",
        "/docs/page",
        "/docs/page.js/",
        "/docs/Page.js",
        "/docs/swagger-ui.css",
        "/docs/a/b",
        "/docs/guide/",
        "/docs/quickstart.md",
        "/docs/operations",
        "/docs/img/docs.png",
        "/docs/page.html",
    ] {
        assert_eq!(client.get(path).await.error(), (404, "route_not_found".into()), "{path}");
    }
    for path in ["/docs?url=elsewhere", "/docs/page.js?v=1", "/docs/quickstart?a=b"] {
        assert_eq!(client.get(path).await.error(), (400, "unknown_parameter".into()), "{path}");
    }
    for path in ["/docs", "/docs/page.css"] {
        let answer = client.send(Method::POST, path, |request| request).await;
        assert_eq!(answer.error(), (405, "method_not_allowed".into()), "{path}");
        assert_eq!(answer.headers("allow"), ["GET, HEAD, OPTIONS"], "{path}");
    }
}
