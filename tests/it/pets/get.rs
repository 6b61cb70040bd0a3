//! `GET /v1/pets/{petId}`

use std::sync::Arc;

use jiff::Timestamp;

use crate::support::TestService;
use crate::support::metrics::metric;

#[tokio::test]
async fn get_pet_answers_200_with_the_pet() {
    let service = TestService::start().await;
    let id = service.client.add("Rex", Some("sold")).await;
    let answer = service.client.get(&format!("/v1/pets/{id}")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, format!(r#"{{"id":{id},"name":"Rex","categoryId":1,"status":"sold"}}"#));
}

#[tokio::test]
async fn get_pet_answers_404_to_an_unknown_or_malformed_id() {
    let service = TestService::start().await;
    service.client.add("Rex", None).await;
    for id in [
        "2",
        "0",
        "-1",
        "abc",
        "1.0",
        "01",
        "+1",
        "%201",
        "1%20",
        "1e0",
        "0x1",
        "%00",
        "%ff",
        "null",
        "9007199254740992",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999999",
        "１",
    ] {
        let answer = service.client.get(&format!("/v1/pets/{id}")).await;
        assert_eq!(answer.status, 404, "{id}");
        assert_eq!(
            answer.body, r#"{"code":"pet_not_found","message":"No pet has this id.","status":404}"#,
            "{id}"
        );
    }
}

#[tokio::test]
async fn get_pet_announces_its_sunset_and_its_successor_in_every_answer() {
    let service = TestService::start().await;
    service.client.add("Rex", None).await;
    for (path, status, successor) in [
        ("/v1/pets/1", 200, "/v1/pets?id=1"),
        ("/v1/pets/2", 404, "/v1/pets?id=2"),
        ("/v1/pets/abc", 404, "/v1/pets"),
        ("/v1/pets/1?fields=name", 400, "/v1/pets?id=1"),
    ] {
        let answer = service.client.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("deprecation"), "@1794700800", "{path}");
        assert_eq!(answer.header("sunset"), "Thu, 05 Dec 2030 00:00:00 GMT", "{path}");
        assert_eq!(
            answer.headers("link"),
            [
                "</docs#/animals/getPet>; rel=\"deprecation\"".to_owned(),
                format!("<{successor}>; rel=\"successor-version\""),
            ],
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_announced_successor_of_get_pet_returns_the_same_pet() {
    let service = TestService::start().await;
    let id = service.client.add("Rex", None).await;
    let old = service.client.get(&format!("/v1/pets/{id}")).await;
    let successor = old.headers("link")[1];
    let new = service.client.get(&successor[1..successor.find('>').unwrap()]).await;
    assert_eq!(new.body, format!("[{}]", old.body));
}

#[tokio::test]
async fn list_pets_announces_no_deprecation_and_no_sunset() {
    let service = TestService::start().await;
    let answer = service.client.get("/v1/pets").await;
    assert_eq!((answer.header("deprecation"), answer.header("sunset")), ("", ""));
}

async fn service_at(time: &str, flags: &[&str]) -> TestService {
    let time: Timestamp = time.parse().unwrap();
    let service = TestService::start_at(flags, Arc::new(move || time)).await;
    service.client.add("Rex", None).await;
    service
}

#[tokio::test]
async fn get_pet_works_until_the_last_moment_of_2030_12_04() {
    let service = service_at("2030-12-04T23:59:59.999999999Z", &[]).await;
    assert_eq!(service.client.get("/v1/pets/1").await.status, 200);
}

#[tokio::test]
async fn get_pet_answers_410_from_2030_12_05_on() {
    for time in ["2030-12-05T00:00:00Z", "2040-01-01T00:00:00Z"] {
        let service = service_at(time, &[]).await;
        for path in ["/v1/pets/1", "/v1/pets/2", "/v1/pets/abc"] {
            let answer = service.client.get(path).await;
            assert_eq!(answer.error(), (410, "operation_removed".into()), "{path}");
            assert_eq!(answer.header("sunset"), "Thu, 05 Dec 2030 00:00:00 GMT");
        }
        assert_eq!(service.client.get("/v1/pets?id=1").await.ids(), [1], "its successor still works");
    }
}

#[tokio::test]
async fn the_removal_of_get_pet_can_be_postponed() {
    let postponed = ["--get-pet-removal", "2031-06-30"];
    let before = service_at("2031-06-29T23:59:59Z", &postponed).await;
    let answer = before.client.get("/v1/pets/1").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("sunset"), "Mon, 30 Jun 2031 00:00:00 GMT");
    let document = before.client.without_key().get("/openapi.json").await.json();
    assert_eq!(document["paths"]["/pets/{petId}"]["get"]["x-deprecated-sunset"], "2031-06-30");

    let after = service_at("2031-06-30T00:00:00Z", &postponed).await;
    assert_eq!(after.client.get("/v1/pets/1").await.status, 410);
}

#[tokio::test]
async fn calls_to_get_pet_are_counted_by_key() {
    let service = TestService::start().await;
    for _ in 0..3 {
        service.client.get("/v1/pets/1").await;
    }
    let series = "petstore_deprecated_calls_total{operation=\"getPet\",key_id=\"1\"}";
    assert_eq!(metric(service.admin_address, series).await, Some(3.0));
}

#[tokio::test]
async fn get_pet_answers_304_to_a_matching_etag() {
    let service = TestService::start().await;
    service.client.add("Rex", None).await;
    let first = service.client.get("/v1/pets/1").await;
    let again = service.client.get_with_header("/v1/pets/1", "if-none-match", first.header("etag")).await;
    assert_eq!((again.status, &*again.body), (304, ""));
    assert_eq!(again.header("sunset"), "Thu, 05 Dec 2030 00:00:00 GMT");
}
