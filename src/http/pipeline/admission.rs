//! Admission control: how many requests are in progress at once, and how many wait for their clients meanwhile.
//!
//! **Invariants:**
//! - a request that waits for its client holds no permit: slow clients cannot keep others from being served;
//! - incomplete bodies are bounded in number, and so in memory, and one key has only a share of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::{Counter, counter};

use crate::domain::key_record::KeyId;
use crate::http::error::ApiError;
use crate::telemetry::metrics::REQUESTS_SHED;

/// One key may have one in so many of all incomplete bodies.
const SHARE: usize = 4;

/// Bounds the requests in progress.
pub(crate) struct Admission {
    max: usize,
    in_progress: AtomicUsize,
    incomplete: Mutex<Incomplete>,
    refused_requests: Counter,
    refused_bodies: Counter,
}

/// The bodies that are still arriving.
#[derive(Default)]
struct Incomplete {
    total: usize,
    by_key: HashMap<KeyId, usize>,
}

/// A request in progress, until it is dropped.
pub(crate) struct InProgress<'a>(&'a Admission);

/// A request that waits for its client, and leaves its permit to others until it is dropped.
#[must_use]
pub(crate) struct Waiting<'a>(&'a Admission);

/// A body that is still arriving, until it is dropped.
pub(crate) struct Arriving<'a> {
    admission: &'a Admission,
    key: KeyId,
}

impl Admission {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            in_progress: AtomicUsize::new(0),
            incomplete: Mutex::default(),
            refused_requests: counter!(REQUESTS_SHED, "reason" => "requests"),
            refused_bodies: counter!(REQUESTS_SHED, "reason" => "bodies"),
        }
    }

    /// Begins a request, if there is a permit left.
    pub(crate) fn begin(&self) -> Result<InProgress<'_>, ApiError> {
        let more = |count| (count < self.max).then_some(count + 1);
        match self.in_progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(InProgress(self)),
            Err(_) => Err(self.refuse_request()),
        }
    }

    fn refuse_request(&self) -> ApiError {
        self.refused_requests.increment(1);
        ApiError::Unavailable { cause: "too many requests are in progress".into() }
    }

    /// How many requests are in progress.
    pub(crate) fn in_progress(&self) -> usize {
        self.in_progress.load(Ordering::Relaxed)
    }

    /// Leaves the permit of a request in progress to others while it waits.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.in_progress.fetch_sub(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Counts a body that is about to arrive.
    pub(crate) fn body_arrives(&self, key: KeyId) -> Result<Arriving<'_>, ApiError> {
        let mut incomplete = self.incomplete();
        let of_key = incomplete.by_key.get(&key).copied().unwrap_or_default();
        if incomplete.total >= self.max || of_key >= (self.max / SHARE).max(1) {
            self.refused_bodies.increment(1);
            return Err(ApiError::Unavailable { cause: "too many request bodies are incomplete".into() });
        }
        incomplete.total += 1;
        incomplete.by_key.insert(key, of_key + 1);
        Ok(Arriving { admission: self, key })
    }

    fn incomplete(&self) -> MutexGuard<'_, Incomplete> {
        self.incomplete.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// Goes on with the request, if there is a permit left by now.
    pub(crate) fn resume(self) -> Result<(), ApiError> {
        let admission = self.0;
        drop(self);
        if admission.in_progress() > admission.max { Err(admission.refuse_request()) } else { Ok(()) }
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Perhaps one too many for the moment: the request is in progress until it is answered, if only with 503.
        self.0.in_progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        let mut incomplete = self.admission.incomplete();
        incomplete.total -= 1;
        if let Some(of_key) = incomplete.by_key.get_mut(&self.key) {
            *of_key -= 1;
            if *of_key == 0 {
                incomplete.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_for_its_client_leaves_its_permit_to_another() {
        let admission = Admission::new(1);
        let first = admission.begin().unwrap();
        assert!(admission.begin().is_err());
        let waiting = admission.wait();
        let second = admission.begin().unwrap();
        assert!(waiting.resume().is_err(), "another one has it now");
        drop(first);
        assert!(admission.begin().is_err());
        drop(second);
        assert_eq!(admission.in_progress(), 0);
        let _third = admission.begin().unwrap();
        assert!(admission.wait().resume().is_ok());
    }

    #[test]
    fn one_key_has_a_share_of_the_incomplete_bodies_and_all_keys_together_are_bounded() {
        let admission = Admission::new(8);
        let arriving: Vec<_> = (0..4)
            .flat_map(|key| [admission.body_arrives(KeyId(key)), admission.body_arrives(KeyId(key))])
            .collect();
        assert!(arriving.iter().all(Result::is_ok));
        assert!(admission.body_arrives(KeyId(9)).is_err(), "all are taken");
        drop(arriving);
        let _two = (admission.body_arrives(KeyId(1)).unwrap(), admission.body_arrives(KeyId(1)).unwrap());
        assert!(admission.body_arrives(KeyId(1)).is_err(), "a quarter of them");
        assert!(admission.body_arrives(KeyId(2)).is_ok());
        assert_eq!(admission.incomplete().by_key.len(), 1, "nothing is remembered of a key without any");
    }
}
