//! Handles requests that arrive at the same time together, as one batch.
//!
//! A database that answers one request in a millisecond can often answer a hundred of them in two, if they share a statement. A
//! [`Batcher`] collects requests without making any of them wait for others: there is no timer, and an idle service handles each
//! request at once.
//!
//! ```
//! use std::time::Duration;
//!
//! use petstore_batcher::{BatchHandler, Batcher, QueueLimits};
//!
//! /// Finds names, with one query for all ids of a batch.
//! struct FindNames;
//!
//! impl BatchHandler for FindNames {
//!     type Request = u32;
//!     type Response = String;
//!
//!     async fn handle(&self, ids: Vec<u32>) -> Vec<String> {
//!         // Here: SELECT … WHERE id = ANY ($1), and one row for each id, in their order.
//!         ids.iter().map(|id| format!("pet {id}")).collect()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let limits = QueueLimits { capacity: 4_096, batch_size: 128, slots: 2, max_wait: Duration::from_secs(1) };
//! let names = Batcher::new(FindNames, limits);
//! assert_eq!(names.call(7).await.as_deref(), Ok("pet 7"));
//! # }
//! ```
//!
//! # How it works
//!
//! A batcher has a few *slots*, each for one batch at a time. A request that finds a free slot is handled at once, alone, in its
//! caller's task: nothing is queued and no other task wakes up. While all slots are busy, requests wait in a bounded queue. When a
//! batch ends, its slot passes to *everything that is queued*, up to a maximum, as the next batch. So batches grow with the load:
//! the longer a batch takes, the more requests share the next one.
//!
//! Each slot has a worker, a task that takes the slot over from a caller: when the caller has its response and requests are
//! queued, or when the caller is dropped before the end of its batch. Workers are started with the [`Batcher`], and end with it.
//!
//! # Guarantees
//!
//! - A request joins only a batch that starts after the request arrived, so its response is as fresh as if it had been handled
//!   alone. Nothing is cached, and nothing has to be invalidated.
//! - Requests are taken in order of arrival, each exactly once. A request whose caller is gone by then is skipped.
//! - A batch that has started runs to its end, even if its callers are gone: a client that disconnects neither interrupts a write
//!   nor frees a slot while its batch is still in progress.
//! - While requests are queued, all slots are busy, so each of them is followed by another batch.
//! - A full queue rejects a request at once, and a request that has waited too long is rejected instead of started.
//! - Every request completes: if a handler panics, or returns too few responses, the callers of that batch get
//!   [`BatchError::Lost`]. Requests that are queued when the [`Batcher`] is dropped are still handled.
//! - No panic ends a worker, neither in [`BatchHandler::handle`] nor in the other methods of the handler.
//!
//! # Limits
//!
//! The requests of a batch share their fate: one that waits for a lock delays the others, and one that makes the handler fail
//! fails the others. Batch only what does not wait, or give it its own batcher.
//!
//! This crate knows neither SQL nor HTTP, and neither metrics nor traces: [`BatchHandler::batch_started`] and
//! [`BatchHandler::request_rejected`] report what there is to count.

use std::collections::VecDeque;
use std::mem;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Handles a batch of requests.
pub trait BatchHandler: Send + Sync + 'static {
    /// What a caller asks for.
    type Request: Send + 'static;
    /// What it gets.
    type Response: Send + 'static;

    /// Returns one response per request, in the same order.
    fn handle(&self, requests: Vec<Self::Request>) -> impl Future<Output = Vec<Self::Response>> + Send;

    /// Called before each batch, with its size and how long its first request was queued.
    fn batch_started(&self, _size: usize, _waited: Duration) {}

    /// Called for each request that is rejected.
    fn request_rejected(&self, _reason: BatchError) {}
}

/// The limits of a queue and its batches.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    /// The most requests that may be queued.
    pub capacity: usize,
    /// The most requests in one batch.
    pub batch_size: usize,
    /// The most batches in progress at the same time.
    pub slots: usize,
    /// How long a request may be queued.
    pub max_wait: Duration,
}

/// Why a request got no response.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum BatchError {
    /// The queue is full: the request was not started.
    #[error("the queue is full")]
    QueueFull,
    /// It was queued for too long, and was not started.
    #[error("timed out in the queue")]
    QueueTimeout,
    /// The handler panicked, so the outcome is unknown.
    #[error("the batch handler panicked")]
    Lost,
}

type BatchResponse<H> = Result<<H as BatchHandler>::Response, BatchError>;

struct QueuedRequest<H: BatchHandler> {
    request: H::Request,
    arrived: Instant,
    response: oneshot::Sender<BatchResponse<H>>,
}

/// Handles requests in batches. Cheap to clone.
pub struct Batcher<H: BatchHandler>(Arc<Shared<H>>);

struct Shared<H: BatchHandler> {
    handler: H,
    limits: QueueLimits,
    state: Mutex<BatcherState<H>>,
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

impl<H: BatchHandler> Clone for Batcher<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H: BatchHandler> Batcher<H> {
    /// Starts the workers.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime. The runtime of the caller is the one that runs the batches.
    #[must_use]
    pub fn new(handler: H, limits: QueueLimits) -> Self {
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
            workers: (0..limits.slots).map(start_worker).collect(),
        }))
    }

    /// Handles a request, now or in a later batch, and returns its response.
    pub async fn call(&self, request: H::Request) -> BatchResponse<H> {
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
            drop(state);
            shared.handler.request_rejected(BatchError::QueueFull);
            return Err(BatchError::QueueFull);
        }
        let (response, receiver) = oneshot::channel();
        state.queue.push_back(QueuedRequest { request, arrived: Instant::now(), response });
        Ok(QueueOutcome::Queued(receiver))
    }

    /// Handles a request that was not queued, in the task of its caller.
    async fn run_single(self, request: H::Request) -> BatchResponse<H> {
        let shared = self.shared.clone();
        let batch = async move { shared.handle(vec![request], Duration::ZERO).await }.boxed();
        let responses = SingleRequestBatch(Some((self, batch))).await;
        responses.into_iter().next().ok_or(BatchError::Lost)
    }

    /// Handles what is queued, batch after batch, until the queue is empty.
    async fn run_queue(mut self) {
        while let Some(batch) = self.next_batch() {
            // A panic outside of the handler, such as in `request_rejected`, must not end the worker. The callers whose
            // responses it takes along get `BatchError::Lost`.
            let _ = AssertUnwindSafe(self.shared.run_batch(batch)).catch_unwind().await;
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
            // Its responses are dropped here, and may panic.
            let _ = AssertUnwindSafe(batch.map(drop)).catch_unwind().await;
        }
        slot.run_queue().await;
    }
}

/// A batch in the task of its caller. If it is dropped before its end, it continues in the worker of its slot.
struct SingleRequestBatch<H: BatchHandler>(Option<(BatchSlot<H>, BatchFuture<H>)>);

impl<H: BatchHandler> Future for SingleRequestBatch<H> {
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

impl<H: BatchHandler> Drop for SingleRequestBatch<H> {
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
        let now = Instant::now();
        let waited = batch.first().map_or(Duration::ZERO, |first| now - first.arrived);
        let (mut requests, mut callers) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for queued in batch.into_iter().filter(|queued| !queued.response.is_closed()) {
            if now - queued.arrived > self.limits.max_wait {
                self.handler.request_rejected(BatchError::QueueTimeout);
                let _ = queued.response.send(Err(BatchError::QueueTimeout));
            } else {
                requests.push(queued.request);
                callers.push(queued.response);
            }
        }
        if requests.is_empty() {
            return;
        }
        // A sender that is dropped without a response gives its caller `BatchError::Lost`.
        for (caller, response) in callers.into_iter().zip(self.handle(requests, waited).await) {
            // A caller that is gone by now needs no response.
            let _ = caller.send(Ok(response));
        }
    }

    /// Handles a batch. After a panic there are no responses.
    async fn handle(&self, requests: Vec<H::Request>, waited: Duration) -> Vec<H::Response> {
        let handling = async {
            self.handler.batch_started(requests.len(), waited);
            self.handler.handle(requests).await
        };
        AssertUnwindSafe(handling).catch_unwind().await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
