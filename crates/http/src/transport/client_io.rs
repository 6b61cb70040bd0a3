//! The layer between hyper and a client's socket, which makes up for gaps in hyper: [`ClientIo`].
//!
//! - hyper itself answers a request that is not valid HTTP, with a status and no body, before any handler runs. Such a
//!   response gets the Error body here, and the right status.
//! - It accepts heads that it should not: see [`bare_line_feeds`](super::bare_line_feeds).
//! - It allocates memory for as much as a client sends at once. Reads are small here.
//! - It closes at once while a client may still be sending, which can cost that client its response. After a request
//!   with an `Upgrade` that was not granted, it does not even shut the connection down.
//! - It waits indefinitely for a client that does not read.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::rt::{Read, ReadBufCursor, Write};
use petstore_wire::json;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::bare_line_feeds::BareLineFeeds;
use super::connection_limiter::ConnectionPermit;
use crate::error::ApiError;
use crate::request_id::{REQUEST_ID, new_request_id};

/// How long, and for how many bytes, to keep reading from a client after the last response. Closing at once would reset
/// the connection, and the client might never read why it was refused.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// The size of one read. hyper doubles its buffer whenever a read fills it.
const READ_BYTES: usize = 4096;

/// A client's socket, as hyper uses it.
pub(crate) struct ClientIo {
    /// Shared with [`ClientPresence`](crate::client_presence::ClientPresence).
    socket: Arc<TcpStream>,
    bare_line_feeds: BareLineFeeds,
    /// Whether a request is being handled: no head is awaited.
    is_handling: Arc<AtomicBool>,
    /// What is left to write of the response that replaces hyper's own.
    replacement: Bytes,
    linger: Option<LingeringClose>,
    /// How long a write may make no progress.
    write_timeout: Duration,
    write_deadline: Option<Pin<Box<Sleep>>>,
    has_written: bool,
    /// Held until the socket is closed.
    permit: Option<ConnectionPermit>,
}

struct LingeringClose {
    deadline: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl ClientIo {
    /// A client that reads nothing of a response for `write_timeout` is disconnected. `is_handling` says whether a request is
    /// being handled.
    pub(crate) fn new(
        socket: Arc<TcpStream>,
        is_handling: Arc<AtomicBool>,
        write_timeout: Duration,
        permit: Option<ConnectionPermit>,
    ) -> Self {
        Self {
            socket,
            bare_line_feeds: BareLineFeeds::default(),
            is_handling,
            replacement: Bytes::new(),
            linger: None,
            write_timeout,
            write_deadline: None,
            has_written: false,
            permit,
        }
    }

    /// Answers 503 without reading a request, and closes the connection.
    pub(crate) async fn refuse(mut self) {
        self.replacement = render(&ApiError::Unavailable { cause: String::new() }, "retry-after: 1\r\n");
        // A failure concerns only the client.
        if poll_fn(|cx| self.poll_replacement(cx)).await.is_ok() {
            let _ = poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await;
        }
    }

    fn poll_write_socket(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        retry_if_blocked(|| self.socket.poll_write_ready(cx), || self.socket.try_write(bytes))
    }

    /// Writes what is left of the replacement.
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.replacement.is_empty() {
            let rest = self.replacement.clone();
            let written = self.poll_write_socket(cx, &rest);
            let written = ready!(self.limit_write(cx, written))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.replacement.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the result of a write, or an error if writes have made no progress for too long.
    fn limit_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.write_deadline = None;
            self.has_written = true;
            return written;
        }
        let write_timeout = self.write_timeout;
        let write_deadline = self.write_deadline.get_or_insert_with(|| Box::pin(sleep(write_timeout)));
        write_deadline.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut scratch = [0; READ_BYTES];
        let size = buf.remaining().min(READ_BYTES);
        let read = ready!(poll_read_socket(&self.socket, cx, &mut scratch[..size]))?;
        let is_handling = self.is_handling.load(Ordering::Relaxed);
        self.bare_line_feeds.check(&mut scratch[..read], is_handling);
        buf.put_slice(&scratch[..read]);
        Poll::Ready(Ok(()))
    }
}

impl Write for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.replacement.is_empty() {
            match replacement(buf, &self.bare_line_feeds) {
                None => {
                    self.bare_line_feeds.responded();
                    let written = self.poll_write_socket(cx, buf);
                    return self.limit_write(cx, written);
                }
                Some(response) => self.replacement = response,
            }
        }
        ready!(self.poll_replacement(cx))?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // hyper's own responses are one buffer.
        if let [only] = bufs {
            return self.poll_write(cx, only);
        }
        self.bare_line_feeds.responded();
        let written =
            retry_if_blocked(|| self.socket.poll_write_ready(cx), || self.socket.try_write_vectored(bufs));
        self.limit_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The kernel has everything that was written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            SockRef::from(&*self.socket).shutdown(Shutdown::Write)?;
            self.linger =
                Some(LingeringClose { deadline: Box::pin(sleep(LINGER)), bytes_left: LINGER_BYTES });
        }
        let Self { socket, linger: Some(linger), .. } = &mut *self else {
            return Poll::Ready(Ok(()));
        };
        let mut scratch = [0; READ_BYTES];
        while linger.bytes_left > 0 {
            match poll_read_socket(socket, cx, &mut scratch) {
                Poll::Pending => {
                    ready!(linger.deadline.as_mut().poll(cx));
                    break;
                }
                // The client has closed, too, or is gone.
                Poll::Ready(Ok(0) | Err(_)) => break,
                Poll::Ready(Ok(read)) => linger.bytes_left = linger.bytes_left.saturating_sub(read),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientIo {
    /// Closes as [`poll_shutdown`](Write::poll_shutdown) does, in the background, if hyper did not.
    fn drop(&mut self) {
        if self.linger.is_some() || self.write_deadline.is_some() || !self.has_written {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (socket, permit) = (self.socket.clone(), self.permit.take());
        let mut rest = Self::new(socket, self.is_handling.clone(), self.write_timeout, permit);
        runtime.spawn(async move { poll_fn(|cx| Pin::new(&mut rest).poll_shutdown(cx)).await });
    }
}

fn poll_read_socket(socket: &TcpStream, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    retry_if_blocked(|| socket.poll_read_ready(cx), || socket.try_read(buffer))
}

/// Tries an operation as often as the socket is said to be ready for it.
fn retry_if_blocked(
    mut poll_ready: impl FnMut() -> Poll<io::Result<()>>,
    mut attempt: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(poll_ready())?;
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

/// If these bytes are an error response of hyper's own, the same response with an Error body.
///
/// Every response of ours has a request id, so an error without one is hyper's. It closes the connection.
fn replacement(bytes: &[u8], bare_line_feeds: &BareLineFeeds) -> Option<Bytes> {
    // After a response to an HTTP/1.0 client, hyper uses that version.
    let status = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "))?.get(..3)?;
    let error = match status {
        b"400" if bare_line_feeds.found_bare => ApiError::InvalidHeader {
            name: None,
            problem: "Every line of the request head must end with CR LF",
        },
        b"400" => ApiError::InvalidHeader {
            name: None,
            problem: "The request is not valid HTTP/1.1: check the request line and the headers",
        },
        b"414" => ApiError::UriTooLong,
        // hyper reports whatever is too large as too many headers.
        b"431" if !bare_line_feeds.line_has_ended => ApiError::UriTooLong,
        b"431" => ApiError::HeadersTooLarge,
        _ => return None,
    };
    let head = std::str::from_utf8(bytes).ok()?;
    if head.contains(REQUEST_ID.as_str()) {
        return None;
    }
    let date = head.lines().find(|line| line.starts_with("date: ")).unwrap_or_default();
    Some(render(&error, &if date.is_empty() { String::new() } else { format!("{date}\r\n") }))
}

/// Renders a response with an Error body that closes the connection.
fn render(error: &ApiError, headers: &str) -> Bytes {
    let body = String::from_utf8(json::render(&error.body())).unwrap_or_default();
    let request_id = new_request_id();
    let request_id = request_id.to_str().unwrap_or_default();
    let (status, code) = error.code();
    tracing::info!(request_id, code, "request rejected before it was parsed");
    let length = body.len();
    Bytes::from(format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         cache-control: no-store\r\n{REQUEST_ID}: {request_id}\r\nconnection: close\r\n{headers}\r\n{body}"
    ))
}
