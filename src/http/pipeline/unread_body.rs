//! Drains request bodies that a handler did not read, so that the connection can be reused. If the rest of a body does
//! not arrive in time, the response closes the connection.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::timeout;

use super::header_limits::MAX_BODY_BYTES;

/// How long to wait for the rest of a body. Most often it has arrived with the head.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);

/// The unread part of a body.
#[derive(Default)]
enum BodyRemainder {
    #[default]
    Nothing,
    Unread(Incoming),
    /// The body ended early, or its framing is invalid.
    Broken,
}

/// A body that keeps its unread part when it is dropped.
struct DrainableBody {
    body: Option<Incoming>,
    remainder: Arc<Mutex<BodyRemainder>>,
}

/// The part of a request body that its handler does not read.
pub(super) struct UnreadBody {
    remainder: Arc<Mutex<BodyRemainder>>,
    /// The client sends the body only after `100 Continue`.
    expects_continue: bool,
}

/// Wraps a request body for its handler.
pub(super) fn track(headers: &HeaderMap, body: Incoming) -> (Body, Option<UnreadBody>) {
    if body.is_end_stream() {
        return (Body::empty(), None);
    }
    let (remainder, expects_continue) = (Arc::default(), headers.contains_key(header::EXPECT));
    let tracked = DrainableBody { body: Some(body), remainder: Arc::clone(&remainder) };
    (Body::new(tracked), Some(UnreadBody { remainder, expects_continue }))
}

impl UnreadBody {
    /// Drains the body, or adds `Connection: close` to the response headers.
    pub(super) async fn drain_or_close(self, headers: &mut HeaderMap) {
        let remainder = mem::take(&mut *self.remainder.lock().unwrap_or_else(PoisonError::into_inner));
        let is_closing = self.expects_continue || headers.contains_key(header::CONNECTION);
        let is_reusable = match remainder {
            BodyRemainder::Nothing => true,
            BodyRemainder::Unread(body) if !is_closing => {
                timeout(DRAIN_TIMEOUT, drain(body)).await == Ok(true)
            }
            BodyRemainder::Unread(_) | BodyRemainder::Broken => false,
        };
        if !is_reusable {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Reads a body to its end. Returns false if it is too large or broken.
async fn drain(mut body: Incoming) -> bool {
    let mut left = MAX_BODY_BYTES;
    while let Some(frame) = body.frame().await {
        let length = frame.as_ref().ok().and_then(Frame::data_ref).map(Bytes::len);
        match length.and_then(|length| left.checked_sub(length)) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

impl HttpBody for DrainableBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        if let Some(Err(_)) = frame {
            self.set_remainder(BodyRemainder::Broken);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for DrainableBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            self.set_remainder(BodyRemainder::Unread(body));
        }
    }
}

impl DrainableBody {
    fn set_remainder(&self, remainder: BodyRemainder) {
        *self.remainder.lock().unwrap_or_else(PoisonError::into_inner) = remainder;
    }
}
