//! `POST /v1/pets`

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::support::TestService;

#[tokio::test]
async fn create_pet_answers_201_with_the_pet_and_its_location() {
    let service = TestService::start().await;
    let new = json!({"name": "Rex", "categoryId": 3, "status": "available"});
    let answer = service.client.post("/v1/pets", &new).await;
    assert_eq!(answer.status, 201);
    assert_eq!(answer.body, r#"{"id":1,"name":"Rex","categoryId":3,"status":"available"}"#);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("location"), "/v1/pets/1");
    assert_eq!(answer.header("cache-control"), "no-store");
    let stored = service.client.get(answer.header("location")).await;
    assert_eq!(stored.body, answer.body);
}

#[tokio::test]
async fn create_pet_omits_a_status_that_was_not_sent() {
    let service = TestService::start().await;
    let answer = service.client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 3})).await;
    assert_eq!(answer.body, r#"{"id":1,"name":"Rex","categoryId":3}"#);
    assert_eq!(service.client.get("/v1/pets").await.body, r#"[{"id":1,"name":"Rex","categoryId":3}]"#);
}

#[tokio::test]
async fn create_pet_accepts_every_value_of_a_documented_type() {
    let service = TestService::start().await;
    let longest = format!(r#"{{"name": "{}", "categoryId": 1}}"#, "🐕".repeat(255));
    for body in [
        r#"{"name": "x", "categoryId": 9223372036854775807}"#,
        r#"{"name": "x", "categoryId": -9223372036854775808}"#,
        r#"{"name": "x", "categoryId": 7.0}"#,
        r#"{"name": "x", "categoryId": 70e-1}"#,
        r#"{"name": "x", "categoryId": -0}"#,
        r#"{"categoryId": 1, "status": "pending", "name": "members in another order"}"#,
        r#"{"name": "\u0052ex \"the\" \\ \/ d\u00f6g \ud83d\udc15", "categoryId": 1, "status": "sold"}"#,
        r#"{"n\u0061me": "escaped member name", "categoryId": 1}"#,
        "\r\n\t {\"name\": \"white space around\", \"categoryId\": 1} \n",
        &longest,
    ] {
        let answer = service.client.post_text("/v1/pets", body).await;
        assert_eq!(answer.status, 201, "{body}: {}", answer.body);
    }
}

#[tokio::test]
async fn create_pet_stores_a_name_as_sent() {
    let service = TestService::start().await;
    for name in
        ["  Rex  ", "Ré x", "e\u{301}", "\u{202e}xeR", "\u{200b}", "<b>&'\"; DROP TABLE pets;--", "\u{feff}"]
    {
        let created = service.client.post("/v1/pets", &json!({"name": name, "categoryId": 1})).await;
        assert_eq!(created.json()["name"], name);
        let listed = service.client.get(&format!("/v1/pets?id={}", created.json()["id"])).await;
        assert_eq!(listed.json()[0]["name"], name);
    }
}

#[tokio::test]
async fn create_pet_parses_a_category_exactly_in_every_notation() {
    let service = TestService::start().await;
    for (text, value) in
        [("9007199254740993", 9_007_199_254_740_993_i64), ("9.007199254740993e15", 9_007_199_254_740_993)]
    {
        let body = format!(r#"{{"name": "Rex", "categoryId": {text}}}"#);
        assert_eq!(service.client.post_text("/v1/pets", &body).await.json()["categoryId"], value);
    }
}

#[tokio::test]
async fn create_pet_answers_400_to_a_bad_body() {
    let service = TestService::start().await;
    let too_long = format!(r#"{{"name": "{}", "categoryId": 1}}"#, "x".repeat(256));
    let not_valid = "The body is not valid: ";
    let not_integer = "`/categoryId` must be an integer from -2^63 to 2^63 - 1.";
    let not_status = "`/status` must be one of `available`, `pending`, `sold`.";
    for (body, code, message) in [
        // The shape.
        ("", "invalid_json", format!("{not_valid}it is empty.")),
        (" ", "invalid_json", format!("{not_valid}it ends too early.")),
        ("{", "invalid_json", format!("{not_valid}it ends too early.")),
        ("null", "invalid_json", format!("{not_valid}it is not an object.")),
        (r#"["Rex", 1]"#, "invalid_json", format!("{not_valid}it is not an object.")),
        (r#""Rex""#, "invalid_json", format!("{not_valid}it is not an object.")),
        ("7", "invalid_json", format!("{not_valid}it is not an object.")),
        (
            r#"{"name": "Rex", "categoryId": 1} {}"#,
            "invalid_json",
            format!("{not_valid}there is a syntax error at line 1, column 34."),
        ),
        (
            r#"{"name": "Rex", "categoryId": 1,}"#,
            "invalid_json",
            format!("{not_valid}there is a syntax error at line 1, column 33."),
        ),
        (
            r#"{"name": "Rex", "categoryId": 01}"#,
            "invalid_json",
            format!("{not_valid}there is a syntax error at line 1, column 32."),
        ),
        (
            r#"{"name": "Rex", "categoryId": NaN}"#,
            "invalid_json",
            format!("{not_valid}there is a syntax error at line 1, column 31."),
        ),
        (
            r"{'name': 'Rex', 'categoryId': 1}",
            "invalid_json",
            format!("{not_valid}there is a syntax error at line 1, column 2."),
        ),
        (
            "{\"name\": \"Re\nx\", \"categoryId\": 1}",
            "invalid_json",
            format!("{not_valid}there is a syntax error at line 1, column 12."),
        ),
        (
            r#"{"name": "\ud800", "categoryId": 1}"#,
            "invalid_json",
            format!("{not_valid}`/name` has an invalid Unicode escape."),
        ),
        (
            r#"{"name": "Rex", "name": "Max", "categoryId": 1}"#,
            "invalid_json",
            format!("{not_valid}`name` appears twice."),
        ),
        (
            r#"{"name": "Rex", "n\u0061me": "Max", "categoryId": 1}"#,
            "invalid_json",
            format!("{not_valid}`name` appears twice."),
        ),
        // Missing members.
        ("{}", "missing_field", "`/name` is required: it must be a string of 1 to 255 characters.".into()),
        (
            r#"{"categoryId": 1}"#,
            "missing_field",
            "`/name` is required: it must be a string of 1 to 255 characters.".into(),
        ),
        (r#"{"name": "Rex"}"#, "missing_field", "`/categoryId` is required: it must be an integer.".into()),
        // Unknown members.
        (
            r#"{"id": 7, "name": "Rex", "categoryId": 1}"#,
            "unknown_field",
            "`/id` is assigned by the service: leave it out.".into(),
        ),
        (
            r#"{"name": "Rex", "catgoryId": 1}"#,
            "unknown_field",
            "`/catgoryId` cannot be set: did you mean `/categoryId`?".into(),
        ),
        (
            r#"{"name": "Rex", "category_id": 1}"#,
            "unknown_field",
            "`/category_id` cannot be set: did you mean `/categoryId`?".into(),
        ),
        (
            r#"{"name": "Rex", "categoryId": 1, "Status": "sold"}"#,
            "unknown_field",
            "`/Status` cannot be set: did you mean `/status`?".into(),
        ),
        (
            r#"{"name": "Rex", "categoryId": 1, "a/b~c": 1}"#,
            "unknown_field",
            "`/a~1b~0c` cannot be set: you can set `/name`, `/categoryId`, `/status`, `/reference` and `/metadata`. Put your own data, such as a price, into `/metadata`."
                .into(),
        ),
        // Names.
        (r#"{"name": null, "categoryId": 1}"#, "invalid_field", "`/name` must be a string.".into()),
        (r#"{"name": 7, "categoryId": 1}"#, "invalid_field", "`/name` must be a string.".into()),
        (r#"{"name": ["Rex"], "categoryId": 1}"#, "invalid_field", "`/name` must be a string.".into()),
        (
            r#"{"name": "", "categoryId": 1}"#,
            "invalid_field",
            "`/name` must have at least one character that is not white space.".into(),
        ),
        (
            r#"{"name": " \u00a0\u3000", "categoryId": 1}"#,
            "invalid_field",
            "`/name` must have at least one character that is not white space.".into(),
        ),
        (
            r#"{"name": "Re\u0000x", "categoryId": 1}"#,
            "invalid_field",
            "`/name` must not contain control characters.".into(),
        ),
        (
            r#"{"name": "Re\nx", "categoryId": 1}"#,
            "invalid_field",
            "`/name` must not contain control characters.".into(),
        ),
        (&too_long, "invalid_field", "`/name` must have at most 255 characters.".into()),
        // Categories.
        (r#"{"name": "Rex", "categoryId": null}"#, "invalid_field", not_integer.into()),
        (r#"{"name": "Rex", "categoryId": "7"}"#, "invalid_field", not_integer.into()),
        (r#"{"name": "Rex", "categoryId": 7.5}"#, "invalid_field", not_integer.into()),
        (r#"{"name": "Rex", "categoryId": 9223372036854775808}"#, "invalid_field", not_integer.into()),
        (r#"{"name": "Rex", "categoryId": 1e400}"#, "invalid_field", not_integer.into()),
        (r#"{"name": "Rex", "categoryId": true}"#, "invalid_field", not_integer.into()),
        // Statuses.
        (
            r#"{"name": "Rex", "categoryId": 1, "status": null}"#,
            "invalid_field",
            "`/status` must not be `null`: leave it out.".into(),
        ),
        (
            r#"{"name": "Rex", "categoryId": 1, "status": {"sold": null}}"#,
            "invalid_field",
            "`/status` must be a string.".into(),
        ),
        (r#"{"name": "Rex", "categoryId": 1, "status": ""}"#, "invalid_field", not_status.into()),
        (r#"{"name": "Rex", "categoryId": 1, "status": "Sold"}"#, "invalid_field", not_status.into()),
        // The first error in the order of the fields.
        (
            r#"{"status": "gone", "categoryId": "x", "name": ""}"#,
            "invalid_field",
            "`/name` must have at least one character that is not white space.".into(),
        ),
        (
            r#"{"status": "gone", "name": "Rex"}"#,
            "missing_field",
            "`/categoryId` is required: it must be an integer.".into(),
        ),
    ] {
        let answer = service.client.post_text("/v1/pets", body).await;
        let mut error = answer.json();
        error.as_object_mut().unwrap().remove("field");
        assert_eq!(error, json!({"code": code, "message": message, "status": 400}), "{body}");
        assert_eq!(answer.status, 400, "{body}");
    }
    assert_eq!(service.client.get("/v1/pets").await.body, "[]", "nothing was stored");
}

#[tokio::test]
async fn create_pet_answers_400_to_a_body_that_is_not_utf_8() {
    let service = TestService::start().await;
    let answer = service.client.post_bytes("/v1/pets", b"{\"name\": \"R\xffx\", \"categoryId\": 1}").await;
    assert_eq!(
        answer.body,
        r#"{"code":"invalid_json","message":"The body is not valid: it is not UTF-8.","status":400}"#
    );
}

#[tokio::test]
async fn create_pet_shortens_an_unknown_member_name_and_keeps_it_on_one_line() {
    let service = TestService::start().await;
    let body = format!(r#"{{"a\nb{}": 1}}"#, "x".repeat(9_000));
    let answer = service.client.post_text("/v1/pets", &body).await;
    assert_eq!(answer.error(), (400, "unknown_field".into()));
    assert!(answer.body.len() < 350 && answer.body.contains("a\u{fffd}bxxx"), "{}", answer.body);
}

#[tokio::test]
async fn create_pet_answers_415_to_another_media_type_and_names_it() {
    let service = TestService::start().await;
    let none = "The `Content-Type` header is missing, empty or repeated: send JSON with `Content-Type: \
        application/json`.";
    let form = "application/x-www-form-urlencoded";
    for (headers, sent) in [
        (&[][..], None),
        (&[("content-type", "")], None),
        (&[("content-type", "application/json"), ("content-type", "application/json")], None),
        (&[("content-type", "text/plain")], Some("Content-Type: text/plain")),
        (&[("content-type", "application/jsonp")], Some("Content-Type: application/jsonp")),
        (&[("content-type", form)], Some("Content-Type: application/x-www-form-urlencoded")),
        (
            &[("content-type", "application/merge-patch+json")],
            Some("Content-Type: application/merge-patch+json"),
        ),
        (
            &[("content-type", "application/json; charset=latin-1")],
            Some("Content-Type: application/json; charset=latin-1"),
        ),
        (
            &[("content-type", "application/json; charset=utf-8; boundary=x")],
            Some("Content-Type: application/json; charset=utf-8; boundary=x"),
        ),
        // Longer than a message repeats.
        (
            &[(
                "content-type",
                "application/json;                                                            charset=latin-1",
            )],
            Some("Content-Type: application/json;                                               "),
        ),
        (
            &[("content-type", "application/json"), ("content-encoding", "gzip")],
            Some("Content-Encoding: gzip"),
        ),
        (
            &[("content-type", "application/json"), ("content-encoding", "identity, br")],
            Some("Content-Encoding: identity, br"),
        ),
    ] {
        let answer = service.client.send(Method::POST, "/v1/pets", |request| {
            // Not parsed: the media type is checked first.
            headers.iter().fold(request.body("{"), |request, (name, value)| request.header(*name, *value))
        });
        let answer = answer.await;
        assert_eq!(answer.error(), (415, "unsupported_media_type".into()), "{headers:?}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        match sent {
            None => assert_eq!(message, none),
            Some(sent) => {
                assert!(message.starts_with(&format!("`{sent}` is not supported: send ")), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn create_pet_accepts_json_with_and_without_a_charset() {
    let service = TestService::start().await;
    for media_type in [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON; charset=\"utf-8\"",
        "application/json;",
    ] {
        let answer = service.client.send(Method::POST, "/v1/pets", |request| {
            let request = request.header("content-type", media_type).header("content-encoding", "identity");
            request.body(r#"{"name": "Rex", "categoryId": 1}"#)
        });
        assert_eq!(answer.await.status, 201, "{media_type}");
    }
}

#[tokio::test]
async fn create_pet_accepts_a_body_of_16_kib_and_answers_413_to_one_more_byte() {
    let service = TestService::start().await;
    let mut body = r#"{"name": "Rex", "categoryId": 1}"#.to_owned();
    body.push_str(&" ".repeat(16 * 1024 - body.len()));
    assert_eq!(service.client.post_text("/v1/pets", &body).await.status, 201);
    body.push(' ');
    assert_eq!(service.client.post_text("/v1/pets", &body).await.error(), (413, "body_too_large".into()));
}

#[tokio::test]
async fn create_pet_answers_413_to_a_very_large_body_without_resetting_the_connection() {
    let service = TestService::start().await;
    let body = vec![b' '; 1024 * 1024];
    for _ in 0..50 {
        let answer = service.client.post_bytes("/v1/pets", &body).await;
        assert_eq!(answer.error(), (413, "body_too_large".into()));
    }
}

#[tokio::test]
async fn create_pet_answers_408_to_a_body_that_does_not_arrive() {
    let service = TestService::start_with(&["--body-timeout", "200ms"]).await;
    let slow = crate::support::raw_http::post_incomplete_body(service.address);
    let answer = tokio::time::timeout(Duration::from_secs(5), slow).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    assert!(answer.ends_with(r#"{"code":"request_timeout","message":"The body did not arrive in time: send the request again.","status":408}"#), "{answer}");
}

#[tokio::test]
async fn create_pet_answers_400_to_any_query_parameter() {
    let service = TestService::start().await;
    let answer = service.client.post("/v1/pets?dryRun=true", &json!({"name": "Rex", "categoryId": 1})).await;
    assert_eq!(
        answer.body,
        r#"{"code":"unknown_parameter","message":"`dryRun` is not allowed: this operation has no query parameters.","status":400,"field":"dryRun"}"#
    );
}

#[tokio::test]
async fn create_pet_assigns_unique_increasing_ids_under_concurrency() {
    let service = TestService::start().await;
    let mut adding = tokio::task::JoinSet::new();
    for number in 0..100 {
        let client = service.client.clone();
        adding.spawn(async move { client.add(&format!("Pet {number}"), None).await });
    }
    let mut ids = adding.join_all().await;
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100);
    let later = service.client.add("later", None).await;
    assert!(ids.iter().all(|id| *id < later));
}

#[tokio::test]
async fn a_pet_that_the_database_refuses_fails_alone() {
    let service = TestService::start().await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$; \
        CREATE TRIGGER refuse BEFORE INSERT ON pets FOR EACH ROW WHEN (NEW.name = '30') EXECUTE FUNCTION refuse()";
    service.database.connect().await.batch_execute(refuse).await.unwrap();
    // Requests with a key are inserted by another statement.
    for has_key in [false, true] {
        let adding = (0..60).map(async |number: usize| {
            let pet = json!({"name": number.to_string(), "categoryId": 1});
            if has_key {
                service.client.post_with_key("/v1/pets", &format!("key-{number}"), &pet).await
            } else {
                service.client.post("/v1/pets", &pet).await
            }
        });
        for (number, answer) in join_all(adding).await.into_iter().enumerate() {
            assert_eq!(answer.status, if number == 30 { 500 } else { 201 }, "{number}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn create_pet_says_that_the_outcome_is_unknown_if_it_cannot_read_the_committed_row() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    // An id that no pet can have: the row is committed, but cannot be returned to the client.
    let broken = "ALTER TABLE pets ALTER COLUMN id SET MINVALUE -10 RESTART WITH -10";
    database.batch_execute(broken).await.unwrap();
    let (client, pet) = (&service.client, json!({"name": "Rex", "categoryId": 1}));
    for added in [client.post("/v1/pets", &pet).await, client.post_with_key("/v1/pets", "once", &pet).await] {
        assert_eq!(added.error(), (503, "outcome_unknown".into()));
    }
    let rows: i64 = database.query_one("SELECT count(*) FROM pets", &[]).await.unwrap().get(0);
    assert_eq!(rows, 2, "each was added once, and none was retried");
}
