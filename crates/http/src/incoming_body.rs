//! The body of a request. What the handler does not read is drained, so that the connection can be reused. If the rest
//! does not arrive in time, the response closes the connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderValue};
use petstore_wire::request_body::{BodyError, MAX_BODY_BYTES};
use tokio::time::timeout;

use super::error::ApiError;

/// How long to wait for the rest of a body. Most often it has arrived with the head.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);

/// The body of a request, read or not.
pub(crate) struct IncomingBody {
    incoming: Incoming,
    state: BodyState,
}

enum BodyState {
    /// More may arrive.
    Open,
    /// Read to its end.
    Ended,
    /// It ended early, or its framing is invalid.
    Broken,
}

impl IncomingBody {
    pub(super) fn new(incoming: Incoming) -> Self {
        Self { incoming, state: BodyState::Open }
    }

    /// Whether the request has no body, or an empty one of known length.
    pub(super) fn is_absent(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Whether the client announced more than [`MAX_BODY_BYTES`].
    pub(super) fn is_announced_too_large(&self) -> bool {
        self.incoming.size_hint().lower() > MAX_BODY_BYTES as u64
    }

    /// Reads the whole body.
    pub(super) async fn read(&mut self) -> Result<Bytes, ApiError> {
        let Some(first) = self.next_chunk().await? else { return Ok(Bytes::new()) };
        // Most often the only chunk.
        if first.len() <= MAX_BODY_BYTES && self.incoming.is_end_stream() {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first);
        while whole.len() <= MAX_BODY_BYTES {
            let Some(chunk) = self.next_chunk().await? else { return Ok(whole.freeze()) };
            whole.extend_from_slice(&chunk);
        }
        Err(ApiError::BodyTooLarge)
    }

    /// The next part of the body, if it has not ended. Trailers are ignored.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        while let Some(frame) = self.incoming.frame().await {
            let Ok(frame) = frame else {
                self.state = BodyState::Broken;
                return Err(BodyError::InvalidJson { problem: "it is incomplete".into() }.into());
            };
            if let Ok(chunk) = frame.into_data() {
                return Ok(Some(chunk));
            }
        }
        self.state = BodyState::Ended;
        Ok(None)
    }

    /// Drains what the handler did not read, or adds `Connection: close` to the response headers.
    pub(super) async fn drain_or_close(mut self, request: &HeaderMap, response: &mut HeaderMap) {
        let is_reusable = match self.state {
            BodyState::Ended => true,
            BodyState::Open if self.incoming.is_end_stream() => true,
            // The client sends the body only after `100 Continue`.
            BodyState::Open if request.contains_key(header::EXPECT) => false,
            BodyState::Open if response.contains_key(header::CONNECTION) => false,
            BodyState::Open => matches!(timeout(DRAIN_TIMEOUT, self.read()).await, Ok(Ok(_))),
            BodyState::Broken => false,
        };
        if !is_reusable {
            response.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}
