//! Authentication and scopes: which keys are accepted, and which errors the others get.

use petstore_domain::api_key::ApiKey;
use petstore_domain::key_record::Scope;
use reqwest::Method;
use serde_json::json;

use crate::support::TestService;
use crate::support::openapi::{operations, path_with_id};
use crate::support::postgres::key;
use crate::support::program::new_key;
use crate::support::raw_http::exchange;

const MISSING: &str = r#"{"code":"missing_api_key","message":"The API key is missing: send it as `Authorization: Bearer <API_KEY>`.","status":401}"#;
const NOT_BEARER: &str = r#"{"code":"invalid_api_key","message":"The `Authorization` header is malformed: send `Authorization: Bearer <API_KEY>`.","status":401}"#;
const INVALID: &str = r#"{"code":"invalid_api_key","message":"The API key is not valid: check that it is complete, has not expired and has not been revoked.","status":401}"#;

/// Every documented operation, and unknown paths under `/v1`.
fn routes() -> Vec<(Method, String)> {
    let mut routes = Vec::new();
    for (pattern, method, _) in operations() {
        routes.push((method.to_uppercase().parse().unwrap(), path_with_id(&pattern, 1)));
    }
    assert!(routes.len() >= 3);
    for unknown in ["/v1", "/v1/", "/v1/nope", "/v1/pets/", "/v1//pets", "/v1/pets/1/photos", "/v1/Pets"] {
        routes.push((Method::GET, unknown.to_owned()));
    }
    routes.push((Method::DELETE, "/v1/pets".to_owned()));
    routes.push((Method::HEAD, "/v1/pets".to_owned()));
    routes
}

#[tokio::test]
async fn every_route_under_v1_answers_401_without_a_key() {
    let service = TestService::start().await;
    for (method, path) in routes() {
        let answer = service.client.without_key().send(method.clone(), &path, |request| request).await;
        assert_eq!(answer.status, 401, "{method} {path}");
        assert_eq!(answer.header("www-authenticate"), r#"Bearer realm="petstore""#, "{method} {path}");
        if method != Method::HEAD {
            assert_eq!(answer.body, MISSING, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn every_route_under_v1_answers_401_to_a_bad_authorization_header() {
    let service = TestService::start().await;
    let good = key();
    let good = good.reveal();
    let unknown = ApiKey::generate(|| 1);
    let mut mistyped = good.to_owned();
    mistyped.replace_range(10..11, "x");
    let headers = [
        String::new(),
        "Bearer".into(),
        "Bearer ".into(),
        good.into(),
        format!("Basic {good}"),
        format!("Bearer {good} "),
        format!("Bearer {good},Bearer {good}"),
        format!("Bearer \"{good}\""),
        format!("Bearer {mistyped}"),
        format!("Bearer {}", unknown.reveal()),
        format!("Bearer {}", "x".repeat(5_000)),
        "Bearer psk_".into(),
    ];
    for (method, path) in routes() {
        for header in &headers {
            // The client library trims white space around a header's value, as HTTP requires.
            let (sent, header) = (header.clone(), header.trim_end());
            if header == format!("Bearer {good}") {
                continue;
            }
            let answer = service
                .client
                .without_key()
                .send(method.clone(), &path, |request| request.header("authorization", sent))
                .await;
            let challenge = r#"Bearer realm="petstore", error="invalid_token""#;
            assert_eq!(answer.status, 401, "{method} {path} {header}");
            assert_eq!(answer.header("www-authenticate"), challenge, "{method} {path} {header}");
            if method != Method::HEAD {
                let body = if header.starts_with("Bearer ") { INVALID } else { NOT_BEARER };
                assert_eq!(answer.body, body, "{method} {path} {header}");
            }
        }
    }
}

#[tokio::test]
async fn two_authorization_headers_are_refused_even_if_both_are_valid() {
    let service = TestService::start().await;
    let good = format!("Bearer {}", key().reveal());
    let answer = service.client.get_with_header("/v1/pets", "authorization", &good).await;
    assert_eq!(answer.body, INVALID);
}

#[tokio::test]
async fn the_scheme_is_not_case_sensitive_and_any_number_of_spaces_may_follow() {
    let service = TestService::start().await;
    for scheme in ["bearer", "BEARER", "Bearer   "] {
        let header = format!("{scheme} {}", key().reveal());
        let client = service.client.without_key();
        let answer = client.get_with_header("/v1/pets", "authorization", &header).await;
        assert_eq!(answer.status, 200, "{scheme}");
    }
}

#[tokio::test]
async fn a_new_key_works_at_once_for_reads_and_writes() {
    let service = TestService::start().await;
    let client = service.client_with_new_key(&[]);
    assert_eq!(client.get("/v1/pets").await.status, 200);
    assert_eq!(client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await.status, 201);
}

#[tokio::test]
async fn each_request_on_a_connection_is_authenticated_by_its_own_key() {
    let service = TestService::start().await;
    let reader = new_key(&service.database.url(), &["--scope", "pets:read"]);
    let almost = key().reveal().replacen("psk_", "psk-", 1);
    let known = key();
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for (key, status) in
        [(known.reveal(), 400), (reader.reveal(), 403), (&almost, 401), (known.reveal(), 400)]
    {
        let request = format!(
            "POST /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        // Twice: the second time, the connection knows the caller.
        requests.extend([request.clone(), request]);
        expected.extend([format!("HTTP/1.1 {status}"), format!("HTTP/1.1 {status}")]);
    }
    requests.push("GET /docs HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned());
    expected.push("HTTP/1.1 200".to_owned());
    let answers = exchange(service.address, requests.concat().as_bytes()).await;
    let statuses: Vec<_> = answers
        .match_indices("HTTP/1.1 ")
        .map(|(start, _)| &answers[start..start + "HTTP/1.1 200".len()])
        .collect();
    assert_eq!(statuses, expected);
}

#[tokio::test]
async fn every_scope_allows_exactly_the_operations_that_declare_it() {
    let service = TestService::start().await;
    for scope in Scope::ALL.map(Scope::as_str) {
        let client = service.client_with_new_key(&["--scope", scope]);
        for (pattern, method, operation) in operations() {
            let needed = operation["security"][0]["bearer"][0].as_str().expect("every operation has a scope");
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path_with_id(&pattern, 1);
            let answer = client.send(method.clone(), &path, |request| request).await;
            assert_eq!(answer.status == 403, needed != scope, "{method} {path} with {scope}");
            if needed != scope {
                assert_eq!(answer.error().1, "insufficient_scope");
                let challenge =
                    format!(r#"Bearer realm="petstore", error="insufficient_scope", scope="{needed}""#);
                assert_eq!(answer.header("www-authenticate"), challenge);
            }
        }
    }
}

#[tokio::test]
async fn an_unknown_scope_in_the_database_is_ignored() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    database.execute("UPDATE api_keys SET scopes = scopes || 'pets:groom'::text", &[]).await.unwrap();
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
}
