//! Batches requests that arrive at the same time.
//!
//! Requests wait in a bounded queue. A few workers each take *everything that is queued*, up to a maximum, and handle it
//! as one batch: usually with one round trip to the database. There is no timer: an idle service handles a single
//! request at once, and under load the batches grow by themselves.
//!
//! **Invariants:**
//! - a request joins only a batch that starts after the request arrived, so its response is as fresh as if it had been
//!   handled alone;
//! - requests are taken in order of arrival, each exactly once; a request whose caller is gone by then is skipped;
//! - a full queue rejects a request at once, and a request that has waited too long is rejected instead of started;
//! - every request completes: if a handler panics, or returns too few responses, the callers get [`BatchError::Lost`], and
//!   the worker continues. Requests that are queued when the [`Batcher`] is dropped are still handled.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use metrics::{Counter, Histogram, counter, histogram};
use opentelemetry::Context;
use opentelemetry::context::FutureExt as _;
use thiserror::Error;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use super::postgres::error::StorageError;
use crate::telemetry::metrics::{BATCH_SIZE, BATCH_WAIT, REQUESTS_SHED, count};
use crate::telemetry::traces;

/// Handles a batch of requests.
pub(super) trait BatchHandler: Send + Sync + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// Returns one response per request, in the same order.
    fn handle(&self, requests: Vec<Self::Request>) -> impl Future<Output = Vec<Self::Response>> + Send;
}

/// The limits of a queue and its workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    /// The most requests that may be queued.
    pub(super) capacity: usize,
    /// The most requests in one batch.
    pub(super) batch_size: usize,
    /// The most batches in progress at the same time.
    pub(super) workers: usize,
    /// How long a request may be queued.
    pub(super) max_wait: Duration,
}

/// Why a request got no response.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchError {
    /// The queue is full: the request was not started.
    #[error("the queue for the database is full")]
    QueueFull,
    /// It was queued for too long, and was not started.
    #[error("timed out in the queue for the database")]
    QueueTimeout,
    /// The handler panicked, so the outcome is unknown.
    #[error("the batch handler panicked")]
    Lost,
}

impl From<BatchError> for StorageError {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::QueueFull | BatchError::QueueTimeout => Self::Unavailable(Arc::new(error)),
            BatchError::Lost => Self::Unexpected(Arc::new(error)),
        }
    }
}

struct BatchedRequest<H: BatchHandler> {
    request: H::Request,
    arrived: Instant,
    /// The trace of the caller, if tracing is on.
    trace: Option<Context>,
    response: oneshot::Sender<Result<H::Response, BatchError>>,
}

/// Queues requests for its workers.
pub(super) struct Batcher<H: BatchHandler> {
    queue: mpsc::Sender<BatchedRequest<H>>,
    full: Counter,
}

#[derive(Clone)]
struct BatchMetrics {
    size: Histogram,
    wait: Histogram,
    late: Counter,
}

impl<H: BatchHandler> Clone for Batcher<H> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), full: self.full.clone() }
    }
}

impl<H: BatchHandler> Batcher<H> {
    /// Starts the workers. They end when the last clone of this is dropped and the queue is empty. The name is the label
    /// `queue` of the metrics.
    pub(super) fn start(name: &'static str, handler: H, limits: QueueLimits) -> Self {
        let (sender, receiver) = mpsc::channel(limits.capacity);
        let (handler, receiver) = (Arc::new(handler), Arc::new(Mutex::new(receiver)));
        let metrics = BatchMetrics {
            size: histogram!(BATCH_SIZE, "queue" => name),
            wait: histogram!(BATCH_WAIT, "queue" => name),
            late: counter!(REQUESTS_SHED, "reason" => "late"),
        };
        for _ in 0..limits.workers {
            tokio::spawn(run_worker(handler.clone(), receiver.clone(), limits, metrics.clone()));
        }
        Self { queue: sender, full: counter!(REQUESTS_SHED, "reason" => "queue") }
    }

    /// Queues a request and waits for its response.
    pub(super) async fn call(&self, request: H::Request) -> Result<H::Response, BatchError> {
        let (response, receiver) = oneshot::channel();
        let queued = BatchedRequest { request, arrived: Instant::now(), trace: traces::current(), response };
        self.queue.try_send(queued).map_err(|error| match error {
            TrySendError::Full(_) => {
                self.full.increment(1);
                BatchError::QueueFull
            }
            TrySendError::Closed(_) => BatchError::Lost,
        })?;
        receiver.await.unwrap_or(Err(BatchError::Lost))
    }
}

async fn run_worker<H: BatchHandler>(
    handler: Arc<H>,
    queue: Arc<Mutex<mpsc::Receiver<BatchedRequest<H>>>>,
    limits: QueueLimits,
    metrics: BatchMetrics,
) {
    let mut taken = Vec::with_capacity(limits.batch_size);
    // One worker at a time waits for requests and takes all that are queued; the others wait for the lock or are busy.
    while queue.lock().await.recv_many(&mut taken, limits.batch_size).await > 0 {
        let (mut requests, mut callers) = (Vec::with_capacity(taken.len()), Vec::with_capacity(taken.len()));
        let mut traces = Vec::new();
        metrics.wait.record(taken[0].arrived.elapsed());
        for queued in taken.drain(..).filter(|queued| !queued.response.is_closed()) {
            if queued.arrived.elapsed() > limits.max_wait {
                metrics.late.increment(1);
                let _ = queued.response.send(Err(BatchError::QueueTimeout));
            } else {
                requests.push(queued.request);
                callers.push(queued.response);
                traces.extend(queued.trace);
            }
        }
        if requests.is_empty() {
            continue;
        }
        metrics.size.record(count(requests.len()));
        let handling = AssertUnwindSafe(handler.handle(requests)).catch_unwind();
        let responses = match traces::shared(traces) {
            None => handling.await,
            Some(trace) => handling.with_context(trace).await,
        };
        // After a panic the senders are dropped, which gives their callers `BatchError::Lost`.
        for (caller, response) in callers.into_iter().zip(responses.unwrap_or_default()) {
            // A caller that is gone by now needs no response.
            let _ = caller.send(Ok(response));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use futures_util::future::join_all;
    use proptest::prelude::*;
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;

    const LIMITS: QueueLimits =
        QueueLimits { capacity: 1_000, batch_size: 8, workers: 2, max_wait: Duration::from_secs(1) };

    /// Doubles numbers, slowly, and records its batches. Panics on 13; returns no response for 14 and what follows it.
    #[derive(Clone)]
    struct Doubler {
        latency: Duration,
        batches: Arc<StdMutex<Vec<Vec<u32>>>>,
    }

    impl Doubler {
        fn batches(&self) -> Vec<Vec<u32>> {
            self.batches.lock().unwrap().clone()
        }
    }

    impl BatchHandler for Doubler {
        type Request = u32;
        type Response = u32;

        async fn handle(&self, numbers: Vec<u32>) -> Vec<u32> {
            self.batches.lock().unwrap().push(numbers.clone());
            sleep(self.latency).await;
            assert!(!numbers.contains(&13), "an unlucky number");
            let answered = numbers.iter().position(|number| *number == 14).unwrap_or(numbers.len());
            numbers[..answered].iter().map(|number| number * 2).collect()
        }
    }

    fn start(latency_ms: u64, limits: QueueLimits) -> (Doubler, Batcher<Doubler>) {
        let handler = Doubler { latency: Duration::from_millis(latency_ms), batches: Arc::default() };
        (handler.clone(), Batcher::start("test", handler, limits))
    }

    type Calls = Vec<JoinHandle<Result<u32, BatchError>>>;

    /// Calls with all numbers, in order, before any of them is handled.
    fn call_all(batcher: &Batcher<Doubler>, numbers: impl IntoIterator<Item = u32>) -> Calls {
        let call = |number| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.call(number).await })
        };
        numbers.into_iter().map(call).collect()
    }

    async fn responses(calls: Calls) -> Vec<Result<u32, BatchError>> {
        join_all(calls).await.into_iter().map(Result::unwrap).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_call_is_handled_at_once() {
        let (handler, batcher) = start(10, LIMITS);
        let started = Instant::now();
        assert_eq!(batcher.call(21).await, Ok(42));
        assert_eq!(started.elapsed(), Duration::from_millis(10));
        assert_eq!(handler.batches(), [[21]]);
    }

    #[tokio::test(start_paused = true)]
    async fn queued_calls_share_a_batch_in_their_order() {
        let (handler, batcher) = start(10, QueueLimits { workers: 1, ..LIMITS });
        let first = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let others = call_all(&batcher, 1..=12);
        assert_eq!(responses(first).await, [Ok(0)]);
        assert_eq!(responses(others).await, (1..=12).map(|number| Ok(number * 2)).collect::<Vec<_>>());
        assert_eq!(handler.batches(), [vec![0], (1..=8).collect(), (9..=12).collect()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_never_joins_a_batch_that_has_started() {
        let (handler, batcher) = start(10, QueueLimits { workers: 1, ..LIMITS });
        let started = Instant::now();
        let first = call_all(&batcher, [1]);
        sleep(Duration::from_millis(9)).await;
        assert_eq!(batcher.call(1).await, Ok(2), "the same question again");
        assert_eq!(started.elapsed(), Duration::from_millis(20), "called after the first started");
        assert_eq!(responses(first).await, [Ok(2)]);
        assert_eq!(handler.batches(), [[1], [1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_run_concurrently() {
        let (_, batcher) = start(10, LIMITS);
        let started = Instant::now();
        let first = call_all(&batcher, [1]);
        sleep(Duration::from_millis(5)).await;
        assert_eq!(batcher.call(2).await, Ok(4));
        assert_eq!(started.elapsed(), Duration::from_millis(15));
        responses(first).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_rejects_at_once() {
        let (_, batcher) = start(10, QueueLimits { capacity: 3, workers: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let waiting = call_all(&batcher, [1, 2, 3]);
        tokio::task::yield_now().await;
        let asked = Instant::now();
        assert_eq!(batcher.call(4).await, Err(BatchError::QueueFull));
        assert_eq!(asked.elapsed(), Duration::ZERO);
        assert_eq!(responses(busy).await, [Ok(0)]);
        assert_eq!(responses(waiting).await, [Ok(2), Ok(4), Ok(6)]);
        assert_eq!(batcher.call(4).await, Ok(8), "and accepts calls again afterwards");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waited_too_long_is_rejected_and_not_started() {
        let (handler, batcher) = start(1_500, QueueLimits { workers: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let too_early = call_all(&batcher, [1, 2]);
        sleep(Duration::from_millis(800)).await;
        let in_time = call_all(&batcher, [3]);
        assert_eq!(responses(busy).await, [Ok(0)]);
        assert_eq!(
            responses(too_early).await,
            [Err(BatchError::QueueTimeout), Err(BatchError::QueueTimeout)]
        );
        assert_eq!(responses(in_time).await, [Ok(6)]);
        assert_eq!(handler.batches(), [[0], [3]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_caller_is_gone_is_skipped() {
        let (handler, batcher) = start(10, QueueLimits { workers: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let waiting = call_all(&batcher, [1, 2, 3]);
        tokio::task::yield_now().await;
        waiting[1].abort();
        assert_eq!(responses(busy).await, [Ok(0)]);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(handler.batches(), [vec![0], vec![1, 3]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_fails_only_its_own_batch() {
        let (_, batcher) = start(0, QueueLimits { workers: 1, ..LIMITS });
        let unlucky = call_all(&batcher, [12, 13]);
        assert_eq!(responses(unlucky).await, [Err(BatchError::Lost), Err(BatchError::Lost)]);
        assert_eq!(batcher.call(1).await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_response_is_lost_not_left_waiting() {
        let (_, batcher) = start(0, QueueLimits { workers: 1, ..LIMITS });
        let calls = call_all(&batcher, [1, 14, 2]);
        assert_eq!(responses(calls).await, [Ok(2), Err(BatchError::Lost), Err(BatchError::Lost)]);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_queued_at_the_end_are_still_answered() {
        let (_, batcher) = start(10, LIMITS);
        let calls = call_all(&batcher, 100..140);
        tokio::task::yield_now().await;
        drop(batcher);
        assert_eq!(responses(calls).await, (100..140).map(|number| Ok(number * 2)).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn every_call_gets_its_own_response(
            numbers in proptest::collection::vec(100_u32..10_000, 1..200),
            pauses in proptest::collection::vec(0_u64..3, 1..20),
            (batch_size, workers) in (1_usize..40, 1_usize..5),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let limits = QueueLimits { batch_size, workers, max_wait: Duration::MAX, ..LIMITS };
                let (handler, batcher) = start(2, limits);
                let mut calls = Vec::new();
                for (number, pause) in numbers.iter().zip(pauses.iter().cycle()) {
                    calls.extend(call_all(&batcher, [*number]));
                    sleep(Duration::from_millis(*pause)).await;
                }
                let expected: Vec<_> = numbers.iter().map(|number| Ok(number * 2)).collect();
                assert_eq!(responses(calls).await, expected);
                assert!(handler.batches().iter().all(|batch| batch.len() <= batch_size));
                assert_eq!(handler.batches().concat(), numbers, "each once, in order");
            });
        }
    }
}
