//! Slows down clients that send keys that were never issued, per client address and in total.
//!
//! A key that is well formed but unknown costs a database lookup. After too many unknown keys, further lookups are
//! delayed. A client with a valid key waits once, before its key is cached; a flood can send only one key per second
//! on each of its connections.
//!
//! **Invariant:** memory is bounded: at most [`MAX_ADDRESSES`] addresses, each for a short time.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::clock::MonotonicClock;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use moka::sync::Cache;

/// How many addresses are tracked. Beyond that, the least recently active one is forgotten.
const MAX_ADDRESSES: u64 = 10_000;
/// How many unknown keys per second are looked up without delay.
const MAX_PER_ADDRESS: NonZeroU32 = NonZeroU32::new(20).unwrap();
const MAX_IN_TOTAL: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// How long lookups stay delayed after too many unknown keys, and how long each lookup waits.
const UNKNOWN_KEY_DELAY: Duration = Duration::from_secs(1);

/// Delays lookups after too many unknown keys.
pub(super) struct UnknownKeyThrottle {
    start: Instant,
    total: Throttle,
    by_address: Cache<IpAddr, Arc<Throttle>>,
}

/// Counts the unknown keys of one address, or of all.
struct Throttle {
    allowed: RateLimiter<NotKeyed, InMemoryState, MonotonicClock>,
    /// Lookups are delayed until then, in milliseconds since the start.
    delayed_until: AtomicU64,
}

impl Throttle {
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
            total: Throttle::new(MAX_IN_TOTAL),
            by_address: Cache::builder()
                .max_capacity(MAX_ADDRESSES)
                .time_to_idle(UNKNOWN_KEY_DELAY * 10)
                .build(),
        }
    }

    /// How long a lookup for this client must wait, if at all. There is no address if the peer is a trusted proxy.
    pub(super) fn delay(&self, address: Option<IpAddr>) -> Option<Duration> {
        let now = self.milliseconds(Instant::now());
        let delayed = |throttle: &Throttle| now < throttle.delayed_until.load(Ordering::Relaxed);
        let by_address = address.and_then(|address| self.by_address.get(&address));
        (delayed(&self.total) || by_address.is_some_and(|throttle| delayed(&throttle)))
            .then_some(UNKNOWN_KEY_DELAY)
    }

    /// Counts a lookup for this client that found no key.
    pub(super) fn record_miss(&self, address: Option<IpAddr>) {
        let until = self.milliseconds(Instant::now() + UNKNOWN_KEY_DELAY);
        let count = |throttle: &Throttle| {
            if throttle.allowed.check().is_err() {
                throttle.delayed_until.store(until, Ordering::Relaxed);
            }
        };
        count(&self.total);
        if let Some(address) = address {
            count(&self.by_address.get_with(address, || Arc::new(Throttle::new(MAX_PER_ADDRESS))));
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
        let throttle = UnknownKeyThrottle::new();
        for _ in 0..MAX_PER_ADDRESS.get() {
            throttle.record_miss(FLOODING);
        }
        assert_eq!(throttle.delay(FLOODING), None, "a few are not delayed");
        throttle.record_miss(FLOODING);
        assert_eq!(throttle.delay(FLOODING), Some(UNKNOWN_KEY_DELAY));
        assert_eq!(throttle.delay(OTHER), None);
        assert_eq!(throttle.delay(None), None, "a trusted proxy serves many clients");
    }

    #[test]
    fn too_many_in_total_delay_every_client_whose_key_is_not_cached() {
        let throttle = UnknownKeyThrottle::new();
        for _ in 0..=MAX_IN_TOTAL.get() {
            throttle.record_miss(None);
        }
        assert_eq!(throttle.delay(None), Some(UNKNOWN_KEY_DELAY));
        assert_eq!(throttle.delay(OTHER), Some(UNKNOWN_KEY_DELAY));
    }
}
