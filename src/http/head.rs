//! Watches request heads on their way from the socket to hyper, for what hyper would accept or misreport.
//!
//! - hyper accepts lines that end in a bare line feed. A proxy in front may see another end of the head there, so such
//!   a head is spoilt here, and hyper refuses it.
//! - It reports whatever is too large as too many headers: [`HeadScanner::problem`] knows better.
//!
//! It keeps no head, only where it is in one. Where a request begins behind one with a chunked body, it does not know
//! until that one is answered; of pipelined requests behind one, the first is not watched.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    /// In a body, so many bytes before its end.
    Body(u64),
    /// Until the next answer.
    Unknown,
}

/// Follows the bytes of one connection.
pub(super) struct HeadScanner {
    place: Place,
    in_first_line: bool,
    line: [u8; LINE_START_BYTES],
    line_length: usize,
    last_byte: u8,
    content_length: Option<u64>,
    chunked: bool,
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
            content_length: None,
            chunked: false,
            found: None,
        }
    }

    /// What is wrong with the head that is being read, as far as it was read.
    pub(super) fn problem(&self) -> Option<HeadProblem> {
        let endless = self.place == Place::Head && self.in_first_line && self.line_length > 0;
        self.found.or(endless.then_some(HeadProblem::EndlessFirstLine))
    }

    /// An answer is being written, so what is read from now on is the next request.
    pub(super) fn answered(&mut self) {
        if self.place == Place::Unknown {
            *self = Self::new();
        }
    }

    /// Looks at bytes that were read, and spoils a line end that must not be one.
    pub(super) fn scan(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match self.place {
                Place::Unknown => return,
                Place::Body(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &mut bytes[here..];
                    self.place = match left - here as u64 {
                        0 => Place::Head,
                        left => Place::Body(left),
                    };
                }
                Place::Head => {
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
            *line_feed = 0;
            self.found = Some(HeadProblem::BareLineFeed);
            self.place = Place::Unknown;
            return;
        }
        let is_empty = self.line_length == 1;
        if self.in_first_line {
            // An empty line before a request is allowed.
            self.in_first_line = is_empty;
        } else if is_empty {
            self.end_head();
        } else {
            self.look_at_header();
        }
        self.line_length = 0;
    }

    fn look_at_header(&mut self) {
        let line = &self.line[..self.line_length.min(LINE_START_BYTES)];
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { return };
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let digits = value.trim_ascii();
            if digits.iter().all(u8::is_ascii_digit) {
                let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
                self.content_length = length.filter(|length| *length <= MAX_CONTENT_LENGTH);
                if self.content_length.is_none() && !digits.is_empty() {
                    self.found = Some(HeadProblem::ContentLength);
                }
            }
        }
    }

    fn end_head(&mut self) {
        let place = match (self.found, self.chunked, self.content_length) {
            (Some(_), ..) => {
                self.place = Place::Unknown;
                return;
            }
            (None, true, _) => Place::Unknown,
            (None, false, None | Some(0)) => Place::Head,
            (None, false, Some(length)) => Place::Body(length),
        };
        *self = Self { place, ..Self::new() };
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
        ] {
            for piece in 1..=request.len() {
                assert_eq!(
                    scan(request, piece),
                    (None, Place::Head, request.as_bytes().to_vec()),
                    "{request:?}"
                );
            }
        }
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n";
        assert_eq!(scan(chunked, 7), (None, Place::Unknown, chunked.as_bytes().to_vec()));
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

    #[test]
    fn after_an_answer_the_next_head_is_watched_again() {
        let mut scanner = HeadScanner::new();
        scanner.scan(&mut b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec());
        scanner.answered();
        scanner.scan(&mut b"GET / HTTP/1.1\n".to_vec());
        assert_eq!(scanner.problem(), Some(HeadProblem::BareLineFeed));
    }
}
