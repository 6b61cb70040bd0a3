//! Generates requests to all operations with all kinds of keys, mutates some of them, and says which answers to expect.

use super::mutate;
use super::mutate_json;
use super::request::Request;
use super::rules::{Case, Expected};
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

/// An operation, with targets and bodies that the service accepts. `{pet}`, `{added}` and `{order}` are replaced by ids, `{name}`,
/// `{category}`, `{status}` and `{unique}` by values.
struct Operation {
    name: &'static str,
    method: &'static str,
    /// Without a scope, the path is not under `/v1` or needs no key.
    scope: Option<&'static str>,
    targets: &'static [&'static str],
    bodies: &'static [(&'static str, &'static str)],
}

const JSON: &str = "application/json";

const OPERATIONS: &[Operation] = &[
    operation("listPets", "GET", "pets:read").at(&[
        "/v1/pets",
        "/v1/pets?limit=7&status={status}&cursor=AQAAAAAAAAAU",
        "/v1/pets?id={pet}&categoryId=-1",
        "/v1/pets?sort=-id&categoryId=3&cursor=AQAAAAAAAAAU",
        "/v1/pets?reference={order}&limit=100",
    ]),
    operation("createPet", "POST", "pets:write").at(&["/v1/pets"]).with(&[
        (r#"{"name":"{name}","categoryId":{category}}"#, JSON),
        (
            r#" { "status" : "{status}", "categoryId":{category},"name":"{name}","reference":"{unique}","metadata":{"price":"129.00","note":"{name}"}}"#,
            "application/json; charset=utf-8",
        ),
    ]),
    operation("getPet", "GET", "pets:read").at(&["/v1/pets/{pet}"]),
    operation("updatePet", "PATCH", "pets:write").at(&["/v1/pets/{pet}"]).with(&[
        (r#"{"status":"{status}"}"#, JSON),
        (r#"{"name":"{name}"}"#, "application/merge-patch+json"),
        (r#"{"reference":null,"metadata":{"price":null,"note":"{name}"}}"#, JSON),
    ]),
    // Mostly pets that were added before.
    operation("deletePet", "DELETE", "pets:write").at(&[
        "/v1/pets/{added}",
        "/v1/pets/{added}",
        "/v1/pets/{pet}",
    ]),
    operation("listOrders", "GET", "orders:read").at(&[
        "/v1/store/orders",
        "/v1/store/orders?limit=7&status=placed&cursor=AQAAAAAAAAAU",
        "/v1/store/orders?petId={pet}&status=cancelled",
        "/v1/store/orders?sort=-id&limit=3",
    ]),
    operation("placeOrder", "POST", "orders:write").at(&["/v1/store/orders"]).with(&[
        (r#"{"petId":{pet}}"#, JSON),
        (r#"{"petId":{pet},"holdSeconds":1}"#, JSON),
        (r#"{"petId":{pet},"reference":"basket 7"}"#, JSON),
    ]),
    operation("getOrder", "GET", "orders:read").at(&["/v1/store/orders/{order}"]),
    operation("updateOrder", "PATCH", "orders:write").at(&["/v1/store/orders/{order}"]).with(&[
        (r#"{"holdSeconds":60}"#, JSON),
        (r#"{"reference":null,"metadata":{"cashier":"{name}"}}"#, "application/merge-patch+json"),
    ]),
    operation("completeOrder", "POST", "orders:write").at(&["/v1/store/orders/{order}/complete"]),
    operation("cancelOrder", "POST", "orders:write").at(&["/v1/store/orders/{order}/cancel"]),
    operation("listEvents", "GET", "events:read").at(&[
        "/v1/events",
        "/v1/events?limit=100",
        "/v1/events?after=now",
        "/v1/events?after=now&wait=1",
        "/v1/events?wait=0&limit=1",
    ]),
];

/// The texts of these bodies, and where the answer has them.
const TEXTS: [(&str, &str); 3] = [
    (r#""name":"{name}""#, "/name"),
    (r#""note":"{name}""#, "/metadata/note"),
    (r#""cashier":"{name}""#, "/metadata/cashier"),
];

/// What the listener serves besides.
const OTHERS: &[Operation] = &[
    operation("options", "OPTIONS", "").at(&["/v1/pets/{pet}"]),
    operation("openapi", "GET", "").at(&["/openapi.json"]),
    operation("docs", "GET", "").at(&["/docs"]),
];

const fn operation(name: &'static str, method: &'static str, scope: &'static str) -> Operation {
    let scope = if scope.is_empty() { None } else { Some(scope) };
    Operation { name, method, scope, targets: &[], bodies: &[] }
}

impl Operation {
    const fn at(mut self, targets: &'static [&'static str]) -> Self {
        self.targets = targets;
        self
    }

    const fn with(mut self, bodies: &'static [(&'static str, &'static str)]) -> Self {
        self.bodies = bodies;
        self
    }

    /// Whether the method and the path are still those of the operation.
    fn is_reached_by(&self, request: &Request) -> bool {
        let path = request.target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let pattern = self.targets[0].split('?').next().unwrap_or_default().split('/');
        let parts = path.split(|byte| *byte == b'/');
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
            case.is_json &= unchanged;
            case.texts.clear();
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
        let name = format!("{} {}", random.pick(&NAMES), random.index(1000));
        let values = [
            ("{pet}", (1 + random.index(self.pets)).to_string()),
            ("{added}", (1 + self.pets + random.index(1_000)).to_string()),
            ("{order}", (1 + random.index(self.orders)).to_string()),
            ("{status}", (*random.pick(&["available", "available", "pending", "sold"])).to_owned()),
            ("{category}", (*random.pick(&INTEGERS)).to_owned()),
            ("{unique}", random.unique()),
            ("{name}", name.replace('\\', "\\\\").replace('"', "\\\"")),
        ];
        let fill = |template: &str| -> String {
            values.iter().fold(template.to_owned(), |text, (part, value)| text.replace(part, value))
        };
        let target: &str = random.pick::<&str>(operation.targets);
        let mut request = Request {
            method: operation.method.into(),
            target: fill(target).into(),
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
        if operation.method == "POST" && random.chance(30) {
            request.add("Idempotency-Key", random.unique());
        }
        case.is_json = operation.scope.is_some();
        if !operation.bodies.is_empty() {
            let (body, media_type) = *random.pick(operation.bodies);
            let sent = TEXTS.into_iter().filter(|(member, _)| body.contains(member));
            case.texts = sent.map(|(_, pointer)| (pointer, name.clone())).collect();
            request.add("Content-Type", media_type);
            request.body = Some(fill(body).into());
            if random.chance(25) {
                request.chunks = (0..=random.index(3)).map(|_| 1 + random.index(100)).collect();
            }
        }
        request
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
