//! Waiting for a condition, so that no test sleeps and hopes.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Longer than any condition takes on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    within(TIMEOUT, what, condition).await;
}

/// Waits until a condition holds, where the service promises that it does within this time.
pub(crate) async fn within(limit: Duration, what: &str, condition: impl AsyncFn() -> bool) {
    poll_within(limit, what, condition, |holds| *holds).await;
}

/// Polls until a value is accepted, and returns it.
pub(crate) async fn poll<T: Debug>(what: &str, probe: impl AsyncFn() -> T, accept: impl Fn(&T) -> bool) -> T {
    poll_within(TIMEOUT, what, probe, accept).await
}

async fn poll_within<T: Debug>(
    limit: Duration,
    what: &str,
    probe: impl AsyncFn() -> T,
    accept: impl Fn(&T) -> bool,
) -> T {
    let started = Instant::now();
    loop {
        let value = probe().await;
        if accept(&value) {
            return value;
        }
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}; last: {value:?}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits until a condition holds, in a test without a runtime.
pub(crate) fn eventually_blocking(what: impl Fn() -> String, condition: impl FnMut() -> bool) {
    assert!(holds_in_time(condition), "not within {TIMEOUT:?}: {}", what());
}

/// Waits for a condition, and returns whether it came to hold.
pub(crate) fn holds_in_time(mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > TIMEOUT {
            return false;
        }
        std::thread::sleep(INTERVAL);
    }
    true
}
