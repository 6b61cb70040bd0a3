//! Rate limits: how often a key may ask of this node, and the headers that say so.
//!
//! **Invariant:** what is remembered is bounded: a limiter for each of at most [`MAX_LIMITERS`] keys.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::clock::{Clock, MonotonicClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use moka::sync::Cache;

use crate::domain::key_record::{IssuedKey, KeyId};
use crate::domain::rate_limit::RateLimit;
use crate::http::error::ApiError;

/// How many limited keys are told apart. Beyond it the one that was quiet the longest begins anew.
const MAX_LIMITERS: u64 = 10_000;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// The limiters of all keys. They outlive what is known of a key, so that looking it up again gives nobody more.
pub(crate) struct Limiters {
    default_limit: Option<RateLimit>,
    of_key: Cache<(KeyId, RateLimit), Arc<Limiter>>,
}

impl Limiters {
    pub(crate) fn new(default_limit: Option<RateLimit>) -> Self {
        Self { default_limit, of_key: Cache::new(MAX_LIMITERS) }
    }

    /// The limiter of a key, if it has a limit.
    pub(crate) fn of(&self, key: &IssuedKey) -> Option<Arc<Limiter>> {
        let limit = key.rate_limit.or(self.default_limit)?;
        Some(self.of_key.get_with((key.id, limit), || Arc::new(Limiter::new(limit))))
    }
}

/// Counts the requests of one key.
pub(crate) struct Limiter {
    limit: RateLimit,
    bucket: RateLimiter<NotKeyed, InMemoryState, MonotonicClock, StateInformationMiddleware>,
}

/// What is left of a limit after a request.
pub(crate) struct Allowance {
    limit: RateLimit,
    remaining: u32,
    /// Until when there is nothing more to wait for: the next request if this one was refused, else all of them.
    wait: Duration,
}

impl Limiter {
    fn new(limit: RateLimit) -> Self {
        let interval = Duration::from_secs(limit.seconds().into()) / limit.requests().get();
        // The interval is not zero: a limit has at most a request a nanosecond.
        let quota = Quota::with_period(interval.max(Duration::from_nanos(1)))
            .unwrap_or_else(|| Quota::per_second(limit.requests()))
            .allow_burst(limit.requests());
        let bucket = RateLimiter::direct_with_clock(quota, MonotonicClock);
        Self { limit, bucket: bucket.with_middleware() }
    }

    /// Counts a request, and returns whether it may pass and what is left.
    pub(crate) fn count(&self) -> (Result<(), ApiError>, Allowance) {
        match self.bucket.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                let used = self.limit.requests().get().saturating_sub(remaining);
                let wait = state.quota().replenish_interval() * used;
                (Ok(()), Allowance { limit: self.limit, remaining, wait })
            }
            Err(refused) => {
                let wait = refused.wait_time_from(MonotonicClock.now());
                let error = ApiError::RateLimited { limit: self.limit, seconds: whole_seconds(wait) };
                (Err(error), Allowance { limit: self.limit, remaining: 0, wait })
            }
        }
    }
}

impl Allowance {
    /// Tells the client where it stands.
    pub(crate) fn announce(&self, headers: &mut HeaderMap) {
        let policy = format!("\"key\";q={};w={}", self.limit.requests(), self.limit.seconds());
        let state = format!("\"key\";r={};t={}", self.remaining, whole_seconds(self.wait));
        for (name, value) in [(POLICY, policy), (STATE, state)] {
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        }
    }
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lets_its_number_pass_and_says_how_long_to_wait() {
        let limiter = Limiter::new("3/h".parse().unwrap());
        for left in ["r=2;t=1200", "r=1;t=2400", "r=0;t=3600"] {
            let (passed, allowance) = limiter.count();
            assert!(passed.is_ok());
            let mut headers = HeaderMap::new();
            allowance.announce(&mut headers);
            assert_eq!(headers["ratelimit-policy"], "\"key\";q=3;w=3600");
            assert_eq!(headers["ratelimit"], format!("\"key\";{left}"));
        }
        let (refused, allowance) = limiter.count();
        assert!(matches!(refused, Err(ApiError::RateLimited { seconds: 1_199..=1_200, .. })), "{refused:?}");
        assert_eq!(allowance.remaining, 0);
    }

    #[test]
    fn a_key_keeps_its_limiter_until_its_limit_changes() {
        let limiters = Limiters::new(Some("7/s".parse().unwrap()));
        let key = |limit: Option<&str>| IssuedKey {
            lineage: KeyId(1),
            id: KeyId(1),
            scopes: Vec::new(),
            expires_at: None,
            rate_limit: limit.map(|limit| limit.parse().unwrap()),
        };
        let limited = limiters.of(&key(Some("3/h"))).unwrap();
        assert!(Arc::ptr_eq(&limited, &limiters.of(&key(Some("3/h"))).unwrap()));
        assert!(!Arc::ptr_eq(&limited, &limiters.of(&key(Some("4/h"))).unwrap()));
        assert_eq!(limiters.of(&key(None)).unwrap().limit.to_string(), "7/s");
        assert!(Limiters::new(None).of(&key(None)).is_none());
    }

    #[test]
    fn the_greatest_limit_is_one() {
        let limiter = Limiter::new(RateLimit::new(RateLimit::MAX_REQUESTS, 1).unwrap());
        assert!(limiter.count().0.is_ok());
    }
}
