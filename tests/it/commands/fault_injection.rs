//! Faults on request: what `petstore demo` does with `--fault` and `Petstore-Fault`, and that `petstore serve` has neither.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use petstore_http::FaultKind;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::demo::{Demo, TemporaryDirectory};
use crate::support::program::{ServeProcess, run};
use crate::support::repository::read;
use crate::support::{Answer, TestDatabase};

/// A demo on a database of its own, whose files need no initdb.
struct Sandbox {
    demo: Demo,
    database: TestDatabase,
    _directory: TemporaryDirectory,
}

impl Sandbox {
    async fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let (directory, database) = (TemporaryDirectory::new(), TestDatabase::empty().await);
        let url = database.url();
        let environment = [&[("DATABASE_URL", url.as_str())], environment].concat();
        let demo = Demo::start_with(&directory, arguments, &environment);
        Self { demo, database, _directory: directory }
    }

    /// Sends a request with these headers, and returns the answer, or nothing if the connection was closed without one. Unlike
    /// the usual client, it accepts what is not in the document.
    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Option<Answer> {
        let url = format!("{}{path}", self.demo.field("Address").strip_suffix("/v1").unwrap());
        let mut request = reqwest::Client::new().request(method, url).bearer_auth(self.demo.field("Key"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                assert!(error.is_request() && !error.is_connect(), "{error:?}");
                return None;
            }
        };
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Some(Answer { status, headers, body: response.text().await.unwrap() })
    }

    /// Adds a pet with this name.
    async fn add(&self, name: &str, headers: &[(&str, &str)]) -> Option<Answer> {
        let body = json!({"name": name, "categoryId": 1, "status": "available"});
        self.send(Method::POST, "/v1/pets", headers, Some(&body)).await
    }

    /// How many pets have this name.
    async fn count(&self, name: &str) -> i64 {
        let client = self.database.connect().await;
        client.query_one("SELECT count(*) FROM pets WHERE name = $1", &[&name]).await.unwrap().get(0)
    }
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_takes_effect_once_and_its_retry_gets_the_answer() {
    let sandbox = Sandbox::start(&[], &[]).await;
    let headers = [("petstore-fault", "lost-answer"), ("idempotency-key", "k")];
    assert!(sandbox.add("Ada", &headers).await.is_none());
    assert_eq!(sandbox.count("Ada").await, 1, "it has taken effect");
    for _ in 0..2 {
        let answer = sandbox.add("Ada", &headers).await.unwrap();
        assert_eq!((answer.status, answer.is_replayed()), (201, true), "{answer:?}");
    }
    assert_eq!(sandbox.count("Ada").await, 1);

    // Without a key, the service cannot know a retry: each attempt fails, and adds a pet.
    for _ in 0..2 {
        assert!(sandbox.add("Bo", &[("petstore-fault", "lost-answer")]).await.is_none());
    }
    assert_eq!(sandbox.count("Bo").await, 2);
}

#[tokio::test]
async fn an_operation_without_a_key_fails_once_if_its_retries_have_the_same_request_id() {
    let sandbox = Sandbox::start(&[], &[]).await;
    let pet = sandbox.add("Ada", &[]).await.unwrap().json()["id"].clone();
    let order = json!({"petId": pet});
    let placed = sandbox.send(Method::POST, "/v1/store/orders", &[], Some(&order)).await.unwrap().json();
    let complete = format!("/v1/store/orders/{}/complete", placed["id"]);
    let headers = [("petstore-fault", "lost-answer"), ("x-request-id", "test-1")];
    assert!(sandbox.send(Method::POST, &complete, &headers, None).await.is_none());
    let list = format!("/v1/pets?id={pet}");
    let sold = sandbox.send(Method::GET, &list, &[], None).await.unwrap();
    assert_eq!(sold.json()[0]["status"], "sold", "it has taken effect");
    let answer = sandbox.send(Method::POST, &complete, &headers, None).await.unwrap();
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("completed")));

    // Reads, too.
    assert!(sandbox.send(Method::GET, &list, &headers, None).await.is_none());
    assert_eq!(sandbox.send(Method::GET, &list, &headers, None).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_slow_answer_comes_5_seconds_late() {
    let sandbox = Sandbox::start(&[], &[]).await;
    let headers = [("petstore-fault", "slow"), ("idempotency-key", "k")];
    let started = Instant::now();
    let answer = sandbox.add("Ada", &headers).await.unwrap();
    assert_eq!((answer.status, answer.is_replayed()), (201, false));
    assert!(started.elapsed() >= Duration::from_secs(5), "{:?}", started.elapsed());
    let retried = sandbox.add("Ada", &headers).await.unwrap();
    assert_eq!((retried.status, retried.is_replayed()), (201, true));
    assert_eq!(sandbox.count("Ada").await, 1);
}

#[tokio::test]
async fn a_refused_request_gets_the_usual_error_and_changes_nothing() {
    let sandbox = Sandbox::start(&[], &[]).await;
    for (kind, status, code, message) in [
        ("429", 429, "rate_limited", "The API key has reached its limit of 1 request per 1 s: retry in 1 s."),
        (
            "503",
            503,
            "unavailable",
            "The service is temporarily unavailable, and nothing was changed: retry after the number of seconds in \
             `Retry-After`.",
        ),
    ] {
        let headers = [("petstore-fault", kind), ("idempotency-key", kind)];
        let refused = sandbox.add(kind, &headers).await.unwrap();
        // As every answer of the service: it is in the document.
        refused.check(&Method::POST);
        assert_eq!(refused.status, status);
        assert_eq!(refused.json(), json!({"code": code, "message": message, "status": status}));
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(sandbox.count(kind).await, 0);
        let retried = sandbox.add(kind, &headers).await.unwrap();
        assert_eq!((retried.status, retried.is_replayed()), (201, false), "the first attempt in effect");
        assert_eq!(sandbox.count(kind).await, 1);
    }
}

#[tokio::test]
async fn a_page_of_a_proxy_comes_instead_of_the_answer() {
    let sandbox = Sandbox::start(&[], &[]).await;
    let headers = [("petstore-fault", "502-html"), ("idempotency-key", "k")];
    let page = sandbox.add("Ada", &headers).await.unwrap();
    assert_eq!((page.status, page.header("content-type")), (502, "text/html"));
    assert!(page.body.starts_with("<html>") && page.body.contains("502 Bad Gateway"), "{}", page.body);
    for ours in ["x-request-id", "location", "etag", "cache-control"] {
        assert_eq!(page.header(ours), "", "{ours} is not a proxy's");
    }
    assert_eq!(sandbox.count("Ada").await, 1, "it has taken effect");
    let retried = sandbox.add("Ada", &headers).await.unwrap();
    assert_eq!((retried.status, retried.is_replayed()), (201, true));
    assert_eq!(sandbox.count("Ada").await, 1);
}

#[tokio::test]
async fn an_unknown_fault_in_the_header_is_refused_with_the_list_of_kinds() {
    let sandbox = Sandbox::start(&[], &[]).await;
    let answer = sandbox.add("Ada", &[("petstore-fault", "lost")]).await.unwrap();
    assert_eq!(
        answer.json(),
        json!({
            "code": "invalid_header",
            "message": "`Petstore-Fault` must appear only once and must be one of `lost-answer`, `slow`, `429`, \
                        `503`, `502-html`.",
            "status": 400,
            "field": "Petstore-Fault",
        })
    );
    assert_eq!(sandbox.count("Ada").await, 0);
}

#[tokio::test]
async fn with_a_fault_for_all_requests_only_operations_fail() {
    let sandbox = Sandbox::start(&["--fault", "lost-answer"], &[]).await;
    assert_eq!(sandbox.demo.field("Faults"), "lost-answer (100 % of requests)");
    assert!(!sandbox.demo.printed.contains("Petstore-Fault"), "{}", sandbox.demo.printed);
    for key in ["a", "a", "b"] {
        assert!(sandbox.add("Ada", &[("idempotency-key", key)]).await.is_none());
    }
    assert_eq!(sandbox.count("Ada").await, 2, "once per key");
    assert!(sandbox.send(Method::GET, "/v1/pets", &[], None).await.is_none());
    let client = sandbox.demo.client();
    for path in ["/docs", "/docs/sandbox", "/openapi.json"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert_eq!(client.without_key().get("/v1/pets").await.error(), (401, "missing_api_key".to_owned()));
    assert_eq!(client.get("/v1/cats").await.error(), (404, "route_not_found".to_owned()));
    // The header names another fault for its request.
    let answer = sandbox.add("Ada", &[("petstore-fault", "503")]).await.unwrap();
    assert_eq!(answer.error(), (503, "unavailable".to_owned()));
}

#[tokio::test]
async fn each_request_has_one_of_several_faults_or_none_according_to_their_shares() {
    let sandbox = Sandbox::start(&["--fault", "503:0.4", "--fault", "502-html:0.3"], &[]).await;
    assert_eq!(sandbox.demo.field("Faults"), "503 (40 % of requests), 502-html (30 % of requests)");
    let mut statuses: BTreeMap<u16, u32> = BTreeMap::new();
    for _ in 0..200 {
        let answer = sandbox.send(Method::GET, "/v1/pets?limit=1", &[], None).await.unwrap();
        *statuses.entry(answer.status).or_default() += 1;
    }
    // At least 20 of 200: fewer happen in one of 10^9 runs.
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200, 502, 503], "{statuses:?}");
    assert!(statuses.values().all(|count| *count >= 20), "{statuses:?}");
}

#[test]
fn faults_that_make_no_sense_are_refused_with_what_to_write_instead() {
    let kinds = "one of `lost-answer`, `slow`, `429`, `503`, `502-html`";
    for (arguments, message) in [
        (&["--fault", "lost"][..], format!("the kind must be {kinds}")),
        (
            &["--fault", "slow:2"],
            "the share must be a number above 0 and at most 1, as in `slow:0.5`".to_owned(),
        ),
        (&["--fault", "503:0"], "the share must be a number above 0 and at most 1, as in `503:0.5`".to_owned()),
        (
            &["--fault", "lost-answer", "--fault", "503:0.5"],
            "petstore: the shares of --fault add up to 1.5, but each request has one fault at most: give shares that add \
             up to at most 1, as in `--fault lost-answer:0.5 --fault 503:0.2`\n"
                .to_owned(),
        ),
    ] {
        let directory = TemporaryDirectory::new();
        let (status, error) = Demo::spawn(&directory, arguments, &[]).wait();
        assert_eq!(status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(&message), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn the_log_has_what_the_service_did_and_what_happened_to_the_answer() {
    let sandbox = Sandbox::start(&["--log", "petstore=info"], &[]).await;
    for kind in FaultKind::ALL.map(FaultKind::as_str).into_iter().filter(|kind| *kind != "slow") {
        sandbox.add("Ada", &[("petstore-fault", kind)]).await;
    }
    sandbox.add("Ada", &[]).await;
    sandbox.demo.signal("TERM");
    let (_, log) = sandbox.demo.wait();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let requests: Vec<Value> = lines
        .filter(|line| line["message"] == "request")
        .map(|line| {
            assert_eq!((&line["level"], &line["operation"]), (&json!("INFO"), &json!("createPet")), "{line}");
            json!([line["status"], line["pet"], line["fault"]])
        })
        .collect();
    assert_eq!(
        json!(requests),
        json!([
            [201, 1_001, "lost-answer"],
            [429, null, "429"],
            [503, null, "503"],
            [201, 1_002, "502-html"],
            [201, 1_003, null],
        ])
    );
}

#[tokio::test]
async fn orders_of_a_demo_expire() {
    for (environment, hold, expected) in
        [(&[][..], None, 900), (&[], Some(60), 60), (&[("PETSTORE_ORDER_HOLD", "2h")], None, 7_200)]
    {
        let sandbox = Sandbox::start(&[], environment).await;
        let pet = sandbox.add("Ada", &[]).await.unwrap().json()["id"].clone();
        let mut body = json!({"petId": pet});
        if let Some(seconds) = hold {
            body["holdSeconds"] = seconds.into();
        }
        let order = sandbox.demo.client().post("/v1/store/orders", &body).await.json();
        let time = |member: &str| order[member].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        let held = time("expiresAt").duration_since(time("createdAt"));
        assert_eq!(held.as_secs(), expected, "{order}");
    }
}

#[tokio::test]
async fn serve_ignores_the_header_and_has_no_such_option() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    for fault in FaultKind::ALL.map(FaultKind::as_str).into_iter().chain(["nonsense"]) {
        let answer = service.client.get_with_header("/v1/pets", "petstore-fault", fault).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "[]"), "{fault}");
    }
    let (_, log) = service.terminate();
    assert!(log.contains("\"operation\":\"listPets\"") && !log.contains("\"fault\""), "{log}");
    let output = run(&["serve", "--fault", "503"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("unexpected argument '--fault' found"), "{error}");
}

#[test]
fn the_page_about_testing_lists_every_fault() {
    let page = read("docs/sandbox.md");
    let table = page.split("| header |").nth(1).unwrap().split("\n\n").next().unwrap();
    let listed: Vec<&str> =
        table.lines().filter_map(|row| row.strip_prefix("| `Petstore-Fault: ")?.split('`').next()).collect();
    assert_eq!(listed, FaultKind::ALL.map(FaultKind::as_str));
}
