//! Batches requests that arrive at the same time.
//!
//! A request that finds a free slot is handled at once, alone, in its caller's task: nothing is queued and no other task
//! wakes up. While all slots are busy, requests wait in a bounded queue. When a batch ends, its slot passes to *everything
//! that is queued*, up to a maximum, as the next batch: usually with one round trip to the database. There is no timer:
//! under load the batches grow by themselves.
//!
//! Each slot has a worker, a task that takes the slot over from a caller: when that has its response and requests are queued,
//! or when it is gone before the end of its batch. Workers are started with the [`Batcher`], and end with it.
//!
//! **Invariants:**
//! - a request joins only a batch that starts after the request arrived, so its response is as fresh as if it had been
//!   handled alone;
//! - requests are taken in order of arrival, each exactly once; a request whose caller is gone by then is skipped;
//! - a batch that has started runs to its end, even if its callers are gone: a client that disconnects neither interrupts
//!   a write nor frees a slot while its statement is still in progress;
//! - while requests are queued, all slots are busy, so each of them is followed by another batch;
//! - a full queue rejects a request at once, and a request that has waited too long is rejected instead of started;
//! - every request completes: if a handler panics, or returns too few responses, the callers of that batch get
//!   [`BatchError::Lost`]. Requests that are queued when the [`Batcher`] is dropped are still handled.

use std::collections::VecDeque;
use std::mem;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics::{Counter, Histogram, counter, histogram};
use opentelemetry::Context;
use opentelemetry::context::FutureExt as _;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
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

/// The limits of a queue and its batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    /// The most requests that may be queued.
    pub(super) capacity: usize,
    /// The most requests in one batch.
    pub(super) batch_size: usize,
    /// The most batches in progress at the same time.
    pub(super) slots: usize,
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

type BatchResponse<H> = Result<<H as BatchHandler>::Response, BatchError>;

struct QueuedRequest<H: BatchHandler> {
    request: H::Request,
    arrived: Instant,
    /// The trace of the caller, if tracing is on.
    trace: Option<Context>,
    response: oneshot::Sender<BatchResponse<H>>,
}

/// Handles requests in batches. Cheap to clone.
pub(super) struct Batcher<H: BatchHandler>(Arc<Shared<H>>);

struct Shared<H: BatchHandler> {
    handler: H,
    limits: QueueLimits,
    state: Mutex<BatcherState<H>>,
    metrics: BatchMetrics,
    /// The worker of each slot.
    workers: Vec<mpsc::Sender<Handover<H>>>,
}

struct BatcherState<H: BatchHandler> {
    queue: VecDeque<QueuedRequest<H>>,
    free_slots: Vec<usize>,
}

impl<H: BatchHandler> BatcherState<H> {
    /// Frees a slot if nothing is queued, and returns whether it did.
    fn free_if_idle(&mut self, slot: usize) -> bool {
        let is_idle = self.queue.is_empty();
        if is_idle {
            self.free_slots.push(slot);
        }
        is_idle
    }
}

struct BatchMetrics {
    size: Histogram,
    wait: Histogram,
    late: Counter,
    full: Counter,
}

impl<H: BatchHandler> Clone for Batcher<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H: BatchHandler> Batcher<H> {
    /// Starts the workers. The name is the label `queue` of the metrics. Must be called within the Tokio runtime that is to
    /// run the batches.
    pub(super) fn new(name: &'static str, handler: H, limits: QueueLimits) -> Self {
        let start_worker = |_| {
            // Room for the only slot that is ever sent to this worker.
            let (worker, handovers) = mpsc::channel(1);
            tokio::spawn(work(handovers));
            worker
        };
        Self(Arc::new(Shared {
            handler,
            limits,
            state: Mutex::new(BatcherState {
                queue: VecDeque::new(),
                free_slots: (0..limits.slots).collect(),
            }),
            metrics: BatchMetrics {
                size: histogram!(BATCH_SIZE, "queue" => name),
                wait: histogram!(BATCH_WAIT, "queue" => name),
                late: counter!(REQUESTS_SHED, "reason" => "late"),
                full: counter!(REQUESTS_SHED, "reason" => "queue"),
            },
            workers: (0..limits.slots).map(start_worker).collect(),
        }))
    }

    /// Handles a request, now or in a later batch, and returns its response.
    pub(super) async fn call(&self, request: H::Request) -> BatchResponse<H> {
        match BatchSlot::take_or_queue(&self.0, request)? {
            QueueOutcome::Start(slot, request) => slot.run_single(request).await,
            QueueOutcome::Queued(response) => response.await.unwrap_or(Err(BatchError::Lost)),
        }
    }
}

/// How a request is handled.
enum QueueOutcome<H: BatchHandler> {
    /// At once.
    Start(BatchSlot<H>, H::Request),
    /// In a later batch.
    Queued(oneshot::Receiver<BatchResponse<H>>),
}

/// The permission to run one batch at a time. When its batch ends, it becomes free, or passes to its worker if requests are
/// queued.
struct BatchSlot<H: BatchHandler> {
    shared: Arc<Shared<H>>,
    index: usize,
    is_free: bool,
}

impl<H: BatchHandler> BatchSlot<H> {
    /// Takes a free slot, or else queues the request.
    fn take_or_queue(shared: &Arc<Shared<H>>, request: H::Request) -> Result<QueueOutcome<H>, BatchError> {
        let mut state = shared.state();
        if let Some(index) = state.free_slots.pop() {
            return Ok(QueueOutcome::Start(Self { shared: shared.clone(), index, is_free: false }, request));
        }
        if state.queue.len() >= shared.limits.capacity {
            shared.metrics.full.increment(1);
            return Err(BatchError::QueueFull);
        }
        let (response, receiver) = oneshot::channel();
        let (arrived, trace) = (Instant::now(), traces::current());
        state.queue.push_back(QueuedRequest { request, arrived, trace, response });
        Ok(QueueOutcome::Queued(receiver))
    }

    /// Handles a request that was not queued, in the task of its caller.
    async fn run_single(self, request: H::Request) -> BatchResponse<H> {
        let shared = self.shared.clone();
        shared.metrics.wait.record(Duration::ZERO);
        let traces = traces::current().into_iter().collect();
        let batch = async move { shared.handle(vec![request], traces).await }.boxed();
        let responses = CallerBatch(Some((self, batch))).await;
        responses.into_iter().next().ok_or(BatchError::Lost)
    }

    /// Handles what is queued, batch after batch, until the queue is empty.
    async fn run_queue(mut self) {
        while let Some(batch) = self.next_batch() {
            self.shared.run_batch(batch).await;
        }
    }

    /// Takes everything that is queued, up to a maximum. If nothing is, it frees the slot.
    fn next_batch(&mut self) -> Option<Vec<QueuedRequest<H>>> {
        let mut state = self.shared.state();
        self.is_free = state.free_if_idle(self.index);
        let size = state.queue.len().min(self.shared.limits.batch_size);
        (!self.is_free).then(|| state.queue.drain(..size).collect())
    }

    /// Ends the batch of a caller: frees the slot if nothing is queued, or else lets the worker handle that.
    fn end_single(mut self) {
        self.is_free = self.shared.state().free_if_idle(self.index);
        if !self.is_free {
            self.hand_over(None);
        }
    }

    /// Lets the worker finish this batch, and then handle what is queued.
    fn hand_over(self, unfinished: Option<BatchFuture<H>>) {
        let (shared, index) = (self.shared.clone(), self.index);
        // It fails only if the worker is gone, and drops the slot.
        let _ = shared.workers[index].try_send(Handover { slot: self, unfinished });
    }
}

impl<H: BatchHandler> Drop for BatchSlot<H> {
    /// A slot is dropped before it is free only if its worker is gone: the runtime is shutting down, and no batch will start.
    /// The queued callers get [`BatchError::Lost`].
    fn drop(&mut self) {
        if self.is_free {
            return;
        }
        let mut state = self.shared.state();
        state.free_slots.push(self.index);
        let lost = mem::take(&mut state.queue);
        drop(state);
        drop(lost);
    }
}

/// A batch in progress.
type BatchFuture<H> = BoxFuture<'static, Vec<<H as BatchHandler>::Response>>;

/// What a worker takes over from a caller.
struct Handover<H: BatchHandler> {
    slot: BatchSlot<H>,
    /// The batch of a caller that is gone: nobody needs its response.
    unfinished: Option<BatchFuture<H>>,
}

/// The worker of a slot.
async fn work<H: BatchHandler>(mut handovers: mpsc::Receiver<Handover<H>>) {
    while let Some(Handover { slot, unfinished }) = handovers.recv().await {
        if let Some(batch) = unfinished {
            batch.await;
        }
        slot.run_queue().await;
    }
}

/// A batch in the task of its caller. If it is dropped before its end, it continues in the worker of its slot.
struct CallerBatch<H: BatchHandler>(Option<(BatchSlot<H>, BatchFuture<H>)>);

impl<H: BatchHandler> Future for CallerBatch<H> {
    type Output = Vec<H::Response>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let Some((_, batch)) = &mut self.0 else { unreachable!("polled after its end") };
        let responses = ready!(batch.poll_unpin(context));
        if let Some((slot, _)) = self.0.take() {
            slot.end_single();
        }
        Poll::Ready(responses)
    }
}

impl<H: BatchHandler> Drop for CallerBatch<H> {
    fn drop(&mut self) {
        if let Some((slot, batch)) = self.0.take() {
            slot.hand_over(Some(batch));
        }
    }
}

impl<H: BatchHandler> Shared<H> {
    fn state(&self) -> MutexGuard<'_, BatcherState<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_batch(&self, batch: Vec<QueuedRequest<H>>) {
        let Self { limits, metrics, .. } = self;
        let now = Instant::now();
        metrics.wait.record(now - batch[0].arrived);
        let (mut requests, mut callers) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let mut traces = Vec::new();
        for queued in batch.into_iter().filter(|queued| !queued.response.is_closed()) {
            if now - queued.arrived > limits.max_wait {
                metrics.late.increment(1);
                let _ = queued.response.send(Err(BatchError::QueueTimeout));
            } else {
                requests.push(queued.request);
                callers.push(queued.response);
                traces.extend(queued.trace);
            }
        }
        if requests.is_empty() {
            return;
        }
        // A sender that is dropped without a response gives its caller `BatchError::Lost`.
        for (caller, response) in callers.into_iter().zip(self.handle(requests, traces).await) {
            // A caller that is gone by now needs no response.
            let _ = caller.send(Ok(response));
        }
    }

    /// Handles a batch. After a panic there are no responses.
    async fn handle(&self, requests: Vec<H::Request>, traces: Vec<Context>) -> Vec<H::Response> {
        self.metrics.size.record(count(requests.len()));
        let handling = AssertUnwindSafe(self.handler.handle(requests)).catch_unwind();
        let responses = match traces::shared(traces) {
            None => handling.await,
            Some(trace) => handling.with_context(trace).await,
        };
        responses.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use proptest::prelude::*;
    use tokio::runtime::{Builder, Handle, Runtime};
    use tokio::task::{self, JoinHandle};
    use tokio::time::sleep;

    use super::*;

    const LIMITS: QueueLimits =
        QueueLimits { capacity: 1_000, batch_size: 8, slots: 2, max_wait: Duration::from_secs(1) };

    /// Doubles numbers, slowly, and records its batches. Panics on 13; returns no response for 14 and what follows it.
    #[derive(Clone)]
    struct Doubler {
        latency: Duration,
        batches: Arc<Mutex<Vec<Vec<u32>>>>,
        finished: Arc<AtomicUsize>,
    }

    impl Doubler {
        fn batches(&self) -> Vec<Vec<u32>> {
            self.batches.lock().unwrap().clone()
        }

        fn finished(&self) -> usize {
            self.finished.load(Ordering::SeqCst)
        }
    }

    impl BatchHandler for Doubler {
        type Request = u32;
        type Response = u32;

        async fn handle(&self, numbers: Vec<u32>) -> Vec<u32> {
            self.batches.lock().unwrap().push(numbers.clone());
            sleep(self.latency).await;
            self.finished.fetch_add(1, Ordering::SeqCst);
            assert!(!numbers.contains(&13), "an unlucky number");
            let answered = numbers.iter().position(|number| *number == 14).unwrap_or(numbers.len());
            numbers[..answered].iter().map(|number| number * 2).collect()
        }
    }

    fn start(latency_ms: u64, limits: QueueLimits) -> (Doubler, Batcher<Doubler>) {
        let handler = Doubler {
            latency: Duration::from_millis(latency_ms),
            batches: Arc::default(),
            finished: Arc::default(),
        };
        (handler.clone(), Batcher::new("test", handler, limits))
    }

    fn paused_runtime() -> Runtime {
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    type Calls = Vec<JoinHandle<Result<u32, BatchError>>>;

    /// Calls with all numbers, in order.
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

    /// Returns the task in which it handles a request.
    struct TaskOfBatch;

    impl BatchHandler for TaskOfBatch {
        type Request = ();
        type Response = task::Id;

        async fn handle(&self, requests: Vec<()>) -> Vec<task::Id> {
            task::yield_now().await;
            vec![task::id(); requests.len()]
        }
    }

    #[tokio::test]
    async fn a_single_call_is_handled_in_the_task_of_its_caller() {
        let batcher = Batcher::new("test", TaskOfBatch, LIMITS);
        let call = tokio::spawn(async move { batcher.call(()).await });
        let caller = call.id();
        assert_eq!(call.await.unwrap(), Ok(caller));
    }

    #[tokio::test(start_paused = true)]
    async fn queued_calls_share_a_batch_in_their_order() {
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let first = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let others = call_all(&batcher, 1..=12);
        assert_eq!(responses(first).await, [Ok(0)]);
        assert_eq!(responses(others).await, (1..=12).map(|number| Ok(number * 2)).collect::<Vec<_>>());
        assert_eq!(handler.batches(), [vec![0], (1..=8).collect(), (9..=12).collect()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_never_joins_a_batch_that_has_started() {
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let started = Instant::now();
        let first = call_all(&batcher, [1]);
        sleep(Duration::from_millis(9)).await;
        assert_eq!(batcher.call(1).await, Ok(2), "the same question again");
        assert_eq!(started.elapsed(), Duration::from_millis(20), "called after the first started");
        assert_eq!(responses(first).await, [Ok(2)]);
        assert_eq!(handler.batches(), [[1], [1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn batches_run_concurrently() {
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
        let (_, batcher) = start(10, QueueLimits { capacity: 3, slots: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let waiting = call_all(&batcher, [1, 2, 3]);
        task::yield_now().await;
        let asked = Instant::now();
        assert_eq!(batcher.call(4).await, Err(BatchError::QueueFull));
        assert_eq!(asked.elapsed(), Duration::ZERO);
        assert_eq!(responses(busy).await, [Ok(0)]);
        assert_eq!(responses(waiting).await, [Ok(2), Ok(4), Ok(6)]);
        assert_eq!(batcher.call(4).await, Ok(8), "and accepts calls again afterwards");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waited_too_long_is_rejected_and_not_started() {
        let (handler, batcher) = start(1_500, QueueLimits { slots: 1, ..LIMITS });
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
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let waiting = call_all(&batcher, [1, 2, 3]);
        task::yield_now().await;
        waiting[1].abort();
        assert_eq!(responses(busy).await, [Ok(0)]);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(handler.batches(), [vec![0], vec![1, 3]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_fails_only_its_own_batch() {
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let unlucky = call_all(&batcher, [12, 13]);
        assert_eq!(responses(busy).await, [Ok(0)]);
        assert_eq!(responses(unlucky).await, [Err(BatchError::Lost), Err(BatchError::Lost)]);
        assert_eq!(batcher.call(13).await, Err(BatchError::Lost), "alone, in the caller's task");
        assert_eq!(batcher.call(1).await, Ok(2));
        assert_eq!(handler.batches(), [vec![0], vec![12, 13], vec![13], vec![1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_response_is_lost_not_left_waiting() {
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let alone = call_all(&batcher, [14]);
        sleep(Duration::from_millis(1)).await;
        let calls = call_all(&batcher, [1, 14, 2]);
        assert_eq!(responses(alone).await, [Err(BatchError::Lost)]);
        assert_eq!(responses(calls).await, [Ok(2), Err(BatchError::Lost), Err(BatchError::Lost)]);
        assert_eq!(handler.batches(), [vec![14], vec![1, 14, 2]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_runs_to_its_end_when_its_only_caller_is_gone() {
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let started = Instant::now();
        let gone = call_all(&batcher, [1]);
        sleep(Duration::from_millis(4)).await;
        let waiting = call_all(&batcher, [2, 3]);
        task::yield_now().await;
        gone[0].abort();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(handler.batches(), [[1]], "its slot is not free before its end");
        assert_eq!(responses(waiting).await, [Ok(4), Ok(6)]);
        assert_eq!(started.elapsed(), Duration::from_millis(20));
        assert_eq!(handler.batches(), [vec![1], vec![2, 3]]);
        assert_eq!(handler.finished(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_runs_to_its_end_when_all_its_callers_are_gone() {
        let (handler, batcher) = start(10, QueueLimits { slots: 1, ..LIMITS });
        let busy = call_all(&batcher, [1]);
        sleep(Duration::from_millis(1)).await;
        let gone = call_all(&batcher, [2, 3]);
        assert_eq!(responses(busy).await, [Ok(2)]);
        sleep(Duration::from_millis(1)).await;
        gone.iter().for_each(JoinHandle::abort);
        drop(batcher);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(handler.batches(), [vec![1], vec![2, 3]]);
        assert_eq!(handler.finished(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_free_again_when_all_their_callers_are_gone() {
        let (handler, batcher) = start(10, LIMITS);
        for _ in 0..3 {
            let gone = call_all(&batcher, [1, 2, 3, 4]);
            sleep(Duration::from_millis(1)).await;
            gone.iter().for_each(JoinHandle::abort);
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(handler.finished(), 6, "in the two slots; the queued calls are skipped");
        let started = Instant::now();
        assert_eq!(responses(call_all(&batcher, [5, 6])).await, [Ok(10), Ok(12)]);
        assert_eq!(started.elapsed(), Duration::from_millis(10), "both at once");
    }

    #[tokio::test(start_paused = true)]
    async fn workers_end_with_the_batcher() {
        let (handler, batcher) = start(10, LIMITS);
        let gone = call_all(&batcher, 1..=12);
        sleep(Duration::from_millis(1)).await;
        gone[0].abort();
        drop(batcher);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(handler.batches().concat(), (1..=12).collect::<Vec<_>>());
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[test]
    fn calls_end_when_the_runtime_of_the_batches_ends() {
        let (of_batches, of_calls) = (paused_runtime(), paused_runtime());
        let limits = QueueLimits { slots: 1, batch_size: 2, ..LIMITS };
        let (_, batcher) = of_batches.block_on(async { start(10, limits) });
        let calls = of_calls.block_on(async {
            let calls = call_all(&batcher, 1..=6);
            sleep(Duration::from_millis(1)).await;
            calls
        });
        drop(of_batches);
        let responses = of_calls.block_on(responses(calls));
        assert_eq!(responses[0], Ok(2), "handled in the caller's task");
        assert_eq!(responses[1..], [Err(BatchError::Lost); 5]);
        assert_eq!(of_calls.block_on(batcher.call(7)), Ok(14), "its slot is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_queued_at_the_end_are_still_answered() {
        let (_, batcher) = start(10, LIMITS);
        let calls = call_all(&batcher, 100..140);
        task::yield_now().await;
        drop(batcher);
        assert_eq!(responses(calls).await, (100..140).map(|number| Ok(number * 2)).collect::<Vec<_>>());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn every_call_gets_its_response_however_slots_pass_from_thread_to_thread() {
        let batcher = Batcher::new("test", TaskOfBatch, LIMITS);
        let caller = |_| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                for _ in 0..10_000 {
                    assert!(batcher.call(()).await.is_ok());
                }
            })
        };
        for calls in (0..8).map(caller).collect::<Vec<_>>() {
            calls.await.unwrap();
        }
    }

    proptest! {
        #[test]
        fn every_call_gets_its_own_response(
            numbers in proptest::collection::vec(100_u32..10_000, 1..200),
            pauses in proptest::collection::vec(0_u64..3, 1..20),
            (batch_size, slots) in (1_usize..40, 1_usize..5),
        ) {
            paused_runtime().block_on(async {
                let limits = QueueLimits { batch_size, slots, max_wait: Duration::MAX, ..LIMITS };
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
