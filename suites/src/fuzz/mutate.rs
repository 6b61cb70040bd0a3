//! Mutations of a request's head, valid or not. Only [`bytes()`] changes the framing.

use super::request::Request;
use crate::random::Random;

const METHODS: [&str; 12] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "G(T", "M-SEARCH",
];

pub(super) fn method(random: &mut Random) -> Vec<u8> {
    if random.chance(5) {
        vec![b'A'; 1 + random.index(300)]
    } else {
        random.pick(&METHODS).as_bytes().to_vec()
    }
}

const SEGMENTS: &str = "\
    0 -1 +1 01 1.0 1e3 abc 9223372036854775807 9223372036854775808 %31 %00 %ff % %zz %2f .. . 1;a=b ١ 1%20 \
    null 18446744073709551616 ~";
const PATHS: &str = "\
    / /v1 /v1/ //v1/pets /v1//pets /V1/pets /v1/pets/ /v1/pe%74s /v1/../v1/pets * /docs/page.js /livez \
    /metrics /v1/pets/1/2 /docs/../../etc/passwd /v1/pets#part ?limit=1";

pub(super) fn path(random: &mut Random, target: &mut Vec<u8>) {
    let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let query = target.split_off(end);
    match random.index(5) {
        0 => *target = word(random, PATHS).as_bytes().to_vec(),
        1 => target.extend(std::iter::repeat_n(b'a', around(random, 8192).saturating_sub(end))),
        2 => printable(random, target),
        _ => {
            // Replaces an id, if there is one.
            let mut segments: Vec<_> = target.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
            let place =
                segments.iter().position(|part| part.iter().all(u8::is_ascii_digit) && !part.is_empty());
            let place = place.unwrap_or_else(|| random.index(segments.len()));
            segments[place] = word(random, SEGMENTS).as_bytes().to_vec();
            *target = segments.join(&b'/');
        }
    }
    target.extend(query);
}

const PARAMETERS: [&str; 12] =
    ["limit", "status", "id", "cursor", "petId", "stauts", "Limit", "", "lim%69t", "%", "%ff", "a[b]"];
const VALUES: &str = "\
    0 1 100 101 -1 +5 05 1.5 5%20 99999999999999999999 available placed Sold available,sold %61vailable % \
    %zz %ff %00 %c0%af %ed%a0%80 + null AQAAAAAAAAAU AQAAAAAAAAAA AgAAAAAAAAAU AYAAAAAAAAAU AQAAAAAAAAAU= \
    AX________8";

pub(super) fn query(random: &mut Random, target: &mut Vec<u8>) {
    let separator = if target.contains(&b'?') { b'&' } else { b'?' };
    match random.index(6) {
        0 => {
            let (room, end) = (around(random, 8192), target.len());
            target.extend([separator]);
            target.extend(std::iter::repeat_n(b'x', room.saturating_sub(end + 1)));
        }
        1 => {
            let count = *random.pick(&[99, 100, 101, 400]);
            let ids: Vec<_> = (0..count).map(|_| format!("id={}", 1 + random.index(2_000))).collect();
            target.extend([&[separator], ids.join("&").as_bytes()].concat());
        }
        2 => {
            target
                .extend(random.pick(&["?", "&", "&&&", "?=", "&=", ";", "?limit", "#x", "?a=b?c=d"]).bytes());
        }
        3 => printable(random, target),
        _ => {
            let pair = format!("{}={}", random.pick(&PARAMETERS), word(random, VALUES));
            target.extend([&[separator], pair.as_bytes()].concat());
        }
    }
}

/// Headers that the service reads, with unusual values.
const HEADERS: [(&str, &[&str]); 19] = [
    (
        "Idempotency-Key",
        &["once", "\"once\"", "\"", "", " ", "a b", "ä", "twice", "\"twice\"", "🐕", "\\\"", ","],
    ),
    (
        "If-Match",
        &["*", "\"\"", "W/\"bc38ca4fbb876e29\"", "\"bc38ca4fbb876e29\"", "x", "\"", ", ,", "\"a\", *", ""],
    ),
    ("If-None-Match", &["*", "\"\"", "W/\"bc38ca4fbb876e29\"", "x", "\"", ",,,", "\"a\", \"b\"", "W/*", ""]),
    (
        "Content-Type",
        &[
            "",
            "text/plain",
            "application/json;charset=utf-16",
            "application/json; charset=\"utf-8\"",
            "APPLICATION/JSON",
            "application/json;",
            "application/json, application/json",
            "application/merge-patch+json",
            "ä",
            ";;;",
        ],
    ),
    ("Content-Encoding", &["gzip", "identity", "br", "", "gzip, gzip", "deflate", "Identity", "x"]),
    ("Host", &["", "a b@c/d", "[::1]:80", "fuzz:99999", "fuzz,fuzz", "FUZZ", "%00", "http://fuzz/", "ä"]),
    ("X-Request-Id", &["a", "a b", "", "ä", "{}", "a\tb", "../..", "%s%n", "A.b_c-9"]),
    ("Expect", &["100-continue", "100-Continue", "200-ok", "", "100-continue, 100-continue"]),
    (
        "Connection",
        &["keep-alive", "close", "upgrade", "te, keep-alive", "Keep-Alive, Close", "x", "", "authorization"],
    ),
    ("Upgrade", &["h2c", "websocket", "HTTP/2.0", ""]),
    ("HTTP2-Settings", &["AAMAAABkAAQCAAAAAAIAAAAA"]),
    (
        "Accept-Encoding",
        &["gzip", "*;q=0", "gzip;q=0", "identity;q=0, *;q=0", "br, gzip;q=0.5", "gzip;q=x", ";;,,"],
    ),
    ("Accept", &["text/html", "*/*", "x", "application/xml;q=1"]),
    ("Range", &["bytes=0-1", "bytes=-1", "x"]),
    ("Origin", &["https://shop.example", "null", "ä"]),
    ("Access-Control-Request-Method", &["PATCH", "x"]),
    ("traceparent", &["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0-0-0", "ff-", "ä"]),
    ("X-HTTP-Method-Override", &["DELETE"]),
    ("Trailer", &["Content-Length", "X-Request-Id"]),
];
/// Invalid names, and bytes that a value must not contain.
const ODD: [(&str, &str); 8] = [
    ("", "x"),
    ("X Y", "x"),
    ("(x)", "x"),
    ("Ünï", "x"),
    ("X", "a\0b"),
    ("X", "\x7f"),
    ("X", "a\x01"),
    ("X:", ": x"),
];

pub(super) fn header(random: &mut Random, request: &mut Request, tags: &[String]) {
    match random.index(20) {
        0 => {
            let long = vec![b'v'; around(random, 16 * 1024)];
            request.add("X-Long", long);
        }
        1 => {
            for number in 0..around(random, 100).saturating_sub(request.headers.len()) {
                request.add(format!("X-{number}"), "x");
            }
        }
        2 => {
            let (name, value) = random.pick(&ODD);
            request.add(*name, *value);
        }
        3 => {
            let place = random.index(request.headers.len());
            let again = request.headers.get(place).cloned();
            request.headers.extend(again);
        }
        4 => {
            let place = random.index(request.headers.len());
            if place < request.headers.len() {
                request.headers.remove(place);
            }
        }
        5 => {
            let schemes = ["bearer ", "Basic ", "Bearer  ", "", "Bearer", "Bearer\t"];
            let key =
                *random.pick(&["psk_", "", "psk_000000000000000000000000000000000000000000", "ä", "a b"]);
            let value = format!("{}{key}", random.pick(&schemes));
            request.set("Authorization", value);
        }
        6 | 7 => request.add(*random.pick(&["If-Match", "If-None-Match"]), &**random.pick(tags)),
        8 => {
            let length = around(random, 255);
            request.add("Idempotency-Key", vec![b'k'; length]);
        }
        9 => {
            // Few of them, so that they are reused.
            let key = format!("reused-{}", random.index(50));
            request.add("Idempotency-Key", key);
        }
        _ => {
            let (name, values) = *random.pick(&HEADERS);
            let value = *random.pick(values);
            if random.chance(20) { request.add(name, value) } else { request.set(name, value) }
        }
    }
}

const DELIMITERS: [&[u8]; 11] =
    [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b"\t", b"0", b",", b"\x80"];

/// Flips, cuts, doubles or inserts bytes anywhere.
pub(super) fn bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.index(3) {
        let (one, other) = (random.index(bytes.len() + 1), random.index(bytes.len() + 1));
        let (start, end) = (one.min(other), one.max(other).min(one.min(other) + 200));
        match random.index(7) {
            0 if !bytes.is_empty() => bytes[start.min(end.saturating_sub(1))] ^= 1 << random.index(8),
            1 if !bytes.is_empty() => bytes[start.min(end.saturating_sub(1))] = random.byte(),
            2 => drop(bytes.drain(start..end)),
            3 => bytes.truncate(start),
            4 => {
                let slice = bytes[start..end].repeat(1 + random.index(3));
                bytes.splice(start..start, slice);
            }
            5 => {
                let inserted: Vec<_> = (0..=random.index(8)).map(|_| random.byte()).collect();
                bytes.splice(start..start, inserted);
            }
            _ => {
                let token = *random.pick(&DELIMITERS);
                bytes.splice(start..start, token.iter().copied());
            }
        }
    }
}

/// One of these words, or none.
fn word(random: &mut Random, words: &'static str) -> &'static str {
    let count = words.split(' ').count();
    words.split(' ').nth(random.index(count + 1)).unwrap_or_default()
}

/// Replaces one byte with another that can appear in a target.
fn printable(random: &mut Random, target: &mut [u8]) {
    let place = random.index(target.len());
    if let Some(byte) = target.get_mut(place) {
        *byte = *random.pick(b"!\"#$%&'()*+,-./0:;<=>?@A[\\]^_`a{|}~\x7f\x80\xff\t");
    }
}

/// A number at a limit, just below or above it, or far above it.
pub(super) fn around(random: &mut Random, limit: usize) -> usize {
    *random.pick(&[limit - 1, limit, limit + 1, limit + 200, 2 * limit, 5 * limit])
}
