//! Requests that arrive together travel together.
//!
//! Calls wait in a bounded queue. A few workers each take *everything that waits*, up to a maximum, and answer
//! it with one piece of work: most often one trip to the database. There is no timer: an idle service works on
//! one call at once, and a busy one grows its batches by itself.
//!
//! **Invariants:**
//! - a call is worked on only by work that begins after the call arrived, so its answer is as fresh as if it
//!   had come alone;
//! - calls are taken in the order in which they arrived, each exactly once; one whose caller is gone by then
//!   is left out;
//! - a full queue refuses a call at once, and a call that has waited too long is refused rather than begun;
//! - every call ends: work that panics, or forgets a call, leaves its callers with [`CallError::Lost`], and
//!   the worker goes on. Calls that wait when the [`Batcher`] is dropped are still worked on.

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

/// What answers many calls at once.
pub(super) trait Work: Send + Sync + 'static {
    /// What a caller asks.
    type Request: Send + 'static;
    /// What it gets.
    type Answer: Send + 'static;

    /// Answers all requests, in their order.
    fn run(&self, requests: Vec<Self::Request>) -> impl Future<Output = Vec<Self::Answer>> + Send;
}

/// How much may wait, and how it is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How many calls may wait before the next is refused.
    pub(super) waiting: usize,
    /// How many calls one piece of work takes at most.
    pub(super) batch: usize,
    /// How many pieces of work go on at once.
    pub(super) workers: usize,
    /// How long a call may wait before work on it begins.
    pub(super) patience: Duration,
}

/// Why a call has no answer.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallError {
    /// Too many calls wait: nothing was begun.
    #[error("too many requests wait for the database")]
    Full,
    /// It waited too long: nothing was begun.
    #[error("the request waited too long for the database")]
    Late,
    /// The work panicked, so what it did is unknown.
    #[error("the work on a batch of requests panicked")]
    Lost,
}

impl From<CallError> for StorageError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Full | CallError::Late => Self::Unavailable(Arc::new(error)),
            CallError::Lost => Self::Unexpected(Arc::new(error)),
        }
    }
}

struct Call<W: Work> {
    request: W::Request,
    arrived: Instant,
    /// What it belongs to, if traces are kept.
    trace: Option<Context>,
    answer: oneshot::Sender<Result<W::Answer, CallError>>,
}

/// Takes calls and hands them to its workers.
pub(super) struct Batcher<W: Work> {
    queue: mpsc::Sender<Call<W>>,
    full: Counter,
}

/// What is measured of the work.
#[derive(Clone)]
struct Figures {
    size: Histogram,
    wait: Histogram,
    late: Counter,
}

impl Figures {
    fn of(name: &'static str) -> Self {
        Self {
            size: histogram!(BATCH_SIZE, "queue" => name),
            wait: histogram!(BATCH_WAIT, "queue" => name),
            late: counter!(REQUESTS_SHED, "reason" => "late"),
        }
    }
}

impl<W: Work> Clone for Batcher<W> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), full: self.full.clone() }
    }
}

impl<W: Work> Batcher<W> {
    /// Starts the workers. They end when the last clone of this is dropped and nothing waits any more.
    /// The metrics know them by the name.
    pub(super) fn start(name: &'static str, work: W, limits: Limits) -> Self {
        let (queue, waiting) = mpsc::channel(limits.waiting);
        let (work, waiting) = (Arc::new(work), Arc::new(Mutex::new(waiting)));
        let figures = Figures::of(name);
        for _ in 0..limits.workers {
            tokio::spawn(keep_working(work.clone(), waiting.clone(), limits, figures.clone()));
        }
        Self { queue, full: counter!(REQUESTS_SHED, "reason" => "queue") }
    }

    /// Waits for its turn and for the answer.
    pub(super) async fn call(&self, request: W::Request) -> Result<W::Answer, CallError> {
        let (answer, answered) = oneshot::channel();
        let call = Call { request, arrived: Instant::now(), trace: traces::current(), answer };
        self.queue.try_send(call).map_err(|error| match error {
            TrySendError::Full(_) => {
                self.full.increment(1);
                CallError::Full
            }
            TrySendError::Closed(_) => CallError::Lost,
        })?;
        answered.await.unwrap_or(Err(CallError::Lost))
    }
}

async fn keep_working<W: Work>(
    work: Arc<W>,
    waiting: Arc<Mutex<mpsc::Receiver<Call<W>>>>,
    limits: Limits,
    figures: Figures,
) {
    let mut calls = Vec::with_capacity(limits.batch);
    // One worker at a time waits for calls, and takes all that there are; the others work, or wait for it.
    while waiting.lock().await.recv_many(&mut calls, limits.batch).await > 0 {
        let (mut requests, mut answers) = (Vec::with_capacity(calls.len()), Vec::with_capacity(calls.len()));
        let mut traces = Vec::new();
        figures.wait.record(calls[0].arrived.elapsed());
        for call in calls.drain(..).filter(|call| !call.answer.is_closed()) {
            if call.arrived.elapsed() > limits.patience {
                figures.late.increment(1);
                let _ = call.answer.send(Err(CallError::Late));
            } else {
                requests.push(call.request);
                answers.push(call.answer);
                traces.extend(call.trace);
            }
        }
        if requests.is_empty() {
            continue;
        }
        figures.size.record(count(requests.len()));
        let working = AssertUnwindSafe(work.run(requests)).catch_unwind();
        let results = match traces::shared(traces) {
            None => working.await,
            Some(trace) => working.with_context(trace).await,
        };
        // After a panic the callers are dropped unanswered, which tells them.
        if let Ok(results) = results {
            for (caller, result) in answers.into_iter().zip(results) {
                // A caller that is gone by now needs no answer.
                let _ = caller.send(Ok(result));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use proptest::prelude::*;
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;

    const LIMITS: Limits = Limits { waiting: 1_000, batch: 8, workers: 2, patience: Duration::from_secs(1) };

    /// Doubles numbers, slowly, and remembers its batches. Panics on 13; forgets whatever comes after 14.
    #[derive(Clone, Default)]
    struct Doubling {
        time: Duration,
        batches: Arc<StdMutex<Vec<Vec<u32>>>>,
    }

    impl Doubling {
        fn taking(time: Duration) -> Self {
            Self { time, ..Self::default() }
        }

        fn batches(&self) -> Vec<Vec<u32>> {
            self.batches.lock().unwrap().clone()
        }
    }

    impl Work for Doubling {
        type Request = u32;
        type Answer = u32;

        async fn run(&self, numbers: Vec<u32>) -> Vec<u32> {
            self.batches.lock().unwrap().push(numbers.clone());
            sleep(self.time).await;
            assert!(!numbers.contains(&13), "an unlucky number");
            let remembered = numbers.iter().position(|number| *number == 14).unwrap_or(numbers.len());
            numbers[..remembered].iter().map(|number| number * 2).collect()
        }
    }

    type Answers = Vec<JoinHandle<Result<u32, CallError>>>;

    /// Calls with all numbers, in order, before any is worked on.
    fn call_all(batcher: &Batcher<Doubling>, numbers: impl IntoIterator<Item = u32>) -> Answers {
        let call = |number| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.call(number).await })
        };
        numbers.into_iter().map(call).collect()
    }

    async fn answers(calls: Answers) -> Vec<Result<u32, CallError>> {
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        answers
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_comes_alone_is_worked_on_at_once() {
        let work = Doubling::taking(Duration::from_millis(10));
        let batcher = Batcher::start("test", work.clone(), LIMITS);
        let started = Instant::now();
        assert_eq!(batcher.call(21).await, Ok(42));
        assert_eq!(started.elapsed(), Duration::from_millis(10));
        assert_eq!(work.batches(), [[21]]);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_travel_together_in_their_order() {
        let work = Doubling::taking(Duration::from_millis(10));
        let batcher = Batcher::start("test", work.clone(), Limits { workers: 1, ..LIMITS });
        let first = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let others = call_all(&batcher, 1..=12);
        assert_eq!(answers(first).await, [Ok(0)]);
        assert_eq!(answers(others).await, (1..=12).map(|number| Ok(number * 2)).collect::<Vec<_>>());
        assert_eq!(work.batches(), [vec![0], (1..=8).collect(), (9..=12).collect()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_never_joins_work_that_has_begun() {
        let work = Doubling::taking(Duration::from_millis(10));
        let batcher = Batcher::start("test", work.clone(), Limits { workers: 1, ..LIMITS });
        let started = Instant::now();
        let first = call_all(&batcher, [1]);
        sleep(Duration::from_millis(9)).await;
        assert_eq!(batcher.call(1).await, Ok(2), "the same question again");
        assert_eq!(started.elapsed(), Duration::from_millis(20), "asked after the first began");
        assert_eq!(answers(first).await, [Ok(2)]);
        assert_eq!(work.batches(), [[1], [1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_work_side_by_side() {
        let work = Doubling::taking(Duration::from_millis(10));
        let batcher = Batcher::start("test", work, LIMITS);
        let started = Instant::now();
        let first = call_all(&batcher, [1]);
        sleep(Duration::from_millis(5)).await;
        assert_eq!(batcher.call(2).await, Ok(4));
        assert_eq!(started.elapsed(), Duration::from_millis(15));
        answers(first).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_at_once() {
        let work = Doubling::taking(Duration::from_millis(10));
        let batcher = Batcher::start("test", work, Limits { waiting: 3, workers: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let waiting = call_all(&batcher, [1, 2, 3]);
        tokio::task::yield_now().await;
        let asked = Instant::now();
        assert_eq!(batcher.call(4).await, Err(CallError::Full));
        assert_eq!(asked.elapsed(), Duration::ZERO);
        assert_eq!(answers(busy).await, [Ok(0)]);
        assert_eq!(answers(waiting).await, [Ok(2), Ok(4), Ok(6)]);
        assert_eq!(batcher.call(4).await, Ok(8), "and takes calls again afterwards");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waited_too_long_is_refused_and_not_begun() {
        let work = Doubling::taking(Duration::from_millis(1_500));
        let batcher = Batcher::start("test", work.clone(), Limits { workers: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let too_early = call_all(&batcher, [1, 2]);
        sleep(Duration::from_millis(800)).await;
        let in_time = call_all(&batcher, [3]);
        assert_eq!(answers(busy).await, [Ok(0)]);
        assert_eq!(answers(too_early).await, [Err(CallError::Late), Err(CallError::Late)]);
        assert_eq!(answers(in_time).await, [Ok(6)]);
        assert_eq!(work.batches(), [[0], [3]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_caller_is_gone_is_left_out() {
        let work = Doubling::taking(Duration::from_millis(10));
        let batcher = Batcher::start("test", work.clone(), Limits { workers: 1, ..LIMITS });
        let busy = call_all(&batcher, [0]);
        sleep(Duration::from_millis(1)).await;
        let waiting = call_all(&batcher, [1, 2, 3]);
        tokio::task::yield_now().await;
        waiting[1].abort();
        assert_eq!(answers(busy).await, [Ok(0)]);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(work.batches(), [vec![0], vec![1, 3]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_costs_its_own_batch_and_no_other() {
        let batcher = Batcher::start("test", Doubling::default(), Limits { workers: 1, ..LIMITS });
        let unlucky = call_all(&batcher, [12, 13]);
        assert_eq!(answers(unlucky).await, [Err(CallError::Lost), Err(CallError::Lost)]);
        assert_eq!(batcher.call(1).await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_the_work_forgets_is_lost_not_left_waiting() {
        let batcher = Batcher::start("test", Doubling::default(), Limits { workers: 1, ..LIMITS });
        let calls = call_all(&batcher, [1, 14, 2]);
        assert_eq!(answers(calls).await, [Ok(2), Err(CallError::Lost), Err(CallError::Lost)]);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_at_the_end_are_still_answered() {
        let batcher = Batcher::start("test", Doubling::taking(Duration::from_millis(10)), LIMITS);
        let calls = call_all(&batcher, 100..140);
        tokio::task::yield_now().await;
        drop(batcher);
        assert_eq!(answers(calls).await, (100..140).map(|number| Ok(number * 2)).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn every_call_gets_its_own_answer(
            numbers in proptest::collection::vec(100_u32..10_000, 1..200),
            pauses in proptest::collection::vec(0_u64..3, 1..20),
            (batch, workers) in (1_usize..40, 1_usize..5),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let work = Doubling::taking(Duration::from_millis(2));
                let batcher = Batcher::start("test", work.clone(), Limits { batch, workers, patience: Duration::MAX, ..LIMITS });
                let mut calls = Vec::new();
                for (number, pause) in numbers.iter().zip(pauses.iter().cycle()) {
                    calls.extend(call_all(&batcher, [*number]));
                    sleep(Duration::from_millis(*pause)).await;
                }
                let expected: Vec<_> = numbers.iter().map(|number| Ok(number * 2)).collect();
                assert_eq!(answers(calls).await, expected);
                assert!(work.batches().iter().all(|taken| taken.len() <= batch));
                assert_eq!(work.batches().concat(), numbers, "each once, in order");
            });
        }
    }
}
