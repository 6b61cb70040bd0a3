//! The cache of API keys, and the time each key was last used.
//!
//! **Invariants:**
//! - a key's record is used for [`RECORD_TTL`] from the start of its lookup, and not longer. So a revoked or changed key is
//!   obeyed within 3 seconds by every node, whatever happens to the database and the network;
//! - concurrent requests with the same key share one lookup;
//! - memory is bounded, and unknown keys cannot evict known ones;
//! - a request never waits until the last use of its key is recorded.

use std::collections::HashMap;
use std::convert::Infallible;
use std::mem;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use metrics::{Counter, counter};
use moka::Expiry;
use moka::future::Cache;
use petstore_domain::api_key::{ApiKey, KeyDigest};
use petstore_domain::key_record::KeyId;
use petstore_domain::rate_limit::RateLimit;
use petstore_storage::{Storage, StorageError};
use petstore_telemetry::metrics::KEY_LOOKUPS;
use petstore_telemetry::with_causes;
use tokio::time::{sleep, timeout};

use super::unknown_key_throttle::UnknownKeyThrottle;
use super::{Caller, bearer_token};
use crate::admission_control::AdmissionControl;
use crate::error::ApiError;
use crate::rate_limits::RateLimiterCache;

/// How long a record is used, from the start of its lookup; and how long an unknown key is rejected without another lookup.
const RECORD_TTL: Duration = Duration::from_secs(2);
/// How many known keys are cached, and how many unknown ones. Beyond that, the least used are evicted.
const MAX_KEYS: u64 = 10_000;
/// How often the last uses of keys are written to the database.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

/// Caches API keys, known and unknown.
pub(crate) struct KeyCache {
    storage: Storage,
    /// By the key itself: a digest for every request would take longer than the rest of the lookup.
    known: Cache<ApiKey, KeyLookup>,
    /// The negative cache.
    unknown: Cache<ApiKey, ()>,
    /// The ids of keys that were found before, by their digest, because they are kept for long. Only for the log, and to look them up without delay.
    ids: Cache<KeyDigest, KeyId>,
    throttle: UnknownKeyThrottle,
    rate_limiters: RateLimiterCache,
    /// When keys were last used, as far as it is not flushed yet.
    uses: Mutex<HashMap<KeyId, Instant>>,
    hits: Counter,
    misses: Counter,
    refusals: Counter,
}

/// A key that was found, and when its lookup started.
#[derive(Clone)]
struct KeyLookup {
    caller: Arc<Caller>,
    started: Instant,
}

impl KeyLookup {
    /// For how long the record may still be used: until [`RECORD_TTL`] after the start of its lookup, or the expiry of the key.
    fn remaining(&self) -> Duration {
        let usable = self.caller.key.expires_in.map_or(RECORD_TTL, |end| end.min(RECORD_TTL));
        usable.saturating_sub(self.started.elapsed())
    }
}

/// Evicts a record that may not be used any longer.
struct ExpireAfterLookup;

impl Expiry<ApiKey, KeyLookup> for ExpireAfterLookup {
    fn expire_after_create(&self, _: &ApiKey, lookup: &KeyLookup, _: Instant) -> Option<Duration> {
        Some(lookup.remaining())
    }
}

/// Why a key was not found.
enum LookupError {
    UnknownKey,
    Storage(StorageError),
    Timeout,
}

impl KeyCache {
    /// `default_limit` applies to keys without their own rate limit.
    pub(crate) fn new(storage: Storage, default_limit: Option<RateLimit>) -> Self {
        Self {
            storage,
            known: Cache::builder().max_capacity(MAX_KEYS).expire_after(ExpireAfterLookup).build(),
            unknown: Cache::builder().max_capacity(MAX_KEYS).time_to_live(RECORD_TTL).build(),
            ids: Cache::new(MAX_KEYS),
            throttle: UnknownKeyThrottle::new(),
            rate_limiters: RateLimiterCache::new(default_limit),
            uses: Mutex::default(),
            hits: counter!(KEY_LOOKUPS, "outcome" => "hit"),
            misses: counter!(KEY_LOOKUPS, "outcome" => "miss"),
            refusals: counter!(KEY_LOOKUPS, "outcome" => "refused"),
        }
    }

    /// How many known keys are cached.
    pub(crate) fn entry_count(&self) -> u64 {
        self.known.entry_count()
    }

    /// Returns the caller with the key in this header, or an error if the key is not valid. A key that is not cached may
    /// have to wait for its lookup; the request gives up its permit meanwhile.
    pub(crate) async fn authenticate(
        &self,
        authorization: &HeaderValue,
        client: Option<IpAddr>,
        admission: &AdmissionControl,
    ) -> Result<Arc<Caller>, ApiError> {
        let token = bearer_token(authorization)?;
        match self.known.get(token).await {
            Some(lookup) if !lookup.remaining().is_zero() => {
                self.hits.increment(1);
                return Ok(lookup.caller);
            }
            // The eviction is only the cache's: whether a revoked key is obeyed does not depend on it.
            Some(_) => self.known.invalidate(token).await,
            None => {}
        }
        self.look_up(parse(token)?, client, admission).await
    }

    /// The id of a key that was valid when it was last looked up. For the log of a request that was not authenticated.
    pub(crate) async fn last_known(&self, authorization: &HeaderValue) -> Option<KeyId> {
        let digest = parse(bearer_token(authorization).ok()?).ok()?.digest();
        self.ids.get(&digest).await
    }

    /// Looks up a key that is not cached. One that was never found waits if too many unknown keys were sent before.
    async fn look_up(
        &self,
        key: ApiKey,
        client: Option<IpAddr>,
        admission: &AdmissionControl,
    ) -> Result<Arc<Caller>, ApiError> {
        if self.unknown.contains_key(&key) {
            self.refusals.increment(1);
            return Err(ApiError::InvalidApiKey);
        }
        let digest = key.digest();
        if !self.ids.contains_key(&digest)
            && let Some(delay) = self.throttle.delay(client)
        {
            let waiting = admission.suspend();
            sleep(delay).await;
            waiting.resume()?;
        }
        match self.known.try_get_with_by_ref(&key, self.load(digest)).await {
            Ok(lookup) => Ok(lookup.caller),
            Err(error) => Err(match &*error {
                LookupError::UnknownKey => {
                    self.unknown.insert(key, ()).await;
                    self.throttle.record_miss(client);
                    ApiError::InvalidApiKey
                }
                LookupError::Storage(error) => error.into(),
                LookupError::Timeout => {
                    ApiError::Unavailable { cause: "the API key could not be looked up in time".into() }
                }
            }),
        }
    }

    /// Loads a key from the database, and records that it is used.
    async fn load(&self, digest: KeyDigest) -> Result<KeyLookup, LookupError> {
        self.misses.increment(1);
        let started = Instant::now();
        // A record that arrives later would be too old to be used.
        let found = timeout(RECORD_TTL, self.storage.find_api_key(digest));
        match found.await.map_err(|_| LookupError::Timeout)? {
            Ok(Some(key)) => {
                self.ids.insert(digest, key.id).await;
                self.uses().insert(key.id, started);
                let limiter = self.rate_limiters.for_key(&key);
                Ok(KeyLookup { caller: Arc::new(Caller { key, limiter }), started })
            }
            Ok(None) => Err(LookupError::UnknownKey),
            Err(error) => Err(LookupError::Storage(error)),
        }
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<KeyId, Instant>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the last uses of keys to the database regularly, indefinitely.
    pub(crate) async fn run(&self) -> Infallible {
        loop {
            sleep(FLUSH_INTERVAL).await;
            self.flush_last_used().await;
        }
    }

    /// Writes the last uses of keys to the database. What fails is retried with the next flush.
    pub(crate) async fn flush_last_used(&self) {
        let mut uses: Vec<(KeyId, Instant)> = mem::take(&mut *self.uses()).into_iter().collect();
        if uses.is_empty() {
            return;
        }
        // In the same order on all nodes, so that they cannot deadlock.
        uses.sort_unstable_by_key(|(id, _)| id.0);
        if let Err(error) = self.storage.record_key_uses(&uses).await {
            let cause = with_causes(&error);
            tracing::warn!(cause, "could not record when keys were last used");
            let mut unflushed = self.uses();
            for (id, at) in uses {
                unflushed.entry(id).or_insert(at);
            }
        }
    }
}

fn parse(token: &str) -> Result<ApiKey, ApiError> {
    token.parse().map_err(|_| ApiError::InvalidApiKey)
}
