//! The page at `/docs`: complete, small, and without external resources. `tests/browser` checks how it behaves.

use std::collections::BTreeSet;
use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::support::TestService;
use crate::support::document::DOCUMENT;

/// The page and all its files, with their media types.
const FILES: [(&str, &str); 6] = [
    ("/docs", "text/html; charset=utf-8"),
    ("/docs/page.js", "text/javascript; charset=utf-8"),
    ("/docs/page.css", "text/css; charset=utf-8"),
    ("/docs/icon.svg", "image/svg+xml"),
    ("/docs/swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
    ("/docs/licences.txt", "text/plain; charset=utf-8"),
];

const HTML: &str = include_str!("../../assets/docs/page.html");

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

/// The paths that the page references.
fn referenced_by_the_page() -> BTreeSet<String> {
    let attributes = ["href=\"", "src=\""];
    let values = attributes.iter().flat_map(|attribute| HTML.split(attribute).skip(1));
    values.map(|rest| format!("/{}", rest.split('"').next().unwrap())).collect()
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
async fn the_page_and_everything_it_loads_is_under_500_kilobytes_on_the_wire() {
    let service = TestService::start().await;
    let mut all = 0;
    for path in referenced_by_the_page().into_iter().chain(["/docs".to_owned()]) {
        let answer = send(&service, Method::GET, &path, &[GZIP]).await;
        eprintln!("{path}: {} bytes", answer.bytes_on_the_wire());
        all += answer.bytes_on_the_wire();
    }
    eprintln!("all: {all} bytes");
    assert!(all < 500_000, "{all} bytes");
}

#[tokio::test]
async fn every_file_that_the_page_references_is_served_and_every_served_file_is_referenced() {
    let service = TestService::start().await;
    let referenced = referenced_by_the_page();
    for path in &referenced {
        assert_eq!(send(&service, Method::GET, path, &[]).await.status, 200, "{path}");
    }
    for (path, _) in &FILES[1..] {
        assert!(referenced.contains(*path), "{path}");
    }
    assert!(referenced.contains("/openapi.json"));
}

#[tokio::test]
async fn our_files_reference_no_external_url_and_contain_no_inline_code() {
    let service = TestService::start().await;
    for path in ["/docs", "/docs/page.js", "/docs/page.css", "/docs/icon.svg"] {
        let text = String::from_utf8(send(&service, Method::GET, path, &[]).await.body).unwrap();
        // The SVG namespace is a name, not fetched.
        let text = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in ["http:", "https:", "\"//", "url(", "@import", "sourceMappingURL"] {
            assert!(!text.contains(outside), "{path} has {outside}");
        }
    }
    for inline in ["<style", " style=", "<script>", " onclick=", " onload=", "javascript:"] {
        assert!(!HTML.contains(inline), "{inline}");
    }
}

#[test]
fn the_page_title_matches_the_document_title() {
    let title = format!("{} API", DOCUMENT["info"]["title"].as_str().unwrap());
    assert!(HTML.contains(&format!("<title>{title}</title>")));
    assert!(HTML.contains(&format!(">{title}</h1>")));
}

#[tokio::test]
async fn the_vendored_swagger_ui_has_the_pinned_version() {
    let script = include_str!("../../scripts/vendor-swagger-ui");
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
    for path in
        ["/docs/", "/docs/page", "/docs/page.js/", "/docs/Page.js", "/docs/swagger-ui.css", "/docs/a/b"]
    {
        assert_eq!(client.get(path).await.error(), (404, "route_not_found".into()), "{path}");
    }
    for path in ["/docs?url=elsewhere", "/docs/page.js?v=1"] {
        assert_eq!(client.get(path).await.error(), (400, "unknown_parameter".into()), "{path}");
    }
    for path in ["/docs", "/docs/page.css"] {
        let answer = client.send(Method::POST, path, |request| request).await;
        assert_eq!(answer.error(), (405, "method_not_allowed".into()), "{path}");
        assert_eq!(answer.headers("allow"), ["GET, HEAD, OPTIONS"], "{path}");
    }
}
