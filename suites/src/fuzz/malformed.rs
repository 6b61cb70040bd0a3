//! Malformed requests that have misled other servers, request smuggling among them, each with the answer that it must get.

use crate::random::Random;

/// The problem of a close that a client could not expect.
pub(super) const UNANNOUNCED: &str = "closed after an answer without Connection: close";

/// The required outcome of a connection with these bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// One answer with one of these statuses, and a close: the start of the next request is ambiguous.
    Refused(&'static [u16]),
    /// A first answer with one of these statuses; what follows is served if the connection is kept.
    First(&'static [u16]),
    /// One answer and a close, or a refusal.
    Last,
    /// One answer; what follows is served.
    One,
    /// Anything that keeps the rules for every answer.
    Any,
}

impl Wanted {
    /// Compares with the answers: the status of each, and whether it is the answer to the sentinel.
    pub(super) fn check(self, seen: &[(u16, bool)], kept: bool, sentinel: bool) -> Result<(), String> {
        let served = seen.iter().any(|(_, is_sentinel)| *is_sentinel);
        let first = seen.iter().find(|(_, is_sentinel)| !is_sentinel).map(|(status, _)| *status);
        let statuses = || match seen {
            [] => "nothing".to_owned(),
            _ => seen.iter().map(|(status, _)| status.to_string()).collect::<Vec<_>>().join(", "),
        };
        let is_one_of = |wanted: &[u16]| first.is_some_and(|first| wanted.contains(&first));
        match self {
            Self::Any => Ok(()),
            Self::Refused(wanted) if seen.len() != 1 || !is_one_of(wanted) => {
                Err(format!("answered {}, but must be refused with {wanted:?}", statuses()))
            }
            Self::First(wanted) if !is_one_of(wanted) => {
                Err(format!("answered {} instead of {wanted:?}", statuses()))
            }
            Self::Last if seen.len() != 1 || served => {
                Err(format!("answered {} instead of one answer and a close", statuses()))
            }
            Self::One if first.is_none() || seen.len() != 1 + usize::from(sentinel) => {
                Err(format!("answered {}, but must be served like any other", statuses()))
            }
            _ if kept && sentinel && !served => Err(UNANNOUNCED.to_owned()),
            _ => Ok(()),
        }
    }
}

/// A valid request that asks to close the connection.
pub(super) fn sentinel(key: &str, id: &str) -> Vec<u8> {
    format!(
        "GET /v1/pets?limit=1 HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\nX-Request-Id: {id}\r\n\
         Connection: close\r\n\r\n"
    )
    .into()
}

/// `{get}` and `{post}` stand for the start of a good request, `{key}` for its key, `{chunked}` for the head of one whose body
/// has chunks, and `{chunks}` for such a body; the rest is as it is sent.
type Template = (&'static str, &'static str, Wanted);

const BAD: Wanted = Wanted::Refused(&[400]);

const HEADS: [Template; 36] = [
    // RFC 9112 lets a recipient accept a bare LF.
    ("bare LF after a header", "{get}X: y\nZ: z\r\n\r\n", Wanted::One),
    (
        "bare LF after the first line",
        "GET /v1/pets?limit=1 HTTP/1.1\nHost: fuzz\r\nAuthorization: Bearer {key}\r\n\r\n",
        Wanted::One,
    ),
    ("bare LF at the end of the head", "{get}X: y\n\n", Wanted::One),
    ("bare CR in a value", "{get}X: y\rZ: z\r\n\r\n", BAD),
    ("NUL in a value", "{get}X: y\0z\r\n\r\n", BAD),
    ("folded header", "{get}X: y\r\n z\r\n\r\n", BAD),
    ("folded first header", "GET /v1/pets?limit=1 HTTP/1.1\r\n Host: fuzz\r\n\r\n", BAD),
    ("space before a colon", "{get}X : y\r\n\r\n", BAD),
    ("header without a colon", "{get}Xyz\r\n\r\n", BAD),
    ("header without a name", "{get}: y\r\n\r\n", BAD),
    ("two spaces in the first line", "GET  /v1/pets?limit=1 HTTP/1.1\r\nHost: fuzz\r\n\r\n", BAD),
    ("no target", "GET HTTP/1.1\r\nHost: fuzz\r\n\r\n", BAD),
    ("HTTP/0.9", "GET /v1/pets\r\n\r\n", BAD),
    ("HTTP/1.2", "GET /v1/pets HTTP/1.2\r\nHost: fuzz\r\n\r\n", BAD),
    ("HTTP/2.0", "GET /v1/pets HTTP/2.0\r\nHost: fuzz\r\n\r\n", BAD),
    ("HTTP/1.1x", "GET /v1/pets HTTP/1.1x\r\nHost: fuzz\r\n\r\n", BAD),
    ("preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Wanted::Any),
    ("hello of TLS", "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03 sixteen random \0", Wanted::Any),
    ("greeting of SSH", "SSH-2.0-OpenSSH_9.9\r\n", Wanted::Any),
    ("greeting of SMTP", "EHLO fuzz\r\n", Wanted::Any),
    ("half of a head", "{get}X: y", Wanted::Any),
    ("half of a first line", "GET /v1/pe", Wanted::Any),
    ("empty lines first", "\r\n\r\n{get}\r\n", Wanted::One),
    ("good", "{get}\r\n", Wanted::One),
    (
        "good, HTTP/1.0, kept",
        "GET /v1/pets?limit=1 HTTP/1.0\r\nConnection: keep-alive\r\nAuthorization: Bearer {key}\r\n\r\n",
        Wanted::One,
    ),
    ("good, then garbage", "{get}\r\n\x01\x02\x03garbage\r\n\r\n", Wanted::First(&[200])),
    (
        "HTTP/1.0 kept, then garbage",
        "GET /v1/pets?limit=1 HTTP/1.0\r\nConnection: keep-alive\r\nAuthorization: Bearer {key}\r\n\r\n(\r\n\r\n",
        Wanted::First(&[200]),
    ),
    (
        "absolute target",
        "GET http://fuzz/v1/pets?limit=1 HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\n\r\n",
        Wanted::One,
    ),
    ("authority as target", "GET fuzz:80 HTTP/1.1\r\nHost: fuzz\r\n\r\n", Wanted::First(&[400, 404])),
    ("CONNECT", "CONNECT fuzz:80 HTTP/1.1\r\nHost: fuzz:80\r\n\r\n", Wanted::First(&[400, 401, 404, 405])),
    ("OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: fuzz\r\n\r\n", Wanted::Any),
    ("no Host", "GET /v1/pets HTTP/1.1\r\n\r\n", Wanted::First(&[400])),
    ("two Hosts", "{get}Host: other\r\n\r\n", Wanted::First(&[400])),
    ("bad Host", "GET /v1/pets HTTP/1.1\r\nHost: a b@c/d\r\n\r\n", Wanted::First(&[400])),
    ("upgrade", "{get}Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", Wanted::One),
    ("Expect without a body", "{get}Expect: 100-continue\r\n\r\n", Wanted::One),
];

const BODIES: [Template; 45] = [
    ("two lengths", "{post}Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}", BAD),
    ("length with a sign", "{post}Content-Length: +2\r\n\r\n{}", BAD),
    ("negative length", "{post}Content-Length: -2\r\n\r\n{}", BAD),
    ("hexadecimal length", "{post}Content-Length: 0x2\r\n\r\n{}", BAD),
    ("length with a space", "{post}Content-Length: 2 2\r\n\r\n{}", BAD),
    ("no length", "{post}Content-Length: \r\n\r\n{}", BAD),
    ("list of lengths", "{post}Content-Length: 2, 30\r\n\r\n{}", BAD),
    (
        "length of 2^64 - 1",
        "{post}Content-Length: 18446744073709551615\r\n\r\n{}",
        // hyper takes it for a header that is too large.
        Wanted::Refused(&[431]),
    ),
    ("length of 2^64", "{post}Content-Length: 18446744073709551616\r\n\r\n{}", Wanted::Refused(&[400, 413])),
    (
        "length of 2^63 - 1",
        "{post}Content-Length: 9223372036854775807\r\n\r\n{}",
        Wanted::Refused(&[400, 413]),
    ),
    (
        "length, then chunked",
        "{post}Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}",
        Wanted::Last,
    ),
    (
        "chunked, then length",
        "{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunks}",
        Wanted::Last,
    ),
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
        "POST /v1/pets HTTP/1.0\r\nHost: fuzz\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}",
        BAD,
    ),
    ("chunked in capitals", "{post}Transfer-Encoding: CHUNKED\r\n\r\n{chunks}", Wanted::One),
    ("chunk extension", "{chunked}2;a=b;c=\"d\"\r\n{}\r\n0;e\r\n\r\n", Wanted::One),
    ("trailer", "{chunked}2\r\n{}\r\n0\r\nX: y\r\nContent-Length: 9\r\n\r\n", Wanted::One),
    ("chunk size with zeros", "{chunked}000002\r\n{}\r\n000\r\n\r\n", Wanted::One),
    ("chunk size of 0x", "{chunked}0x{chunks}", BAD),
    ("negative chunk size", "{chunked}-{chunks}", BAD),
    ("signed chunk size", "{chunked}+{chunks}", BAD),
    ("empty chunk size", "{chunked}\r\n{}\r\n0\r\n\r\n", BAD),
    ("chunk size over 64 bits", "{chunked}1000000000000000{chunks}", BAD),
    ("chunk size of 2^64 - 1", "{chunked}ffffffffffffffff\r\n{}\r\n0\r\n\r\n", Wanted::Any),
    ("chunk shorter than its size", "{chunked}3\r\n{}\r\n0\r\n\r\n", BAD),
    ("chunk longer than its size", "{chunked}1\r\n{}\r\n0\r\n\r\n", BAD),
    ("bare LF after a chunk size", "{chunked}2\n{}\r\n0\r\n\r\n", BAD),
    ("bare LF after a chunk", "{chunked}2\r\n{}\n0\r\n\r\n", BAD),
    ("bare LF in a chunk extension", "{chunked}2;a\nb\r\n{}\r\n0\r\n\r\n", BAD),
    ("body of GET", "{get}Content-Length: 2\r\n\r\n{}", Wanted::One),
    (
        "body that is not read",
        "POST /v1/nothing HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\nContent-Length: 2\r\n\r\n{}",
        Wanted::First(&[404]),
    ),
    (
        "body without a key",
        "POST /v1/pets HTTP/1.1\r\nHost: fuzz\r\nContent-Length: 2\r\n\r\n{}",
        Wanted::First(&[401]),
    ),
    (
        "other media type",
        "POST /v1/pets HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\nContent-Length: 2\r\n\r\n{}",
        Wanted::First(&[415]),
    ),
    ("body cut off", "{post}Content-Length: 40\r\n\r\n{\"name\":", Wanted::Any),
    ("chunk cut off", "{chunked}28\r\n{\"name\":", Wanted::Any),
];

/// A random malformed request: its name, its bytes, and what is wanted.
pub(super) fn request(random: &mut Random, key: &str) -> (&'static str, Vec<u8>, Wanted) {
    if random.chance(15) {
        return sized(random, key);
    }
    let (label, template, wanted) =
        if random.chance(50) { *random.pick(&HEADS) } else { *random.pick(&BODIES) };
    (label, fill(template, key), wanted)
}

fn fill(template: &str, key: &str) -> Vec<u8> {
    let get = "GET /v1/pets?limit=1 HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\n";
    let post = "POST /v1/pets HTTP/1.1\r\nHost: fuzz\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n";
    let chunked = "{post}Transfer-Encoding: chunked\r\n\r\n";
    let parts = [
        ("{chunked}", chunked),
        ("{chunks}", "2\r\n{}\r\n0\r\n\r\n"),
        ("{get}", get),
        ("{post}", post),
        ("{key}", key),
    ];
    parts.iter().fold(template.to_owned(), |text, (part, value)| text.replace(part, value)).into()
}

/// Requests that are too large in some way, and noise.
fn sized(random: &mut Random, key: &str) -> (&'static str, Vec<u8>, Wanted) {
    let (label, template, wanted) = match random.index(9) {
        0 => (
            "target over 8 KiB",
            format!("GET /{} HTTP/1.1\r\nHost: fuzz\r\n\r\n", "a".repeat(8192)),
            Wanted::First(&[414]),
        ),
        1 => (
            "target of 100 KB",
            format!("GET /{} HTTP/1.1\r\nHost: fuzz\r\n\r\n", "a".repeat(100_000)),
            Wanted::Refused(&[431]),
        ),
        2 => ("target without an end", format!("GET /{}", "a".repeat(200_000)), Wanted::Refused(&[431])),
        3 => (
            "headers over 16 KiB",
            format!("{{get}}X: {}\r\n\r\n", "a".repeat(16_384)),
            Wanted::First(&[431]),
        ),
        4 => (
            "headers of 200 KB",
            format!("{{get}}X: {}\r\n\r\n", "a".repeat(200_000)),
            Wanted::Refused(&[431]),
        ),
        5 => (
            "more than 100 headers",
            format!("{{get}}{}\r\n", "X: y\r\n".repeat(100)),
            Wanted::Refused(&[431]),
        ),
        6 => {
            let extension = "a".repeat(20_000);
            let bytes =
                format!("{{post}}Transfer-Encoding: chunked\r\n\r\n2;{extension}\r\n{{}}\r\n0\r\n\r\n");
            ("chunk extension of 20 KB", bytes, Wanted::Any)
        }
        7 => {
            let trailer = "a".repeat(30_000);
            let bytes =
                format!("{{post}}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nX: {trailer}\r\n\r\n");
            ("trailer of 30 KB", bytes, Wanted::Any)
        }
        _ => {
            let noise = (0..=random.index(4_000)).map(|_| random.byte()).collect();
            return ("noise", noise, Wanted::Any);
        }
    };
    (label, fill(&template, key), wanted)
}
