//! Malformed requests that have misled other servers, request smuggling among them, each with the answer that it must get.

use Wanted::{Any, First, Last, Refused, Served};

use crate::random::Random;

/// The required outcome of a connection with these bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// One answer with one of these statuses, and a close: the start of the next request is ambiguous.
    Refused(&'static [u16]),
    /// A first answer with one of these statuses, or with any if the list is empty. What follows is served if the connection is
    /// kept.
    First(&'static [u16]),
    /// One answer and a close, or a refusal.
    Last,
    /// So many answers. What follows is served.
    Served(usize),
    /// Anything that keeps the rules for every answer.
    Any,
}

impl Wanted {
    /// Compares with the answers: the status of each, and whether it is the answer to the sentinel.
    pub(super) fn check(self, seen: &[(u16, bool)], kept: bool, sentinel: bool) -> Result<(), String> {
        let served = seen.iter().any(|(_, is_sentinel)| *is_sentinel);
        let first = seen.iter().find(|(_, is_sentinel)| !is_sentinel).map(|(status, _)| *status);
        let is_one_of = |wanted: &[u16]| first.is_some_and(|first| wanted.contains(&first));
        let is_met = match self {
            Any => return Ok(()),
            Refused(wanted) => seen.len() == 1 && is_one_of(wanted),
            First(wanted) => first.is_some() && (wanted.is_empty() || is_one_of(wanted)),
            Last => seen.len() == 1 && !served,
            Served(count) => seen.len() == count + usize::from(sentinel) && served == sentinel,
        };
        let statuses: Vec<u16> = seen.iter().map(|(status, _)| *status).collect();
        match is_met {
            false => Err(format!("answered {statuses:?} instead of {self:?}")),
            true if kept && sentinel && !served => {
                Err("closed after an answer without Connection: close".to_owned())
            }
            true => Ok(()),
        }
    }
}

/// The `X-Request-Id` of the sentinel.
pub(super) const SENTINEL: &str = "sentinel";

/// A valid request that asks to close the connection.
pub(super) fn sentinel(key: &str) -> Vec<u8> {
    fill(&format!("{{get}}X-Request-Id: {SENTINEL}\r\nConnection: close\r\n\r\n"), key)
}

/// `{get}` and `{post}` stand for the start of a good request, `{host}` and `{auth}` for its headers without and with a key,
/// `{kept}` for a whole request of HTTP/1.0, `{chunked}` for the head of one whose body has chunks, `{chunks}` for such a body,
/// and `{pet}` for a good one. The rest is as it is sent.
type Template = (&'static str, &'static str, Wanted);

const BAD: Wanted = Refused(&[400]);
const ONE: Wanted = Served(1);
const TOO_LARGE: Wanted = Refused(&[431]);

const HEADS: [Template; 41] = [
    // RFC 9112 lets a recipient accept a bare LF.
    ("bare LF after a header", "{get}X: y\nZ: z\r\n\r\n", ONE),
    ("bare LF after the first line", "GET /v1/pets?limit=1 HTTP/1.1\n{auth}\r\n", ONE),
    ("bare LF at the end of the head", "{get}X: y\n\n", ONE),
    ("bare CR in a value", "{get}X: y\rZ: z\r\n\r\n", BAD),
    ("NUL in a value", "{get}X: y\0z\r\n\r\n", BAD),
    ("folded header", "{get}X: y\r\n z\r\n\r\n", BAD),
    ("folded first header", "GET /v1/pets?limit=1 HTTP/1.1\r\n {host}\r\n", BAD),
    ("space before a colon", "{get}X : y\r\n\r\n", BAD),
    ("header without a colon", "{get}Xyz\r\n\r\n", BAD),
    ("header without a name", "{get}: y\r\n\r\n", BAD),
    ("two spaces in the first line", "GET  /v1/pets?limit=1 HTTP/1.1\r\n{host}\r\n", BAD),
    ("no target", "GET HTTP/1.1\r\n{host}\r\n", BAD),
    ("HTTP/0.9", "GET /v1/pets\r\n\r\n", BAD),
    ("HTTP/1.2", "GET /v1/pets HTTP/1.2\r\n{host}\r\n", BAD),
    ("HTTP/2.0", "GET /v1/pets HTTP/2.0\r\n{host}\r\n", BAD),
    ("HTTP/1.1x", "GET /v1/pets HTTP/1.1x\r\n{host}\r\n", BAD),
    ("preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Any),
    ("hello of TLS", "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03 sixteen random \0", Any),
    ("greeting of SSH", "SSH-2.0-OpenSSH_9.9\r\n", Any),
    ("greeting of SMTP", "EHLO fuzz\r\n", Any),
    ("half of a head", "{get}X: y", Any),
    ("half of a first line", "GET /v1/pe", Any),
    ("empty lines first", "\r\n\r\n{get}\r\n", ONE),
    ("good", "{get}\r\n", ONE),
    ("good, HTTP/1.0, kept", "{kept}", ONE),
    ("good, then garbage", "{get}\r\n\x01\x02\x03garbage\r\n\r\n", First(&[200])),
    ("HTTP/1.0 kept, then garbage", "{kept}(\r\n\r\n", First(&[200])),
    ("absolute target", "GET http://fuzz/v1/pets?limit=1 HTTP/1.1\r\n{auth}\r\n", ONE),
    ("authority as target", "GET fuzz:80 HTTP/1.1\r\n{host}\r\n", First(&[400, 404])),
    ("CONNECT", "CONNECT fuzz:80 HTTP/1.1\r\nHost: fuzz:80\r\n\r\n", First(&[400, 401, 404, 405])),
    ("unknown method", "BREW /v1/pets HTTP/1.1\r\n{auth}\r\n", First(&[405])),
    ("method in lower case", "get /v1/pets HTTP/1.1\r\n{auth}\r\n", First(&[405])),
    ("endless method", "{*300*A} /v1/pets HTTP/1.1\r\n{host}\r\n", Any),
    ("OPTIONS *", "OPTIONS * HTTP/1.1\r\n{host}\r\n", Any),
    ("no Host", "GET /v1/pets HTTP/1.1\r\n\r\n", First(&[400])),
    ("two Hosts", "{get}Host: other\r\n\r\n", First(&[400])),
    ("bad Host", "GET /v1/pets HTTP/1.1\r\nHost: a b@c/d\r\n\r\n", First(&[400])),
    (
        "values that are not ASCII",
        "{get}If-None-Match: ä\r\nX-Request-Id: ä\r\ntraceparent: ä\r\nOrigin: ä\r\n\r\n",
        ONE,
    ),
    ("bad percent-encoding", "GET /v1/pets?limit=%zz&status=% HTTP/1.1\r\n{auth}\r\n", First(&[400])),
    ("upgrade", "{get}Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", ONE),
    ("Expect without a body", "{get}Expect: 100-continue\r\n\r\n", ONE),
];

const BODIES: [Template; 47] = [
    ("two lengths", "{post}Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}", BAD),
    ("length with a sign", "{post}Content-Length: +2\r\n\r\n{}", BAD),
    ("negative length", "{post}Content-Length: -2\r\n\r\n{}", BAD),
    ("hexadecimal length", "{post}Content-Length: 0x2\r\n\r\n{}", BAD),
    ("length with a space", "{post}Content-Length: 2 2\r\n\r\n{}", BAD),
    ("no length", "{post}Content-Length: \r\n\r\n{}", BAD),
    ("list of lengths", "{post}Content-Length: 2, 30\r\n\r\n{}", BAD),
    // hyper takes it for a header that is too large.
    ("length of 2^64 - 1", "{post}Content-Length: 18446744073709551615\r\n\r\n{}", TOO_LARGE),
    ("length of 2^64", "{post}Content-Length: 18446744073709551616\r\n\r\n{}", Refused(&[400, 413])),
    ("length of 2^63 - 1", "{post}Content-Length: 9223372036854775807\r\n\r\n{}", Refused(&[400, 413])),
    ("length, then chunked", "{post}Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}", Last),
    ("chunked, then length", "{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunks}", Last),
    ("gzip, chunked", "{post}Transfer-Encoding: gzip, chunked\r\n\r\n{chunks}", BAD),
    ("chunked, gzip", "{post}Transfer-Encoding: chunked, gzip\r\n\r\n{chunks}", BAD),
    ("identity coding", "{post}Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", BAD),
    ("unknown coding", "{post}Transfer-Encoding: xchunked\r\n\r\n{chunks}", BAD),
    ("coding with a vertical tab", "{post}Transfer-Encoding: \x0bchunked\r\n\r\n{chunks}", BAD),
    ("chunked twice", "{post}Transfer-Encoding: chunked, chunked\r\n\r\n{chunks}", BAD),
    ("two codings", "{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{chunks}", BAD),
    ("quoted coding", "{post}Transfer-Encoding: \"chunked\"\r\n\r\n{chunks}", BAD),
    ("coding with a space before the colon", "{post}Transfer-Encoding : chunked\r\n\r\n{chunks}", BAD),
    ("folded coding", "{post}Transfer-Encoding:\r\n chunked\r\n\r\n{chunks}", BAD),
    ("empty coding", "{post}Transfer-Encoding: \r\nContent-Length: 2\r\n\r\n{}", BAD),
    (
        "chunked in HTTP/1.0",
        "POST /v1/pets HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n{chunks}",
        BAD,
    ),
    ("chunked in capitals", "{post}Transfer-Encoding: CHUNKED\r\n\r\n{chunks}", ONE),
    ("chunk extension", "{chunked}2;a=b;c=\"d\"\r\n{}\r\n0;e\r\n\r\n", ONE),
    ("trailer", "{chunked}2\r\n{}\r\n0\r\nX: y\r\nContent-Length: 9\r\n\r\n", ONE),
    ("chunk size with zeros", "{chunked}000002\r\n{}\r\n000\r\n\r\n", ONE),
    ("chunk size of 0x", "{chunked}0x{chunks}", BAD),
    ("negative chunk size", "{chunked}-{chunks}", BAD),
    ("signed chunk size", "{chunked}+{chunks}", BAD),
    ("empty chunk size", "{chunked}\r\n{}\r\n0\r\n\r\n", BAD),
    ("chunk size over 64 bits", "{chunked}1000000000000000{chunks}", BAD),
    ("chunk size of 2^64 - 1", "{chunked}ffffffffffffffff\r\n{}\r\n0\r\n\r\n", Any),
    ("chunk shorter than its size", "{chunked}3\r\n{}\r\n0\r\n\r\n", BAD),
    ("chunk longer than its size", "{chunked}1\r\n{}\r\n0\r\n\r\n", BAD),
    ("bare LF after a chunk size", "{chunked}2\n{}\r\n0\r\n\r\n", BAD),
    ("bare LF after a chunk", "{chunked}2\r\n{}\n0\r\n\r\n", BAD),
    ("bare LF in a chunk extension", "{chunked}2;a\nb\r\n{}\r\n0\r\n\r\n", BAD),
    ("idempotency key that is not ASCII", "{post}Idempotency-Key: ä\r\n{pet}", First(&[400])),
    ("deep nesting", "{post}Content-Length: 2000\r\n\r\n{*2000*[}", First(&[400])),
    ("body of GET", "{get}Content-Length: 2\r\n\r\n{}", ONE),
    (
        "body that is not read",
        "POST /v1/nothing HTTP/1.1\r\n{auth}Content-Length: 2\r\n\r\n{}",
        First(&[404]),
    ),
    ("body without a key", "POST /v1/pets HTTP/1.1\r\n{host}Content-Length: 2\r\n\r\n{}", First(&[401])),
    ("other media type", "POST /v1/pets HTTP/1.1\r\n{auth}Content-Length: 2\r\n\r\n{}", First(&[415])),
    ("body cut off", "{post}Content-Length: 40\r\n\r\n{\"name\":", Any),
    ("chunk cut off", "{chunked}28\r\n{\"name\":", Any),
];

const SIZES: [Template; 9] = [
    ("target of 8 KiB", "GET /v1/pets?{*8183*&} HTTP/1.1\r\n{auth}\r\n", ONE),
    ("target over 8 KiB", "GET /{*8192*a} HTTP/1.1\r\n{host}\r\n", First(&[414])),
    ("target of 100 KB", "GET /{*100000*a} HTTP/1.1\r\n{host}\r\n", TOO_LARGE),
    ("target without an end", "GET /{*200000*a}", TOO_LARGE),
    ("headers over 16 KiB", "{get}X: {*16384*a}\r\n\r\n", First(&[431])),
    ("headers of 200 KB", "{get}X: {*200000*a}\r\n\r\n", TOO_LARGE),
    ("more than 100 headers", "{get}{*100*X: y\r\n}\r\n", TOO_LARGE),
    ("chunk extension of 20 KB", "{chunked}2;{*20000*a}\r\n{}\r\n0\r\n\r\n", Any),
    ("trailer of 30 KB", "{chunked}2\r\n{}\r\n0\r\nX: {*30000*a}\r\n\r\n", Any),
];

/// A malformed request: its name, its bytes, and what is wanted. The steps from 0 on go through all of them, again and again.
pub(super) fn request(random: &mut Random, step: usize, key: &str) -> (&'static str, Vec<u8>, Wanted) {
    let mut templates = HEADS.iter().chain(&BODIES).chain(&SIZES);
    match templates.nth(step % (HEADS.len() + BODIES.len() + SIZES.len() + 1)) {
        Some((label, template, wanted)) => (label, fill(template, key), *wanted),
        None => ("noise", (0..=random.index(4_000)).map(|_| random.byte()).collect(), Any),
    }
}

fn fill(template: &str, key: &str) -> Vec<u8> {
    let parts = [
        ("{chunked}", "{post}Transfer-Encoding: chunked\r\n\r\n"),
        ("{pet}", "Content-Length: 27\r\n\r\n{\"name\":\"x\",\"categoryId\":1}"),
        ("{chunks}", "2\r\n{}\r\n0\r\n\r\n"),
        ("{kept}", "GET /v1/pets?limit=1 HTTP/1.0\r\nConnection: keep-alive\r\n{auth}\r\n"),
        ("{get}", "GET /v1/pets?limit=1 HTTP/1.1\r\n{auth}"),
        ("{post}", "POST /v1/pets HTTP/1.1\r\n{auth}Content-Type: application/json\r\n"),
        ("{auth}", "{host}Authorization: Bearer {key}\r\n"),
        ("{host}", "Host: fuzz\r\n"),
        ("{key}", key),
    ];
    parts.iter().fold(with_repetitions(template), |text, (part, value)| text.replace(part, value)).into()
}

/// The text in which `{*3*ab}` stands for `ababab`.
pub(super) fn with_repetitions(template: &str) -> String {
    let mut parts = template.split("{*");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (repetition, rest) = part.split_once('}').unwrap_or_default();
        let (count, repeated) = repetition.split_once('*').unwrap_or_default();
        text += &repeated.repeat(count.parse().unwrap_or_default());
        text += rest;
    }
    text
}
