//! Decides how long a node may use a cached key record.
//!
//! **Invariants**, in whatever order a lookup, a change and the notification of the change happen:
//! - a record is not used once the node was notified of a change since the lookup started;
//! - a record is used for [`UNNOTIFIED_TTL`] from the start of its lookup; longer, up to [`MAX_TTL`], only while
//!   notifications are known to arrive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::api_key::KeyDigest;

/// How long a record may be used while notifications may be missed.
const UNNOTIFIED_TTL: Duration = Duration::from_secs(4);
/// How long a record may be used at all.
const MAX_TTL: Duration = Duration::from_mins(1);

/// The number of change counters. A key's digest selects one; keys that share one only cost each other extra lookups.
const SLOTS: usize = 1024;

/// Tracks key changes and whether their notifications arrive.
pub(super) struct KeyFreshness {
    start: Instant,
    changes: Vec<AtomicU64>,
    /// The number of the current subscription to notifications; 0 while there is none.
    subscription: AtomicU64,
    subscriptions: AtomicU64,
    /// All changes made before this moment have been notified, in milliseconds since the start.
    notified_up_to: AtomicU64,
}

/// The state when a lookup started, to compare with later.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookupStart {
    at: Instant,
    slot: usize,
    changes: u64,
    subscription: u64,
}

impl KeyFreshness {
    pub(super) fn new() -> Self {
        let zero = AtomicU64::default;
        Self {
            start: Instant::now(),
            changes: (0..SLOTS).map(|_| zero()).collect(),
            subscription: zero(),
            subscriptions: zero(),
            notified_up_to: zero(),
        }
    }

    /// Starts a lookup. Call it before the database is queried.
    pub(super) fn start_lookup(&self, digest: &KeyDigest) -> LookupStart {
        let slot = slot(digest);
        LookupStart {
            at: Instant::now(),
            slot,
            changes: self.changes[slot].load(Ordering::SeqCst),
            subscription: self.subscription.load(Ordering::SeqCst),
        }
    }

    /// Invalidates the records of a key that was changed.
    pub(super) fn changed(&self, digest: &KeyDigest) {
        self.changes[slot(digest)].fetch_add(1, Ordering::SeqCst);
    }

    /// Changes are notified from now on.
    pub(super) fn subscribed(&self) {
        self.subscription.store(self.subscriptions.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    /// Notifications may be missed from now on.
    pub(super) fn unsubscribed(&self) {
        self.subscription.store(0, Ordering::SeqCst);
    }

    /// All changes made before this moment have been notified.
    pub(super) fn notified_up_to(&self, moment: Instant) {
        self.notified_up_to.store(self.milliseconds(moment), Ordering::SeqCst);
    }

    /// Whether the result of a lookup may still be used.
    pub(super) fn is_fresh(&self, lookup: &LookupStart) -> bool {
        let now = Instant::now();
        let age = now - lookup.at;
        self.changes[lookup.slot].load(Ordering::SeqCst) == lookup.changes
            && (age < UNNOTIFIED_TTL || (age < MAX_TTL && self.is_notified_since(lookup, now)))
    }

    /// Whether every change between the start of the lookup and [`UNNOTIFIED_TTL`] ago was notified.
    fn is_notified_since(&self, lookup: &LookupStart, now: Instant) -> bool {
        let silence = self.milliseconds(now).saturating_sub(self.notified_up_to.load(Ordering::SeqCst));
        lookup.subscription != 0
            && lookup.subscription == self.subscription.load(Ordering::SeqCst)
            && u128::from(silence) < UNNOTIFIED_TTL.as_millis()
    }

    fn milliseconds(&self, moment: Instant) -> u64 {
        u64::try_from((moment - self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

fn slot(digest: &KeyDigest) -> usize {
    // Digests are uniformly distributed.
    let bytes = digest.as_bytes();
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]])) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::mem;

    use tokio::time::advance;

    use super::*;

    /// An event around one change of one key.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        LookupStarts,
        DatabaseReads,
        LookupEnds,
        ChangeCommits,
        ChangeIsNotified,
        SubscriptionIsLost,
        Subscribes,
    }
    use Step::{
        ChangeCommits, ChangeIsNotified, DatabaseReads, LookupEnds, LookupStarts, Subscribes,
        SubscriptionIsLost,
    };

    /// Every order in which the sequences can be interleaved.
    fn interleavings(sequences: &[&[Step]]) -> Vec<Vec<Step>> {
        if sequences.iter().all(|sequence| sequence.is_empty()) {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let [first, rest @ ..] = sequence else { continue };
            let mut remaining = sequences.to_vec();
            remaining[index] = rest;
            for mut order in interleavings(&remaining) {
                order.insert(0, *first);
                all.push(order);
            }
        }
        all
    }

    /// A node and the actual state of the database.
    #[expect(clippy::struct_excessive_bools, reason = "one flag per step that may have happened")]
    struct Simulation {
        node: KeyFreshness,
        subscribed: bool,
        started: Option<LookupStart>,
        found_old: Option<bool>,
        ended: bool,
        changed_at: Option<Instant>,
        /// The notification of the change is on its way to the subscription.
        in_transit: bool,
        notified: bool,
    }

    impl Simulation {
        fn new() -> Self {
            let simulation = Self {
                node: KeyFreshness::new(),
                subscribed: true,
                started: None,
                found_old: None,
                ended: false,
                changed_at: None,
                in_transit: false,
                notified: false,
            };
            simulation.node.subscribed();
            simulation
        }

        fn step(&mut self, step: Step) {
            match step {
                LookupStarts => self.started = Some(self.node.start_lookup(&digest())),
                DatabaseReads => self.found_old = Some(self.changed_at.is_none()),
                LookupEnds => self.ended = true,
                ChangeCommits => {
                    self.changed_at = Some(Instant::now());
                    // Not delivered unless the node is subscribed.
                    self.in_transit = self.subscribed;
                }
                ChangeIsNotified => {
                    if mem::take(&mut self.in_transit) {
                        self.notified = true;
                        self.node.changed(&digest());
                    }
                }
                SubscriptionIsLost => {
                    self.in_transit = false;
                    self.subscribed = false;
                    self.node.unsubscribed();
                }
                Subscribes => {
                    self.subscribed = true;
                    self.node.subscribed();
                }
            }
        }

        /// The node's heartbeat arrives after a notification in transit, so until then it proves nothing newer.
        fn heartbeat(&self) {
            let proven = match self.changed_at {
                Some(changed) if self.in_transit => changed,
                _ => Instant::now(),
            };
            if self.subscribed {
                self.node.notified_up_to(proven);
            }
        }

        /// Checks that a request at this moment does not use an outdated record.
        fn check(&self, history: &[(Step, u64)]) {
            let (Some(started), Some(changed_at), true, Some(true)) =
                (&self.started, self.changed_at, self.ended, self.found_old)
            else {
                return;
            };
            if self.node.is_fresh(started) {
                assert!(!self.notified, "used after the change was notified: {history:?}");
                assert!(changed_at.elapsed() < Duration::from_secs(5), "used for too long: {history:?}");
            }
        }
    }

    fn digest() -> KeyDigest {
        crate::domain::api_key::ApiKey::generate(|| 0).digest()
    }

    /// Runs one order of steps, with pauses in between that `seed` selects.
    async fn simulate(order: &[Step], mut seed: u64) {
        let mut simulation = Simulation::new();
        let mut history = Vec::new();
        for step in order {
            let pause = [0, 400, 2_500, 4_500][usize::try_from(seed % 4).unwrap()];
            seed /= 4;
            // One heartbeat per 500 ms.
            for _ in 0..pause / 500 {
                advance(Duration::from_millis(500)).await;
                simulation.heartbeat();
                simulation.check(&history);
            }
            advance(Duration::from_millis(pause % 500)).await;
            simulation.step(*step);
            history.push((*step, pause));
            simulation.check(&history);
        }
        for _ in 0..16 {
            advance(Duration::from_millis(500)).await;
            simulation.heartbeat();
            simulation.check(&history);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_record_is_never_used_after_a_notification_nor_for_five_seconds_in_any_order() {
        let lookup: &[Step] = &[LookupStarts, DatabaseReads, LookupEnds];
        let change: &[Step] = &[ChangeCommits, ChangeIsNotified];
        let connection: &[Step] = &[SubscriptionIsLost, Subscribes];
        let mut runs = 0;
        for order in
            interleavings(&[lookup, change]).into_iter().chain(interleavings(&[lookup, change, connection]))
        {
            let pauses = 4_u64.pow(u32::try_from(order.len()).unwrap());
            // All pauses for the short orders, every 149th choice for the long ones.
            let stride = if order.len() <= 5 { 1 } else { 149 };
            for seed in (0..pauses).step_by(stride) {
                simulate(&order, seed).await;
                runs += 1;
            }
        }
        assert!(runs > 30_000, "{runs}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_used_for_a_minute_while_notifications_arrive_and_for_four_seconds_otherwise() {
        let node = KeyFreshness::new();
        node.subscribed();
        let lookup = node.start_lookup(&digest());
        for _ in 0..59 {
            advance(Duration::from_secs(1)).await;
            node.notified_up_to(Instant::now());
            assert!(node.is_fresh(&lookup));
        }
        advance(Duration::from_secs(1)).await;
        assert!(!node.is_fresh(&lookup), "a minute is the maximum");
        let lookup = node.start_lookup(&digest());
        advance(Duration::from_millis(3_999)).await;
        assert!(node.is_fresh(&lookup));
        advance(Duration::from_millis(1)).await;
        assert!(!node.is_fresh(&lookup), "no notification for four seconds");
    }
}
