//! Admission control: limits the requests in progress, the request bodies that are still arriving, and the requests that
//! wait for an event.
//!
//! **Invariants:**
//! - a request that waits for its client or for an event holds no permit, so it cannot block others;
//! - incomplete bodies and waiting requests are bounded in number, and so in memory, and each key has only a share of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::{Counter, counter};
use petstore_domain::key_record::KeyId;
use petstore_telemetry::metrics::REQUESTS_SHED;

use crate::error::ApiError;

/// One key may have at most this fraction of all incomplete bodies, and of all waiting requests: a quarter.
const KEY_SHARE_DIVISOR: usize = 4;

/// Limits the requests in progress.
pub(crate) struct AdmissionControl {
    max: usize,
    in_progress: AtomicUsize,
    refused_requests: Counter,
    bodies: KeyShareLimit,
    waits: KeyShareLimit,
}

/// A limit of which each key has a share.
struct KeyShareLimit {
    max: usize,
    held: Mutex<HeldShares>,
    refused: Counter,
    /// Why a request is refused.
    cause: &'static str,
}

#[derive(Default)]
struct HeldShares {
    total: usize,
    by_key: HashMap<KeyId, usize>,
}

/// Counts a request as in progress until dropped.
pub(crate) struct AdmissionPermit<'a>(&'a AdmissionControl);

/// Frees the permit of a waiting request for others until dropped.
#[must_use]
pub(crate) struct SuspendedPermit<'a>(&'a AdmissionControl);

/// Counts against a shared limit until dropped.
#[must_use]
pub(crate) struct Share<'a> {
    limit: &'a KeyShareLimit,
    key: KeyId,
}

impl AdmissionControl {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            in_progress: AtomicUsize::new(0),
            refused_requests: counter!(REQUESTS_SHED, "reason" => "requests"),
            bodies: KeyShareLimit::new(max, "bodies", "too many request bodies are incomplete"),
            waits: KeyShareLimit::new(max, "waits", "too many requests wait for an event"),
        }
    }

    /// Admits a request if there is a permit left.
    pub(crate) fn acquire(&self) -> Result<AdmissionPermit<'_>, ApiError> {
        let increment = |count| (count < self.max).then_some(count + 1);
        match self.in_progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment) {
            Ok(_) => Ok(AdmissionPermit(self)),
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

    /// How many requests wait for an event.
    pub(crate) fn waiting(&self) -> usize {
        self.waits.held().total
    }

    /// Frees the permit of a request in progress while it waits.
    pub(crate) fn suspend(&self) -> SuspendedPermit<'_> {
        self.in_progress.fetch_sub(1, Ordering::Relaxed);
        SuspendedPermit(self)
    }

    /// Admits a body that is about to arrive.
    pub(crate) fn admit_body(&self, key: KeyId) -> Result<Share<'_>, ApiError> {
        self.bodies.admit(key)
    }

    /// Admits a request that is about to wait for an event.
    pub(crate) fn admit_wait(&self, key: KeyId) -> Result<Share<'_>, ApiError> {
        self.waits.admit(key)
    }
}

impl KeyShareLimit {
    fn new(max: usize, reason: &'static str, cause: &'static str) -> Self {
        Self { max, held: Mutex::default(), refused: counter!(REQUESTS_SHED, "reason" => reason), cause }
    }

    fn admit(&self, key: KeyId) -> Result<Share<'_>, ApiError> {
        let mut held = self.held();
        let by_this_key = held.by_key.get(&key).copied().unwrap_or_default();
        if held.total >= self.max || by_this_key >= (self.max / KEY_SHARE_DIVISOR).max(1) {
            self.refused.increment(1);
            return Err(ApiError::Unavailable { cause: self.cause.into() });
        }
        held.total += 1;
        held.by_key.insert(key, by_this_key + 1);
        Ok(Share { limit: self, key })
    }

    fn held(&self) -> MutexGuard<'_, HeldShares> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SuspendedPermit<'_> {
    /// Continues the request if there is a permit left.
    pub(crate) fn resume(self) -> Result<(), ApiError> {
        let admission = self.0;
        drop(self);
        if admission.in_progress() > admission.max { Err(admission.refuse_request()) } else { Ok(()) }
    }
}

impl Drop for AdmissionPermit<'_> {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SuspendedPermit<'_> {
    fn drop(&mut self) {
        // May exceed the limit briefly: the request is in progress until it is answered, even if with 503.
        self.0.in_progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut held = self.limit.held();
        held.total -= 1;
        if let Some(by_this_key) = held.by_key.get_mut(&self.key) {
            *by_this_key -= 1;
            if *by_this_key == 0 {
                held.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_for_its_client_frees_its_permit() {
        let admission = AdmissionControl::new(1);
        let first = admission.acquire().unwrap();
        assert!(admission.acquire().is_err());
        let waiting = admission.suspend();
        let second = admission.acquire().unwrap();
        assert!(waiting.resume().is_err(), "another request has the permit");
        drop(first);
        assert!(admission.acquire().is_err());
        drop(second);
        assert_eq!(admission.in_progress(), 0);
        let _third = admission.acquire().unwrap();
        assert!(admission.suspend().resume().is_ok());
    }

    #[test]
    fn one_key_has_a_share_of_the_incomplete_bodies_and_all_keys_together_are_bounded() {
        let admission = AdmissionControl::new(8);
        let arriving: Vec<_> = (0..4)
            .flat_map(|key| [admission.admit_body(KeyId(key)), admission.admit_body(KeyId(key))])
            .collect();
        assert!(arriving.iter().all(Result::is_ok));
        assert!(admission.admit_body(KeyId(9)).is_err(), "all are taken");
        drop(arriving);
        let _two = (admission.admit_body(KeyId(1)).unwrap(), admission.admit_body(KeyId(1)).unwrap());
        assert!(admission.admit_body(KeyId(1)).is_err(), "a quarter of them");
        assert!(admission.admit_body(KeyId(2)).is_ok());
        assert!(admission.admit_wait(KeyId(1)).is_ok(), "another limit");
        assert_eq!(admission.bodies.held().by_key.len(), 1, "a key without bodies takes no memory");
    }
}
