//! Scans request heads between the socket and hyper for problems that hyper accepts or misreports.
//!
//! - hyper accepts lines that end in a bare line feed. A proxy in front may see the end of the head elsewhere (request
//!   smuggling), so such a line feed is replaced by NUL, and hyper rejects the head.
//! - It reports whatever is too large as too many headers. [`HeadScanner::problem`] tells the cases apart.
//!
//! The scanner keeps only its position, not the head. It follows bodies to know where the next head starts. If that is
//! uncertain, it stops scanning: hyper rejects invalid framing and closes the connection.

use memchr::memchr;

/// How much of a line is kept: enough for the headers that determine the length of a body.
const LINE_START_BYTES: usize = 48;
/// The longest body that hyper accepts.
const MAX_CONTENT_LENGTH: u64 = u64::MAX - 2;

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadProblem {
    /// A line does not end in CR LF.
    BareLineFeed,
    /// `Content-Length` is a larger number than hyper accepts.
    ContentLength,
    /// The first line has no end yet.
    UnfinishedFirstLine,
}

/// What the next byte belongs to. If two headers determine what follows the head, the greater state wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ScannerState {
    Head,
    /// A body of known length, with the number of bytes left.
    Body(u64),
    /// The line with the size of a chunk.
    ChunkSize,
    /// A chunk, with the number of bytes left, including the line end after it.
    Chunk(u64),
    /// A line after the last chunk.
    Trailer,
    /// Uncertain: scanning has stopped.
    Unknown,
}

/// Scans the bytes of one connection.
pub(super) struct HeadScanner {
    state: ScannerState,
    in_first_line: bool,
    line: [u8; LINE_START_BYTES],
    line_length: usize,
    last_byte: u8,
    /// The state after the head.
    after_head: ScannerState,
    found: Option<HeadProblem>,
}

impl HeadScanner {
    pub(super) fn new() -> Self {
        Self {
            state: ScannerState::Head,
            in_first_line: true,
            line: [0; LINE_START_BYTES],
            line_length: 0,
            last_byte: 0,
            after_head: ScannerState::Head,
            found: None,
        }
    }

    /// The problem found so far in the current head.
    pub(super) fn problem(&self) -> Option<HeadProblem> {
        let unfinished = self.state == ScannerState::Head && self.in_first_line && self.line_length > 0;
        self.found.or(unfinished.then_some(HeadProblem::UnfinishedFirstLine))
    }

    /// Whether the next byte belongs to a head, as far as it is known.
    pub(super) fn is_awaiting_head(&self) -> bool {
        matches!(self.state, ScannerState::Head | ScannerState::Unknown)
    }

    /// Scans bytes that were read, and replaces a bare line feed in a head by NUL. Returns whether a head ended.
    pub(super) fn scan(&mut self, mut bytes: &mut [u8]) -> bool {
        let mut head_ended = false;
        while !bytes.is_empty() {
            match self.state {
                ScannerState::Unknown => return head_ended,
                ScannerState::Body(left) | ScannerState::Chunk(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &mut bytes[here..];
                    self.state = match (self.state, left - here as u64) {
                        (ScannerState::Body(_), 0) => ScannerState::Head,
                        (ScannerState::Body(_), left) => ScannerState::Body(left),
                        (_, 0) => ScannerState::ChunkSize,
                        (_, left) => ScannerState::Chunk(left),
                    };
                }
                ScannerState::Head | ScannerState::ChunkSize | ScannerState::Trailer => {
                    let end = memchr(b'\n', bytes);
                    let (line, rest) = bytes.split_at_mut(end.unwrap_or(bytes.len()));
                    self.extend_line(line);
                    if end.is_none() {
                        return head_ended;
                    }
                    let (line_feed, rest) = rest.split_at_mut(1);
                    head_ended |= self.end_line(&mut line_feed[0]);
                    bytes = rest;
                }
            }
        }
        head_ended
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        if let Some(room) = self.line.get_mut(self.line_length..) {
            let kept = room.len().min(bytes.len());
            room[..kept].copy_from_slice(&bytes[..kept]);
        }
        self.line_length += bytes.len();
        if let Some(last) = bytes.last() {
            self.last_byte = *last;
        }
    }

    /// Returns whether the line ended a head.
    fn end_line(&mut self, line_feed: &mut u8) -> bool {
        if self.line_length == 0 || self.last_byte != b'\r' {
            if self.state == ScannerState::Head {
                *line_feed = 0;
                self.found = Some(HeadProblem::BareLineFeed);
            }
            self.state = ScannerState::Unknown;
            return false;
        }
        let is_empty = self.line_length == 1;
        let ends_head = self.state == ScannerState::Head && !self.in_first_line && is_empty;
        match self.state {
            // An empty line before a request is allowed.
            ScannerState::Head if self.in_first_line => self.in_first_line = is_empty,
            ScannerState::Head if is_empty => self.end_head(),
            ScannerState::Head => self.read_header(),
            ScannerState::ChunkSize => self.state = after_chunk_size(self.line_start()),
            _ if is_empty => self.state = ScannerState::Head,
            _ => {}
        }
        self.line_length = 0;
        ends_head
    }

    fn line_start(&self) -> &[u8] {
        &self.line[..self.line_length.min(LINE_START_BYTES)]
    }

    fn read_header(&mut self) {
        let mut parts = self.line_start().splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { return };
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.after_head = self.after_head.max(ScannerState::ChunkSize);
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let digits = value.trim_ascii();
            let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
            let body = match length {
                // A truncated value might be a different number.
                _ if self.line_length > LINE_START_BYTES => ScannerState::Unknown,
                Some(0) => ScannerState::Head,
                Some(length @ 1..=MAX_CONTENT_LENGTH) => ScannerState::Body(length),
                _ => ScannerState::Unknown,
            };
            if body == ScannerState::Unknown && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
                self.found = Some(HeadProblem::ContentLength);
            }
            self.after_head = self.after_head.max(body);
        }
    }

    fn end_head(&mut self) {
        if self.after_head == ScannerState::Unknown {
            self.state = ScannerState::Unknown;
        } else {
            *self = Self { state: self.after_head, ..Self::new() };
        }
    }
}

/// The state after the line with the size of a chunk.
fn after_chunk_size(line: &[u8]) -> ScannerState {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let length =
        std::str::from_utf8(&line[..digits]).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match length {
        Some(0) => ScannerState::Trailer,
        Some(length) => {
            length.checked_add(b"\r\n".len() as u64).map_or(ScannerState::Unknown, ScannerState::Chunk)
        }
        None => ScannerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans bytes in pieces of this size.
    fn scan(request: &str, piece: usize) -> (Option<HeadProblem>, ScannerState, Vec<u8>) {
        let mut scanner = HeadScanner::new();
        let mut bytes = request.as_bytes().to_vec();
        for piece in bytes.chunks_mut(piece) {
            scanner.scan(piece);
        }
        (scanner.problem(), scanner.state, bytes)
    }

    #[test]
    fn good_requests_pass_unchanged_however_they_are_split() {
        for request in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n{\n\n\n}GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-LENGTH:  0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\n\n\n\n\r\nA\r\n{\"a\":\n\n1}\n\r\n0\r\n\r\n\
             GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            for piece in 1..=request.len() {
                assert_eq!(
                    scan(request, piece),
                    (None, ScannerState::Head, request.as_bytes().to_vec()),
                    "{request:?}"
                );
            }
        }
    }

    #[test]
    fn invalid_framing_is_left_to_hyper() {
        for chunks in ["\r\n", "x\r\n", "1\n", "fffffffffffffffff\r\n", "ffffffffffffffff\r\n", "0\r\nX: y\n"]
        {
            let request =
                format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}GET / HTTP/1.1\n\n");
            assert_eq!(
                scan(&request, 7),
                (None, ScannerState::Unknown, request.clone().into_bytes()),
                "{chunks:?}"
            );
        }
    }

    #[test]
    fn a_bare_line_feed_in_a_head_is_replaced_wherever_it_is() {
        for request in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: a\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n\n\n\nGET / HTTP/1.1\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\nGET / HTTP/1.1\nHost: a\r\n\r\n",
        ] {
            for piece in 1..=request.len() {
                let (problem, _, bytes) = scan(request, piece);
                assert_eq!(problem, Some(HeadProblem::BareLineFeed), "{request:?} {piece}");
                let replaced: Vec<_> =
                    bytes.iter().zip(request.bytes()).filter(|(now, before)| **now != *before).collect();
                assert_eq!(replaced, [(&0, b'\n')], "{request:?} {piece}");
            }
        }
    }

    #[test]
    fn the_parts_that_are_too_large_are_told_apart() {
        let length = "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n";
        assert_eq!(scan(length, 9).0, Some(HeadProblem::ContentLength));
        assert_eq!(scan("GET /xxxxxxxx", 9).0, Some(HeadProblem::UnfinishedFirstLine));
        assert_eq!(scan("GET / HTTP/1.1\r\nX: xxxxxxxx", 9).0, None);
    }
}
