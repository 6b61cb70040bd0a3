//! Refuses request heads in which a line ends with a bare line feed. hyper accepts them, but a proxy in front may see the end of
//! the head elsewhere (request smuggling). Such a line feed is replaced by NUL, so that hyper rejects the head.
//!
//! This follows no framing: it looks at what arrives while no request is being handled, up to the empty line that ends a head.
//! So a head may be accepted that is pipelined behind a request that is not answered yet, or that follows an empty line. Proxies
//! send neither.

/// Checks the line ends of the heads of one connection.
#[derive(Default)]
pub(super) struct BareLineFeeds {
    /// The last bytes that arrived.
    last: [u8; 3],
    /// Whether the head that was awaited has ended: what follows is a body, or another request.
    head_has_ended: bool,
    /// Whether a line has ended since the last response: if not, the first line of a head has not.
    pub(super) line_has_ended: bool,
    /// Whether a bare line feed was found.
    pub(super) found_bare: bool,
}

impl BareLineFeeds {
    /// Starts with another head: a response was sent.
    pub(super) fn responded(&mut self) {
        self.head_has_ended = false;
        self.line_has_ended = false;
    }

    /// Checks bytes that were read while a request is being handled, or a head is awaited.
    pub(super) fn check(&mut self, bytes: &mut [u8], is_handling: bool) {
        for byte in bytes {
            if *byte == b'\n' && !is_handling && !self.head_has_ended {
                if self.last[2] == b'\r' {
                    self.head_has_ended = self.last == *b"\r\n\r";
                    self.line_has_ended = true;
                } else {
                    *byte = 0;
                    self.found_bare = true;
                }
            }
            self.last = [self.last[1], self.last[2], *byte];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    /// Whether a head that arrives in pieces of this size is refused.
    fn is_refused(lines: &mut BareLineFeeds, request: &str, piece: usize) -> bool {
        let mut bytes = request.as_bytes().to_vec();
        for piece in bytes.chunks_mut(piece) {
            lines.check(piece, false);
        }
        assert_eq!(bytes != request.as_bytes(), lines.found_bare, "{request:?}");
        lines.found_bare
    }

    #[test]
    fn a_bare_line_feed_in_a_head_is_found_wherever_it_is() {
        for request in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            for piece in 1..=request.len() {
                assert!(is_refused(&mut BareLineFeeds::default(), request, piece), "{request:?} {piece}");
                let mut second = BareLineFeeds::default();
                assert!(!is_refused(&mut second, HEAD, piece));
                second.responded();
                assert!(is_refused(&mut second, request, piece), "second: {request:?} {piece}");
            }
        }
    }

    #[test]
    fn a_body_may_have_any_line_ends() {
        for piece in 1..=HEAD.len() + 4 {
            assert!(!is_refused(&mut BareLineFeeds::default(), &format!("{HEAD}{{\n\n}}"), piece));
        }
        let (mut lines, mut body) = (BareLineFeeds::default(), *b"{\n\n}");
        lines.check(&mut body, true);
        assert!(!lines.found_bare);
    }

    #[test]
    fn the_end_of_a_head_of_which_the_start_was_pipelined_is_found() {
        for split in 1..HEAD.len() {
            let mut lines = BareLineFeeds::default();
            assert!(!is_refused(&mut lines, &format!("{HEAD}{}", &HEAD[..split]), 7));
            lines.responded();
            let rest = format!("{}{{\n}}", &HEAD[split..]);
            // Nothing of its body is taken for a part of the head.
            assert!(!is_refused(&mut lines, &rest, 7), "{split}");
        }
    }
}
