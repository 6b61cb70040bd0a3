//! What a read knows, and what it does next.
//!
//! [`ReadState::next_step`] decides from the state and the time alone. It starts nothing and waits for nothing.

use std::time::Duration;

use petstore_config::ReadFrom;
use petstore_read_quorum::{NotFresh, ReadSource, ServerReport, choose};
use tokio::time::Instant;

use super::plan::ReadPlan;
use super::server_read::Rows;
use crate::error::StatementError::{self, Unproven};

/// How long to look for a server that is proven to be fresh.
pub(super) const PROOF_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that takes longer to report is passed over: all others are asked as well.
pub(super) const SLOW_REPORT: Duration = Duration::from_millis(20);
/// How long to wait for the primary before a standby is read.
const PRIMARY_PATIENCE: Duration = Duration::from_millis(250);
/// How long to wait until servers are asked again that had not replayed enough; twice as long each time.
const REPLAY_PAUSE: Duration = Duration::from_millis(2);
const MAX_REPLAY_PAUSE: Duration = Duration::from_millis(50);

/// What a read does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Waits for the next event.
    Wait,
    /// Reads from this server.
    Read(ReadSource),
    /// Asks the servers that were not asked yet.
    AskOthers,
    /// Asks again, at this time, the servers that have answered.
    AskAgain(Instant),
    /// Fails, for the reason in [`ReadState::failure`].
    Fail,
}

/// How far a read has got with a server. `S` is a session.
pub(super) enum ServerContact<S> {
    /// The server was not asked.
    Unasked,
    /// It was asked for a report, and has not answered yet.
    Asked,
    /// It has reported in this session, in which it can be read.
    Reported(S),
    /// It reports and reads in one round trip.
    First(SpeculativeRead),
    /// It failed, or is being read.
    Gone,
}

/// The read of the first server.
pub(super) struct SpeculativeRead {
    pub(super) awaits_report: bool,
    /// What it has read, which may be used only if the server is chosen.
    pub(super) rows: Option<Rows>,
}

/// What a read knows. `S` is a session in which a server has reported.
pub(super) struct ReadState<S> {
    pub(super) plan: ReadPlan,
    pub(super) started: Instant,
    /// The last report of each server, made after the read began.
    pub(super) reports: Vec<Option<ServerReport>>,
    pub(super) contacts: Vec<ServerContact<S>>,
    /// When a server that has not reported is passed over. None once that has happened.
    pub(super) pass_over_at: Option<Instant>,
    /// When the servers that have answered are asked again.
    pub(super) ask_again_at: Option<Instant>,
    replay_pause: Duration,
    /// From when on a standby may be read.
    pub(super) standbys_from: Instant,
    pub(super) give_up_at: Instant,
    pub(super) has_given_up: bool,
    /// Whether a server that was proven to be fresh has failed to answer.
    pub(super) has_failed_read: bool,
    /// Why the read fails, if it fails now.
    pub(super) failure: StatementError,
}

impl<S> ReadState<S> {
    pub(super) fn new(plan: ReadPlan, now: Instant) -> Self {
        let count = plan.others.len() + 1;
        let mut contacts: Vec<ServerContact<S>> = (0..count).map(|_| ServerContact::Unasked).collect();
        contacts[plan.first] = ServerContact::First(SpeculativeRead { awaits_report: true, rows: None });
        Self {
            started: now,
            reports: vec![None; count],
            contacts,
            pass_over_at: Some(now + SLOW_REPORT),
            ask_again_at: None,
            replay_pause: REPLAY_PAUSE,
            standbys_from: if plan.expects_primary { now + PRIMARY_PATIENCE } else { now },
            give_up_at: now + PROOF_TIMEOUT,
            has_given_up: false,
            has_failed_read: false,
            failure: Unproven(NotFresh::TooFewReports),
            plan,
        }
    }

    /// Decides what to do next, and why the read fails if that is to fail.
    pub(super) fn decide(&mut self, now: Instant) -> Step {
        let source = choose(&self.reports, self.plan.last_primary.as_deref(), self.plan.first);
        if let Err(reason) = source {
            self.failure = Unproven(reason);
        }
        self.next_step(source, now)
    }

    /// What to do next, if the reports prove that this server is fresh, or why they prove none.
    fn next_step(&self, source: Result<ReadSource, NotFresh>, now: Instant) -> Step {
        if self.has_given_up {
            return Step::Fail;
        }
        if let Ok(source) = source
            && self.can_read(source, now)
        {
            return Step::Read(source);
        }
        if self.is_waiting() {
            return Step::Wait;
        }
        let ask_again = Step::AskAgain(now + self.replay_pause);
        let spares_primary = self.plan.reads == ReadFrom::Quorum && self.pass_over_at.is_some();
        match source {
            // The primary could answer, but it is spared for writes: a standby most often needs a moment only.
            Err(NotFresh::Behind(_)) if spares_primary => ask_again,
            _ if self.unasked().next().is_some() => Step::AskOthers,
            // A standby may be read soon.
            Ok(_) if self.plan.reads_standbys => Step::Wait,
            Ok(_) | Err(NotFresh::TooFewReports) => Step::Fail,
            // The answers may change: a standby replays, or a new primary gets a standby.
            Err(NotFresh::Behind(_) | NotFresh::TwoPrimaries) => ask_again,
        }
    }

    /// Whether a server that is proven to be fresh may be read now, and its report is not being made again.
    fn can_read(&self, source: ReadSource, now: Instant) -> bool {
        let (server, is_allowed) = match source {
            ReadSource::Primary(server) => (server, true),
            ReadSource::Standby(server) => (server, self.plan.reads_standbys && now >= self.standbys_from),
        };
        is_allowed && matches!(self.contacts[server], ServerContact::First(_) | ServerContact::Reported(_))
    }

    /// Whether something is to come that may change the decision.
    fn is_waiting(&self) -> bool {
        let awaits_answer = self.contacts.iter().any(|contact| match contact {
            ServerContact::Asked => true,
            ServerContact::First(first) => first.awaits_report || first.rows.is_none(),
            ServerContact::Unasked | ServerContact::Reported(_) | ServerContact::Gone => false,
        });
        awaits_answer || self.ask_again_at.is_some()
    }

    /// The servers that were not asked, the most useful one first.
    pub(super) fn unasked(&self) -> impl Iterator<Item = usize> {
        self.plan
            .others
            .iter()
            .copied()
            .filter(|server| matches!(self.contacts[*server], ServerContact::Unasked))
    }

    /// The state of the first server's read, while it can be used.
    pub(super) fn first_read(&mut self) -> Option<&mut SpeculativeRead> {
        match &mut self.contacts[self.plan.first] {
            ServerContact::First(first) => Some(first),
            _ => None,
        }
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self, now: Instant) -> Instant {
        let standbys_from = Some(self.standbys_from).filter(|from| now < *from);
        [self.pass_over_at, self.ask_again_at, standbys_from]
            .into_iter()
            .flatten()
            .fold(self.give_up_at, Instant::min)
    }

    /// Makes the next pause longer.
    pub(super) fn lengthen_pause(&mut self) {
        self.replay_pause = (self.replay_pause * 2).min(MAX_REPLAY_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petstore_read_quorum::{Lsn, Role};

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A read that expects the answer of server 0, the primary, and has asked server 1, but not server 2.
    fn begun(now: Instant) -> ReadState<()> {
        let plan = ReadPlan {
            reads: ReadFrom::Primary,
            reads_standbys: true,
            last_primary: None,
            first: 0,
            expects_primary: true,
            others: vec![1, 2],
        };
        let mut state = ReadState::new(plan, now);
        state.contacts[1] = ServerContact::Asked;
        state
    }

    /// The same in a cluster whose primary, server 0, is gone, after both standbys have reported.
    fn without_primary(now: Instant, replayed: u64) -> ReadState<()> {
        let mut state = begun(now);
        state.contacts[0] = ServerContact::Gone;
        state.standbys_from = now;
        state.report(1, standby(replayed));
        state.report(2, standby(80));
        state
    }

    impl ReadState<()> {
        fn report(&mut self, server: usize, role: Role) {
            self.reports[server] = Some(ServerReport { start: 0, timeline: 1, role });
            self.contacts[server] = ServerContact::Reported(());
        }

        fn first_reports(&mut self, role: Role) {
            self.reports[0] = Some(ServerReport { start: 0, timeline: 1, role });
            self.first_read().unwrap().awaits_report = false;
        }

        fn first_reads(&mut self) {
            self.first_read().unwrap().rows = Some(Ok(Vec::new()));
        }
    }

    const PRIMARY: Role = Role::Primary { flushed: Lsn(100) };

    fn standby(replayed: u64) -> Role {
        Role::Standby { received: Some(Lsn(90)), replayed: Lsn(replayed), upstream: Some(0) }
    }

    #[test]
    fn a_read_waits_for_reports_until_one_server_is_proven_to_be_fresh() {
        let now = Instant::now();
        let mut state = begun(now);
        assert_eq!(state.decide(now), Step::Wait);
        state.first_reports(PRIMARY);
        assert_eq!(state.decide(now), Step::Wait, "nobody confirms the primary");
        state.report(1, standby(90));
        assert_eq!(
            state.decide(now),
            Step::Read(ReadSource::Primary(0)),
            "its rows may still be on their way"
        );
        state.first_reads();
        assert_eq!(state.decide(now), Step::Read(ReadSource::Primary(0)));
    }

    #[test]
    fn a_server_is_not_read_while_it_reports_again() {
        let now = Instant::now();
        let mut state = without_primary(now, 90);
        state.contacts[1] = ServerContact::Asked;
        assert_eq!(state.decide(now), Step::Wait);
        state.report(1, standby(90));
        assert_eq!(state.decide(now), Step::Read(ReadSource::Standby(1)));
    }

    #[test]
    fn a_standby_is_read_only_after_the_primary_had_its_time() {
        let now = Instant::now();
        let mut state = without_primary(now, 90);
        state.pass_over_at = None;
        state.standbys_from = now + PRIMARY_PATIENCE;
        assert_eq!(state.decide(now), Step::Wait);
        let due = state.next_timer(now);
        assert_eq!(due, now + PRIMARY_PATIENCE);
        assert_eq!(state.decide(due), Step::Read(ReadSource::Standby(1)));
        assert_eq!(state.next_timer(due), state.give_up_at, "it is due only once");
        state.plan.reads_standbys = false;
        assert_eq!(state.decide(due), Step::Fail, "standbys may not be read");
    }

    #[test]
    fn the_other_servers_are_asked_before_a_read_fails() {
        let now = Instant::now();
        let mut state = begun(now);
        state.contacts[0] = ServerContact::Gone;
        assert_eq!(state.decide(now), Step::Wait, "server 1 may report");
        state.contacts[1] = ServerContact::Gone;
        assert_eq!(state.unasked().collect::<Vec<_>>(), [2]);
        assert_eq!(state.decide(now), Step::AskOthers);
        state.contacts[2] = ServerContact::Gone;
        assert_eq!(state.decide(now), Step::Fail);
        assert!(matches!(state.failure, Unproven(NotFresh::TooFewReports)));
    }

    #[test]
    fn servers_that_are_behind_are_asked_again_after_a_growing_pause() {
        let now = Instant::now();
        let mut state = without_primary(now, 80);
        for pause in [2, 4, 8, 16, 32, 50, 50] {
            let at = now + pause * MILLISECOND;
            assert_eq!(state.decide(now), Step::AskAgain(at));
            state.ask_again_at = Some(at);
            assert_eq!((state.decide(now), state.next_timer(now)), (Step::Wait, at.min(now + SLOW_REPORT)));
            state.ask_again_at = None;
            state.lengthen_pause();
        }
        assert!(matches!(state.failure, Unproven(NotFresh::Behind(Lsn(90)))));
    }

    #[test]
    fn a_primary_that_is_spared_is_asked_once_the_standbys_took_too_long() {
        let now = Instant::now();
        let mut state = without_primary(now, 80);
        state.contacts[0] = ServerContact::Unasked;
        state.plan.first = 1;
        state.plan.others = vec![2, 0];
        assert_eq!(state.decide(now), Step::AskOthers);
        state.plan.reads = ReadFrom::Quorum;
        assert_eq!(state.decide(now), Step::AskAgain(now + REPLAY_PAUSE));
        state.pass_over_at = None;
        assert_eq!(state.decide(now), Step::AskOthers);
    }

    #[test]
    fn a_read_that_has_given_up_fails_whatever_is_in_progress() {
        let now = Instant::now();
        let mut state = begun(now);
        assert_eq!(
            state.decide(now + 2 * PROOF_TIMEOUT),
            Step::Wait,
            "answers that came in time are applied"
        );
        state.has_given_up = true;
        assert_eq!(state.decide(now), Step::Fail);
    }

    #[test]
    fn what_a_server_answered_is_the_failure_only_while_the_reports_prove_another_one() {
        let now = Instant::now();
        let mut state = without_primary(now, 90);
        state.plan.reads_standbys = false;
        state.failure = StatementError::NoPrimary;
        assert_eq!(state.decide(now), Step::Fail);
        assert!(matches!(state.failure, StatementError::NoPrimary));
        state.reports[1] = None;
        assert_eq!(state.decide(now), Step::Fail);
        assert!(matches!(state.failure, Unproven(NotFresh::TooFewReports)));
    }
}
