//! The keys that this node knows.
//!
//! **Invariants:**
//! - what a look-up found is used only as long as [`Freshness`] covers it, from the first request on;
//! - requests that need the same key at once share one look-up;
//! - what is remembered is bounded, and unknown keys cannot push out known ones;
//! - a request never waits for the note that its key was used.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use metrics::{Counter, counter};
use moka::future::Cache;
use tokio::time::sleep;

use super::admission::Admission;
use super::key_freshness::{Freshness, LookUpStart};
use super::rate_limits::{Limiter, Limiters};
use super::unknown_key_throttle::UnknownKeyThrottle;
use crate::domain::api_key::{ApiKey, KeyDigest};
use crate::domain::key_record::{IssuedKey, KeyId};
use crate::domain::rate_limit::RateLimit;
use crate::http::error::ApiError;
use crate::storage::{KeyNotification, Storage, StorageError};
use crate::telemetry;
use crate::telemetry::metrics::{DEPRECATED_CALLS, KEY_LOOKUPS};

/// How long a key that was not found is refused without another look.
const MAX_REFUSAL: Duration = Duration::from_secs(2);
/// How many keys are remembered, and how many refused. Beyond it the least used are looked up again.
const MAX_KEYS: u64 = 10_000;
/// How often a key is looked up for one request, if it is changed each time meanwhile.
const LOOK_UPS: usize = 3;
/// How often it is written down which keys were used.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);

/// Somebody who calls with a key in force.
pub(crate) struct Caller {
    pub(crate) key: IssuedKey,
    pub(crate) limiter: Option<Arc<Limiter>>,
    get_pet_calls: OnceLock<Counter>,
    look_up: LookUpStart,
    /// The minute of its last use that was noted.
    noted_minute: AtomicI64,
}

impl Caller {
    /// Counts calls of getPet with this key.
    pub(crate) fn get_pet_calls(&self) -> &Counter {
        self.get_pet_calls.get_or_init(|| {
            let key_id = self.key.id.0.to_string();
            counter!(DEPRECATED_CALLS, "operation" => "getPet", "key_id" => key_id)
        })
    }
}

/// Keys that were lately looked up.
pub(crate) struct KeyCache {
    storage: Storage,
    known: Cache<KeyDigest, Arc<Caller>>,
    unknown: Cache<KeyDigest, ()>,
    freshness: Arc<Freshness>,
    unknown_keys: UnknownKeyThrottle,
    limiters: Limiters,
    /// When keys were used since it was last written down.
    uses: Mutex<HashMap<KeyId, SystemTime>>,
    hits: Counter,
    misses: Counter,
    refusals: Counter,
}

enum Miss {
    Unknown,
    Failed(StorageError),
}

impl KeyCache {
    /// `default_limit` holds for keys without one of their own.
    pub(crate) fn new(storage: Storage, default_limit: Option<RateLimit>) -> Self {
        Self {
            storage,
            known: Cache::new(MAX_KEYS),
            unknown: Cache::builder().max_capacity(MAX_KEYS).time_to_live(MAX_REFUSAL).build(),
            freshness: Arc::new(Freshness::new()),
            unknown_keys: UnknownKeyThrottle::new(),
            limiters: Limiters::new(default_limit),
            uses: Mutex::default(),
            hits: counter!(KEY_LOOKUPS, "outcome" => "hit"),
            misses: counter!(KEY_LOOKUPS, "outcome" => "miss"),
            refusals: counter!(KEY_LOOKUPS, "outcome" => "refused"),
        }
    }

    /// How many keys are remembered.
    pub(crate) fn remembered(&self) -> u64 {
        self.known.entry_count()
    }

    /// Who calls with this key; an error if it is not in force. A key that is not known yet may have to wait, for which
    /// it leaves its permit to others.
    pub(crate) async fn find(
        &self,
        key: &ApiKey,
        client: Option<IpAddr>,
        admission: &Admission,
        now: Timestamp,
    ) -> Result<Arc<Caller>, ApiError> {
        let digest = key.digest();
        let caller = match self.known.get(&digest).await {
            Some(caller) if self.freshness.covers(&caller.look_up) => {
                self.hits.increment(1);
                caller
            }
            Some(_) => self.look_up(digest, now.into()).await?,
            None => self.look_up_first(digest, client, admission, now.into()).await?,
        };
        if caller.key.expired(now.into()) {
            return Err(ApiError::InvalidApiKey);
        }
        self.record_use(&caller, now);
        Ok(caller)
    }

    /// Looks up a key that is not known yet, and perhaps was never issued.
    async fn look_up_first(
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
        if let Some(delay) = self.unknown_keys.delay(client) {
            let waiting = admission.wait();
            sleep(delay).await;
            waiting.resume()?;
        }
        let found = self.look_up(digest, now).await;
        if let Err(ApiError::InvalidApiKey) = found {
            self.unknown_keys.found_nothing(client);
        }
        found
    }

    /// Looks a key up until what was found is not outdated already.
    async fn look_up(&self, digest: KeyDigest, now: SystemTime) -> Result<Arc<Caller>, ApiError> {
        for _ in 0..LOOK_UPS {
            let caller = match self.known.try_get_with(digest, self.ask_database(digest, now)).await {
                Ok(caller) => caller,
                Err(miss) => return Err(self.missed(digest, &miss).await),
            };
            if self.freshness.covers(&caller.look_up) {
                return Ok(caller);
            }
            // It was known before, or the key was changed after the look-up began.
            self.known.invalidate(&digest).await;
        }
        Err(ApiError::Unavailable { cause: "the key was changed during each look-up".into() })
    }

    async fn missed(&self, digest: KeyDigest, miss: &Miss) -> ApiError {
        match miss {
            Miss::Unknown => {
                self.unknown.insert(digest, ()).await;
                ApiError::InvalidApiKey
            }
            Miss::Failed(error) => error.into(),
        }
    }

    async fn ask_database(&self, digest: KeyDigest, now: SystemTime) -> Result<Arc<Caller>, Miss> {
        self.misses.increment(1);
        let look_up = self.freshness.look_up_begins(&digest);
        match self.storage.find_api_key(digest).await {
            Ok(Some(key)) if !key.expired(now) => Ok(Arc::new(Caller {
                limiter: self.limiters.of(&key),
                key,
                get_pet_calls: OnceLock::new(),
                look_up,
                noted_minute: AtomicI64::new(i64::MIN),
            })),
            Ok(_) => Err(Miss::Unknown),
            Err(error) => Err(Miss::Failed(error)),
        }
    }

    /// Remembers, once a minute, that a key is used.
    fn record_use(&self, caller: &Caller, now: Timestamp) {
        let minute = now.as_second().div_euclid(60);
        if caller.noted_minute.load(Ordering::Relaxed) < minute
            && caller.noted_minute.fetch_max(minute, Ordering::Relaxed) < minute
            && let Ok(at) = Timestamp::from_second(minute * 60)
        {
            self.uses().insert(caller.key.id, at.into());
        }
    }

    fn uses(&self) -> std::sync::MutexGuard<'_, HashMap<KeyId, SystemTime>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of changed keys, and writes down which were used, for ever.
    pub(crate) async fn look_after(&self) {
        let freshness = self.freshness.clone();
        let follow = self.storage.listen_for_key_changes(move |news| match news {
            KeyNotification::Subscribed => freshness.subscribed(),
            KeyNotification::NotifiedUpTo(moment) => freshness.notified_up_to(moment),
            KeyNotification::Changed(digest) => freshness.changed(&digest),
            KeyNotification::Lost(error) => {
                freshness.unsubscribed();
                let cause = telemetry::with_causes(&error);
                tracing::warn!(cause, "changed keys are not heard of at once, but within 5 seconds");
            }
        });
        let note = async {
            loop {
                sleep(NOTE_INTERVAL).await;
                self.flush_last_used().await;
            }
        };
        tokio::join!(follow, note);
    }

    /// Writes down which keys were used since it was last done. What fails is tried again the next time.
    pub(crate) async fn flush_last_used(&self) {
        let mut uses: Vec<(KeyId, SystemTime)> = mem::take(&mut *self.uses()).into_iter().collect();
        if uses.is_empty() {
            return;
        }
        // In one order on all nodes, so that they do not lock each other out.
        uses.sort_unstable_by_key(|(id, _)| id.0);
        if let Err(error) = self.storage.record_key_uses(&uses).await {
            let cause = telemetry::with_causes(&error);
            tracing::warn!(cause, "it could not be written down which keys were used");
            let mut waiting = self.uses();
            for (id, at) in uses {
                waiting.entry(id).or_insert(at);
            }
        }
    }
}
