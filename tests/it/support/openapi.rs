//! The OpenAPI document, and the check of every answer of the whole suite against it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::Answer;

/// The committed OpenAPI document.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(|| parse(include_str!("../../../openapi.json")));

/// An OpenAPI document with its shared parameters, headers, examples and responses in their places.
pub(crate) fn parse(document: &str) -> Value {
    let document: Value = serde_json::from_str(document).unwrap();
    let mut resolved = document.clone();
    resolve(&document, &mut resolved["paths"]);
    resolved
}

/// Replaces references to anything but schemas.
fn resolve(document: &Value, value: &mut Value) {
    while let Some(pointer) = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        if pointer.starts_with("/components/schemas/") {
            return;
        }
        *value = document.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is missing")).clone();
    }
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(|element| resolve(document, element)),
        Value::Object(members) => members.values_mut().for_each(|member| resolve(document, member)),
        _ => {}
    }
}

/// Headers that the answer of any operation may have.
const COMMON_HEADERS: [&str; 9] = [
    "allow",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "transfer-encoding",
    "vary",
];

/// Every operation: its path, its method and its description.
pub(crate) fn operations() -> Vec<(String, String, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (path.clone(), method.clone(), operation))
    });
    operations.collect()
}

/// The path of an operation, with the same id for each parameter.
pub(crate) fn path_with_id(pattern: &str, id: i64) -> String {
    let segments = pattern
        .split('/')
        .map(|segment| if segment.starts_with('{') { id.to_string() } else { segment.to_owned() });
    format!("/v1{}", segments.collect::<Vec<_>>().join("/"))
}

/// Fails on an answer that the document does not describe for the operation at this path: an undocumented status, body
/// or header.
pub(crate) fn check(method: &Method, path: &str, answer: &Answer) {
    let path = path.split('?').next().unwrap();
    let wanted = if method == Method::HEAD { "get".to_owned() } else { method.as_str().to_lowercase() };
    let found =
        operations().into_iter().find(|(pattern, method, _)| *method == wanted && matches(pattern, path));
    let Some((pattern, method_name, operation)) = found else { return };
    let what = format!("{method_name} {pattern} answered {}", answer.status);
    let documented = operation["responses"].get(answer.status.to_string());
    let documented = documented.unwrap_or_else(|| panic!("{what}, which is not documented"));
    for name in answer.headers.keys().map(reqwest::header::HeaderName::as_str) {
        let headers = documented["headers"].as_object().into_iter().flatten();
        let known = COMMON_HEADERS.contains(&name) || name.starts_with("access-control-");
        let known =
            known || headers.map(|(header, _)| header).any(|header| header.eq_ignore_ascii_case(name));
        assert!(known, "{what} with `{name}`, which is not documented");
    }
    match documented.get("content") {
        None => assert_eq!(answer.body, "", "{what} with a body, which is not documented"),
        Some(_) if method == Method::HEAD => {}
        Some(content) => {
            let schema = content.get(answer.header("content-type")).map(|content| &content["schema"]);
            let schema = schema.unwrap_or_else(|| panic!("{what} as {}", answer.header("content-type")));
            let body = answer.json();
            let problem = with_validator(schema, |validator| {
                validator.iter_errors(&body).map(|error| error.to_string()).next()
            });
            assert_eq!(problem, None, "{what} with {body}");
        }
    }
}

/// Whether a pattern such as `/pets/{petId}` matches a path such as `/v1/pets/7`.
fn matches(pattern: &str, path: &str) -> bool {
    let Some(path) = path.strip_prefix("/v1") else { return false };
    let (pattern, path) = (pattern.split('/'), path.split('/'));
    let same =
        |(pattern, path): (&str, &str)| pattern == path || (pattern.starts_with('{') && !path.is_empty());
    pattern.clone().count() == path.clone().count() && pattern.zip(path).all(same)
}

/// Calls a function with the cached validator of a schema. Members that the schema does not describe are invalid:
/// clients must tolerate them, but the document has to describe them.
fn with_validator<T>(schema: &Value, use_validator: impl FnOnce(&Validator) -> T) -> T {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, Validator>>> = LazyLock::new(Mutex::default);
    let mut validators = VALIDATORS.lock().unwrap();
    let validator = validators.entry(schema.to_string()).or_insert_with(|| {
        let mut whole = schema.clone();
        let mut components = DOCUMENT["components"].clone();
        for component in components["schemas"].as_object_mut().unwrap().values_mut() {
            if component["type"] == "object"
                && component.get("additionalProperties").is_none_or(Value::is_boolean)
            {
                component["additionalProperties"] = json!(false);
            }
        }
        whole["components"] = components;
        jsonschema::draft202012::options().should_validate_formats(true).build(&whole).unwrap()
    });
    use_validator(validator)
}

#[test]
fn an_undocumented_answer_is_detected() {
    let answer = |status: u16, body: &Value| {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("content-type", "application/json".parse().unwrap());
        Answer { status, headers, body: body.to_string() }
    };
    let detected = |method: Method, path: &str, answer: &Answer| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&method, path, answer))).is_err()
    };
    let rex = json!({"id": 7, "name": "Rex", "categoryId": 3, "status": "sold"});
    assert!(!detected(Method::GET, "/v1/pets/7", &answer(200, &rex)));
    assert!(!detected(Method::GET, "/v1/pets?limit=1", &answer(200, &json!([rex]))));
    assert!(detected(Method::GET, "/v1/pets/7", &answer(418, &rex)), "an undocumented status");
    for (member, value) in [
        ("id", json!("7")),
        ("id", json!(0)),
        ("status", json!("gone")),
        ("status", Value::Null),
        ("name", json!("")),
        ("colour", json!("brown")),
    ] {
        let mut other = rex.clone();
        other[member] = value;
        assert!(detected(Method::GET, "/v1/pets/7", &answer(200, &other)), "{other}");
        assert!(detected(Method::GET, "/v1/pets", &answer(200, &json!([other]))), "{other}");
    }
    assert!(detected(Method::GET, "/v1/pets/7", &answer(304, &rex)), "a body where none is documented");
    let order = json!({"id": 1, "petId": 7, "status": "placed", "createdAt": "today", "updatedAt": "today"});
    assert!(detected(Method::GET, "/v1/store/orders/1", &answer(200, &order)), "{order}");
    let mut with_header = answer(200, &rex);
    with_header.headers.insert("x-powered-by", "cats".parse().unwrap());
    assert!(detected(Method::GET, "/v1/pets/7", &with_header), "an undocumented header");
}
