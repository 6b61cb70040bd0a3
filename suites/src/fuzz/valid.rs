//! Valid requests to every operation, whose answers must echo what was sent, and the same requests with one odd value.
//!
//! A stored text ends with its own checksum, so whoever reads it, in a list for example, notices that it was altered.
//! schemathesis compares the answers with the OpenAPI document, and sends what the document forbids.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::malformed::with_repetitions;
use super::rules::{Expectation, Expected};
use crate::random::Random;

/// The contents of the database before the first request.
pub(super) struct Fixtures {
    /// A key with every scope.
    pub(super) key: String,
    /// Keys of all kinds. The first has every scope.
    pub(super) keys: Vec<Key>,
    /// The ids of pets and orders go from 1 to these.
    pub(super) pets: usize,
    pub(super) orders: usize,
}

/// The `Authorization` header of a caller, or nothing, and the scopes that it proves.
pub(super) struct Key {
    pub(super) header: String,
    pub(super) scopes: &'static [&'static str],
}

impl Key {
    pub(super) fn new(text: &str, scopes: &'static [&'static str]) -> Self {
        Self { header: format!("Authorization: Bearer {text}\r\n"), scopes }
    }
}

pub(super) const SCOPES: [&str; 5] =
    ["pets:read", "pets:write", "orders:read", "orders:write", "events:read"];

/// An operation per line: its id, its scope or `-`, the method, the target and the body. After `=>`, what the answer must have,
/// unless that is the body: the members of an object; of an array, each element has the members of the first.
const TEMPLATES: &str = r#"
listPets pets:read GET /v1/pets?limit=7&status={status} => [{"status":"{status}"}]
listPets pets:read GET /v1/pets?categoryId={category}&cursor=AQAAAAAAAAAU => [{"categoryId":{category}}]
listPets pets:read GET /v1/pets?id={pet} => [{"id":{pet}}]
listPets pets:read GET /v1/pets?sort=-id&limit={limit} => []
listPets pets:read GET /v1/pets?reference={created} => [{"reference":"{created}","name":{created_name}}]
createPet pets:write POST /v1/pets {"name":{name},"categoryId":{category},"reference":"{unique}"}
createPet pets:write POST /v1/pets {"status":"{status}","categoryId":{category},"name":{name},"metadata":{"note":{note}}}
getPet pets:read GET /v1/pets/{pet} => {"id":{pet}}
updatePet pets:write PATCH /v1/pets/{pet} {"status":"{status}"}
updatePet pets:write PATCH /v1/pets/{pet} {"name":{name},"reference":"{unique}"}
updatePet pets:write PATCH /v1/pets/{pet} {"reference":null,"metadata":{"note":{note}}} => {"metadata":{"note":{note}}}
deletePet pets:write DELETE /v1/pets/{added} => null
listOrders orders:read GET /v1/store/orders?limit=7&status=placed&cursor=AQAAAAAAAAAU => [{"status":"placed"}]
listOrders orders:read GET /v1/store/orders?petId={pet}&sort=-id => [{"petId":{pet}}]
placeOrder orders:write POST /v1/store/orders {"petId":{pet}}
placeOrder orders:write POST /v1/store/orders {"petId":{pet},"reference":{name},"holdSeconds":3600} => {"reference":{name}}
getOrder orders:read GET /v1/store/orders/{order} => {"id":{order}}
updateOrder orders:write PATCH /v1/store/orders/{order} {"reference":{name},"metadata":{"cashier":{note}}}
completeOrder orders:write POST /v1/store/orders/{order}/complete => {"id":{order},"status":"completed"}
cancelOrder orders:write POST /v1/store/orders/{order}/cancel => {"id":{order},"status":"cancelled"}
listEvents events:read GET /v1/events?limit={limit} => []
listEvents events:read GET /v1/events?after=now&wait=1 => []
options - OPTIONS /v1/pets/{pet} => null
openapi - GET /openapi.json => {"openapi":"3.1.0"}
"#;

/// Texts that could corrupt HTTP, JSON, SQL or HTML, if somebody took them for it.
const TEXTS: [&str; 10] = [
    "Rex",
    "HTTP/1.1 400 Bad Request",
    "HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n{}",
    "quote\"back\\slash/\",\"id\":1,\"",
    "Zoë 🐕 e\u{301}\u{2028}\u{2029}",
    "\u{feff}BOM \u{202e}right to left",
    "'; DROP TABLE pets; --",
    "<script>alert(1)</script>",
    "%s%n{}$1%0d%0a\u{fffd}\u{10ffff}",
    "{*200*🐕}",
];

/// Odd values for an id, a parameter, a member or a header, some of which add another one. In a target, one that begins with
/// `/` replaces all of it.
const ODD: &str = r#"
0 -1 +1 01 1.0 7.0 1e3 1e400 1e99999999999999999999 9223372036854775808 7 "7" NaN null true [] {} "" {"a":null} abc ١ ä 🐕
% %zz %ff %00 %2f %c0%af .. ; 1;a=b 1%20 1?a=b 1#x 1&& 1&limit=0 1&limit=101 1&stauts=sold 1&limit=1&limit=1 1&cursor=AQ=
1{*99*&id=1} 1{*100*&id=1} 1&{*8192*x} //v1/pets /V1/pets /v1/pets/ /v1/pe%74s /v1/../v1/pets /livez /docs/../../etc/passwd
"\ud800" "\u0000" "\u" "\n" 7,"id":7 7,"nmae":"x" 7,"name":"twice","n\u0061me":"twice" 7/*x*/ 7}} 1{*9000*0} "{*256*é}"
"{*16384*a}" {*2000*[}1{*2000*]} {*2000*{"a":} * W/"x",," "once" " {*256*k} {*65*x} {*16384*v} text/plain
application/json;charset=utf-16 application/merge-patch+json gzip identity;q=0,*;q=0 psk_ Bearer 100-continue close upgrade
authorization h2c bytes=0-1 fuzz:99999 a@b [::1]:80, 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
"#;

/// Headers that the service or hyper reads.
const HEADERS: &str = "Idempotency-Key If-Match If-None-Match Content-Type Content-Encoding Authorization Host X-Request-Id \
    Expect Connection Upgrade Accept-Encoding Range Origin Access-Control-Request-Method traceparent X-Forwarded-For Trailer";

/// The requests of one client.
pub(super) struct Generator {
    pub(super) fixtures: Arc<Fixtures>,
    pub(super) random: Random,
    /// Lines of [`TEMPLATES`].
    pub(super) templates: Vec<&'static str>,
    /// The place in the tables of what is odd or malformed. Each client starts at another one.
    step: usize,
    /// The reference of the pet that was created last, and its name as JSON.
    created: (String, String),
}

/// A line of [`TEMPLATES`].
struct Template {
    operation: &'static str,
    scope: &'static str,
    method: &'static str,
    target: String,
    body: Option<String>,
    echo: &'static str,
}

impl Template {
    fn parse(line: &'static str) -> Self {
        let (request, echo) = line.split_once(" => ").unwrap_or((line, ""));
        let mut parts = request.splitn(5, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (operation, scope, method, target, body) = (part(), part(), part(), part().to_owned(), part());
        let echo = if echo.is_empty() { body } else { echo };
        let body = Some(body.to_owned()).filter(|body| !body.is_empty());
        Self { operation, scope, method, target, body, echo }
    }
}

impl Generator {
    pub(super) fn new(fixtures: Arc<Fixtures>, seed: u64, client: usize) -> Self {
        Self {
            fixtures,
            random: Random::of_worker(seed, client as u64),
            templates: TEMPLATES.trim().lines().collect(),
            step: 3 * client,
            created: ("none".to_owned(), "null".to_owned()),
        }
    }

    pub(super) fn next_step(&mut self) -> usize {
        self.step += 1;
        self.step
    }

    /// A valid request. If its bytes are to be changed, the texts in it must have no checksums.
    pub(super) fn request(&mut self, has_checksums: bool) -> (Vec<u8>, Expectation) {
        let template = self.template();
        self.render(template, "", has_checksums)
    }

    fn template(&mut self) -> Template {
        Template::parse(self.templates[self.random.index(self.templates.len())])
    }

    /// A request with an odd header, or with an odd value in its target or body. Its framing is valid.
    pub(super) fn odd_request(&mut self) -> (Vec<u8>, Expectation) {
        let mut template = self.template();
        let words = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
        let (odd, mut header) = (words(ODD), String::new());
        let odd = with_repetitions(odd[self.next_step() % odd.len()]);
        let random = &mut self.random;
        match (random.index(4), &mut template.body) {
            (0, _) => header = format!("{}: {odd}\r\n", random.pick(&words(HEADERS)[..])),
            (1 | 2, Some(body)) => match placeholder(random, body) {
                Some(place) => body.replace_range(place, &odd),
                None => *body = odd,
            },
            _ if odd.starts_with('/') => template.target = odd,
            _ => match placeholder(random, &template.target) {
                Some(place) => template.target.replace_range(place, &odd),
                None => template.target = format!("{}?{odd}", template.target),
            },
        }
        let (bytes, case) = self.render(template, &header, false);
        let expected = if case.expected == Expected::Denied { Expected::Denied } else { Expected::Any };
        let request_id = case.request_id.filter(|_| !header.starts_with("X-Request-Id"));
        (bytes, Expectation { expected, request_id, ..case })
    }

    /// Fills in a template. The given header replaces the one with the same name.
    fn render(&mut self, template: Template, header: &str, has_checksums: bool) -> (Vec<u8>, Expectation) {
        let Template { operation, scope, method, target, body, echo } = template;
        let Self { fixtures, random, created, .. } = self;
        let key = if random.chance(85) { &fixtures.keys[0] } else { random.pick(&fixtures.keys) };
        let method = if method == "GET" && random.chance(10) { "HEAD" } else { method };
        let unique = random.unique();
        let text = with_repetitions(TEXTS[random.index(TEXTS.len())]);
        let name = if has_checksums { with_checksum(&format!("{text} {unique}")) } else { text.clone() };
        let note = if has_checksums { with_checksum(&format!("\n\n\t{text} {unique}")) } else { text };
        let name = escaped(random, &name);
        let values = [
            ("{pet}", (1 + random.index(fixtures.pets)).to_string()),
            ("{added}", (1 + fixtures.pets + random.index(1_000)).to_string()),
            ("{order}", (1 + random.index(fixtures.orders)).to_string()),
            ("{status}", (*random.pick(&["available", "available", "pending", "sold"])).to_owned()),
            ("{category}", (*random.pick(&["0", "-1", "42", "9223372036854775807"])).to_owned()),
            ("{limit}", (*random.pick(&["1", "20", "100"])).to_owned()),
            ("{unique}", unique.clone()),
            ("{name}", name.clone()),
            ("{note}", escaped(random, &note)),
            ("{created}", created.0.clone()),
            ("{created_name}", created.1.clone()),
        ];
        let fill = |template: &str| -> String {
            values.iter().fold(template.to_owned(), |text, (place, value)| text.replace(place, value))
        };
        let is_allowed = scope == "-" || key.scopes.contains(&scope);
        if has_checksums && is_allowed && operation == "createPet" && echo.contains("{unique}") {
            *created = (unique.clone(), name);
        }

        let mut headers =
            vec!["Host: fuzz\r\n".to_owned(), format!("X-Request-Id: {unique}\r\n"), key.header.clone()];
        if method == "POST" && random.chance(30) {
            headers.push(format!("Idempotency-Key: {unique}\r\n"));
        }
        if body.is_some() {
            let merge = if method == "PATCH" && random.chance(50) { "merge-patch+" } else { "" };
            headers.push(format!("Content-Type: application/{merge}json\r\n"));
        }
        let name_of = |line: &str| line.split(':').next().map(str::to_owned);
        headers.retain(|line| header.is_empty() || name_of(line) != name_of(header));
        let head = format!("{method} {} HTTP/1.1\r\n{}{header}", fill(&target), headers.concat());
        let rest = match body.map(|body| fill(&body)) {
            None => "\r\n".to_owned(),
            Some(body) if random.chance(75) => format!("Content-Length: {}\r\n\r\n{body}", body.len()),
            Some(body) => {
                format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
            }
        };
        let case = Expectation {
            label: operation,
            to_head: method == "HEAD",
            expected: if is_allowed { Expected::Success } else { Expected::Denied },
            request_id: Some(unique),
            echo: serde_json::from_str(&fill(echo)).unwrap_or_default(),
        };
        ((head + &rest).into(), case)
    }
}

/// One of the placeholders in a template, if it has any.
fn placeholder(random: &mut Random, template: &str) -> Option<Range<usize>> {
    let starts = template
        .match_indices('{')
        .filter(|(start, _)| template[start + 1..].starts_with(char::is_alphabetic));
    let starts: Vec<usize> = starts.map(|(start, _)| start).collect();
    let start = *starts.get(random.index(starts.len()))?;
    Some(start..start + template[start..].find('}')? + 1)
}

/// A text as JSON, sometimes with an escape sequence for each character.
fn escaped(random: &mut Random, text: &str) -> String {
    if random.chance(50) {
        return json!(text).to_string();
    }
    let escapes: Vec<String> = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{}\"", escapes.concat())
}

fn with_checksum(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{text} #{:08x}", hasher.finish() >> 32)
}

/// Whether no text in an answer differs from its checksum. Other clients may have stored it.
pub(super) fn is_intact(answer: &Value) -> bool {
    match answer {
        Value::String(text) => text.rsplit_once(" #").is_none_or(|(start, _)| with_checksum(start) == *text),
        Value::Array(items) => items.iter().all(is_intact),
        Value::Object(members) => members.values().all(is_intact),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_template() {
        let document: Value = serde_json::from_str(include_str!("../../../openapi.json")).unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        for operation in paths.flat_map(|path| path.as_object().unwrap().values()) {
            let Some(id) = operation["operationId"].as_str() else { continue };
            assert!(TEMPLATES.contains(&format!("\n{id} ")), "{id}");
        }
    }

    #[test]
    fn every_template_is_filled_and_says_what_the_answer_must_have() {
        let fixtures =
            Fixtures { key: String::new(), keys: vec![Key::new("x", &SCOPES)], pets: 9, orders: 9 };
        let mut generator = Generator::new(Arc::new(fixtures), 1, 0);
        for line in TEMPLATES.trim().lines() {
            let (request, case) = generator.render(Template::parse(line), "", true);
            assert_eq!(case.echo.is_null(), line.ends_with("=> null"), "{line}");
            assert!(is_intact(&case.echo), "{line}");
            assert_eq!(placeholder(&mut Random(1), &String::from_utf8_lossy(&request)), None, "{line}");
        }
    }
}
