//! Requests that the interface describes, to all operations and with all kinds of keys, and what becomes of them when
//! parts of them are changed.

use super::dice::Dice;
use super::mutate;
use super::mutate_json;
use super::request::Request;
use super::rules::{Case, Fate, Shape};

/// What is in the database before the first request.
pub(super) struct World {
    pub(super) keys: Vec<Key>,
    /// Pets and orders have the ids from 1 to these.
    pub(super) pets: usize,
    pub(super) orders: usize,
    /// Tags of pets as they were at first.
    pub(super) tags: Vec<String>,
}

/// A key, and what it opens.
pub(super) struct Key {
    pub(super) text: Option<String>,
    pub(super) scopes: &'static [&'static str],
    pub(super) is_limited: bool,
}

pub(super) const SCOPES: [&str; 4] = ["pets:read", "pets:write", "orders:read", "orders:write"];

/// What a request carries.
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
    /// `{pet}` and `{order}` stand for ids.
    path: &'static str,
    scope: Option<&'static str>,
    shape: Shape,
    body: Body,
    /// The status words that its list is filtered by; empty if it is not a list.
    filters: &'static [&'static str],
}

const OPERATIONS: [Operation; 12] = [
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

/// Names that are allowed, and seldom.
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
/// Integers as JSON may have them.
const INTEGERS: [&str; 8] =
    ["0", "-1", "7.0", "70e-1", "9223372036854775807", "-9223372036854775808", "1E+2", "42"];

const VERSIONS: [&str; 6] = ["HTTP/1.0", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1"];

impl World {
    /// One request with the right framing, and what is known about its answer.
    pub(super) fn request(&self, dice: &mut Dice) -> (Request, Case) {
        // The documents are large, and always the same.
        let operation =
            if dice.chance(3) { &OPERATIONS[9 + dice.below(3)] } else { &OPERATIONS[dice.below(9)] };
        let key = self.key(dice);
        let mut case = Case::any(operation.name);
        let mut request = self.valid(dice, operation, key, &mut case);
        let mut fate = if key.is_limited { Fate::SuccessWithinLimit } else { Fate::Success };
        if operation.scope.is_some_and(|scope| !key.scopes.contains(&scope)) {
            fate = Fate::Denied;
        }
        if operation.method == "GET" && dice.chance(10) {
            request.method = b"HEAD".to_vec();
        }
        if dice.chance(55) {
            for _ in 0..=dice.below(3) {
                self.change(dice, &mut request);
            }
            let unchanged = operation.is_reached_by(&request);
            let has_no_key = key.scopes.is_empty() && request.is_under_v1() && request.method != b"OPTIONS";
            fate = if has_no_key || (unchanged && fate == Fate::Denied) { Fate::Denied } else { Fate::Any };
            case.label = if unchanged { operation.name } else { "another path or method" };
            case.shape = if unchanged { operation.shape } else { Shape::Other };
            case.name = None;
        }
        case.fate = fate;
        case.to_head = request.method == b"HEAD";
        case.expects_continue = request.says("expect", "100-continue");
        case.asks_to_close = request.version != "HTTP/1.1" || request.says("connection", "close");
        let ids: Vec<_> = request.headers.iter().filter(|(name, _)| name == b"X-Request-Id").collect();
        case.request_id = match ids[..] {
            [(_, id)] => String::from_utf8(id.clone()).ok().filter(|id| is_safe_id(id)),
            _ => None,
        };
        (request, case)
    }

    /// Most often a key that may do anything.
    fn key(&self, dice: &mut Dice) -> &Key {
        if dice.chance(70) { &self.keys[0] } else { dice.pick(&self.keys) }
    }

    fn valid(&self, dice: &mut Dice, operation: &Operation, key: &Key, case: &mut Case) -> Request {
        let path = operation.path.replace("{pet}", &dice.id(self.pets).to_string());
        let path = path.replace("{order}", &dice.id(self.orders).to_string());
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
        if dice.chance(50) {
            request.add("X-Request-Id", dice.unique());
        }
        if !operation.filters.is_empty() {
            self.query(dice, operation, &mut request.target);
        }
        if operation.method == "POST" && dice.chance(30) {
            request.add("Idempotency-Key", dice.unique());
        }
        case.shape = operation.shape;
        self.body(dice, operation.body, &mut request, case);
        if request.body.is_some() && dice.chance(25) {
            request.chunks = (0..=dice.below(3)).map(|_| 1 + dice.below(100)).collect();
        }
        request
    }

    fn query(&self, dice: &mut Dice, operation: &Operation, target: &mut Vec<u8>) {
        let mut pairs = Vec::new();
        if dice.chance(50) {
            pairs.push(format!("limit={}", dice.id(100)));
        }
        if dice.chance(30) {
            pairs.push(format!("status={}", dice.pick(operation.filters)));
        }
        if dice.chance(30) {
            let cursor = i64::try_from(dice.id(2 * self.pets)).unwrap_or(1);
            pairs.push(format!("cursor={}", crate::stale::cursor(cursor)));
        }
        if dice.chance(30) {
            let name = if operation.shape == Shape::Pets { "id" } else { "petId" };
            pairs.push(format!("{name}={}", dice.id(2 * self.pets)));
        }
        if !pairs.is_empty() {
            target.extend(format!("?{}", pairs.join("&")).bytes());
        }
    }

    fn body(&self, dice: &mut Dice, body: Body, request: &mut Request, case: &mut Case) {
        let name = format!("{} {}", dice.pick(&NAMES), dice.below(1000));
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        let category = *dice.pick(&INTEGERS);
        let status = *dice.pick(&["available", "available", "pending", "sold"]);
        let (json, media_type) = match body {
            Body::None => return,
            Body::Pet if dice.chance(50) => {
                (format!(r#"{{"name":"{quoted}","categoryId":{category}}}"#), "application/json")
            }
            Body::Pet => (
                format!(r#" {{ "status" : "{status}", "categoryId":{category},"name":"{quoted}"}}"#),
                "application/json; charset=utf-8",
            ),
            Body::Patch if dice.chance(50) => (format!(r#"{{"status":"{status}"}}"#), "application/json"),
            Body::Patch => (format!(r#"{{"name":"{quoted}"}}"#), "application/merge-patch+json"),
            Body::Order => (format!(r#"{{"petId":{}}}"#, dice.id(self.pets)), "application/json"),
        };
        case.name = json.contains("name").then_some(name);
        request.add("Content-Type", media_type);
        request.body = Some(json.into());
    }

    fn change(&self, dice: &mut Dice, request: &mut Request) {
        match dice.below(16) {
            0 => request.method = mutate::method(dice),
            1 | 2 => mutate::path(dice, &mut request.target),
            3..=5 => mutate::query(dice, &mut request.target),
            6..=9 => mutate::header(dice, request, &self.tags),
            10..=13 => match &mut request.body {
                Some(body) => mutate_json::json(dice, body),
                None => mutate::header(dice, request, &self.tags),
            },
            14 => {
                let body = request.body.get_or_insert_with(|| b"{}".to_vec());
                request.chunks = (0..dice.below(4)).map(|_| 1 + dice.below(body.len() + 9)).collect();
            }
            _ => request.version = *dice.pick(&VERSIONS),
        }
    }
}

fn is_safe_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
