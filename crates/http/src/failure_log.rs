//! Limits how often the log repeats itself: of the requests that fail for the same cause, one is logged per second, with the
//! number of the others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often the same cause is logged.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many causes are known at the same time. Beyond that, each failure is logged.
const MAX_CAUSES: usize = 100;

/// The causes of the last seconds.
#[derive(Default)]
pub(crate) struct FailureLog(Mutex<HashMap<String, SuppressedFailures>>);

/// The failures of one cause that are not logged.
struct SuppressedFailures {
    logged: Instant,
    /// The requests since then.
    unlogged: u64,
}

impl FailureLog {
    /// Records a failed request. If it is to be logged, returns how many others with the same cause were not logged since the
    /// last one that was.
    pub(crate) fn record(&self, cause: &str) -> Option<u64> {
        let now = Instant::now();
        let mut causes = self.causes();
        match causes.get_mut(cause) {
            Some(known) if now - known.logged < INTERVAL => {
                known.unlogged += 1;
                None
            }
            Some(known) => {
                known.logged = now;
                Some(std::mem::take(&mut known.unlogged))
            }
            None => {
                if causes.len() < MAX_CAUSES {
                    causes.insert(cause.to_owned(), SuppressedFailures { logged: now, unlogged: 0 });
                }
                Some(0)
            }
        }
    }

    /// Logs the number of failures of each cause that no later failure has logged, indefinitely.
    pub(crate) async fn run(&self) -> Infallible {
        loop {
            sleep(INTERVAL).await;
            for (cause, unlogged) in self.take_ended() {
                // The target by which operators filter this line.
                tracing::error!(target: "petstore_http::pipeline::failure_log", cause, requests = unlogged,
                    "more requests failed for the same cause");
            }
        }
    }

    /// Forgets the causes of which nothing was heard for an interval, and returns those with unlogged failures.
    fn take_ended(&self) -> Vec<(String, u64)> {
        let now = Instant::now();
        let ended =
            self.causes().extract_if(|_, cause| now - cause.logged >= 2 * INTERVAL).collect::<Vec<_>>();
        let ended = ended.into_iter().map(|(cause, SuppressedFailures { unlogged, .. })| (cause, unlogged));
        ended.filter(|(_, unlogged)| *unlogged > 0).collect()
    }

    fn causes(&self) -> MutexGuard<'_, HashMap<String, SuppressedFailures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_logged_once_per_second_with_the_number_of_its_other_requests() {
        let log = FailureLog::default();
        assert_eq!(log.record("refused"), Some(0));
        assert_eq!((log.record("refused"), log.record("refused")), (None, None));
        assert_eq!(log.record("timed out"), Some(0), "another cause");
        advance(INTERVAL).await;
        assert_eq!(log.record("refused"), Some(2));
        assert_eq!(log.record("refused"), None);
        assert_eq!(log.take_ended(), []);
        advance(2 * INTERVAL).await;
        assert_eq!(log.take_ended(), [("refused".to_owned(), 1)]);
        assert_eq!(log.record("refused"), Some(0), "it was forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn any_number_of_causes_is_logged_and_a_limited_number_remembered() {
        let log = FailureLog::default();
        for number in 0..1_000 {
            assert_eq!(log.record(&number.to_string()), Some(0));
        }
        assert_eq!(log.causes().len(), MAX_CAUSES);
        assert_eq!(log.record("999"), Some(0));
    }
}
