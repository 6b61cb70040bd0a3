//! What is known of a cluster: its primary, and what is promised of reads.
//!
//! **Invariants:**
//! - until a primary was seen, nothing is read: only a primary tells whether replication is synchronous;
//! - once reads are proven, only a confirmed primary ends that. (A former primary may have other settings.)

use std::sync::Arc;

use petstore_read_quorum::{LastPrimary, Role};

use super::observation::{Observation, Observed, confirmed_primary, is_denied, reports};

/// What is promised of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarantee {
    /// No primary was seen yet.
    Unknown,
    /// Nothing is proven: the server that accepts writes is read, as with a single server.
    Trusted(Unproven),
    /// A read contains all acknowledged writes, or fails.
    Proven {
        /// Whether standbys are read without a primary: not if a server that the URL does not name may acknowledge writes.
        standbys: bool,
    },
}

/// Why nothing is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    Asynchronous,
    NotPermitted,
    SameServer,
}

impl Guarantee {
    /// For people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Unknown => "not served: no primary has been found yet",
            Self::Trusted(Unproven::Asynchronous) => {
                "not proven fresh: replication is asynchronous (synchronous_standby_names is empty)"
            }
            Self::Trusted(Unproven::NotPermitted) => {
                "not proven fresh: the role is not a member of pg_monitor (run roles.sql as a superuser)"
            }
            Self::Trusted(Unproven::SameServer) => {
                "not proven fresh: several addresses of the database URL lead to the same server"
            }
            Self::Proven { standbys: false } => {
                "proven fresh, but only from the primary: a standby that is not in the database URL may acknowledge writes"
            }
            Self::Proven { standbys: true } => "proven fresh, also without a primary",
        }
    }

    pub(super) fn is_proven(self) -> bool {
        matches!(self, Self::Proven { .. })
    }
}

/// What is known of the cluster.
#[derive(Debug, Clone)]
pub(super) struct ClusterView {
    pub(super) guarantee: Guarantee,
    /// The server for writes: the confirmed primary, or else the one on the highest timeline.
    pub(super) primary: Option<usize>,
    pub(super) last_primary: Option<Arc<LastPrimary>>,
    /// Whether the confirmed primary had a standby that may acknowledge, and that no server of the URL is known to be.
    has_unknown_standby: bool,
}

impl ClusterView {
    /// Before the first round.
    pub(super) const UNKNOWN: Self =
        Self { guarantee: Guarantee::Unknown, primary: None, last_primary: None, has_unknown_standby: false };

    /// The same view with another server for writes.
    pub(super) fn with_primary(self, server: usize) -> Self {
        Self { primary: Some(server), ..self }
    }

    /// The view after a round, in which each server was observed. `names` are the names under which the servers receive.
    pub(super) fn after_round(&self, observed: &[Observed], names: &[Option<String>]) -> Self {
        let is_denied = !self.guarantee.is_proven() && observed.iter().any(is_denied);
        if !is_denied
            && let Some(server) = confirmed_primary(observed)
            && let Ok(primary) = &observed[server]
        {
            let has_unknown_standby = !primary.acknowledged_only_by(names);
            let last_primary =
                LastPrimary::confirmed_by(&reports(observed), server, self.last_primary.as_deref());
            return Self {
                guarantee: self.guarantee_of(primary, has_unknown_standby),
                primary: Some(server),
                last_primary: last_primary.map(Arc::new),
                has_unknown_standby,
            };
        }
        let primaries = unconfirmed_primaries(observed);
        let newest = primaries.iter().max_by_key(|(_, primary)| primary.report.timeline);
        Self {
            guarantee: self.guarantee_without_confirmation(&primaries, is_denied),
            primary: newest.map(|(server, _)| *server),
            last_primary: self.last_primary.clone(),
            has_unknown_standby: self.has_unknown_standby,
        }
    }

    /// What is promised if this primary is confirmed.
    fn guarantee_of(&self, primary: &Observation, has_unknown_standby: bool) -> Guarantee {
        if !primary.is_synchronous {
            return Guarantee::Trusted(Unproven::Asynchronous);
        }
        // Once, it may be a server that has just been started, and says its name in the next round.
        let is_first = self.guarantee == Guarantee::Proven { standbys: true } && !self.has_unknown_standby;
        Guarantee::Proven { standbys: !has_unknown_standby || is_first }
    }

    /// What is promised while no primary is confirmed.
    fn guarantee_without_confirmation(
        &self,
        primaries: &[(usize, &Observation)],
        is_denied: bool,
    ) -> Guarantee {
        if self.guarantee.is_proven() {
            return self.guarantee;
        }
        if is_denied {
            return Guarantee::Trusted(Unproven::NotPermitted);
        }
        if primaries.is_empty() {
            return self.guarantee;
        }
        let start = |(_, primary): &(usize, &Observation)| primary.report.start;
        let is_seen_twice = |one| primaries.iter().filter(|other| start(other) == start(one)).count() > 1;
        if primaries.iter().any(is_seen_twice) {
            Guarantee::Trusted(Unproven::SameServer)
        } else if primaries.iter().any(|(_, primary)| primary.is_synchronous) {
            Guarantee::Proven { standbys: false }
        } else {
            Guarantee::Trusted(Unproven::Asynchronous)
        }
    }
}

/// The servers that say that they accept writes.
fn unconfirmed_primaries(observed: &[Observed]) -> Vec<(usize, &Observation)> {
    observed
        .iter()
        .enumerate()
        .filter_map(|(server, observation)| Some((server, observation.as_ref().ok()?)))
        .filter(|(_, observation)| matches!(observation.report.role, Role::Primary { .. }))
        .collect()
}

#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "`after_round` takes results")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::StatementError::Deadline;
    use petstore_read_quorum::{Lsn, ServerReport};

    const ALL: Guarantee = Guarantee::Proven { standbys: true };
    const ASYNCHRONOUS: Guarantee = Guarantee::Trusted(Unproven::Asynchronous);

    fn primary(start: u64, timeline: u32, acknowledging: Option<&[&str]>) -> Observed {
        Ok(Observation {
            report: ServerReport { start, timeline, role: Role::Primary { flushed: Lsn(100) } },
            is_permitted: true,
            is_synchronous: acknowledging.is_some(),
            acknowledging: acknowledging.unwrap_or_default().iter().copied().map(String::from).collect(),
            name: None,
        })
    }

    fn standby(start: u64, timeline: u32, upstream: usize) -> Observed {
        let role = Role::Standby { received: Some(Lsn(90)), replayed: Lsn(90), upstream: Some(upstream) };
        Ok(Observation {
            report: ServerReport { start, timeline, role },
            is_permitted: true,
            is_synchronous: true,
            acknowledging: Vec::new(),
            name: None,
        })
    }

    fn silent() -> Observed {
        Err(Deadline(Duration::from_secs(1)))
    }

    /// The view after a round, in which the second and the third server receive under the names `s1` and `s2`.
    fn after(before: &ClusterView, observed: &[Observed]) -> ClusterView {
        before.after_round(observed, &[None, Some("s1".into()), Some("s2".into())])
    }

    fn healthy() -> ClusterView {
        after(
            &ClusterView::UNKNOWN,
            &[primary(1, 1, Some(&["s1", "s2"])), standby(2, 1, 0), standby(3, 1, 0)],
        )
    }

    #[test]
    fn reads_are_proven_if_replication_is_synchronous_with_servers_of_the_url() {
        assert_eq!((healthy().guarantee, healthy().primary), (ALL, Some(0)));
        for acknowledging in [&["s1", "foreign"][..], &["s1", "s1"]] {
            let observed = [primary(1, 1, Some(acknowledging)), standby(2, 1, 0), standby(3, 1, 0)];
            let once = after(&healthy(), &observed);
            assert_eq!(once.guarantee, ALL, "perhaps it has just been started");
            assert_eq!(after(&once, &observed).guarantee, Guarantee::Proven { standbys: false });
            assert_eq!(
                after(&ClusterView::UNKNOWN, &observed).guarantee,
                Guarantee::Proven { standbys: false }
            );
        }
    }

    #[test]
    fn nothing_is_promised_without_synchronous_replication_or_the_right_to_see_it() {
        let asynchronous = [primary(1, 1, None), standby(2, 1, 0), standby(3, 1, 0)];
        assert_eq!(after(&ClusterView::UNKNOWN, &asynchronous).guarantee, ASYNCHRONOUS);
        // Not confirmed, but as good as one server.
        assert_eq!(
            after(&ClusterView::UNKNOWN, &[primary(1, 1, None), silent(), silent()]).guarantee,
            ASYNCHRONOUS
        );
        let mut hidden = [primary(1, 1, Some(&[])), standby(2, 1, 0), standby(3, 1, 0)];
        hidden[1].as_mut().unwrap().is_permitted = false;
        let not_permitted = Guarantee::Trusted(Unproven::NotPermitted);
        assert_eq!(after(&ClusterView::UNKNOWN, &hidden).guarantee, not_permitted);
        let twice = [primary(1, 1, Some(&["x"])), primary(1, 1, Some(&["x"]))];
        assert_eq!(after(&ClusterView::UNKNOWN, &twice).guarantee, Guarantee::Trusted(Unproven::SameServer));
    }

    #[test]
    fn without_a_primary_in_sight_nothing_is_known() {
        let observed = [silent(), standby(2, 1, 0), standby(3, 1, 0)];
        let view = after(&ClusterView::UNKNOWN, &observed);
        assert_eq!((view.guarantee, view.primary), (Guarantee::Unknown, None));
        // It says that replication is synchronous, and nothing that would prove a read.
        let view = after(&ClusterView::UNKNOWN, &[primary(1, 1, Some(&["s1"])), silent(), silent()]);
        assert_eq!((view.guarantee, view.primary), (Guarantee::Proven { standbys: false }, Some(0)));
    }

    #[test]
    fn only_a_confirmed_primary_ends_what_is_proven() {
        let alone = [primary(1, 1, None), silent(), silent()];
        assert_eq!(after(&healthy(), &alone).guarantee, ALL);
        let deposed = [primary(1, 1, None), primary(2, 2, Some(&["s2"])), standby(3, 2, 1)];
        assert_eq!(after(&healthy(), &deposed).guarantee, ALL);
        let confirmed = [primary(1, 1, None), standby(2, 1, 0), standby(3, 1, 0)];
        assert_eq!(after(&healthy(), &confirmed).guarantee, ASYNCHRONOUS);
    }

    #[test]
    fn writes_go_to_the_confirmed_primary_or_else_to_the_highest_timeline() {
        let (old, new) = (|| primary(1, 1, Some(&[])), || primary(2, 2, Some(&["s2"])));
        assert_eq!(after(&healthy(), &[old(), new(), standby(3, 2, 1)]).primary, Some(1));
        assert_eq!(after(&healthy(), &[old(), silent(), standby(3, 1, 0)]).primary, Some(0));
        assert_eq!(after(&healthy(), &[old(), new(), silent()]).primary, Some(1));
        assert_eq!(after(&healthy(), &[silent(), standby(2, 1, 0), standby(3, 1, 0)]).primary, None);
    }
}
