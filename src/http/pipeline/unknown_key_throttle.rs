//! Slows down whoever sends keys that were never issued, per client address and in total.
//!
//! A key that is well formed but not known costs a look-up in the database. Once look-ups find nothing too often, the
//! next ones wait: a client with a valid key waits once, before its key is known, and a flood is as slow as its
//! connections are few.
//!
//! **Invariant:** what is remembered is bounded: [`MAX_ADDRESSES`], and for a short time.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::MonotonicClock;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use moka::sync::Cache;
use tokio::time::Instant;

/// How many addresses are told apart. Beyond it the one that was quiet the longest is forgotten.
const MAX_ADDRESSES: u64 = 10_000;
/// How many unknown keys a second are looked up without delay.
const FROM_ONE_ADDRESS: NonZeroU32 = NonZeroU32::new(20).unwrap();
const IN_TOTAL: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// For how long look-ups wait after there were too many, and for how long each of them waits.
const DELAY: Duration = Duration::from_secs(1);

/// Decides which look-ups wait.
pub(super) struct UnknownKeyThrottle {
    start: Instant,
    total: Source,
    by_address: Cache<IpAddr, Arc<Source>>,
}

/// Where unknown keys come from.
struct Source {
    allowed: RateLimiter<NotKeyed, InMemoryState, MonotonicClock>,
    /// Look-ups wait until then, in milliseconds from the start.
    delayed_until: AtomicU64,
}

impl Source {
    fn new(per_second: NonZeroU32) -> Self {
        let quota = Quota::per_second(per_second);
        Self {
            allowed: RateLimiter::direct_with_clock(quota, MonotonicClock),
            delayed_until: AtomicU64::default(),
        }
    }
}

impl UnknownKeyThrottle {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            total: Source::new(IN_TOTAL),
            by_address: Cache::builder().max_capacity(MAX_ADDRESSES).time_to_idle(DELAY * 10).build(),
        }
    }

    /// How long a look-up for this client has to wait, if at all. Many clients may share no address: a proxy's.
    pub(super) fn delay(&self, address: Option<IpAddr>) -> Option<Duration> {
        let now = self.milliseconds(Instant::now());
        let delayed = |source: &Source| now < source.delayed_until.load(Ordering::Relaxed);
        let of_address = address.and_then(|address| self.by_address.get(&address));
        (delayed(&self.total) || of_address.is_some_and(|source| delayed(&source))).then_some(DELAY)
    }

    /// A look-up for this client found nothing.
    pub(super) fn found_nothing(&self, address: Option<IpAddr>) {
        let until = self.milliseconds(Instant::now() + DELAY);
        let count = |source: &Source| {
            if source.allowed.check().is_err() {
                source.delayed_until.store(until, Ordering::Relaxed);
            }
        };
        count(&self.total);
        if let Some(address) = address {
            count(&self.by_address.get_with(address, || Arc::new(Source::new(FROM_ONE_ADDRESS))));
        }
    }

    fn milliseconds(&self, moment: Instant) -> u64 {
        u64::try_from((moment - self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const FLOODING: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)));
    const OTHER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)));

    #[test]
    fn an_address_that_sends_too_many_unknown_keys_waits_and_others_do_not() {
        let keys = UnknownKeyThrottle::new();
        for _ in 0..FROM_ONE_ADDRESS.get() {
            keys.found_nothing(FLOODING);
        }
        assert_eq!(keys.delay(FLOODING), None, "a few are nobody's business");
        keys.found_nothing(FLOODING);
        assert_eq!(keys.delay(FLOODING), Some(DELAY));
        assert_eq!(keys.delay(OTHER), None);
        assert_eq!(keys.delay(None), None, "a trusted proxy stands for many");
    }

    #[test]
    fn too_many_in_total_delay_everybody_whose_key_is_not_known_yet() {
        let keys = UnknownKeyThrottle::new();
        for _ in 0..=IN_TOTAL.get() {
            keys.found_nothing(None);
        }
        assert_eq!(keys.delay(None), Some(DELAY));
        assert_eq!(keys.delay(OTHER), Some(DELAY));
    }
}
