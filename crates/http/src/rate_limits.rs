//! Rate limits per lineage of API keys and node, and the headers that report them.
//!
//! **Invariant:** memory is bounded: at most [`MAX_LIMITERS`] limiters.

use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use moka::sync::Cache;
use petstore_domain::key_record::{ActiveKey, KeyId};
use petstore_domain::rate_limit::RateLimit;

use crate::error::ApiError;

/// How many limiters are kept. Beyond that, the least used lineage starts again with its full limit.
const MAX_LIMITERS: u64 = 10_000;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// The rate limiters of all keys. They outlive the cached keys, so a new lookup does not reset a limit.
pub(crate) struct RateLimiterCache {
    default_limit: Option<RateLimit>,
    /// By lineage: during a rotation, two keys do not allow twice the requests.
    limiters: Cache<(KeyId, RateLimit), Arc<KeyRateLimiter>>,
}

impl RateLimiterCache {
    pub(crate) fn new(default_limit: Option<RateLimit>) -> Self {
        Self { default_limit, limiters: Cache::new(MAX_LIMITERS) }
    }

    /// Returns the limiter that a key shares with its lineage, if the key is limited.
    pub(crate) fn for_key(&self, key: &ActiveKey) -> Option<Arc<KeyRateLimiter>> {
        let limit = key.rate_limit.or(self.default_limit)?;
        Some(self.limiters.get_with((key.lineage, limit), || Arc::new(KeyRateLimiter::new(limit))))
    }
}

/// Limits the requests of one lineage.
pub(crate) struct KeyRateLimiter {
    limit: RateLimit,
    bucket: RateLimiter<NotKeyed, InMemoryState, MonotonicClock, StateInformationMiddleware>,
}

/// What is left of a rate limit after a request.
pub(crate) struct RateLimitState {
    limit: RateLimit,
    remaining: u32,
    /// The time until one more request is allowed than now.
    more_after: Duration,
}

impl KeyRateLimiter {
    fn new(limit: RateLimit) -> Self {
        let interval = Duration::from_secs(limit.seconds().into()) / limit.requests().get();
        // The interval is not zero: a limit allows at most one request per nanosecond.
        let quota = Quota::with_period(interval.max(Duration::from_nanos(1)))
            .unwrap_or_else(|| Quota::per_second(limit.requests()))
            .allow_burst(limit.requests());
        let bucket = RateLimiter::direct_with_clock(quota, MonotonicClock);
        Self { limit, bucket: bucket.with_middleware() }
    }

    /// Counts a request. Returns whether it is allowed, and what is left.
    pub(crate) fn check(&self) -> (Result<(), ApiError>, RateLimitState) {
        match self.bucket.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                // At most: a part of it may have passed.
                let more_after = state.quota().replenish_interval();
                (Ok(()), RateLimitState { limit: self.limit, remaining, more_after })
            }
            Err(rejected) => {
                let more_after = rejected.wait_time_from(MonotonicClock.now());
                let error = ApiError::RateLimited { limit: self.limit, seconds: whole_seconds(more_after) };
                (Err(error), RateLimitState { limit: self.limit, remaining: 0, more_after })
            }
        }
    }
}

impl RateLimitState {
    /// The state of a limit that is reached, and allows one more request in a second.
    pub(crate) fn reached(limit: RateLimit) -> Self {
        Self { limit, remaining: 0, more_after: Duration::from_secs(1) }
    }

    /// Reports the limit to the client.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        let policy = format!("\"key\";q={};w={}", self.limit.requests(), self.limit.seconds());
        let state = format!("\"key\";r={};t={}", self.remaining, whole_seconds(self.more_after));
        for (name, value) in [(POLICY, policy), (STATE, state)] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
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
    fn a_limit_allows_its_number_of_requests_and_says_how_long_to_wait() {
        let limiter = KeyRateLimiter::new("3/h".parse().unwrap());
        for left in ["r=2;t=1200", "r=1;t=1200", "r=0;t=1200"] {
            let (allowed, state) = limiter.check();
            assert!(allowed.is_ok());
            let mut headers = HeaderMap::new();
            state.add_headers(&mut headers);
            assert_eq!(headers["ratelimit-policy"], "\"key\";q=3;w=3600");
            assert_eq!(headers["ratelimit"], format!("\"key\";{left}"));
        }
        let (result, state) = limiter.check();
        assert!(matches!(result, Err(ApiError::RateLimited { seconds: 1_199..=1_200, .. })), "{result:?}");
        assert_eq!(state.remaining, 0);
    }

    #[test]
    fn a_lineage_keeps_its_limiter_until_its_limit_changes() {
        let limiters = RateLimiterCache::new(Some("7/s".parse().unwrap()));
        let of_lineage = |id, lineage, limit: Option<&str>| ActiveKey {
            lineage: KeyId(lineage),
            id: KeyId(id),
            scopes: Vec::new(),
            expires_in: None,
            rate_limit: limit.map(|limit| limit.parse().unwrap()),
        };
        let key = |limit| of_lineage(1, 1, limit);
        let limited = limiters.for_key(&key(Some("3/h"))).unwrap();
        assert!(Arc::ptr_eq(&limited, &limiters.for_key(&key(Some("3/h"))).unwrap()));
        assert!(!Arc::ptr_eq(&limited, &limiters.for_key(&key(Some("4/h"))).unwrap()));
        assert!(Arc::ptr_eq(&limited, &limiters.for_key(&of_lineage(2, 1, Some("3/h"))).unwrap()));
        assert!(!Arc::ptr_eq(&limited, &limiters.for_key(&of_lineage(1, 2, Some("3/h"))).unwrap()));
        assert_eq!(limiters.for_key(&key(None)).unwrap().limit.to_string(), "7/s");
        assert!(RateLimiterCache::new(None).for_key(&key(None)).is_none());
    }

    #[test]
    fn the_greatest_limit_is_accepted() {
        let limiter = KeyRateLimiter::new(RateLimit::new(RateLimit::MAX_REQUESTS, 1).unwrap());
        assert!(limiter.check().0.is_ok());
    }
}
