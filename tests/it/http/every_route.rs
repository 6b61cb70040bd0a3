//! The rules for every route: paths, methods, headers, limits, caching, CORS, panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use reqwest::Method;
use serde_json::json;

use crate::support::TestService;
use crate::support::openapi::{operations, path_with_id};
use crate::support::postgres::{key, wait_for_blocked_statement};
use crate::support::raw_http::{exchange, is_hypers, parse};
use crate::support::wait::eventually;

#[tokio::test]
async fn an_unknown_path_answers_404() {
    let service = TestService::start().await;
    for path in [
        "/pets",
        "/v2/pets",
        "/V1/pets",
        "/v1",
        "/v1/",
        "/v1/pet",
        "/v1/Pets",
        "/v1/pets/",
        "/v1//pets",
        "//v1/pets",
        "/v1/pets/1/",
        "/v1/pets//1",
        "/v1/pets/1/photos",
        "/v1/%70ets",
        "/v1/store",
        "/v1/store/orders/",
        "/v1/store/orders/1/complete/",
        "/v1/store/orders/1/return",
        "/openapi.json/",
        "/openapi.yaml",
        "/livez",
        "/metrics",
        "/favicon.ico",
    ] {
        let answer = service.client.get(path).await;
        assert_eq!(answer.error(), (404, "route_not_found".into()), "{path}");
    }
}

#[tokio::test]
async fn a_wrong_path_is_answered_with_the_nearest_one() {
    let service = TestService::start().await;
    for (path, nearest) in
        [("/v1/orders", "/v1/store/orders"), ("/pets", "/v1/pets"), ("/v1/pet/7", "/v1/pets/{petId}")]
    {
        let message = format!("This path does not exist: did you mean `{nearest}`?");
        assert_eq!(service.client.get(path).await.json()["message"], message);
    }
}

#[tokio::test]
async fn an_error_names_the_field_parameter_or_header_that_is_wrong() {
    let service = TestService::start().await;
    let client = &service.client;
    for (body, field) in [
        (r#"{"categoryId":1}"#, json!("name")),
        (r#"{"name":"Rex","categoryId":"1"}"#, json!("categoryId")),
        (r#"{"name":"Rex","categoryId":1,"a/b":1}"#, json!("a/b")),
        (r#"{"name":"Rex","categoryId":1,"id":1}"#, json!("id")),
        ("[]", json!(null)),
    ] {
        assert_eq!(client.post_text("/v1/pets", body).await.json()["field"], field, "{body}");
    }
    for (path, field) in [
        ("/v1/pets?limit=0", json!("limit")),
        ("/v1/pets?stauts=sold", json!("stauts")),
        ("/v1/pets?cursor=1", json!("cursor")),
        ("/v1/pets/99", json!(null)),
    ] {
        assert_eq!(client.get(path).await.json()["field"], field, "{path}");
    }
    for (name, value) in
        [("Idempotency-Key", ""), ("Content-Encoding", "gzip"), ("Content-Type", "text/plain")]
    {
        let answer = client
            .send(Method::POST, "/v1/pets", |request| {
                let media_type = if name == "Content-Type" { value } else { "application/json" };
                let request =
                    request.header("content-type", media_type).body(r#"{"name":"Rex","categoryId":1}"#);
                if name == "Content-Type" { request } else { request.header(name, value) }
            })
            .await;
        assert_eq!(answer.json()["field"], name, "{answer:?}");
    }
}

#[tokio::test]
async fn the_root_leads_to_the_documentation() {
    let service = TestService::start().await;
    let answers = exchange(service.address, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answers.starts_with("HTTP/1.1 303 See Other\r\nlocation: /docs\r\n"), "{answers}");
}

#[tokio::test]
async fn an_operation_that_takes_no_body_answers_400_to_one() {
    let service = TestService::start().await;
    let pet = service.client.add("Rex", Some("available")).await;
    let order = service.client.post("/v1/store/orders", &json!({"petId": pet})).await.json()["id"].clone();
    let mut tried = 0;
    for (pattern, method, operation) in operations() {
        if operation.get("requestBody").is_some() {
            continue;
        }
        tried += 1;
        let id = if pattern.contains("orders") { order.as_i64().unwrap() } else { pet };
        let (path, method): (_, Method) =
            (path_with_id(&pattern, id), method.to_uppercase().parse().unwrap());
        for body in ["{}", r#"{"reason": "too loud"}"#] {
            let answer = service.client.send(method.clone(), &path, |request| request.body(body)).await;
            assert_eq!(answer.error(), (400, "invalid_json".into()), "{method} {path}");
            assert_eq!(
                answer.json()["message"],
                "This operation accepts no body: send the request without a body."
            );
        }
        let empty = service.client.send(method.clone(), &path, |request| request.body("")).await;
        assert!([200, 409].contains(&empty.status), "{method} {path} {}", empty.status);
    }
    assert_eq!(tried, 8);
}

#[tokio::test]
async fn a_method_that_a_path_does_not_support_answers_405_with_the_allowed_methods() {
    let service = TestService::start().await;
    for (path, method, allow) in [
        ("/v1/pets", Method::DELETE, "GET, HEAD, POST, OPTIONS"),
        ("/v1/pets", Method::PUT, "GET, HEAD, POST, OPTIONS"),
        ("/v1/pets", Method::TRACE, "GET, HEAD, POST, OPTIONS"),
        ("/v1/pets/1", Method::POST, "GET, HEAD, PATCH, DELETE, OPTIONS"),
        ("/v1/pets/1", "BREW".parse().unwrap(), "GET, HEAD, PATCH, DELETE, OPTIONS"),
        ("/v1/store/orders", Method::PATCH, "GET, HEAD, POST, OPTIONS"),
        ("/v1/store/orders/1", Method::POST, "GET, HEAD, PATCH, OPTIONS"),
        ("/v1/store/orders/1/complete", Method::GET, "POST, OPTIONS"),
        ("/openapi.json", Method::POST, "GET, HEAD, OPTIONS"),
    ] {
        let answer = service.client.send(method.clone(), path, |request| request).await;
        assert_eq!(answer.error(), (405, "method_not_allowed".into()), "{method} {path}");
        assert_eq!(answer.headers("allow"), [allow], "{method} {path}");
    }
}

#[tokio::test]
async fn options_answers_204_with_the_allowed_methods_without_a_key() {
    let service = TestService::start().await;
    for (path, allow) in [
        ("/v1/pets", "GET, HEAD, POST, OPTIONS"),
        ("/v1/pets/1", "GET, HEAD, PATCH, DELETE, OPTIONS"),
        ("/v1/store/orders/1/cancel", "POST, OPTIONS"),
        ("/openapi.json", "GET, HEAD, OPTIONS"),
    ] {
        let answer = service.client.without_key().send(Method::OPTIONS, path, |request| request).await;
        assert_eq!((answer.status, &*answer.body), (204, ""), "{path}");
        assert_eq!(answer.headers("allow"), [allow], "{path}");
    }
    let unknown = service.client.without_key().send(Method::OPTIONS, "/v1/nope", |request| request).await;
    assert_eq!(unknown.error(), (404, "route_not_found".into()));
}

#[tokio::test]
async fn head_answers_as_get_without_the_body() {
    let service = TestService::start().await;
    service.database.add_pets(30).await;
    for path in ["/v1/pets", "/v1/pets?limit=0", "/v1/pets/1", "/v1/pets/99", "/v1/nope", "/openapi.json"] {
        let get = service.client.get(path).await;
        let head = service.client.send(Method::HEAD, path, |request| request).await;
        assert_eq!((head.status, &*head.body), (get.status, ""), "{path}");
        for name in ["content-type", "content-length", "etag", "link", "cache-control", "sunset"] {
            assert_eq!(head.headers(name), get.headers(name), "{name} of {path}");
        }
    }
}

#[tokio::test]
async fn checks_run_in_the_documented_order() {
    let service = TestService::start().await;
    let long = "x".repeat(9_000);
    let (client, without_key) = (&service.client, service.client.without_key());
    let body = |request: reqwest::RequestBuilder| request.body(" ".repeat(20_000));
    let json = |request: reqwest::RequestBuilder| {
        request.header("content-type", "application/json").body(" ".repeat(20_000))
    };
    // Each request has its own error and all those below it.
    for (answer, status) in [
        (without_key.send(Method::POST, &format!("/v1/nope?{long}"), body).await, 414),
        (without_key.send(Method::POST, "/v1/nope?x=1", body).await, 401),
        (client.send(Method::POST, "/v1/nope?x=1", body).await, 404),
        (client.send(Method::PUT, "/v1/pets?x=1", body).await, 405),
        (client.send(Method::POST, "/v1/pets", body).await, 415),
        (client.send(Method::POST, "/v1/pets", json).await, 413),
        (client.post_text("/v1/pets", "").await, 400),
    ] {
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[tokio::test]
async fn a_scope_is_checked_after_the_method_and_before_the_media_type() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    database.execute("UPDATE api_keys SET scopes = '{pets:read}'", &[]).await.unwrap();
    let put = service.client.send(Method::PUT, "/v1/pets", |request| request.body("x")).await;
    assert_eq!(put.status, 405);
    let post = service.client.send(Method::POST, "/v1/pets", |request| request.body("x")).await;
    assert_eq!(post.status, 403);
}

#[tokio::test]
async fn a_uri_of_8_kib_is_accepted_and_one_more_byte_answers_414() {
    let service = TestService::start().await;
    let path = "/v1/pets?cursor=";
    let uri = |length: usize| format!("{path}{}", "x".repeat(length - path.len()));
    assert_eq!(
        service.client.get(&uri(8192)).await.status,
        400,
        "a bad cursor in a URI that is short enough"
    );
    assert_eq!(service.client.get(&uri(8193)).await.error(), (414, "uri_too_long".into()));
    assert_eq!(service.client.get(&uri(20_000)).await.error(), (414, "uri_too_long".into()));
}

#[tokio::test]
async fn headers_of_16_kib_are_accepted_and_more_answer_431() {
    let service = TestService::start().await;
    let with_header =
        async |length: usize| service.client.get_with_header("/v1/pets", "x-long", &"x".repeat(length)).await;
    assert_eq!(with_header(16_000).await.status, 200);
    assert_eq!(with_header(16_384).await.error(), (431, "headers_too_large".into()));
    assert_eq!(with_header(20_000).await.error(), (431, "headers_too_large".into()));
}

#[tokio::test]
async fn a_head_that_hyper_cannot_buffer_gets_431_without_a_body() {
    let service = TestService::start().await;
    let long = "x".repeat(40_000);
    for (what, head) in [
        ("a long path", format!("GET /{long} HTTP/1.1\r\nHost: a")),
        ("a long header", format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}")),
        ("101 headers", format!("GET / HTTP/1.1\r\nHost: a{}", "\r\nX: y".repeat(100))),
    ] {
        let answer = parse(&exchange(service.address, format!("{head}\r\n\r\n").as_bytes()).await);
        assert!(is_hypers(&answer) && answer.status == 431, "{what}: {answer:?}");
    }
}

#[tokio::test]
async fn an_http_1_1_request_must_have_exactly_one_host_header() {
    let service = TestService::start().await;
    let key = key();
    let request = |version: &str, hosts: &str| {
        format!(
            "GET /v1/pets HTTP/{version}\r\n{hosts}Authorization: Bearer {}\r\nConnection: close\r\n\r\n",
            key.reveal()
        )
    };
    for (version, hosts, status) in [
        ("1.1", "Host: a\r\n", "200"),
        ("1.1", "", "400"),
        ("1.1", "Host: a\r\nHost: a\r\n", "400"),
        ("1.0", "", "200"),
    ] {
        let answer = exchange(service.address, request(version, hosts).as_bytes()).await;
        assert_eq!(answer[9..12], *status, "{version} {hosts:?}: {answer}");
        assert_eq!(status == "400", answer.contains(r#""code":"invalid_header""#), "{answer}");
    }
}

#[tokio::test]
async fn a_safe_request_id_is_kept_and_any_other_is_replaced() {
    let service = TestService::start().await;
    let long = "x".repeat(64);
    for (sent, kept) in [
        ("checkout-42.a_B", true),
        (&*long, true),
        ("", false),
        ("two words", false),
        ("<script>", false),
        (&*format!("{long}x"), false),
        ("ö", false),
    ] {
        let answer = service.client.get_with_header("/v1/pets", "x-request-id", sent).await;
        assert_eq!(answer.header("x-request-id") == sent, kept, "{sent}");
    }
    let made = [service.client.get("/v1/pets").await, service.client.get("/v1/pets").await];
    assert_eq!(made[0].header("x-request-id").len(), 32);
    assert_ne!(made[0].header("x-request-id"), made[1].header("x-request-id"));
}

#[tokio::test]
async fn only_a_successful_get_can_be_cached() {
    let service = TestService::start().await;
    service.client.add("Rex", None).await;
    for (path, vary) in [
        ("/v1/pets", "Authorization"),
        ("/v1/pets/1", "Authorization"),
        ("/openapi.json", "Authorization, Accept-Encoding"),
    ] {
        let answer = service.client.get(path).await;
        assert_eq!(answer.header("cache-control"), "private, no-cache", "{path}");
        assert_eq!(answer.headers("vary"), [vary], "{path}");
        let etag = answer.header("etag");
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 10, "strong: {etag}");
    }
    for path in ["/v1/pets/2", "/v1/pets?limit=0", "/nope"] {
        let answer = service.client.get(path).await;
        assert_eq!((answer.header("cache-control"), answer.header("etag")), ("no-store", ""), "{path}");
    }
}

#[tokio::test]
async fn a_matching_etag_gets_304() {
    let service = TestService::start().await;
    service.database.add_pets(3).await;
    let page = service.client.get("/v1/pets?limit=2").await;
    let etag = page.header("etag");
    let send =
        async |value: &str| service.client.get_with_header("/v1/pets?limit=2", "if-none-match", value).await;
    for value in [etag.to_owned(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".to_owned()] {
        let answer = send(&value).await;
        assert_eq!((answer.status, &*answer.body), (304, ""), "{value}");
        for name in ["etag", "link", "cache-control", "vary"] {
            assert_eq!(answer.headers(name), page.headers(name), "{name}");
        }
    }
    for value in ["\"other\"", "", "nonsense", etag.trim_matches('"')] {
        assert_eq!(send(value).await.status, 200, "{value}");
    }
}

#[tokio::test]
async fn the_etag_of_a_page_changes_when_a_next_page_appears() {
    let service = TestService::start().await;
    service.database.add_pets(2).await;
    let before = service.client.get("/v1/pets?limit=2").await;
    service.client.add("Rex", None).await;
    let after = service.client.get("/v1/pets?limit=2").await;
    assert_eq!(before.body, after.body);
    assert_ne!(before.header("etag"), after.header("etag"));
}

#[tokio::test]
async fn the_accept_header_is_ignored() {
    let service = TestService::start().await;
    let answer = service.client.get_with_header("/v1/pets", "accept", "text/html").await;
    assert_eq!(answer.header("content-type"), "application/json");
}

#[tokio::test]
async fn cors_headers_are_sent_only_to_listed_origins() {
    let off = TestService::start().await;
    let on = TestService::start_with(&["--cors-origin", "https://shop.example,https://admin.example"]).await;
    for (service, origin, listed) in [
        (&off, "https://shop.example", false),
        (&on, "https://shop.example", true),
        (&on, "https://admin.example", true),
        (&on, "https://shop.example.evil", false),
        (&on, "null", false),
    ] {
        let answer = service.client.get_with_header("/v1/pets", "origin", origin).await;
        let allowed = if listed { origin } else { "" };
        assert_eq!(answer.header("access-control-allow-origin"), allowed, "{origin}");
        assert_eq!(answer.header("access-control-expose-headers").contains("Link"), listed, "{origin}");
        assert_eq!(
            answer.headers("vary").contains(&"Origin"),
            std::ptr::eq(service, &raw const on),
            "{origin}"
        );
    }
}

#[tokio::test]
async fn a_preflight_from_a_listed_origin_gets_the_allowed_methods_and_headers() {
    let service = TestService::start_with(&["--cors-origin", "https://shop.example"]).await;
    let key = key();
    let send = |path: &str, origin: &str| {
        let head = format!(
            "OPTIONS {path} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: authorization\r\nConnection: close\r\n\r\n"
        );
        async move { exchange(service.address, head.as_bytes()).await }
    };
    let listed = send("/v1/pets", "https://shop.example").await;
    assert!(listed.starts_with("HTTP/1.1 204 "), "{listed}");
    assert!(listed.contains("access-control-allow-methods: DELETE, GET, HEAD, PATCH, POST\r\n"), "{listed}");
    assert!(
        listed.contains(
            "access-control-allow-headers: Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, X-Request-Id\r\n"
        ),
        "{listed}"
    );
    let other = send("/v1/pets", "https://evil.example").await;
    assert!(!other.contains("access-control-allow"), "{other}");
    // So that the browser shows the page the 404 of the request itself.
    let misspelt = send("/v1/petz", "https://shop.example").await;
    assert!(misspelt.starts_with("HTTP/1.1 204 "), "{misspelt}");
    // The page can read errors, too.
    let without_key = service.client.without_key();
    let denied = without_key.get_with_header("/v1/pets", "origin", "https://shop.example").await;
    assert_eq!(denied.header("access-control-allow-origin"), "https://shop.example");
    // A plain OPTIONS is answered as usual.
    let plain =
        service.client.send(Method::OPTIONS, "/v1/pets", |request| request.header("x", key.prefix())).await;
    assert_eq!(plain.headers("allow"), ["GET, HEAD, POST, OPTIONS"]);
}

#[tokio::test]
async fn a_panic_answers_500_and_the_service_keeps_running() {
    static BROKEN: AtomicBool = AtomicBool::new(false);
    let clock = || {
        assert!(!BROKEN.load(Ordering::Relaxed), "a broken clock");
        Timestamp::now()
    };
    let service = TestService::start_at(&[], Arc::new(clock)).await;
    service.client.add("Rex", None).await;
    for _ in 0..3 {
        BROKEN.store(true, Ordering::Relaxed);
        let answer = service.client.get("/v1/pets/1").await;
        assert_eq!(
            answer.body,
            r#"{"code":"internal_error","message":"The service failed because of a bug: please report it with the `X-Request-Id` of this response.","status":500}"#
        );
        BROKEN.store(false, Ordering::Relaxed);
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
    }
}

#[tokio::test]
async fn database_errors_do_not_leak_into_the_answer() {
    let service = TestService::start().await;
    service.client.get("/v1/pets").await;
    service.database.connect().await.batch_execute("ALTER TABLE pets RENAME TO cats").await.unwrap();
    for answer in [
        service.client.get("/v1/pets?status=sold").await,
        service.client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await,
    ] {
        assert_eq!(answer.error(), (500, "internal_error".into()));
        assert!(!answer.body.contains("pets"), "{}", answer.body);
    }
}

#[tokio::test]
async fn requests_in_flight_finish_before_the_service_stops() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    // The insert waits for this lock.
    database.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let client = service.client.clone();
    let adding = tokio::spawn(async move { client.add("Rex", None).await });
    wait_for_blocked_statement(&service.database.connect().await).await;
    let address = service.address;
    let stopping = tokio::spawn(service.stop());
    eventually("new connections are refused", async || {
        tokio::net::TcpStream::connect(address).await.is_err()
    })
    .await;
    assert!(!stopping.is_finished());
    database.batch_execute("COMMIT").await.unwrap();
    assert_eq!(adding.await.unwrap(), 1);
    stopping.await.unwrap();
}
