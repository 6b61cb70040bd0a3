//! A strict parser of HTTP/1.1 answers, all of which have a length. Anything that it does not understand is a finding.

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

    /// The first answer in these bytes and its length, once all of it has arrived. An answer to HEAD has no body.
    pub(super) fn parse(bytes: &[u8], to_head: bool) -> Result<Option<(Self, usize)>, String> {
        let start = &bytes[..bytes.len().min(5)];
        if !b"HTTP/".starts_with(start) {
            return Err("bytes that are not an answer".to_owned());
        }
        let Some(head_length) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return if bytes.len() > MAX_HEAD_BYTES {
                Err("a head without an end".to_owned())
            } else {
                Ok(None)
            };
        };
        let head = std::str::from_utf8(&bytes[..head_length]).map_err(|_| "a head that is not UTF-8")?;
        let mut lines = head.split("\r\n");
        let (is_1_1, status) = status_line(lines.next().unwrap_or_default())?;
        let headers = lines.map(header_line).collect::<Result<Vec<_>, _>>()?;
        let answer = Self { status, headers, body: Vec::new(), is_1_1 };
        let length = body_length(&answer, to_head)?;
        let start = head_length + 4;
        let Some(body) = bytes.get(start..start + length) else { return Ok(None) };
        Ok(Some((Self { body: body.to_owned(), ..answer }, start + length)))
    }
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

fn body_length(answer: &Answer, to_head: bool) -> Result<usize, String> {
    for name in ["content-length", "content-type", "x-request-id", "connection", "date"] {
        if answer.headers.iter().filter(|(known, _)| known == name).count() > 1 {
            return Err(format!("{name} twice"));
        }
    }
    if let Some(coding) = answer.header("transfer-encoding") {
        return Err(format!("the Transfer-Encoding {coding:?}"));
    }
    let without_body = answer.is_interim() || answer.status == 204;
    match answer.header("content-length") {
        Some(_) if without_body => Err("a length where there is no body".to_owned()),
        _ if without_body || to_head || answer.status == 304 => Ok(0),
        Some(length) => length.parse().map_err(|_| format!("the Content-Length {length:?}")),
        None => Err("a body without a length".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_where_its_length_says() {
        for (bytes, to_head, body) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokrest"[..], false, &b"ok"[..]),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nrest", true, b""),
            (b"HTTP/1.1 304 Not Modified\r\n\r\nrest", false, b""),
        ] {
            let (answer, length) = Answer::parse(bytes, to_head).unwrap().unwrap();
            assert_eq!((&answer.body[..], &bytes[length..]), (body, &b"rest"[..]));
            for shorter in 1..length {
                assert!(Answer::parse(&bytes[..shorter], to_head).unwrap().is_none(), "{shorter}");
            }
        }
    }

    #[test]
    fn an_answer_with_bad_framing_is_broken() {
        for bytes in [
            "garbage",
            "HTTP/1.1 999 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\nx: y\r\n\r\n",
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            assert!(Answer::parse(bytes.as_bytes(), false).is_err(), "{bytes:?}");
        }
    }
}
