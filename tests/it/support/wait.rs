//! Waiting for a condition, so that no test sleeps and hopes.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Longer than any condition takes on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);
const INTERVAL: Duration = Duration::from_millis(10);

/// Longer than what the service does at once takes on a machine that stalls for seconds. A test that uses it gives the
/// service timeouts of a minute or more, so that an answer that waits for one of them is not taken for a prompt one.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(20);

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    poll(what, condition, |holds| *holds).await;
}

/// Polls until a value is accepted, and returns it.
pub(crate) async fn poll<T: Debug>(what: &str, probe: impl AsyncFn() -> T, accept: impl Fn(&T) -> bool) -> T {
    let started = Instant::now();
    loop {
        let value = probe().await;
        if accept(&value) {
            return value;
        }
        assert!(started.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}; last: {value:?}");
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
