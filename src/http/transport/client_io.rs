//! What hyper leaves to be desired between it and a client's socket: [`ClientIo`].
//!
//! - hyper answers a request that is not HTTP by itself, with a status and no body, before any handler runs:
//!   such an answer gets the Error body here, and the status that fits.
//! - It accepts some heads that it should not: see [`head_scanner`](super::head_scanner).
//! - It takes room for as much as a client sends at once: here a read is small.
//! - It closes at once, although a client may still be sending, which can cost that client its answer. After a request
//!   with an `Upgrade` that was not granted, it does not even shut the connection down.
//! - It waits for ever for a client that does not read.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::connection_limiter::ConnectionPermit;
use super::head_scanner::{HeadProblem, HeadScanner};
use crate::http::error::ApiError;
use crate::http::pipeline::access_log::{REQUEST_ID, new_request_id};
use crate::wire::json;

/// How long, and for how many bytes, a client that is still sending is listened to after the last answer.
/// Closing at once would reset the connection, and the client might never read why it was refused.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// How much is read at once. hyper doubles its buffer whenever a read fills it.
const READ_BYTES: usize = 4096;

/// A client's socket.
pub(crate) struct ClientIo {
    socket: TcpStream,
    head: HeadScanner,
    /// What is still to be written instead of hyper's own answer.
    substitute: Bytes,
    linger: Option<Linger>,
    /// How long the client may leave the socket full.
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    has_answered: bool,
    /// Held until the socket is closed.
    permit: Option<ConnectionPermit>,
}

struct Linger {
    deadline: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl ClientIo {
    /// A client that takes nothing of an answer for longer than `patience` is cut off.
    pub(crate) fn new(socket: TcpStream, patience: Duration, permit: Option<ConnectionPermit>) -> Self {
        Self {
            socket,
            head: HeadScanner::new(),
            substitute: Bytes::new(),
            linger: None,
            patience,
            stalled: None,
            has_answered: false,
            permit,
        }
    }

    /// Answers that the connection is refused, whatever it asks, and closes it.
    pub(crate) async fn refuse(mut self) {
        self.substitute = complete(&ApiError::Unavailable { cause: String::new() }, "retry-after: 1\r\n");
        // What becomes of it is the client's business.
        if poll_fn(|cx| self.poll_substitute(cx)).await.is_ok() {
            let _ = poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await;
        }
    }

    fn socket(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.socket)
    }

    /// Writes what is left of an answer of our own.
    fn poll_substitute(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.substitute.is_empty() {
            let rest = self.substitute.clone();
            let written = self.socket().poll_write(cx, &rest);
            let written = ready!(self.unless_stalled(cx, written))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.substitute.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Passes on what came of a write, unless writes have made no progress for too long.
    fn unless_stalled(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            self.has_answered = true;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut scratch[..buf.remaining().min(READ_BYTES)]);
        ready!(self.socket().poll_read(cx, &mut read))?;
        self.head.scan(read.filled_mut());
        buf.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.substitute.is_empty() {
            match substitute(buf, self.head.problem()) {
                None => {
                    let written = self.socket().poll_write(cx, buf);
                    return self.unless_stalled(cx, written);
                }
                Some(answer) => self.substitute = answer,
            }
        }
        ready!(self.poll_substitute(cx))?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // hyper's own answers are one buffer.
        if let [only] = bufs {
            return self.poll_write(cx, only);
        }
        let written = self.socket().poll_write_vectored(cx, bufs);
        self.unless_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(self.socket().poll_shutdown(cx))?;
            self.linger = Some(Linger { deadline: Box::pin(sleep(LINGER)), bytes_left: LINGER_BYTES });
        }
        let Self { socket, linger: Some(linger), .. } = &mut *self else {
            return Poll::Ready(Ok(()));
        };
        let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
        while linger.bytes_left > 0 {
            let mut buf = ReadBuf::uninit(&mut scratch);
            if Pin::new(&mut *socket).poll_read(cx, &mut buf).is_pending() {
                ready!(linger.deadline.as_mut().poll(cx));
                break;
            }
            match buf.filled().len() {
                // The client is done, too, or gone.
                0 => break,
                read => linger.bytes_left = linger.bytes_left.saturating_sub(read),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientIo {
    /// Closes as [`poll_shutdown`](Write::poll_shutdown) does, in the background, if hyper did not.
    fn drop(&mut self) {
        if self.linger.is_some() || self.stalled.is_some() || !self.has_answered {
            return;
        }
        let (Ok(socket), Ok(runtime)) = (self.socket.as_fd().try_clone_to_owned(), Handle::try_current())
        else {
            return;
        };
        let Ok(socket) = TcpStream::from_std(socket.into()) else { return };
        let mut rest = Self::new(socket, self.patience, self.permit.take());
        runtime.spawn(async move { poll_fn(|cx| Pin::new(&mut rest).poll_shutdown(cx)).await });
    }
}

/// If these bytes are an answer that hyper made by itself, the same answer with an Error body.
///
/// Every answer of ours carries a request id, so an error without one is hyper's. It closes the connection.
fn substitute(answer: &[u8], problem: Option<HeadProblem>) -> Option<Bytes> {
    // An answer after one to an HTTP/1.0 client is of that version.
    let status = answer.strip_prefix(b"HTTP/1.1 ").or_else(|| answer.strip_prefix(b"HTTP/1.0 "))?.get(..3)?;
    let error = match (status, problem) {
        (b"400", Some(HeadProblem::BareLineFeed)) => {
            ApiError::InvalidHeader { problem: "Every line of the request's head must end with CR LF" }
        }
        (b"400" | b"431", Some(HeadProblem::ContentLength)) => ApiError::BodyTooLarge,
        (b"400", _) => ApiError::InvalidHeader {
            problem: "The request is not valid HTTP/1.1: look at its first line and at its headers",
        },
        (b"414", _) | (b"431", Some(HeadProblem::EndlessFirstLine)) => ApiError::UriTooLong,
        (b"431", _) => ApiError::HeadersTooLarge,
        _ => return None,
    };
    let head = std::str::from_utf8(answer).ok()?;
    if head.contains(REQUEST_ID.as_str()) {
        return None;
    }
    let date = head.lines().find(|line| line.starts_with("date: ")).unwrap_or_default();
    Some(complete(&error, &if date.is_empty() { String::new() } else { format!("{date}\r\n") }))
}

/// An answer with an Error body, after which the connection is closed.
fn complete(error: &ApiError, headers: &str) -> Bytes {
    let body = String::from_utf8(json::render(&error.body())).unwrap_or_default();
    let request_id = new_request_id();
    let request_id = request_id.to_str().unwrap_or_default();
    let (status, code) = error.code();
    tracing::info!(request_id, code, "a request was refused before it was read");
    let length = body.len();
    Bytes::from(format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         cache-control: no-store\r\n{REQUEST_ID}: {request_id}\r\nconnection: close\r\n{headers}\r\n{body}"
    ))
}
