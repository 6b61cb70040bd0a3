//! A strict parser of HTTP/1.1 answers. Anything that it does not understand is a finding.

/// More than any head that the service sends.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// One answer, interim ones included.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Names are in lower case.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// HTTP/1.1, not 1.0.
    is_1_1: bool,
}

/// The result of parsing the bytes that have arrived so far.
pub(super) enum Parsed {
    Incomplete,
    /// An answer, and its length in bytes.
    Whole(Answer, usize),
    /// Not an answer, and why.
    Broken(String),
}

impl Answer {
    /// The value of a header that must not appear twice.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|(known, value)| (known == name).then_some(&**value))
    }

    /// Whether the connection can be reused, according to the headers.
    pub(super) fn keeps_connection(&self) -> bool {
        let says = |word| self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case(word));
        if self.is_1_1 { !says("close") } else { says("keep-alive") }
    }

    pub(super) fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// The answer as it was on the wire, except for the case of header names.
    pub(super) fn render(&self) -> Vec<u8> {
        let version = if self.is_1_1 { "1.1" } else { "1.0" };
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!("HTTP/{version} {}\r\n{}\r\n", self.status, headers.collect::<String>());
        [head.as_bytes(), &self.body].concat()
    }

    /// Parses the first answer in these bytes. An answer to HEAD has no body.
    pub(super) fn parse(bytes: &[u8], to_head: bool) -> Parsed {
        match parse(bytes, to_head) {
            Ok(Some((answer, length))) => Parsed::Whole(answer, length),
            Ok(None) => Parsed::Incomplete,
            Err(problem) => Parsed::Broken(problem),
        }
    }
}

fn parse(bytes: &[u8], to_head: bool) -> Result<Option<(Answer, usize)>, String> {
    let start = &bytes[..bytes.len().min(5)];
    if !b"HTTP/".starts_with(start) {
        return Err("bytes that are not an answer".to_owned());
    }
    let Some(head_length) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if bytes.len() > MAX_HEAD_BYTES { Err("a head without an end".to_owned()) } else { Ok(None) };
    };
    let head = std::str::from_utf8(&bytes[..head_length]).map_err(|_| "a head that is not UTF-8")?;
    let mut lines = head.split("\r\n");
    let (is_1_1, status) = status_line(lines.next().unwrap_or_default())?;
    let headers = lines.map(header_line).collect::<Result<Vec<_>, _>>()?;
    let mut answer = Answer { status, headers, body: Vec::new(), is_1_1 };
    let rest = &bytes[head_length + 4..];
    let body_length = match framing(&answer, to_head)? {
        Framing::Length(length) if rest.len() < length => return Ok(None),
        Framing::Length(length) => {
            answer.body.extend_from_slice(&rest[..length]);
            length
        }
        Framing::Chunked => match chunked(rest, &mut answer.body)? {
            None => return Ok(None),
            Some(length) => length,
        },
    };
    Ok(Some((answer, head_length + 4 + body_length)))
}

fn status_line(line: &str) -> Result<(bool, u16), String> {
    let problem = || format!("the status line {line:?}");
    let (version, rest) = line.split_once(' ').ok_or_else(problem)?;
    let (status, _reason) = rest.split_once(' ').ok_or_else(problem)?;
    let is_1_1 = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return Err(problem()),
    };
    match status.parse() {
        Ok(status @ 100..=599) if rest.len() > 3 => Ok((is_1_1, status)),
        _ => Err(problem()),
    }
}

fn header_line(line: &str) -> Result<(String, String), String> {
    let problem = || format!("the header line {line:?}");
    let (name, value) = line.split_once(':').ok_or_else(problem)?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_valid = !name.is_empty() && name.bytes().all(token) && !value.chars().any(char::is_control);
    if is_valid { Ok((name.to_ascii_lowercase(), value.trim().to_owned())) } else { Err(problem()) }
}

enum Framing {
    Length(usize),
    Chunked,
}

fn framing(answer: &Answer, to_head: bool) -> Result<Framing, String> {
    for name in ["content-length", "transfer-encoding", "content-type", "x-request-id", "connection", "date"]
    {
        if answer.headers.iter().filter(|(known, _)| known == name).count() > 1 {
            return Err(format!("{name} twice"));
        }
    }
    let (length, coding) = (answer.header("content-length"), answer.header("transfer-encoding"));
    let without_body = answer.is_interim() || answer.status == 204;
    match (length, coding) {
        (Some(_), Some(_)) => Err("Content-Length and Transfer-Encoding together".to_owned()),
        (Some(_), _) | (_, Some(_)) if without_body => Err("a length where there is no body".to_owned()),
        _ if without_body || to_head || answer.status == 304 => Ok(Framing::Length(0)),
        (Some(length), None) => {
            length.parse().map(Framing::Length).map_err(|_| format!("the Content-Length {length:?}"))
        }
        (None, Some("chunked")) => Ok(Framing::Chunked),
        (None, Some(coding)) => Err(format!("the Transfer-Encoding {coding:?}")),
        (None, None) => Err("a body without a length".to_owned()),
    }
}

/// Appends the body in these chunks and returns their length in bytes, once all have arrived.
fn chunked(bytes: &[u8], body: &mut Vec<u8>) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(end) = bytes[at..].windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[at..at + end]).ok();
        let size =
            size.and_then(|size| usize::from_str_radix(size, 16).ok()).ok_or("a chunk without a size")?;
        at += end + 2;
        let Some(chunk) = bytes.get(at..at + size + 2) else { return Ok(None) };
        if !chunk.ends_with(b"\r\n") {
            return Err("a chunk without an end".to_owned());
        }
        body.extend_from_slice(&chunk[..size]);
        at += size + 2;
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_where_its_length_says() {
        for (bytes, to_head, body) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokrest"[..], false, &b"ok"[..]),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nrest", false, b"ok"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nrest", true, b""),
            (b"HTTP/1.1 304 Not Modified\r\n\r\nrest", false, b""),
            (b"HTTP/1.1 100 Continue\r\n\r\nrest", false, b""),
        ] {
            let Parsed::Whole(answer, length) = Answer::parse(bytes, to_head) else { panic!("{bytes:?}") };
            assert_eq!(answer.body, body);
            assert_eq!(&bytes[length..], b"rest");
            for shorter in 1..length {
                assert!(matches!(Answer::parse(&bytes[..shorter], to_head), Parsed::Incomplete), "{shorter}");
            }
        }
    }

    #[test]
    fn an_answer_with_bad_framing_is_broken() {
        for bytes in [
            "garbage",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 999 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\nx: y\r\n\r\n",
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n",
        ] {
            assert!(matches!(Answer::parse(bytes.as_bytes(), false), Parsed::Broken(_)), "{bytes:?}");
        }
    }
}
