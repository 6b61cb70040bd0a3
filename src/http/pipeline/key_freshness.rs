//! How long a node may rely on the record of a key that it has looked up.
//!
//! **Invariants**, whatever the order in which a look-up, a change and the notification of the change happen:
//! - a record is not used once the node was notified of a change since its look-up began;
//! - a record is used for [`MAX_AGE`] from the start of its look-up; longer, up to [`MAX_TTL`], only while notifications
//!   are known to arrive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::api_key::KeyDigest;

/// How long a record may be used where changes may go unnoticed.
pub(super) const MAX_AGE: Duration = Duration::from_secs(4);
/// How long a record may be used at all.
pub(super) const MAX_TTL: Duration = Duration::from_mins(1);

/// Changes are counted in so many slots, by digest: few keys share one, and a shared slot only costs another look-up.
const SLOTS: usize = 1024;

/// What a node knows about changes of keys.
pub(super) struct Freshness {
    start: Instant,
    changes: Vec<AtomicU64>,
    /// The current subscription to notifications; 0 while there is none.
    subscription: AtomicU64,
    subscriptions: AtomicU64,
    /// All changes made before this moment have been notified, in milliseconds from the start.
    notified_up_to: AtomicU64,
}

/// What was known when a look-up began.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookUpStart {
    at: Instant,
    slot: usize,
    changes: u64,
    subscription: u64,
}

impl Freshness {
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

    /// To be called before the database is asked for the key.
    pub(super) fn look_up_begins(&self, digest: &KeyDigest) -> LookUpStart {
        let slot = slot(digest);
        LookUpStart {
            at: Instant::now(),
            slot,
            changes: self.changes[slot].load(Ordering::SeqCst),
            subscription: self.subscription.load(Ordering::SeqCst),
        }
    }

    /// A key was changed.
    pub(super) fn changed(&self, digest: &KeyDigest) {
        self.changes[slot(digest)].fetch_add(1, Ordering::SeqCst);
    }

    /// From now on, changes are notified.
    pub(super) fn subscribed(&self) {
        self.subscription.store(self.subscriptions.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    /// Changes may go unnoticed from now on.
    pub(super) fn unsubscribed(&self) {
        self.subscription.store(0, Ordering::SeqCst);
    }

    /// All changes made before this moment have been notified.
    pub(super) fn notified_up_to(&self, moment: Instant) {
        self.notified_up_to.store(self.milliseconds(moment), Ordering::SeqCst);
    }

    /// Whether what a look-up found may still be used.
    pub(super) fn covers(&self, look_up: &LookUpStart) -> bool {
        let now = Instant::now();
        let age = now - look_up.at;
        self.changes[look_up.slot].load(Ordering::SeqCst) == look_up.changes
            && (age < MAX_AGE || (age < MAX_TTL && self.is_notified_since(look_up, now)))
    }

    /// Whether every change since the look-up began was notified, up to [`MAX_AGE`] ago.
    fn is_notified_since(&self, look_up: &LookUpStart, now: Instant) -> bool {
        let silence = self.milliseconds(now).saturating_sub(self.notified_up_to.load(Ordering::SeqCst));
        look_up.subscription != 0
            && look_up.subscription == self.subscription.load(Ordering::SeqCst)
            && u128::from(silence) < MAX_AGE.as_millis()
    }

    fn milliseconds(&self, moment: Instant) -> u64 {
        u64::try_from((moment - self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

fn slot(digest: &KeyDigest) -> usize {
    // A digest is as good as random.
    let bytes = digest.as_bytes();
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]])) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::mem;

    use tokio::time::advance;

    use super::*;

    /// What can happen around one change of one key.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        LookUpBegins,
        DatabaseReads,
        LookUpEnds,
        ChangeCommits,
        ChangeIsNotified,
        SubscriptionIsLost,
        Subscribes,
    }
    use Step::{
        ChangeCommits, ChangeIsNotified, DatabaseReads, LookUpBegins, LookUpEnds, Subscribes,
        SubscriptionIsLost,
    };

    /// Every order in which the sequences can be interleaved.
    fn interleavings(sequences: &[&[Step]]) -> Vec<Vec<Step>> {
        if sequences.iter().all(|sequence| sequence.is_empty()) {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for (place, sequence) in sequences.iter().enumerate() {
            let [first, rest @ ..] = sequence else { continue };
            let mut remaining = sequences.to_vec();
            remaining[place] = rest;
            for mut order in interleavings(&remaining) {
                order.insert(0, *first);
                all.push(order);
            }
        }
        all
    }

    /// A node, and the database as it really is.
    #[expect(clippy::struct_excessive_bools, reason = "a step each that may have happened")]
    struct World {
        node: Freshness,
        subscribed: bool,
        begun: Option<LookUpStart>,
        found_old: Option<bool>,
        ended: bool,
        changed_at: Option<Instant>,
        /// The notification of the change is on its way to the subscription.
        in_transit: bool,
        notified: bool,
    }

    impl World {
        fn new() -> Self {
            let world = Self {
                node: Freshness::new(),
                subscribed: true,
                begun: None,
                found_old: None,
                ended: false,
                changed_at: None,
                in_transit: false,
                notified: false,
            };
            world.node.subscribed();
            world
        }

        fn step(&mut self, step: Step) {
            match step {
                LookUpBegins => self.begun = Some(self.node.look_up_begins(&digest())),
                DatabaseReads => self.found_old = Some(self.changed_at.is_none()),
                LookUpEnds => self.ended = true,
                ChangeCommits => {
                    self.changed_at = Some(Instant::now());
                    // To nobody, while nobody is subscribed.
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

        /// The node's notification to itself arrives behind that of the change, so it proves nothing later.
        fn heartbeat(&self) {
            let proven = match self.changed_at {
                Some(changed) if self.in_transit => changed,
                _ => Instant::now(),
            };
            if self.subscribed {
                self.node.notified_up_to(proven);
            }
        }

        /// A request comes: is what the look-up found used although it is not so any more?
        fn check(&self, history: &[(Step, u64)]) {
            let (Some(begun), Some(changed_at), true, Some(true)) =
                (&self.begun, self.changed_at, self.ended, self.found_old)
            else {
                return;
            };
            if self.node.covers(begun) {
                assert!(!self.notified, "used after the change was notified: {history:?}");
                assert!(changed_at.elapsed() < Duration::from_secs(5), "used for too long: {history:?}");
            }
        }
    }

    fn digest() -> KeyDigest {
        crate::domain::api_key::ApiKey::generate(|| 0).digest()
    }

    /// Walks through one order of steps, with pauses in between that `seed` chooses.
    async fn walk(order: &[Step], mut seed: u64) {
        let mut world = World::new();
        let mut history = Vec::new();
        for step in order {
            let pause = [0, 400, 2_500, 4_500][usize::try_from(seed % 4).unwrap()];
            seed /= 4;
            // Heartbeats come every second.
            for _ in 0..pause / 500 {
                advance(Duration::from_millis(500)).await;
                world.heartbeat();
                world.check(&history);
            }
            advance(Duration::from_millis(pause % 500)).await;
            world.step(*step);
            history.push((*step, pause));
            world.check(&history);
        }
        for _ in 0..16 {
            advance(Duration::from_millis(500)).await;
            world.heartbeat();
            world.check(&history);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_record_is_never_used_after_a_notification_nor_for_five_seconds_in_any_order() {
        let look_up: &[Step] = &[LookUpBegins, DatabaseReads, LookUpEnds];
        let change: &[Step] = &[ChangeCommits, ChangeIsNotified];
        let connection: &[Step] = &[SubscriptionIsLost, Subscribes];
        let mut walks = 0;
        for order in
            interleavings(&[look_up, change]).into_iter().chain(interleavings(&[look_up, change, connection]))
        {
            let pauses = 4_u64.pow(u32::try_from(order.len()).unwrap());
            // All pauses for the short orders, every 149th choice for the long ones.
            let stride = if order.len() <= 5 { 1 } else { 149 };
            for seed in (0..pauses).step_by(stride) {
                walk(&order, seed).await;
                walks += 1;
            }
        }
        assert!(walks > 30_000, "{walks}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_used_for_a_minute_while_notifications_arrive_and_for_four_seconds_otherwise() {
        let node = Freshness::new();
        node.subscribed();
        let look_up = node.look_up_begins(&digest());
        for _ in 0..59 {
            advance(Duration::from_secs(1)).await;
            node.notified_up_to(Instant::now());
            assert!(node.covers(&look_up));
        }
        advance(Duration::from_secs(1)).await;
        assert!(!node.covers(&look_up), "a minute is enough");
        let look_up = node.look_up_begins(&digest());
        advance(Duration::from_millis(3_999)).await;
        assert!(node.covers(&look_up));
        advance(Duration::from_millis(1)).await;
        assert!(!node.covers(&look_up), "no notification for four seconds");
    }
}
