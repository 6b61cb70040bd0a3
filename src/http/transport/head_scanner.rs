//! Watches request heads on their way from the socket to hyper, for what hyper would accept or misreport.
//!
//! - hyper accepts lines that end in a bare line feed. A proxy in front may see another end of the head there, so such
//!   a head is spoilt here, and hyper refuses it.
//! - It reports whatever is too large as too many headers: [`HeadScanner::problem`] knows better.
//!
//! It keeps no head, only where it is in one, and follows bodies to know where the next head begins. Where it is not sure
//! of that, it watches no more: hyper refuses what is not framed as it should be, and closes the connection.

/// How much of a line is looked at: enough for the headers that say how long a body is.
const LINE_START_BYTES: usize = 48;
/// The longest body that hyper can count.
const MAX_CONTENT_LENGTH: u64 = u64::MAX - 2;

/// What is wrong with a head, or was the last thing before hyper gave up on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadProblem {
    /// A line does not end in CR LF.
    BareLineFeed,
    /// The body is announced to be longer than anybody can count.
    ContentLength,
    /// The first line has not ended yet.
    EndlessFirstLine,
}

/// Where the next byte belongs. Of two headers that say what follows a head, the greater counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Head,
    /// In a body of known length, so many bytes before its end.
    Body(u64),
    /// In a line that says how long a chunk is.
    ChunkSize,
    /// In a chunk, so many bytes before the end of the line end behind it.
    Chunk(u64),
    /// In a line behind the last chunk.
    Trailer,
    /// For good.
    Unknown,
}

/// Follows the bytes of one connection.
pub(super) struct HeadScanner {
    place: Place,
    in_first_line: bool,
    line: [u8; LINE_START_BYTES],
    line_length: usize,
    last_byte: u8,
    /// What follows the head.
    body: Place,
    found: Option<HeadProblem>,
}

impl HeadScanner {
    pub(super) fn new() -> Self {
        Self {
            place: Place::Head,
            in_first_line: true,
            line: [0; LINE_START_BYTES],
            line_length: 0,
            last_byte: 0,
            body: Place::Head,
            found: None,
        }
    }

    /// What is wrong with the head that is being read, as far as it was read.
    pub(super) fn problem(&self) -> Option<HeadProblem> {
        let endless = self.place == Place::Head && self.in_first_line && self.line_length > 0;
        self.found.or(endless.then_some(HeadProblem::EndlessFirstLine))
    }

    /// Looks at bytes that were read, and spoils a line end that must not be one.
    pub(super) fn scan(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match self.place {
                Place::Unknown => return,
                Place::Body(left) | Place::Chunk(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &mut bytes[here..];
                    self.place = match (self.place, left - here as u64) {
                        (Place::Body(_), 0) => Place::Head,
                        (Place::Body(_), left) => Place::Body(left),
                        (_, 0) => Place::ChunkSize,
                        (_, left) => Place::Chunk(left),
                    };
                }
                Place::Head | Place::ChunkSize | Place::Trailer => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let (line, rest) = bytes.split_at_mut(end.unwrap_or(bytes.len()));
                    self.extend_line(line);
                    if end.is_none() {
                        return;
                    }
                    let (line_feed, rest) = rest.split_at_mut(1);
                    self.end_line(&mut line_feed[0]);
                    bytes = rest;
                }
            }
        }
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        if let Some(room) = self.line.get_mut(self.line_length..) {
            for (place, byte) in room.iter_mut().zip(bytes) {
                *place = *byte;
            }
        }
        self.line_length += bytes.len();
        if let Some(last) = bytes.last() {
            self.last_byte = *last;
        }
    }

    fn end_line(&mut self, line_feed: &mut u8) {
        if self.line_length == 0 || self.last_byte != b'\r' {
            if self.place == Place::Head {
                *line_feed = 0;
                self.found = Some(HeadProblem::BareLineFeed);
            }
            self.place = Place::Unknown;
            return;
        }
        let is_empty = self.line_length == 1;
        match self.place {
            // An empty line before a request is allowed.
            Place::Head if self.in_first_line => self.in_first_line = is_empty,
            Place::Head if is_empty => self.end_head(),
            Place::Head => self.look_at_header(),
            Place::ChunkSize => self.place = chunk(self.line_start()),
            _ if is_empty => self.place = Place::Head,
            _ => {}
        }
        self.line_length = 0;
    }

    fn line_start(&self) -> &[u8] {
        &self.line[..self.line_length.min(LINE_START_BYTES)]
    }

    fn look_at_header(&mut self) {
        let mut parts = self.line_start().splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { return };
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.body = self.body.max(Place::ChunkSize);
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let digits = value.trim_ascii();
            let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
            let body = match length {
                // Cut off, it might be another number.
                _ if self.line_length > LINE_START_BYTES => Place::Unknown,
                Some(0) => Place::Head,
                Some(length @ 1..=MAX_CONTENT_LENGTH) => Place::Body(length),
                _ => Place::Unknown,
            };
            if body == Place::Unknown && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
                self.found = Some(HeadProblem::ContentLength);
            }
            self.body = self.body.max(body);
        }
    }

    fn end_head(&mut self) {
        if self.body == Place::Unknown {
            self.place = Place::Unknown;
        } else {
            *self = Self { place: self.body, ..Self::new() };
        }
    }
}

/// What follows a line that says how long a chunk is.
fn chunk(line: &[u8]) -> Place {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let length =
        std::str::from_utf8(&line[..digits]).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match length {
        Some(0) => Place::Trailer,
        Some(length) => length.checked_add(b"\r\n".len() as u64).map_or(Place::Unknown, Place::Chunk),
        None => Place::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in bytes that are read in pieces of this size.
    fn scan(request: &str, piece: usize) -> (Option<HeadProblem>, Place, Vec<u8>) {
        let mut scanner = HeadScanner::new();
        let mut bytes = request.as_bytes().to_vec();
        for piece in bytes.chunks_mut(piece) {
            scanner.scan(piece);
        }
        (scanner.problem(), scanner.place, bytes)
    }

    #[test]
    fn good_requests_pass_unchanged_however_they_are_cut() {
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
                    (None, Place::Head, request.as_bytes().to_vec()),
                    "{request:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_framed_as_it_should_be_is_left_to_hyper() {
        for chunks in ["\r\n", "x\r\n", "1\n", "fffffffffffffffff\r\n", "ffffffffffffffff\r\n", "0\r\nX: y\n"]
        {
            let request =
                format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}GET / HTTP/1.1\n\n");
            assert_eq!(scan(&request, 7), (None, Place::Unknown, request.clone().into_bytes()), "{chunks:?}");
        }
    }

    #[test]
    fn a_bare_line_feed_in_a_head_is_spoilt_wherever_it_is() {
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
                let spoilt: Vec<_> =
                    bytes.iter().zip(request.bytes()).filter(|(now, before)| **now != *before).collect();
                assert_eq!(spoilt, [(&0, b'\n')], "{request:?} {piece}");
            }
        }
    }

    #[test]
    fn what_is_too_large_is_told_apart() {
        let length = "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n";
        assert_eq!(scan(length, 9).0, Some(HeadProblem::ContentLength));
        assert_eq!(scan("GET /xxxxxxxx", 9).0, Some(HeadProblem::EndlessFirstLine));
        assert_eq!(scan("GET / HTTP/1.1\r\nX: xxxxxxxx", 9).0, None);
    }
}
