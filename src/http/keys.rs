//! The keys that this node knows, and how long it may believe what it knows.
//!
//! **Invariants:**
//! - a key is believed for [`MAX_AGE`] after a look at the database; longer, up to [`MAX_BELIEF`], only while the
//!   node hears of changed keys: then a change reaches it at once, and a silence ends the belief;
//! - requests that need the same key at once share one look;
//! - what is remembered is bounded, and unknown keys cannot push out known ones;
//! - a request never waits for the note that its key was used.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use metrics::{Counter, counter};
use moka::future::Cache;
use tokio::time::{Instant, sleep};

use super::error::ApiError;
use super::rate::{Limiter, Limiters};
use crate::domain::api_key::{ApiKey, KeyDigest};
use crate::domain::key_record::{IssuedKey, KeyId};
use crate::domain::rate_limit::RateLimit;
use crate::storage::{KeyNews, Storage, StorageError};
use crate::telemetry;
use crate::telemetry::metrics::{DEPRECATED_CALLS, KEY_LOOKUPS};

/// How long a key is believed without another look and without hearing of changes.
const MAX_AGE: Duration = Duration::from_secs(4);
/// How long a key is believed at all without another look.
const MAX_BELIEF: Duration = Duration::from_mins(1);
/// How long a key that was not found is refused without another look.
const MAX_REFUSAL: Duration = Duration::from_secs(2);
/// How many keys are remembered, and how many refused. Beyond it the least used are looked up again.
const MAX_KEYS: u64 = 10_000;
/// A look that was under way when a key was changed has ended by now, and what it found is forgotten as well.
const SECOND_THOUGHT: Duration = Duration::from_millis(300);
/// How often it is written down which keys were used.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);

/// Somebody who calls with a key in force.
pub(crate) struct Caller {
    pub(crate) key: IssuedKey,
    pub(crate) limiter: Option<Arc<Limiter>>,
    get_pet_calls: OnceLock<Counter>,
    looked_up: Instant,
    /// The time of hearing in which the look began.
    hearing: u64,
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

/// Whether this node hears of changed keys.
struct Hearing {
    start: Instant,
    /// Counts the times of hearing; 0 while nothing is heard.
    current: AtomicU64,
    count: AtomicU64,
    /// Up to when everything was heard, in milliseconds from the start.
    up_to: AtomicU64,
}

impl Hearing {
    fn new() -> Self {
        let zero = AtomicU64::default;
        Self { start: Instant::now(), current: zero(), count: zero(), up_to: zero() }
    }

    fn begin(&self) {
        self.current.store(self.count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn end(&self) {
        self.current.store(0, Ordering::Release);
    }

    fn heard_up_to(&self, moment: Instant) {
        self.up_to.store(self.milliseconds(moment), Ordering::Release);
    }

    /// Whether every change since the given time of hearing began, up to [`MAX_AGE`] ago, was heard.
    fn vouches_for(&self, hearing: u64, now: Instant) -> bool {
        let silence = self.milliseconds(now).saturating_sub(self.up_to.load(Ordering::Acquire));
        hearing != 0
            && hearing == self.current.load(Ordering::Acquire)
            && u128::from(silence) < MAX_AGE.as_millis()
    }

    fn milliseconds(&self, moment: Instant) -> u64 {
        u64::try_from((moment - self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Keys that were lately looked up.
pub(crate) struct KeyRing {
    storage: Storage,
    known: Cache<KeyDigest, Arc<Caller>>,
    unknown: Cache<KeyDigest, ()>,
    hearing: Arc<Hearing>,
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

impl KeyRing {
    /// `default_limit` holds for keys without one of their own.
    pub(crate) fn new(storage: Storage, default_limit: Option<RateLimit>) -> Self {
        Self {
            storage,
            known: Cache::new(MAX_KEYS),
            unknown: Cache::builder().max_capacity(MAX_KEYS).time_to_live(MAX_REFUSAL).build(),
            hearing: Arc::new(Hearing::new()),
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

    /// Who calls with this key; an error if it is not in force.
    pub(crate) async fn find(&self, key: &ApiKey, now: Timestamp) -> Result<Arc<Caller>, ApiError> {
        let digest = key.digest();
        let caller = match self.known.get(&digest).await {
            Some(caller) if self.believes(&caller) => {
                self.hits.increment(1);
                caller
            }
            stale => {
                if stale.is_some() {
                    self.known.invalidate(&digest).await;
                }
                self.look_up(digest, now.into()).await?
            }
        };
        if caller.key.expired(now.into()) {
            return Err(ApiError::InvalidApiKey);
        }
        self.note_use(&caller, now);
        Ok(caller)
    }

    fn believes(&self, caller: &Caller) -> bool {
        let now = Instant::now();
        let age = now - caller.looked_up;
        age < MAX_AGE || (age < MAX_BELIEF && self.hearing.vouches_for(caller.hearing, now))
    }

    async fn look_up(&self, digest: KeyDigest, now: SystemTime) -> Result<Arc<Caller>, ApiError> {
        if self.unknown.contains_key(&digest) {
            self.refusals.increment(1);
            return Err(ApiError::InvalidApiKey);
        }
        self.misses.increment(1);
        let look = async {
            let hearing = self.hearing.current.load(Ordering::Acquire);
            let looked_up = Instant::now();
            match self.storage.find_api_key(&digest).await {
                Ok(Some(key)) if !key.expired(now) => Ok(Arc::new(Caller {
                    limiter: self.limiters.of(&key),
                    key,
                    get_pet_calls: OnceLock::new(),
                    looked_up,
                    hearing,
                    noted_minute: AtomicI64::new(i64::MIN),
                })),
                Ok(_) => Err(Miss::Unknown),
                Err(error) => Err(Miss::Failed(error)),
            }
        };
        match self.known.try_get_with(digest, look).await {
            Ok(caller) => Ok(caller),
            Err(miss) => match &*miss {
                Miss::Unknown => {
                    self.unknown.insert(digest, ()).await;
                    Err(ApiError::InvalidApiKey)
                }
                Miss::Failed(error) => Err(error.into()),
            },
        }
    }

    /// Remembers, once a minute, that a key is used.
    fn note_use(&self, caller: &Caller, now: Timestamp) {
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
        let (known, hearing) = (self.known.clone(), self.hearing.clone());
        let follow = self.storage.follow_key_changes(move |news| match news {
            KeyNews::Following => hearing.begin(),
            KeyNews::HeardUpTo(moment) => hearing.heard_up_to(moment),
            KeyNews::Changed(digest) => {
                let known = known.clone();
                tokio::spawn(async move {
                    known.invalidate(&digest).await;
                    sleep(SECOND_THOUGHT).await;
                    known.invalidate(&digest).await;
                });
            }
            KeyNews::Lost(error) => {
                hearing.end();
                let cause = telemetry::with_causes(&error);
                tracing::warn!(cause, "changed keys are not heard of at once, but within 5 seconds");
            }
        });
        let note = async {
            loop {
                sleep(NOTE_INTERVAL).await;
                self.write_down_uses().await;
            }
        };
        tokio::join!(follow, note);
    }

    /// Writes down which keys were used since it was last done. What fails is tried again the next time.
    pub(crate) async fn write_down_uses(&self) {
        let mut uses: Vec<(KeyId, SystemTime)> = mem::take(&mut *self.uses()).into_iter().collect();
        if uses.is_empty() {
            return;
        }
        // In one order on all nodes, so that they do not lock each other out.
        uses.sort_unstable_by_key(|(id, _)| id.0);
        if let Err(error) = self.storage.note_key_uses(&uses).await {
            let cause = telemetry::with_causes(&error);
            tracing::warn!(cause, "it could not be written down which keys were used");
            let mut waiting = self.uses();
            for (id, at) in uses {
                waiting.entry(id).or_insert(at);
            }
        }
    }
}
