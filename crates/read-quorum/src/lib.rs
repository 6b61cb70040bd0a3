//! Decides which server of a PostgreSQL cluster may answer a read, so that the read misses no acknowledged write.
//!
//! PostgreSQL replicates writes synchronously, but its standbys answer reads as of whenever they have replayed to, and a former
//! primary that nobody has told still answers as if it were one. [`choose`] looks at what the servers report about themselves and
//! names one that is proven to be fresh, or says why none is.
//!
//! ```
//! use petstore_read_quorum::{Lsn, NotFresh, ReadSource, Role, ServerReport, choose};
//!
//! let standby = |received, replayed| {
//!     let (received, replayed) = (Some(Lsn(received)), Lsn(replayed));
//!     Some(ServerReport { start: 1, timeline: 1, role: Role::Standby { received, replayed, upstream: Some(0) } })
//! };
//! let primary = |flushed| {
//!     Some(ServerReport { start: 1, timeline: 1, role: Role::Primary { flushed: Lsn(flushed) } })
//! };
//!
//! // One standby confirms the primary: two of three servers agree.
//! assert_eq!(choose(&[primary(90), standby(80, 80), None], None, 0), Ok(ReadSource::Primary(0)));
//! // The primary is gone. The second standby has replayed all that the first has received, so it is as far as any of them.
//! assert_eq!(choose(&[None, standby(80, 70), standby(90, 80)], None, 0), Err(NotFresh::Behind(Lsn(90))));
//! assert_eq!(choose(&[None, standby(80, 70), standby(90, 90)], None, 0), Ok(ReadSource::Standby(2)));
//! // One server alone proves nothing.
//! assert_eq!(choose(&[None, None, standby(90, 90)], None, 0), Err(NotFresh::TooFewReports));
//! ```
//!
//! # Why it works
//!
//! With synchronous replication, PostgreSQL acknowledges a commit only when a standby has flushed it, too. So each acknowledged
//! write is on at least two of the n servers, and **any n − 1 of them include one that has it**. A read asks n − 1 servers how far
//! they are, and then uses one that is as far as all of them. (If all n answer, one that is as far as n − 1 of them.)
//!
//! Servers fail, return, and are promoted, so positions alone are not enough: only the newest timeline is read, a standby confirms
//! only the primary that it follows, and two primaries on one timeline prove that neither can be trusted. [`LastPrimary`] remembers
//! which standbys followed the primary, because they no longer say so when it is gone.
//!
//! # What the caller guarantees
//!
//! - All reports were made after the read began. (Not that of a primary, if the read runs in the session in which it was made, and
//!   without a position: nothing else of it can change.)
//! - The read runs in the session in which its server made its report, so that the server cannot have restarted in between.
//! - The read runs in a later statement than the report. Within one statement, its snapshot would be older than the position, and
//!   older than a promotion: a session survives its server's promotion, with what it has read before.
//!
//! # What the cluster guarantees
//!
//! - The list of synchronous standbys is never empty, and has only servers of the database URL.
//! - A server that is promoted has all acknowledged writes, and waits for a standby from its first write on.
//! - A server that is created again is copied from the primary, not from another standby.
//! - A standby follows only a server that has all that it has itself, and is created again otherwise. (Its first report would
//!   acknowledge positions of which it has other contents.)
//!
//! # How it is checked
//!
//! The decision is a pure function: this crate knows no sockets, no clock and no SQL. `tests/simulation` tries it on clusters in
//! which everything fails in every order. Remove any rule, or break any assumption above, and the simulation finds a stale read.

use std::fmt;

use thiserror::Error;

/// A position in the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Beyond every position, so that no standby is read that might not have it.
    pub const UNKNOWN: Self = Self(u64::MAX);
}

impl fmt::Display for Lsn {
    /// As PostgreSQL writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// What a server reports of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerReport {
    /// When the server was started. Sessions do not outlive a restart.
    pub start: u64,
    /// Of a standby: the timeline that it receives, or else the highest one that it has received.
    pub timeline: u32,
    /// Primary or standby.
    pub role: Role,
}

/// Whether a server accepts writes, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepts writes.
    Primary {
        /// How much is on its disk; [`Lsn::UNKNOWN`] if that was not asked.
        flushed: Lsn,
    },
    /// Receives and replays what a primary has written.
    Standby {
        /// How much it has received, and at least what it has replayed: when the timeline changes, PostgreSQL counts what
        /// it has received from the start of a segment again. `None` from a restart until it has replayed all that is
        /// on its disk, and asks for more: until then it reports less than it has.
        received: Option<Lsn>,
        /// How much its sessions see.
        replayed: Lsn,
        /// The server from which it receives; `None` while it does not.
        upstream: Option<usize>,
    },
}

/// The server to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// The confirmed primary.
    Primary(usize),
    /// A standby: no primary is confirmed.
    Standby(usize),
}

/// The last primary that was confirmed, and the standbys that followed it. A standby no longer says whom it followed when
/// its primary is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastPrimary {
    server: usize,
    timeline: u32,
    /// Each with its start.
    followers: Vec<(usize, u64)>,
}

impl LastPrimary {
    /// The primary that these reports confirm, if [`choose`] has chosen it. If it was the last one before, those that followed
    /// it then are remembered, unless they have reported something else.
    #[must_use]
    pub fn confirmed_by(
        reports: &[Option<ServerReport>],
        server: usize,
        before: Option<&Self>,
    ) -> Option<Self> {
        let timeline = reports.get(server)?.as_ref()?.timeline;
        let before = before.filter(|before| (before.server, before.timeline) == (server, timeline));
        // A standby may stop receiving a moment before its primary is gone.
        let stays = |before: &Self, follower: usize| match reports.get(follower) {
            Some(Some(report)) => report.upstream().is_none() && before.is_follower(follower, report),
            Some(None) => true,
            None => false,
        };
        let remembered = before.iter().flat_map(|before| {
            before.followers.iter().copied().filter(|(follower, _)| stays(before, *follower))
        });
        let follows =
            |report: &ServerReport| report.timeline == timeline && report.upstream() == Some(server);
        let followers = reports
            .iter()
            .enumerate()
            .filter_map(|(follower, report)| report.filter(follows).map(|report| (follower, report.start)));
        Some(Self { server, timeline, followers: followers.chain(remembered).collect() })
    }

    /// Whether all other servers are standbys that followed it, and have not restarted since.
    fn is_followed_by_all(&self, reports: &[Option<ServerReport>]) -> bool {
        (0..reports.len())
            .filter(|server| *server != self.server)
            .all(|server| reports[server].is_some_and(|report| self.is_follower(server, &report)))
    }

    /// Whether a server is a standby that followed it last.
    fn is_follower(&self, server: usize, report: &ServerReport) -> bool {
        matches!(report.role, Role::Standby { .. })
            && self.timeline == report.timeline
            && self.followers.contains(&(server, report.start))
    }
}

/// Why no server is known to be fresh. Other reports may change that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotFresh {
    /// Fewer than n − 1 servers have reported.
    #[error("too few servers answer to prove that one of them has every acknowledged write")]
    TooFewReports,
    /// Two servers were promoted to the same timeline, and nothing says which of them is right.
    #[error("two servers claim to be the primary on the same timeline")]
    TwoPrimaries,
    /// No server has replayed what others have received.
    #[error("no server that may be read has replayed up to {0}")]
    Behind(Lsn),
}

impl ServerReport {
    /// The server from which it receives.
    #[must_use]
    pub fn upstream(&self) -> Option<usize> {
        match self.role {
            Role::Primary { .. } => None,
            Role::Standby { upstream, .. } => upstream,
        }
    }

    /// How far the server is; `None` if it cannot know.
    fn position(&self) -> Option<Lsn> {
        match self.role {
            Role::Primary { flushed } => Some(flushed),
            Role::Standby { received, .. } => received,
        }
    }
}

/// Chooses a server from the last report of each. Their order is that of the database URL, which names every server that
/// can be synchronous. Of several standbys, the first from `turn` on is chosen.
pub fn choose(
    reports: &[Option<ServerReport>],
    last: Option<&LastPrimary>,
    turn: usize,
) -> Result<ReadSource, NotFresh> {
    let needed = reports.len().saturating_sub(1).max(1);
    let known: Vec<(usize, ServerReport, Lsn)> = (0..reports.len())
        .map(|offset| (turn + offset) % reports.len())
        .filter_map(|server| reports[server].and_then(|report| Some((server, report, report.position()?))))
        .collect();
    let timeline = known.iter().map(|(_, report, _)| report.timeline).max();
    // Positions of older timelines count, too: a new timeline continues where an old one ended. If all servers have reported,
    // what only the furthest one has is not acknowledged.
    let mut positions: Vec<Lsn> = known.iter().map(|(.., position)| *position).collect();
    positions.sort_unstable();
    let position = positions.iter().rev().nth(known.len().saturating_sub(needed)).copied();
    let (Some(timeline), Some(position), true) = (timeline, position, known.len() >= needed) else {
        return Err(NotFresh::TooFewReports);
    };
    // What was confirmed before is void once that server may have received from another one. While all others are its
    // standbys, none of them can have been a primary since.
    let last = last.filter(|last| {
        let report = reports.get(last.server).copied().flatten();
        !matches!(report, Some(ServerReport { role: Role::Standby { received: Some(_), .. }, .. }))
            || last.is_followed_by_all(reports)
    });

    let newest = || known.iter().filter(|(_, report, _)| report.timeline == timeline);
    let mut primaries = newest().filter(|(_, report, _)| matches!(report.role, Role::Primary { .. }));
    let primary = primaries.next().map(|(server, ..)| *server);
    if primaries.next().is_some() {
        return Err(NotFresh::TwoPrimaries);
    }
    // A standby confirms only the primary that it follows: two servers may have been promoted to the same timeline.
    let confirmations =
        newest().filter(|(_, report, _)| report.upstream().is_some_and(|it| primary == Some(it)));
    if let Some(primary) = primary
        && 1 + confirmations.count() >= needed
    {
        return Ok(ReadSource::Primary(primary));
    }

    // No primary is confirmed. All that is known of the newest timeline must come from the same one.
    let mut agreed = primary;
    let mut fresh = None;
    for (server, report, _) in newest() {
        let (Role::Standby { replayed, .. }, Some(followed)) =
            (report.role, followed(reports, last, *server))
        else {
            continue;
        };
        if *agreed.get_or_insert(followed) != followed {
            return Err(NotFresh::TwoPrimaries);
        }
        if replayed >= position {
            fresh.get_or_insert(*server);
        }
    }
    fresh.map(ReadSource::Standby).ok_or(NotFresh::Behind(position))
}

/// The primary that a standby follows or followed last, if that is known. Not through another standby: what it has received
/// may be from an earlier start of that one, when it was a primary itself.
fn followed(reports: &[Option<ServerReport>], last: Option<&LastPrimary>, standby: usize) -> Option<usize> {
    let report = reports[standby]?;
    match report.upstream() {
        Some(upstream) => {
            let is_standby =
                reports[upstream].is_some_and(|report| matches!(report.role, Role::Standby { .. }));
            (!is_standby).then_some(upstream)
        }
        None => last.filter(|last| last.is_follower(standby, &report)).map(|last| last.server),
    }
}

#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "`choose` takes options")]
mod tests {
    use super::*;

    fn primary(timeline: u32, flushed: u64) -> Option<ServerReport> {
        Some(ServerReport { start: 0, timeline, role: Role::Primary { flushed: Lsn(flushed) } })
    }

    fn standby(timeline: u32, received: u64, replayed: u64, upstream: usize) -> Option<ServerReport> {
        let (received, replayed, upstream) = (Some(Lsn(received)), Lsn(replayed), Some(upstream));
        Some(ServerReport { start: 0, timeline, role: Role::Standby { received, replayed, upstream } })
    }

    /// A standby that has restarted, and does not receive yet.
    fn restarted(timeline: u32, replayed: u64) -> Option<ServerReport> {
        let role = Role::Standby { received: None, replayed: Lsn(replayed), upstream: None };
        Some(ServerReport { start: 0, timeline, role })
    }

    fn choose(reports: &[Option<ServerReport>]) -> Result<ReadSource, NotFresh> {
        super::choose(reports, None, 0)
    }

    #[test]
    fn a_primary_is_confirmed_by_all_but_one() {
        let (one, other) = (standby(1, 90, 80, 0), standby(1, 100, 100, 0));
        assert_eq!(choose(&[primary(1, 100), one, other]), Ok(ReadSource::Primary(0)));
        assert_eq!(choose(&[primary(1, 100), one, None]), Ok(ReadSource::Primary(0)));
        assert_eq!(choose(&[primary(1, 100), None, None]), Err(NotFresh::TooFewReports));
        assert_eq!(choose(&[primary(1, 100), one, None, None]), Err(NotFresh::TooFewReports));
        assert_eq!(choose(&[None, None, None]), Err(NotFresh::TooFewReports));
    }

    #[test]
    fn a_single_server_needs_no_confirmation() {
        assert_eq!(choose(&[primary(1, 100)]), Ok(ReadSource::Primary(0)));
        assert_eq!(choose(&[None]), Err(NotFresh::TooFewReports));
    }

    #[test]
    fn a_deposed_primary_is_not_read() {
        let (deposed, new) = (primary(1, 100), primary(2, 110));
        assert_eq!(choose(&[deposed, new, standby(2, 105, 100, 1)]), Ok(ReadSource::Primary(1)));
        assert_eq!(choose(&[deposed, None, standby(2, 105, 105, 1)]), Ok(ReadSource::Standby(2)));
        // Another server may have what the former primary has written last.
        assert_eq!(
            choose(&[primary(1, 120), None, standby(2, 105, 105, 1)]),
            Err(NotFresh::Behind(Lsn(120)))
        );
    }

    #[test]
    fn what_only_one_of_all_servers_has_is_not_acknowledged() {
        let cut_off = primary(1, 120);
        let last =
            LastPrimary::confirmed_by(&[cut_off, standby(1, 90, 90, 0), standby(1, 90, 90, 0)], 0, None);
        let after = |reports: &[Option<ServerReport>]| super::choose(reports, last.as_ref(), 0);
        assert_eq!(after(&[cut_off, orphan(0, 1, 100), orphan(0, 1, 90)]), Ok(ReadSource::Standby(1)));
        assert_eq!(after(&[cut_off, orphan(0, 1, 100), None]), Err(NotFresh::Behind(Lsn(120))));
        // It was made a standby. If it has received, all others must still be its standbys.
        assert_eq!(
            after(&[restarted(1, 120), orphan(0, 1, 100), orphan(0, 1, 90)]),
            Ok(ReadSource::Standby(1))
        );
        assert_eq!(
            after(&[orphan(5, 1, 120), orphan(0, 1, 100), orphan(0, 1, 90)]),
            Ok(ReadSource::Standby(1))
        );
        assert_eq!(
            after(&[orphan(5, 1, 120), orphan(0, 1, 120), orphan(7, 1, 90)]),
            Err(NotFresh::Behind(Lsn(120)))
        );
    }

    #[test]
    fn a_standby_that_follows_another_primary_confirms_nothing() {
        let twin = primary(2, 100);
        assert_eq!(choose(&[None, twin, standby(2, 90, 90, 0)]), Err(NotFresh::TwoPrimaries));
        assert_eq!(choose(&[None, twin, standby(2, 90, 90, 1)]), Ok(ReadSource::Primary(1)));
        assert_eq!(choose(&[twin, twin, standby(2, 90, 90, 1)]), Err(NotFresh::TwoPrimaries));
    }

    #[test]
    fn without_a_primary_the_standby_that_has_replayed_everything_is_read() {
        assert_eq!(
            choose(&[None, standby(1, 100, 100, 0), standby(1, 90, 90, 0)]),
            Ok(ReadSource::Standby(1))
        );
        let behind = [None, standby(1, 100, 99, 0), standby(1, 90, 90, 0)];
        assert_eq!(choose(&behind), Err(NotFresh::Behind(Lsn(100))));
    }

    /// A standby whose primary is gone.
    fn orphan(start: u64, timeline: u32, replayed: u64) -> Option<ServerReport> {
        let role = Role::Standby { received: Some(Lsn(replayed)), replayed: Lsn(replayed), upstream: None };
        Some(ServerReport { start, timeline, role })
    }

    #[test]
    fn a_standby_whose_primary_is_gone_is_read_if_it_followed_the_last_confirmed_one() {
        let confirmed = [primary(2, 100), standby(2, 100, 100, 0), None];
        let last = LastPrimary::confirmed_by(&confirmed, 0, None);
        let after = |reports: &[Option<ServerReport>]| super::choose(reports, last.as_ref(), 0);
        assert_eq!(after(&[None, orphan(0, 2, 100), orphan(0, 2, 90)]), Ok(ReadSource::Standby(1)));
        assert_eq!(after(&[None, orphan(0, 2, 90), orphan(0, 2, 100)]), Err(NotFresh::Behind(Lsn(100))));
        assert_eq!(after(&[None, orphan(1, 2, 100), orphan(0, 2, 90)]), Err(NotFresh::Behind(Lsn(100))));
        assert_eq!(after(&[None, orphan(0, 3, 100), orphan(0, 3, 90)]), Err(NotFresh::Behind(Lsn(100))));
        // Another server was promoted to the same timeline since, and the first one follows it.
        assert_eq!(after(&[standby(2, 90, 90, 2), orphan(0, 2, 100), None]), Err(NotFresh::Behind(Lsn(100))));
    }

    #[test]
    fn a_standby_of_a_standby_counts_but_is_not_read() {
        let cascade = [primary(1, 100), standby(1, 90, 90, 0), standby(1, 90, 90, 1)];
        assert_eq!(choose(&cascade), Ok(ReadSource::Primary(0)));
        assert_eq!(super::choose(&[None, cascade[1], cascade[2]], None, 2), Ok(ReadSource::Standby(1)));
        // It may have received that from its upstream when that was a primary, and has been created again since.
        let ahead = [None, standby(1, 90, 90, 0), standby(1, 100, 100, 1)];
        assert_eq!(choose(&ahead), Err(NotFresh::Behind(Lsn(100))));
    }

    #[test]
    fn a_standby_that_stops_receiving_before_its_primary_is_gone_is_read() {
        let all = [primary(1, 80), standby(1, 80, 80, 0), standby(1, 80, 80, 0)];
        let last = LastPrimary::confirmed_by(&all, 0, None);
        let dying = |start| [primary(1, 100), orphan(start, 1, 100), standby(1, 80, 80, 0)];
        assert_eq!(choose(&dying(0)), Ok(ReadSource::Primary(0)), "it is still confirmed");
        let after = |start, last: Option<&LastPrimary>| {
            let last = LastPrimary::confirmed_by(&dying(start), 0, last);
            super::choose(&[None, orphan(start, 1, 100), orphan(0, 1, 80)], last.as_ref(), 0)
        };
        assert_eq!(after(0, last.as_ref()), Ok(ReadSource::Standby(1)));
        assert_eq!(after(5, last.as_ref()), Err(NotFresh::Behind(Lsn(100))), "it has restarted");
        assert_eq!(after(0, None), Err(NotFresh::Behind(Lsn(100))), "it never followed");
    }

    #[test]
    fn a_standby_that_has_followed_another_server_since_is_not_read() {
        let all = [primary(1, 80), standby(1, 80, 80, 0), standby(1, 80, 80, 0)];
        let last = LastPrimary::confirmed_by(&all, 0, None);
        let moved = [primary(1, 100), standby(1, 80, 80, 2), standby(1, 100, 100, 0)];
        let last = LastPrimary::confirmed_by(&moved, 0, last.as_ref());
        let after = super::choose(&[None, orphan(0, 1, 100), orphan(0, 1, 80)], last.as_ref(), 0);
        assert_eq!(after, Err(NotFresh::Behind(Lsn(100))));
    }

    #[test]
    fn fresh_standbys_take_turns() {
        let reports = [None, standby(1, 100, 100, 0), standby(1, 100, 100, 0)];
        let sources = [0, 1, 2, 3].map(|turn| super::choose(&reports, None, turn).unwrap());
        assert_eq!(sources, [1, 1, 2, 1].map(ReadSource::Standby));
    }

    #[test]
    fn positions_of_older_timelines_count() {
        // The first server was deposed at 143. The third one follows the new primary, and has not received so much yet.
        let deposed = primary(3, 143);
        assert_eq!(choose(&[deposed, None, standby(4, 117, 117, 1)]), Err(NotFresh::Behind(Lsn(143))));
        assert_eq!(choose(&[deposed, None, standby(4, 143, 143, 1)]), Ok(ReadSource::Standby(2)));
    }

    #[test]
    fn a_restarted_standby_counts_only_once_it_receives() {
        let other = standby(1, 90, 90, 0);
        assert_eq!(choose(&[None, restarted(1, 40), other]), Err(NotFresh::TooFewReports));
        assert_eq!(choose(&[None, standby(1, 100, 40, 0), other]), Err(NotFresh::Behind(Lsn(100))));
    }

    #[test]
    fn a_position_is_written_as_postgresql_writes_it() {
        assert_eq!(Lsn(0x16_B374_D848).to_string(), "16/B374D848");
    }
}
