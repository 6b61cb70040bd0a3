//! Bodies that are answered before they are read: what is left of one is read and dropped if it is there already;
//! otherwise the connection cannot be used for another request, and the answer says so.

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

use super::head_limits::MAX_BODY_BYTES;

/// How long the rest of a body is waited for. It is worth a moment: most often it came with the head.
const PATIENCE: Duration = Duration::from_millis(20);

/// What is left of a body.
#[derive(Default)]
enum Rest {
    #[default]
    Nothing,
    Unread(Incoming),
    /// It ended in the middle, or is not framed as it should be.
    Broken,
}

/// A body that a handler may read; what it leaves comes back.
struct LentBody {
    body: Option<Incoming>,
    lender: Arc<Mutex<Rest>>,
}

/// What a handler leaves of a request's body.
pub(super) struct UnreadBody {
    rest: Arc<Mutex<Rest>>,
    /// The client sends the body only if it is asked to.
    is_expected: bool,
}

/// Gives a request's body to a handler.
pub(super) fn lend(headers: &HeaderMap, body: Incoming) -> (Body, Option<UnreadBody>) {
    if body.is_end_stream() {
        return (Body::empty(), None);
    }
    let rest = Arc::default();
    let lent = LentBody { body: Some(body), lender: Arc::clone(&rest) };
    (Body::new(lent), Some(UnreadBody { rest, is_expected: headers.contains_key(header::EXPECT) }))
}

impl UnreadBody {
    /// Prepares the answer's headers for what becomes of the connection.
    pub(super) async fn finish(self, answer: &mut HeaderMap) {
        let rest = mem::take(&mut *self.rest.lock().unwrap_or_else(PoisonError::into_inner));
        let is_usable = match rest {
            Rest::Nothing => true,
            Rest::Unread(_) if self.is_expected || answer.contains_key(header::CONNECTION) => false,
            Rest::Unread(rest) => timeout(PATIENCE, ends(rest)).await.unwrap_or(false),
            Rest::Broken => false,
        };
        if !is_usable {
            answer.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Reads a body, if it is not too long, and returns whether it ended well.
async fn ends(mut body: Incoming) -> bool {
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

impl HttpBody for LentBody {
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
            self.give_back(Rest::Broken);
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

impl Drop for LentBody {
    fn drop(&mut self) {
        if let Some(rest) = self.body.take().filter(|body| !body.is_end_stream()) {
            self.give_back(Rest::Unread(rest));
        }
    }
}

impl LentBody {
    fn give_back(&self, rest: Rest) {
        *self.lender.lock().unwrap_or_else(PoisonError::into_inner) = rest;
    }
}
