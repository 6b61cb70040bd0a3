//! The queues of requests that share a statement: a [`Batcher`] whose batches are counted and traced.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use opentelemetry::Context;
use opentelemetry::context::FutureExt as _;
use petstore_batcher::{BatchError, BatchHandler, Batcher, QueueLimits};
use petstore_postgres::{POOL_WAIT, StorageError};
use petstore_telemetry::metrics::{BATCH_SIZE, BATCH_WAIT, REQUESTS_SHED, count};
use petstore_telemetry::traces;

/// The limits of each queue. However many unknown keys arrive, for example, their lookups use two connections.
pub(super) const LIMITS: QueueLimits =
    QueueLimits { capacity: 4_096, batch_size: 128, slots: 2, max_wait: POOL_WAIT };

/// Handles requests in batches. Cheap to clone.
pub(crate) struct Queue<H: BatchHandler>(Batcher<ObservedHandler<H>>);

impl<H: BatchHandler> Clone for Queue<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H: BatchHandler> Queue<H> {
    /// The name is the label `queue` of the metrics. Must be called within the Tokio runtime that is to run the batches.
    pub(crate) fn new(name: &'static str, handler: H, limits: QueueLimits) -> Self {
        let handler = ObservedHandler {
            handler,
            size: histogram!(BATCH_SIZE, "queue" => name),
            wait: histogram!(BATCH_WAIT, "queue" => name),
            late: counter!(REQUESTS_SHED, "reason" => "late"),
            full: counter!(REQUESTS_SHED, "reason" => "queue"),
        };
        Self(Batcher::new(handler, limits))
    }

    /// Handles a request that changes nothing, now or in a later batch, and returns its response.
    pub(crate) async fn read(&self, request: H::Request) -> Result<H::Response, StorageError> {
        self.call(request, |error| StorageError::Unexpected(error)).await
    }

    /// The same for a request that writes.
    pub(crate) async fn write(&self, request: H::Request) -> Result<H::Response, StorageError> {
        self.call(request, |error| StorageError::OutcomeUnknown(error)).await
    }

    async fn call(
        &self,
        request: H::Request,
        lost: impl FnOnce(Arc<BatchError>) -> StorageError,
    ) -> Result<H::Response, StorageError> {
        let request = TracedRequest { request, trace: traces::current() };
        self.0.call(request).await.map_err(|error| match error {
            BatchError::QueueFull | BatchError::QueueTimeout => StorageError::Unavailable(Arc::new(error)),
            BatchError::Lost => lost(Arc::new(error)),
        })
    }
}

struct TracedRequest<R> {
    request: R,
    /// None if tracing is off.
    trace: Option<Context>,
}

struct ObservedHandler<H> {
    handler: H,
    size: Histogram,
    wait: Histogram,
    late: Counter,
    full: Counter,
}

impl<H: BatchHandler> BatchHandler for ObservedHandler<H> {
    type Request = TracedRequest<H::Request>;
    type Response = H::Response;

    async fn handle(&self, batch: Vec<Self::Request>) -> Vec<H::Response> {
        let mut traces = Vec::new();
        let requests = batch.into_iter().map(|TracedRequest { request, trace }| {
            traces.extend(trace);
            request
        });
        let handling = self.handler.handle(requests.collect());
        match traces::shared(traces) {
            None => handling.await,
            Some(trace) => handling.with_context(trace).await,
        }
    }

    fn batch_started(&self, size: usize, waited: Duration) {
        self.size.record(count(size));
        self.wait.record(waited);
    }

    fn request_rejected(&self, reason: BatchError) {
        match reason {
            BatchError::QueueFull => self.full.increment(1),
            BatchError::QueueTimeout => self.late.increment(1),
            BatchError::Lost => {}
        }
    }
}
