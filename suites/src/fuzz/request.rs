//! A request in parts, so that each can be mutated separately.

/// A request with valid framing, whatever else is wrong with it.
pub(super) struct Request {
    pub(super) method: Vec<u8>,
    pub(super) target: Vec<u8>,
    pub(super) version: &'static str,
    /// Without the framing headers.
    pub(super) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) body: Option<Vec<u8>>,
    /// The sizes of the chunks, the last of which is repeated; without any, the body has a `Content-Length`.
    pub(super) chunks: Vec<usize>,
}

impl Request {
    pub(super) fn add(&mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.headers.push((name.into(), value.into()));
    }

    /// Replaces the value of a header, or adds it.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.headers.retain(|(known, _)| known != name.as_bytes());
        self.add(name, value);
    }

    /// Whether the value of a header contains this word.
    pub(super) fn has(&self, name: &str, word: &str) -> bool {
        self.headers.iter().any(|(known, value)| {
            known.eq_ignore_ascii_case(name.as_bytes())
                && String::from_utf8_lossy(value).to_ascii_lowercase().contains(word)
        })
    }

    pub(super) fn is_under_v1(&self) -> bool {
        self.target.starts_with(b"/v1/")
    }

    /// The bytes on the wire.
    pub(super) fn render(&self) -> Vec<u8> {
        let mut bytes =
            [&self.method, &b" "[..], &self.target, b" ", self.version.as_bytes(), b"\r\n"].concat();
        for (name, value) in &self.headers {
            bytes.extend([name, &b": "[..], value, b"\r\n"].concat());
        }
        let Some(body) = &self.body else {
            bytes.extend(b"\r\n");
            return bytes;
        };
        if self.chunks.is_empty() {
            bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
            bytes.extend(body);
        } else {
            bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            let mut rest = &body[..];
            let mut sizes = self.chunks.iter().chain(self.chunks.last().into_iter().cycle());
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(rest.len().min(*sizes.next().unwrap_or(&1)));
                bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                bytes.extend([chunk, b"\r\n"].concat());
                rest = after;
            }
            bytes.extend(b"0\r\n\r\n");
        }
        bytes
    }
}
