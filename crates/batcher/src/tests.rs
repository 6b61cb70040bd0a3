//! Each guarantee of the crate as a test.

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
    (handler.clone(), Batcher::new(handler, limits))
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
    let batcher = Batcher::new(TaskOfBatch, LIMITS);
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
    sleep(Duration::from_millis(499)).await;
    // It waits for exactly a second.
    let in_time = call_all(&batcher, [3]);
    assert_eq!(responses(busy).await, [Ok(0)]);
    assert_eq!(responses(too_early).await, [Err(BatchError::QueueTimeout), Err(BatchError::QueueTimeout)]);
    assert_eq!(responses(in_time).await, [Ok(6)]);
    assert_eq!(handler.batches(), [[0], [3]]);
}

/// The size of a batch and how long its first request waited, or why a request was rejected.
type Observation = Result<(usize, Duration), BatchError>;

/// Records what it is told.
#[derive(Clone, Default)]
struct Observer(Arc<Mutex<Vec<Observation>>>);

impl BatchHandler for Observer {
    type Request = ();
    type Response = ();

    async fn handle(&self, requests: Vec<()>) -> Vec<()> {
        sleep(Duration::from_millis(600)).await;
        requests
    }

    fn batch_started(&self, size: usize, waited: Duration) {
        self.0.lock().unwrap().push(Ok((size, waited)));
    }

    fn request_rejected(&self, reason: BatchError) {
        self.0.lock().unwrap().push(Err(reason));
    }
}

#[tokio::test(start_paused = true)]
async fn the_handler_is_told_of_every_batch_and_of_every_rejected_call() {
    let observer = Observer::default();
    let limits = QueueLimits { capacity: 3, slots: 1, batch_size: 2, ..LIMITS };
    let batcher = Batcher::new(observer.clone(), limits);
    let call = || {
        let batcher = batcher.clone();
        tokio::spawn(async move { batcher.call(()).await })
    };
    let calls: Vec<_> = (0..5).map(|_| call()).collect();
    join_all(calls).await;
    let (started, rejected) = (|size, millis| Ok((size, Duration::from_millis(millis))), Err);
    let expected = [
        started(1, 0),
        rejected(BatchError::QueueFull),
        started(2, 600),
        // The last one has waited for two batches.
        rejected(BatchError::QueueTimeout),
    ];
    assert_eq!(*observer.0.lock().unwrap(), expected);
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

/// Panics when a request is rejected.
struct PanicsOnRejection;

impl BatchHandler for PanicsOnRejection {
    type Request = ();
    type Response = ();

    async fn handle(&self, requests: Vec<()>) -> Vec<()> {
        sleep(Duration::from_millis(600)).await;
        requests
    }

    fn request_rejected(&self, reason: BatchError) {
        panic!("{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_outside_of_a_batch_does_not_end_the_worker() {
    let limits = QueueLimits { slots: 1, batch_size: 1, ..LIMITS };
    let batcher = Batcher::new(PanicsOnRejection, limits);
    let call_three = || {
        let call = |_| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.call(()).await })
        };
        join_all((0..3).map(call).collect::<Vec<_>>())
    };
    for _ in 0..3 {
        let responses: Vec<_> = call_three().await.into_iter().map(Result::unwrap).collect();
        // The last one has waited for two batches.
        assert_eq!(responses, [Ok(()), Ok(()), Err(BatchError::Lost)]);
    }
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
    let batcher = Batcher::new(TaskOfBatch, LIMITS);
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
