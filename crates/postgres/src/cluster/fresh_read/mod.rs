//! Reads from a server that is proven to have every acknowledged write: see [`read_quorum`](petstore_read_quorum).
//!
//! The server that is expected to answer, most often the primary, reports and reads in one round trip; as many others as the
//! proof needs report at the same time. So a read takes about as long as without proof. A primary reports only once in each
//! session.
//!
//! A read is a state machine: [`ReadState`] has what is known, and decides the next [`Step`]; [`FreshRead`] takes that step, or
//! waits for the next [`ReadEvent`] and applies it to the state.
//!
//! **Invariants:**
//! - every report of a standby is made after the read began;
//! - a server is read in the session in which it has reported, in a later statement;
//! - a server that does not answer delays the reads in progress by a quarter of a second, and not those that come after them;
//! - what cannot be proven within [`PROOF_TIMEOUT`] fails;
//! - waiting for an event loses nothing: what is in progress belongs to [`FreshRead`], and continues with the next event.

mod plan;
mod read_state;
mod server_read;

use std::future::pending;
use std::mem;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use petstore_config::ReadFrom;
use petstore_read_quorum::{ReadSource, ServerReport};
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Row;

use super::Cluster;
use super::server::Rank;
use super::server_metrics::count_read;
use crate::checked_out_connection::{CheckedOutConnection, Parameters};
use crate::error::StatementError;
use plan::ReadPlan;
use read_state::{PROOF_TIMEOUT, ReadState, SLOW_REPORT, ServerContact, SpeculativeRead, Step};
use server_read::Rows;

/// The report of a server, and the session in which it was made.
type ServerReportResult = Result<(ServerReport, CheckedOutConnection), StatementError>;

impl Cluster {
    /// Runs a read-only statement on a server that has every write that was acknowledged before.
    pub async fn read(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        FreshRead::new(self, statement, parameters).run().await
    }
}

/// What a read waits for.
#[expect(clippy::large_enum_variant, reason = "applied at once, and never stored")]
enum ReadEvent {
    /// The first server has reported; None if it failed before.
    FirstReport(Option<ServerReport>),
    /// The first server has read.
    FirstRows(Rows),
    /// A server that was asked has reported.
    ServerReport(usize, ServerReportResult),
    /// What was due at this time.
    Timer(Instant),
}

/// A read that looks for its server.
struct FreshRead<'a> {
    cluster: &'a Cluster,
    statement: &'static str,
    parameters: Parameters<'a>,
    state: ReadState<CheckedOutConnection>,
    /// None after its end.
    first_report: Option<oneshot::Receiver<ServerReport>>,
    first_rows: BoxFuture<'a, Rows>,
    /// The reports that other servers are making.
    asked: FuturesUnordered<BoxFuture<'a, (usize, ServerReportResult)>>,
}

impl<'a> FreshRead<'a> {
    fn new(cluster: &'a Cluster, statement: &'static str, parameters: Parameters<'a>) -> Self {
        let plan = ReadPlan::new(cluster);
        let (reported, first_report) = oneshot::channel();
        let first_rows = cluster.report_and_read(plan.first, statement, parameters, reported);
        let mut read = Self {
            cluster,
            statement,
            parameters,
            state: ReadState::new(plan, Instant::now()),
            first_report: Some(first_report),
            first_rows: Box::pin(first_rows),
            asked: FuturesUnordered::new(),
        };
        // With the first one, all but one.
        read.ask_others(cluster.servers().len().saturating_sub(2));
        read
    }

    async fn run(mut self) -> Rows {
        loop {
            match self.state.decide(Instant::now()) {
                Step::Wait => {
                    let event = self.next_event().await;
                    self.apply(event);
                }
                Step::Read(source) => {
                    if let Some(rows) = self.read_from(source).await {
                        return rows;
                    }
                }
                Step::AskOthers => self.ask_others(usize::MAX),
                Step::AskAgain(at) => self.state.ask_again_at = Some(at),
                Step::Fail => return Err(self.state.failure),
            }
        }
    }

    /// Waits for the next event. What a server has answered comes before a timer that is due.
    async fn next_event(&mut self) -> ReadEvent {
        let awaits_rows = self.state.first_read().is_some_and(|first| first.rows.is_none());
        let timer = self.state.next_timer(Instant::now());
        select! {
            biased;
            report = receive(&mut self.first_report) => ReadEvent::FirstReport(report),
            rows = &mut self.first_rows, if awaits_rows => ReadEvent::FirstRows(rows),
            Some((server, answer)) = self.asked.next() => ReadEvent::ServerReport(server, answer),
            () = sleep_until(timer) => ReadEvent::Timer(timer),
        }
    }

    fn apply(&mut self, event: ReadEvent) {
        let first = self.state.plan.first;
        match event {
            ReadEvent::FirstReport(report) => {
                let Some(first_read) = self.state.first_read() else { return };
                first_read.awaits_report = false;
                if let Some(report) = report {
                    self.reported(first, report);
                }
            }
            ReadEvent::FirstRows(Err(error)) if error.is_transient() => self.failed(first, error),
            ReadEvent::FirstRows(rows) => {
                if let Some(first_read) = self.state.first_read() {
                    first_read.rows = Some(rows);
                }
            }
            ReadEvent::ServerReport(server, Ok((report, session))) => {
                self.reported(server, report);
                self.state.contacts[server] = ServerContact::Reported(session);
            }
            ReadEvent::ServerReport(server, Err(error)) => self.failed(server, error),
            ReadEvent::Timer(at) => self.timer_was_due(at),
        }
    }

    fn timer_was_due(&mut self, at: Instant) {
        let is_due = |timer: &mut Instant| *timer <= at;
        if self.state.pass_over_at.take_if(is_due).is_some() {
            self.pass_over();
        }
        if self.state.ask_again_at.take_if(is_due).is_some() {
            self.state.lengthen_pause();
            self.ask_again();
        }
        if self.state.give_up_at <= at {
            self.state.has_given_up = true;
        }
    }

    /// Reads from a server that is proven to be fresh. None if it failed, and another one may be read.
    async fn read_from(&mut self, source: ReadSource) -> Option<Rows> {
        let (ReadSource::Primary(server) | ReadSource::Standby(server)) = source;
        let cluster = self.cluster;
        let rows = match mem::replace(&mut self.state.contacts[server], ServerContact::Gone) {
            ServerContact::Reported(session) => {
                cluster.read_in_session(server, session, self.statement, self.parameters).await
            }
            ServerContact::First(SpeculativeRead { rows: Some(rows), .. }) => rows,
            _ => cluster.await_rows(server, &mut self.first_rows).await,
        };
        match rows {
            // A standby may cancel a read, and any server may die: the next one is tried, once.
            Err(error) if error.is_transient() && !self.state.has_failed_read => {
                self.state.has_failed_read = true;
                self.state.give_up_at = Instant::now() + PROOF_TIMEOUT;
                self.failed(server, error);
                None
            }
            rows => {
                self.remember(source);
                Some(rows)
            }
        }
    }

    /// Asks servers that were not asked yet, at most this many.
    fn ask_others(&mut self, count: usize) {
        let servers: Vec<usize> = self.state.unasked().take(count).collect();
        for server in servers {
            self.ask(server);
        }
    }

    /// Asks those that have answered.
    fn ask_again(&mut self) {
        for server in 0..self.state.contacts.len() {
            // What the first one has read is too old.
            if matches!(self.state.contacts[server], ServerContact::First(_) | ServerContact::Reported(_)) {
                self.ask(server);
            }
        }
    }

    fn ask(&mut self, server: usize) {
        let session = match mem::replace(&mut self.state.contacts[server], ServerContact::Asked) {
            ServerContact::Reported(session) => Some(session),
            _ => None,
        };
        self.asked.push(Box::pin(self.cluster.ask(server, session)));
    }

    /// Servers that take too long to report: they are asked last by the next reads, and all others by this one.
    fn pass_over(&mut self) {
        for (index, server) in self.cluster.servers().iter().enumerate() {
            let is_asked = !matches!(self.state.contacts[index], ServerContact::Unasked);
            if is_asked && self.state.reports[index].is_none() {
                server.set_rank(Rank::Silent);
            }
        }
        self.ask_others(usize::MAX);
    }

    fn reported(&mut self, server: usize, report: ServerReport) {
        self.state.reports[server] = Some(report);
        let server = &self.cluster.servers()[server];
        if self.state.started.elapsed() < SLOW_REPORT && server.rank() == Rank::Silent as u8 {
            server.set_rank(Rank::Answers);
        }
    }

    /// A server is gone: the others are asked instead.
    fn failed(&mut self, server: usize, error: StatementError) {
        tracing::debug!(server, ?error, "database server failed during a read");
        self.state.reports[server] = None;
        self.state.contacts[server] = ServerContact::Gone;
        self.state.failure = error;
        let servers = self.cluster.servers();
        servers[server].set_rank(Rank::Silent);
        if self.cluster.source() == server
            && let Some(next) = (0..servers.len()).min_by_key(|server| servers[*server].rank())
        {
            self.cluster.set_source(next);
        }
        if self.cluster.primary() == Some(server) {
            self.state.standbys_from = Instant::now();
        }
        self.cluster.want_round();
        self.ask_others(usize::MAX);
    }

    /// The next reads start with the server that was read.
    fn remember(&self, source: ReadSource) {
        let (ReadSource::Primary(server) | ReadSource::Standby(server)) = source;
        count_read(source);
        match self.cluster.reads() {
            ReadFrom::Primary if self.cluster.source() != server => {
                self.cluster.set_source(server);
                self.cluster.want_round();
            }
            // It was behind: others come first until the next round.
            ReadFrom::Quorum if self.state.plan.first != server => {
                self.cluster.servers()[self.state.plan.first].set_rank(Rank::Answers);
            }
            _ => {}
        }
    }
}

/// Waits for a report, once. Afterwards there is no channel, and it waits forever.
async fn receive(channel: &mut Option<oneshot::Receiver<ServerReport>>) -> Option<ServerReport> {
    let Some(receiver) = channel else { return pending().await };
    let report = receiver.await.ok();
    *channel = None;
    report
}

#[cfg(test)]
mod tests;
