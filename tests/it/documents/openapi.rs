//! The OpenAPI document: complete, and identical wherever it is published.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::TestService;
use crate::support::openapi::{DOCUMENT, operations};
use crate::support::program::run;

#[tokio::test]
async fn the_committed_document_matches_the_printed_and_the_served_one() {
    let committed = include_str!("../../../openapi.json");
    let printed = String::from_utf8(run(&["openapi"], &[]).stdout).unwrap();
    assert_eq!(printed, committed, "run `make generate NAME=openapi`");
    let service = TestService::start().await;
    let served = service.client.without_key().get("/openapi.json").await;
    assert_eq!(served.body, committed);
    assert_eq!(served.header("content-type"), "application/json");
}

#[test]
fn the_document_has_the_specified_operations_with_their_names_and_tags() {
    let found: Vec<_> = operations()
        .into_iter()
        .map(|(path, method, operation)| {
            (format!("{method} {path}"), operation["operationId"].clone(), operation["tags"].clone())
        })
        .collect();
    let expected = [
        ("get /events", "listEvents", "events"),
        ("get /pets", "listPets", "animals"),
        ("post /pets", "createPet", "animals"),
        ("get /pets/{petId}", "getPet", "animals"),
        ("delete /pets/{petId}", "deletePet", "animals"),
        ("patch /pets/{petId}", "updatePet", "animals"),
        ("get /store/orders", "listOrders", "store"),
        ("post /store/orders", "placeOrder", "store"),
        ("get /store/orders/{orderId}", "getOrder", "store"),
        ("patch /store/orders/{orderId}", "updateOrder", "store"),
        ("post /store/orders/{orderId}/cancel", "cancelOrder", "store"),
        ("post /store/orders/{orderId}/complete", "completeOrder", "store"),
    ];
    let expected = expected.map(|(operation, name, tag)| (operation.to_owned(), json!(name), json!([tag])));
    assert_eq!(found, expected);
    assert_eq!(DOCUMENT["openapi"], "3.1.0");
    assert_eq!(DOCUMENT["info"]["version"], "1.0.0");
}

#[test]
fn what_operations_share_is_in_the_document_once() {
    let text = include_str!("../../../openapi.json");
    let document: Value = serde_json::from_str(text).unwrap();
    for section in ["parameters", "headers", "examples", "responses"] {
        let shared = document["components"][section].as_object().unwrap();
        assert!(!shared.is_empty(), "{section}");
        for name in shared.keys() {
            let reference = format!("\"#/components/{section}/{name}\"");
            assert!(text.contains(&reference), "{section}/{name} is not used");
        }
    }
    assert!(text.len() < 170_000, "{} bytes", text.len());
}

#[test]
fn only_get_pet_is_deprecated_and_it_has_a_sunset_date() {
    for (_, _, operation) in operations() {
        let deprecated = operation["operationId"] == "getPet";
        assert_eq!(operation.get("deprecated"), deprecated.then_some(&json!(true)));
        assert_eq!(operation.get("x-deprecated-sunset"), deprecated.then_some(&json!("2030-12-05")));
    }
}

#[test]
fn every_operation_beyond_the_specification_states_its_stability() {
    for (_, _, operation) in operations() {
        let marker = match operation["operationId"].as_str().unwrap() {
            "listPets" | "createPet" | "getPet" => None,
            _ => Some("beta"),
        };
        assert_eq!(operation.get("x-stability"), marker.map(|marker| json!(marker)).as_ref());
        let hidden = operation["operationId"] == "listOrders";
        assert_eq!(operation.get("x-hideTryItPanel"), hidden.then_some(&json!(true)));
    }
}

#[test]
fn every_operation_requires_a_key_with_exactly_one_scope() {
    assert_eq!(DOCUMENT["security"], json!([{"bearer": []}]));
    let scheme = &DOCUMENT["components"]["securitySchemes"]["bearer"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    for (path, method, operation) in operations() {
        let scopes = operation["security"][0]["bearer"].as_array().unwrap();
        assert_eq!(scopes.len(), 1, "{method} {path}");
    }
}

#[test]
fn the_schemas_match_the_specification() {
    let schemas = &DOCUMENT["components"]["schemas"];
    assert_eq!(schemas["PetStatus"]["enum"], json!(["available", "pending", "sold"]));
    for (name, required, members) in [
        (
            "NewPet",
            json!(["name", "categoryId"]),
            vec!["name", "categoryId", "status", "reference", "metadata"],
        ),
        (
            "Pet",
            json!(["id", "name", "categoryId"]),
            vec!["id", "name", "categoryId", "status", "reference", "metadata"],
        ),
        ("Error", json!(["code", "message", "status"]), vec!["code", "message", "status", "field"]),
        ("PetPatch", Value::Null, vec!["name", "categoryId", "status", "reference", "metadata"]),
        ("OrderPatch", Value::Null, vec!["holdSeconds", "reference", "metadata"]),
        ("NewOrder", json!(["petId"]), vec!["petId", "reference", "holdSeconds", "metadata"]),
        (
            "Event",
            json!(["id", "type", "petId", "at"]),
            vec!["id", "type", "petId", "lastPetId", "orderId", "at"],
        ),
        (
            "Order",
            json!(["id", "petId", "status", "createdAt", "updatedAt"]),
            vec!["id", "petId", "status", "createdAt", "updatedAt", "expiresAt", "reference", "metadata"],
        ),
    ] {
        assert_eq!(schemas[name]["required"], required, "{name}");
        let found: Vec<&String> = schemas[name]["properties"].as_object().unwrap().keys().collect();
        assert_eq!(found, members, "{name}");
    }
    assert_eq!(schemas["OrderStatus"]["enum"], json!(["placed", "completed", "cancelled", "expired"]));
    for (schema, member) in [("Pet", "id"), ("Pet", "categoryId"), ("NewPet", "categoryId")] {
        assert_eq!(schemas[schema]["properties"][member]["type"], "integer");
        assert_eq!(schemas[schema]["properties"][member]["format"], "int64");
    }
    let limit = &DOCUMENT["paths"]["/pets"]["get"]["parameters"][0];
    assert_eq!(limit["schema"], json!({"type": "integer", "default": 20, "minimum": 1, "maximum": 100}));
    // A patch removes what is `null`. Nothing else is nullable.
    let mut others = DOCUMENT["components"]["schemas"].as_object().unwrap().clone();
    others.retain(|name, _| !name.ends_with("Patch"));
    assert!(!json!([others, DOCUMENT["paths"]]).to_string().contains("\"null\""));
}

/// Generators take silence for `false`: the clients that they make would fail at the next member of a response.
#[test]
fn every_object_states_whether_it_can_have_other_members() {
    let bodies: BTreeSet<&str> = operations()
        .into_iter()
        .flat_map(|(_, _, operation)| operation["requestBody"]["content"].as_object().into_iter().flatten())
        .map(|(_, content)| content["schema"]["$ref"].as_str().unwrap())
        .collect();
    assert!(!bodies.is_empty());
    for (name, schema) in DOCUMENT["components"]["schemas"].as_object().unwrap() {
        // Those of metadata are all described by one schema.
        if schema["type"] == "object" && !schema["additionalProperties"].is_object() {
            let is_request = bodies.contains(&*format!("#/components/schemas/{name}"));
            assert_eq!(schema["additionalProperties"], json!(!is_request), "{name}");
        }
    }
}

/// PCRE, for example, has no `\u0000`: a client for PHP with such a pattern rejects every value.
#[test]
fn patterns_use_only_what_every_language_understands() {
    fn patterns<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("pattern").and_then(Value::as_str));
                members.values().for_each(|member| patterns(member, found));
            }
            Value::Array(elements) => elements.iter().for_each(|element| patterns(element, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    patterns(&DOCUMENT, &mut found);
    assert!(found.contains(&r"\S"), "{found:?}");
    for pattern in found {
        assert!(pattern.is_ascii() && !pattern.replace(r"\S", "").contains('\\'), "{pattern}");
    }
}

#[test]
fn every_documented_error_has_the_error_schema_and_an_example_of_each_code() {
    for (path, method, operation) in operations() {
        for (status, answer) in operation["responses"].as_object().unwrap() {
            assert!(answer["headers"].get("X-Request-Id").is_some(), "{method} {path} {status}");
            if status.starts_with(['2', '3']) {
                continue;
            }
            let content = &answer["content"]["application/json"];
            assert_eq!(content["schema"]["$ref"], "#/components/schemas/Error", "{method} {path} {status}");
            if status == "default" {
                continue;
            }
            let examples = content["examples"].as_object().unwrap();
            assert!(!examples.is_empty());
            for (code, example) in examples {
                assert_eq!(example["value"]["code"], **code);
                assert_eq!(example["value"]["status"].to_string(), *status);
            }
        }
    }
}

#[test]
fn every_operation_documents_exactly_these_statuses() {
    let everywhere = ["400", "401", "403", "414", "429", "431", "500", "503", "default"];
    let expected = [
        ("listPets", &["200", "304"][..]),
        ("createPet", &["201", "408", "409", "413", "415", "422"]),
        ("getPet", &["200", "304", "404", "410"]),
        ("updatePet", &["200", "404", "408", "409", "412", "413", "415", "422"]),
        ("deletePet", &["204", "404", "409", "412", "422"]),
        ("listOrders", &["200", "304"]),
        ("placeOrder", &["201", "404", "408", "409", "413", "415", "422"]),
        ("getOrder", &["200", "304", "404"]),
        ("updateOrder", &["200", "404", "408", "409", "412", "413", "415", "422"]),
        ("completeOrder", &["200", "404", "409", "422"]),
        ("cancelOrder", &["200", "404", "409", "422"]),
        ("listEvents", &["200", "304", "410"]),
    ];
    for (_, _, operation) in operations() {
        let name = operation["operationId"].as_str().unwrap();
        let (_, own) = expected.iter().find(|(expected, _)| *expected == name).expect(name);
        let documented: BTreeSet<&str> =
            operation["responses"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(documented, everywhere.iter().chain(*own).copied().collect(), "{name}");
    }
}

#[tokio::test]
async fn the_servers_are_the_configured_base_urls() {
    assert_eq!(DOCUMENT["servers"][0]["url"], "/v1");
    let service = TestService::start_with(&[
        "--public-base-url",
        "https://api.example.com/v1",
        "--staging-base-url",
        "https://staging.example.com/v1",
    ])
    .await;
    let document = service.client.without_key().get("/openapi.json").await.json();
    let urls: Vec<&Value> =
        document["servers"].as_array().unwrap().iter().map(|server| &server["url"]).collect();
    assert_eq!(urls, ["https://api.example.com/v1", "https://staging.example.com/v1"]);
}
