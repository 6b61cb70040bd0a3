//! The cache of API keys, and the time each key was last used.
//!
//! **Invariants:**
//! - a cached record is used only while it is fresh ([`KeyFreshness`]), from the first request on;
//! - concurrent requests with the same key share one lookup;
//! - memory is bounded, and unknown keys cannot evict known ones;
//! - a request never waits until the last use of its key is recorded.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::header::HeaderValue;
use jiff::Timestamp;
use metrics::{Counter, counter};
use moka::future::Cache;
use tokio::time::sleep;

use super::admission_control::Admission;
use super::authentication::bearer_token;
use super::key_freshness::{KeyFreshness, LookupStart};
use super::rate_limits::{KeyRateLimiter, RateLimiterCache};
use super::unknown_key_throttle::UnknownKeyThrottle;
use crate::domain::api_key::KeyDigest;
use crate::domain::key_record::{ActiveKey, KeyId, Scope};
use crate::domain::rate_limit::RateLimit;
use crate::http::error::ApiError;
use crate::storage::{KeyNotification, Storage, StorageError};
use crate::telemetry;
use crate::telemetry::metrics::{DEPRECATED_CALLS, KEY_LOOKUPS};

/// How long an unknown key is rejected without another lookup.
const NEGATIVE_TTL: Duration = Duration::from_secs(2);
/// How many known keys are cached, and how many unknown ones. Beyond that, the least used are evicted.
const MAX_KEYS: u64 = 10_000;
/// How many lookups one request makes if the key changes during each of them.
const MAX_LOOKUPS: usize = 3;
/// How often the last uses of keys are written to the database.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

/// The caller of a request: a valid key and its rate limiter.
pub(crate) struct Caller {
    pub(crate) key: ActiveKey,
    pub(crate) limiter: Option<Arc<KeyRateLimiter>>,
    get_pet_calls: OnceLock<Counter>,
    lookup: LookupStart,
    /// The minute of the last use that was recorded.
    last_used_minute: AtomicI64,
}

impl Caller {
    /// Fails if the key lacks a scope.
    pub(crate) fn check_scope(&self, needed: Scope) -> Result<(), ApiError> {
        if self.key.scopes.contains(&needed) { Ok(()) } else { Err(ApiError::InsufficientScope { needed }) }
    }

    /// The counter of getPet calls with this key.
    pub(crate) fn get_pet_calls(&self) -> &Counter {
        self.get_pet_calls.get_or_init(|| {
            let key_id = self.key.id.0.to_string();
            counter!(DEPRECATED_CALLS, "operation" => "getPet", "key_id" => key_id)
        })
    }
}

/// The caller of the last request on a connection. Most often the next one is the same, and needs no digest and no
/// lookup in the cache. A remembered caller is as fresh as a cached one: [`KeyFreshness`] decides for both.
#[derive(Default)]
pub(crate) struct LastCaller(Mutex<Option<KnownHeader>>);

struct KnownHeader {
    authorization: Box<[u8]>,
    caller: Arc<Caller>,
}

impl LastCaller {
    fn get(&self, authorization: &HeaderValue) -> Option<Arc<Caller>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.as_ref()?;
        equal_in_constant_time(&known.authorization, authorization.as_bytes()).then(|| known.caller.clone())
    }

    fn set(&self, authorization: &HeaderValue, caller: &Arc<Caller>) {
        let known = KnownHeader { authorization: authorization.as_bytes().into(), caller: caller.clone() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }
}

/// Compares without an early exit: clients behind a proxy share a connection, and must not find out how much of a guessed
/// key is right from how long its rejection takes.
fn equal_in_constant_time(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |found, (one, other)| found | (one ^ other)) == 0
}

/// Caches API keys, known and unknown.
pub(crate) struct KeyCache {
    storage: Storage,
    known: Cache<KeyDigest, Arc<Caller>>,
    /// The ids of keys, also of those that are looked up again, or cannot be. Only for the log.
    ids: Cache<KeyDigest, KeyId>,
    /// The negative cache.
    unknown: Cache<KeyDigest, ()>,
    freshness: Arc<KeyFreshness>,
    throttle: UnknownKeyThrottle,
    rate_limiters: RateLimiterCache,
    /// When keys were last used, as far as it is not flushed yet.
    uses: Mutex<HashMap<KeyId, SystemTime>>,
    hits: Counter,
    misses: Counter,
    refusals: Counter,
}

enum LookupError {
    UnknownKey,
    Storage(StorageError),
}

impl KeyCache {
    /// `default_limit` applies to keys without their own rate limit.
    pub(crate) fn new(storage: Storage, default_limit: Option<RateLimit>) -> Self {
        Self {
            storage,
            known: Cache::new(MAX_KEYS),
            ids: Cache::new(MAX_KEYS),
            unknown: Cache::builder().max_capacity(MAX_KEYS).time_to_live(NEGATIVE_TTL).build(),
            freshness: Arc::new(KeyFreshness::new()),
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
        last: &LastCaller,
        client: Option<IpAddr>,
        admission: &Admission,
        now: Timestamp,
    ) -> Result<Arc<Caller>, ApiError> {
        let caller = match last.get(authorization) {
            Some(caller) if self.freshness.is_fresh(&caller.lookup) => {
                self.hits.increment(1);
                caller
            }
            _ => {
                let digest = bearer_token(authorization)?.digest();
                // Boxed: large, and seldom needed.
                let caller = Box::pin(self.find(digest, client, admission, now)).await?;
                last.set(authorization, &caller);
                caller
            }
        };
        if caller.key.expired(now.into()) {
            return Err(ApiError::InvalidApiKey);
        }
        self.record_use(&caller, now);
        Ok(caller)
    }

    /// The id of a key that was valid when it was last looked up. For the log of a request that was not authenticated.
    pub(crate) async fn last_known(&self, authorization: &HeaderValue) -> Option<KeyId> {
        let digest = bearer_token(authorization).ok()?.digest();
        self.ids.get(&digest).await
    }

    /// Finds a key in the cache, or else in the database.
    async fn find(
        &self,
        digest: KeyDigest,
        client: Option<IpAddr>,
        admission: &Admission,
        now: Timestamp,
    ) -> Result<Arc<Caller>, ApiError> {
        match self.known.get(&digest).await {
            Some(caller) if self.freshness.is_fresh(&caller.lookup) => {
                self.hits.increment(1);
                Ok(caller)
            }
            Some(_) => self.look_up(digest, now.into()).await,
            None => self.look_up_throttled(digest, client, admission, now.into()).await,
        }
    }

    /// Looks up a key that is not cached, and perhaps was never issued.
    async fn look_up_throttled(
        &self,
        digest: KeyDigest,
        client: Option<IpAddr>,
        admission: &Admission,
        now: SystemTime,
    ) -> Result<Arc<Caller>, ApiError> {
        if self.unknown.contains_key(&digest) {
            self.refusals.increment(1);
            return Err(ApiError::InvalidApiKey);
        }
        if let Some(delay) = self.throttle.delay(client) {
            let waiting = admission.suspend();
            sleep(delay).await;
            waiting.resume()?;
        }
        let found = self.look_up(digest, now).await;
        if let Err(ApiError::InvalidApiKey) = found {
            self.throttle.record_miss(client);
        }
        found
    }

    /// Looks up a key, again if it changed during the lookup.
    async fn look_up(&self, digest: KeyDigest, now: SystemTime) -> Result<Arc<Caller>, ApiError> {
        for _ in 0..MAX_LOOKUPS {
            let caller = match self.known.try_get_with(digest, self.load(digest, now)).await {
                Ok(caller) => caller,
                Err(error) => match &*error {
                    LookupError::UnknownKey => {
                        self.unknown.insert(digest, ()).await;
                        return Err(ApiError::InvalidApiKey);
                    }
                    LookupError::Storage(error) => return Err(error.into()),
                },
            };
            if self.freshness.is_fresh(&caller.lookup) {
                return Ok(caller);
            }
            // The cached record has expired, or the key changed after the lookup started.
            self.known.invalidate(&digest).await;
        }
        Err(ApiError::Unavailable { cause: "the key changed during every lookup".into() })
    }

    /// Loads a key from the database.
    async fn load(&self, digest: KeyDigest, now: SystemTime) -> Result<Arc<Caller>, LookupError> {
        self.misses.increment(1);
        let lookup = self.freshness.start_lookup(&digest);
        match self.storage.find_api_key(digest).await {
            Ok(Some(key)) if !key.expired(now) => {
                self.ids.insert(digest, key.id).await;
                Ok(Arc::new(Caller {
                    limiter: self.rate_limiters.for_key(&key),
                    key,
                    get_pet_calls: OnceLock::new(),
                    lookup,
                    last_used_minute: AtomicI64::new(i64::MIN),
                }))
            }
            Ok(_) => Err(LookupError::UnknownKey),
            Err(error) => Err(LookupError::Storage(error)),
        }
    }

    /// Records that a key is used, once per minute.
    fn record_use(&self, caller: &Caller, now: Timestamp) {
        let minute = now.as_second().div_euclid(60);
        if caller.last_used_minute.load(Ordering::Relaxed) < minute
            && caller.last_used_minute.fetch_max(minute, Ordering::Relaxed) < minute
            && let Ok(at) = Timestamp::from_second(minute * 60)
        {
            self.uses().insert(caller.key.id, at.into());
        }
    }

    fn uses(&self) -> std::sync::MutexGuard<'_, HashMap<KeyId, SystemTime>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows key changes and flushes last uses, until it is dropped.
    pub(crate) async fn run(&self) {
        let freshness = self.freshness.clone();
        // Only changes are logged.
        let receives = AtomicBool::new(true);
        let follow_changes = self.storage.listen_for_key_changes(move |notification| match notification {
            KeyNotification::Subscribed => freshness.subscribed(),
            KeyNotification::NotifiedUpTo(moment) => {
                freshness.notified_up_to(moment);
                if !receives.swap(true, Ordering::Relaxed) {
                    tracing::info!("receiving key change notifications again");
                }
            }
            KeyNotification::Changed(digest) => freshness.changed(&digest),
            KeyNotification::Lost(error) => {
                freshness.unsubscribed();
                if receives.swap(false, Ordering::Relaxed) {
                    let cause = telemetry::with_causes(&error);
                    tracing::warn!(
                        cause,
                        "not receiving key change notifications; key changes now take up to 5 s to apply"
                    );
                }
            }
        });
        let flush_uses = async {
            loop {
                sleep(FLUSH_INTERVAL).await;
                self.flush_last_used().await;
            }
        };
        tokio::join!(follow_changes, flush_uses);
    }

    /// Writes the last uses of keys to the database. What fails is retried with the next flush.
    pub(crate) async fn flush_last_used(&self) {
        let mut uses: Vec<(KeyId, SystemTime)> = mem::take(&mut *self.uses()).into_iter().collect();
        if uses.is_empty() {
            return;
        }
        // In the same order on all nodes, so that they cannot deadlock.
        uses.sort_unstable_by_key(|(id, _)| id.0);
        if let Err(error) = self.storage.record_key_uses(&uses).await {
            let cause = telemetry::with_causes(&error);
            tracing::warn!(cause, "could not record when keys were last used");
            let mut unflushed = self.uses();
            for (id, at) in uses {
                unflushed.entry(id).or_insert(at);
            }
        }
    }
}
