//! Locks by id, so that the writes of this process that change the same thing take turns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// The things of one kind that are being changed, by their ids. Those that change the same thing would wait for each other at the
/// server: they wait here instead, without a connection. Cheap to clone.
#[derive(Clone, Default)]
pub struct KeyedLocks(Arc<Mutex<HashMap<i64, Arc<Semaphore>>>>);

/// A lock, or the wait for it. The entry is removed with the last one.
pub(crate) struct KeyedLock {
    locks: KeyedLocks,
    id: i64,
    thing: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl KeyedLocks {
    /// Waits until no other write of this process changes what has this id, but not longer than this.
    pub(crate) async fn take(&self, id: i64, until: Instant) -> Option<KeyedLock> {
        let thing = self.lock().entry(id).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        let acquiring = thing.clone().acquire_owned();
        let mut lock = KeyedLock { locks: self.clone(), id, thing: Some(thing), permit: None };
        lock.permit = Some(timeout_at(until, acquiring).await.ok()?.ok()?);
        Some(lock)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyedLock {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        // Released under the lock: of several that are dropped at once, the last one sees that it is the last.
        drop((self.permit.take(), self.thing.take()));
        if locks.get(&self.id).is_some_and(|thing| Arc::strong_count(thing) == 1) {
            locks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_has_the_turn_and_nothing_is_kept_of_those_that_have_ended() {
        let locks = KeyedLocks::default();
        let soon = || Instant::now() + Duration::from_secs(1);
        let first = locks.take(7, soon()).await;
        assert!(first.is_some());
        assert!(locks.take(8, soon()).await.is_some(), "another thing");
        assert!(locks.take(7, soon()).await.is_none(), "it waited in vain");
        let (second, ()) = tokio::join!(locks.take(7, soon()), async { drop(first) });
        assert!(second.is_some());
        drop(second);
        assert!(locks.lock().is_empty());
    }
}
