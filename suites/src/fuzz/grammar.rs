//! Generates requests to all operations with all kinds of keys, mutates some of them, and says which answers to expect.

use super::mutate;
use super::mutate_json;
use super::request::Request;
use super::rules::{Case, Expected, Shape};
use crate::http::cursor;
use crate::random::Random;

/// The contents of the database before the first request.
pub(super) struct Fixtures {
    pub(super) keys: Vec<Key>,
    /// The ids of pets and orders go from 1 to these.
    pub(super) pets: usize,
    pub(super) orders: usize,
    /// Entity tags of pets at the start.
    pub(super) tags: Vec<String>,
}

/// A key and its scopes.
pub(super) struct Key {
    pub(super) text: Option<String>,
    pub(super) scopes: &'static [&'static str],
    pub(super) is_limited: bool,
}

pub(super) const SCOPES: [&str; 5] =
    ["pets:read", "pets:write", "orders:read", "orders:write", "events:read"];

/// The kind of a request's body.
#[derive(Clone, Copy, PartialEq)]
enum Body {
    None,
    Pet,
    Patch,
    Order,
}

struct Operation {
    name: &'static str,
    method: &'static str,
    /// `{pet}` and `{order}` are replaced by ids.
    path: &'static str,
    scope: Option<&'static str>,
    shape: Shape,
    body: Body,
    /// The values of its `status` filter; empty if it is not a list.
    filters: &'static [&'static str],
}

const OPERATIONS: &[Operation] = &[
    operation("listPets", "GET", "/v1/pets", "pets:read", Shape::Pets, Body::None).list(&[
        "available",
        "pending",
        "sold",
    ]),
    operation("createPet", "POST", "/v1/pets", "pets:write", Shape::Pet, Body::Pet),
    operation("getPet", "GET", "/v1/pets/{pet}", "pets:read", Shape::Pet, Body::None),
    operation("updatePet", "PATCH", "/v1/pets/{pet}", "pets:write", Shape::Pet, Body::Patch),
    operation("listOrders", "GET", "/v1/store/orders", "orders:read", Shape::Orders, Body::None).list(&[
        "placed",
        "completed",
        "cancelled",
        "expired",
    ]),
    operation("placeOrder", "POST", "/v1/store/orders", "orders:write", Shape::Order, Body::Order),
    operation("getOrder", "GET", "/v1/store/orders/{order}", "orders:read", Shape::Order, Body::None),
    operation(
        "completeOrder",
        "POST",
        "/v1/store/orders/{order}/complete",
        "orders:write",
        Shape::Order,
        Body::None,
    ),
    operation(
        "cancelOrder",
        "POST",
        "/v1/store/orders/{order}/cancel",
        "orders:write",
        Shape::Order,
        Body::None,
    ),
    operation("listEvents", "GET", "/v1/events", "events:read", Shape::Events, Body::None),
];

/// What the listener serves besides.
const OTHERS: &[Operation] = &[
    operation("options", "OPTIONS", "/v1/pets/{pet}", "", Shape::Other, Body::None),
    operation("openapi", "GET", "/openapi.json", "", Shape::Other, Body::None),
    operation("docs", "GET", "/docs", "", Shape::Other, Body::None),
];

const fn operation(
    name: &'static str,
    method: &'static str,
    path: &'static str,
    scope: &'static str,
    shape: Shape,
    body: Body,
) -> Operation {
    let scope = if scope.is_empty() { None } else { Some(scope) };
    Operation { name, method, path, scope, shape, body, filters: &[] }
}

impl Operation {
    const fn list(mut self, filters: &'static [&'static str]) -> Self {
        self.filters = filters;
        self
    }

    /// Whether the method and the path are still those of the operation.
    fn is_reached_by(&self, request: &Request) -> bool {
        let path = request.target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let (pattern, parts) = (self.path.split('/'), path.split(|byte| *byte == b'/'));
        let is_part = |(pattern, part): (&str, &[u8])| {
            pattern.as_bytes() == part || pattern.starts_with('{') && part.iter().all(u8::is_ascii_digit)
        };
        let is_path = pattern.clone().count() == parts.clone().count() && pattern.zip(parts).all(is_part);
        let is_head = request.method == b"HEAD" && self.method == "GET";
        is_path && (is_head || request.method == self.method.as_bytes())
    }
}

/// Unusual valid names.
const NAMES: [&str; 10] = [
    "Rex",
    "Zoë",
    "🐕 good boy 🐕",
    "\u{feff}BOM",
    "quote\"back\\slash/",
    "\u{202e}right to left",
    "'; DROP TABLE pets; --",
    "e\u{301}\u{2028}\u{2029}",
    "<script>alert(1)</script>",
    "%s%n{}$1\u{fffd}\u{10ffff}",
];
/// Integers in all forms that JSON allows.
const INTEGERS: [&str; 8] =
    ["0", "-1", "7.0", "70e-1", "9223372036854775807", "-9223372036854775808", "1E+2", "42"];

const VERSIONS: [&str; 6] = ["HTTP/1.0", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1"];

impl Fixtures {
    /// Generates a request with valid framing, and what is known about its answer.
    pub(super) fn request(&self, random: &mut Random) -> (Request, Case) {
        // The documents are large and never change.
        let operations = if random.chance(3) { OTHERS } else { OPERATIONS };
        let operation = &operations[random.index(operations.len())];
        let key = self.key(random);
        let mut case = Case::any(operation.name);
        let mut request = self.valid(random, operation, key, &mut case);
        let mut expected = if key.is_limited { Expected::SuccessWithinLimit } else { Expected::Success };
        if operation.scope.is_some_and(|scope| !key.scopes.contains(&scope)) {
            expected = Expected::Denied;
        }
        if operation.method == "GET" && random.chance(10) {
            request.method = b"HEAD".to_vec();
        }
        if random.chance(55) {
            for _ in 0..=random.index(3) {
                self.mutate(random, &mut request);
            }
            let unchanged = operation.is_reached_by(&request);
            let has_no_key = key.scopes.is_empty() && request.is_under_v1() && request.method != b"OPTIONS";
            expected = if has_no_key || (unchanged && expected == Expected::Denied) {
                Expected::Denied
            } else {
                Expected::Any
            };
            case.label = if unchanged { operation.name } else { "another path or method" };
            case.shape = if unchanged { operation.shape } else { Shape::Other };
            case.name = None;
        }
        case.expected = expected;
        case.to_head = request.method == b"HEAD";
        case.expects_continue = request.has("expect", "100-continue");
        case.asks_to_close = request.version != "HTTP/1.1" || request.has("connection", "close");
        let ids: Vec<_> = request.headers.iter().filter(|(name, _)| name == b"X-Request-Id").collect();
        case.request_id = match ids[..] {
            [(_, id)] => String::from_utf8(id.clone()).ok().filter(|id| is_safe_id(id)),
            _ => None,
        };
        (request, case)
    }

    /// Most often a key with every scope.
    fn key(&self, random: &mut Random) -> &Key {
        if random.chance(70) { &self.keys[0] } else { random.pick(&self.keys) }
    }

    fn valid(&self, random: &mut Random, operation: &Operation, key: &Key, case: &mut Case) -> Request {
        let path = operation.path.replace("{pet}", &(1 + random.index(self.pets)).to_string());
        let path = path.replace("{order}", &(1 + random.index(self.orders)).to_string());
        let mut request = Request {
            method: operation.method.into(),
            target: path.into(),
            version: "HTTP/1.1",
            headers: vec![(b"Host".to_vec(), b"fuzz".to_vec())],
            body: None,
            chunks: Vec::new(),
        };
        if let Some(key) = &key.text {
            request.add("Authorization", format!("Bearer {key}"));
        }
        if random.chance(50) {
            request.add("X-Request-Id", random.unique());
        }
        if !operation.filters.is_empty() {
            self.query(random, operation, &mut request.target);
        }
        if operation.shape == Shape::Events {
            let query =
                random.pick(&["", "?limit=100", "?after=now", "?after=now&wait=1", "?wait=0&limit=1"]);
            request.target.extend(query.bytes());
        }
        if operation.method == "POST" && random.chance(30) {
            request.add("Idempotency-Key", random.unique());
        }
        case.shape = operation.shape;
        self.body(random, operation.body, &mut request, case);
        if request.body.is_some() && random.chance(25) {
            request.chunks = (0..=random.index(3)).map(|_| 1 + random.index(100)).collect();
        }
        request
    }

    fn query(&self, random: &mut Random, operation: &Operation, target: &mut Vec<u8>) {
        let mut pairs = Vec::new();
        if random.chance(50) {
            pairs.push(format!("limit={}", 1 + random.index(100)));
        }
        if random.chance(30) {
            pairs.push(format!("status={}", random.pick(operation.filters)));
        }
        if random.chance(30) {
            let after = i64::try_from(1 + random.index(2 * self.pets)).unwrap_or(1);
            pairs.push(format!("cursor={}", cursor(after)));
        }
        if random.chance(30) {
            let name = if operation.shape == Shape::Pets { "id" } else { "petId" };
            pairs.push(format!("{name}={}", 1 + random.index(2 * self.pets)));
        }
        if operation.shape == Shape::Pets && random.chance(30) {
            pairs.push(format!("categoryId={}", random.pick(&["0", "-1", "42"])));
        }
        if operation.shape == Shape::Pets && random.chance(20) {
            pairs.push(format!("reference={}", random.index(1000)));
        }
        if !pairs.is_empty() {
            target.extend(format!("?{}", pairs.join("&")).bytes());
        }
    }

    fn body(&self, random: &mut Random, body: Body, request: &mut Request, case: &mut Case) {
        let name = format!("{} {}", random.pick(&NAMES), random.index(1000));
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        let category = *random.pick(&INTEGERS);
        let status = *random.pick(&["available", "available", "pending", "sold"]);
        let (json, media_type) = match body {
            Body::None => return,
            Body::Pet if random.chance(50) => {
                (format!(r#"{{"name":"{quoted}","categoryId":{category}}}"#), "application/json")
            }
            // A reference that is most likely free.
            Body::Pet => (
                format!(
                    r#" {{ "status" : "{status}", "categoryId":{category},"name":"{quoted}","reference":"{}"}}"#,
                    random.index(1 << 40)
                ),
                "application/json; charset=utf-8",
            ),
            Body::Patch if random.chance(50) => (format!(r#"{{"status":"{status}"}}"#), "application/json"),
            Body::Patch => (format!(r#"{{"name":"{quoted}"}}"#), "application/merge-patch+json"),
            Body::Order => {
                let rest = *random.pick(&["", r#","holdSeconds":1"#, r#","reference":"basket 7""#]);
                (format!(r#"{{"petId":{}{rest}}}"#, 1 + random.index(self.pets)), "application/json")
            }
        };
        case.name = json.contains("name").then_some(name);
        request.add("Content-Type", media_type);
        request.body = Some(json.into());
    }

    fn mutate(&self, random: &mut Random, request: &mut Request) {
        match random.index(16) {
            0 => request.method = mutate::method(random),
            1 | 2 => mutate::path(random, &mut request.target),
            3..=5 => mutate::query(random, &mut request.target),
            6..=9 => mutate::header(random, request, &self.tags),
            10..=13 => match &mut request.body {
                Some(body) => mutate_json::json(random, body),
                None => mutate::header(random, request, &self.tags),
            },
            14 => {
                let body = request.body.get_or_insert_with(|| b"{}".to_vec());
                request.chunks = (0..random.index(4)).map(|_| 1 + random.index(body.len() + 9)).collect();
            }
            _ => request.version = *random.pick(&VERSIONS),
        }
    }
}

fn is_safe_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
