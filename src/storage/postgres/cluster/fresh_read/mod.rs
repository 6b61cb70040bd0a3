//! Reads from a server that is proven to have every acknowledged write: see [`read_quorum`](crate::storage::read_quorum).
//!
//! The server that is expected to answer, most often the primary, reports and reads in one round trip; as many others as the
//! proof needs report at the same time. So a read takes about as long as without proof. A primary reports only once in each
//! session.
//!
//! **Invariants:**
//! - every report of a standby is made after the read began;
//! - a server is read in the session in which it has reported, in a later statement;
//! - a server that does not answer delays the reads in progress by a quarter of a second, and not those that come after them;
//! - what cannot be proven within [`PROOF_TIMEOUT`] fails.

use std::cmp::Reverse;
use std::future::pending;
use std::mem;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join};
use futures_util::stream::FuturesUnordered;
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::Row;

use super::Cluster;
use super::server::Rank;
use super::server_metrics::count_read;
use super::server_report::REPORT;
use super::view::{ClusterView, Guarantee};
use crate::config::ReadFrom;
use crate::storage::postgres::busy_connection::{BusyConnection, Parameters};
use crate::storage::postgres::error::StatementError::{self, Deadline, NotSent, Sent, Unproven};
use crate::storage::read_quorum::{NotFresh, Report, Source, choose};

/// How long to look for a server that is proven to be fresh.
const PROOF_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that takes longer to report is passed over: all others are asked as well.
const SLOW_REPORT: Duration = Duration::from_millis(20);
/// How long to wait for the primary before a standby is read.
const PRIMARY_PATIENCE: Duration = Duration::from_millis(250);
/// How long a server that may be read takes before it is asked whether it is still there.
const SLOW_READ: Duration = Duration::from_millis(50);
/// How long it may take to answer that.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a read may take, before another server is tried.
const READ_PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait until servers are asked again that had not replayed enough; twice as long each time.
const REPLAY_PAUSE: Duration = Duration::from_millis(2);
const MAX_REPLAY_PAUSE: Duration = Duration::from_millis(50);

type Answer = (usize, Result<(Report, BusyConnection), StatementError>);

impl Cluster {
    /// Runs a read-only statement on a server that has every write that was acknowledged before.
    pub(in crate::storage) async fn read(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        // The same standby confirms the primary each time: its server process has the most in its caches.
        let turn = if self.reads() == ReadFrom::Quorum { self.next_turn() } else { 0 };
        let first = self.first(turn);
        let (reported, report) = oneshot::channel();
        let reading = pin!(self.report_and_read(first, statement, parameters, reported));
        let mut proof = Proof::new(self, turn, first, report);
        proof.read(reading, statement, parameters).await
    }

    /// The server that is expected to answer.
    fn first(&self, turn: usize) -> usize {
        if self.reads() == ReadFrom::Primary {
            return self.source();
        }
        let rank = |server: &usize| self.servers()[*server].rank();
        let standbys = by_turn(turn, self.servers().len()).filter(|server| self.primary() != Some(*server));
        let best = standbys.min_by_key(rank).filter(|server| rank(server) < Rank::Silent as u8);
        best.unwrap_or_else(|| self.source())
    }

    /// Reports, then reads, in one round trip. The report is sent as soon as it is there; without a receiver, another server
    /// was chosen.
    async fn report_and_read(
        &self,
        server: usize,
        statement: &'static str,
        parameters: Parameters<'_>,
        reported: oneshot::Sender<Report>,
    ) -> Result<Vec<Row>, StatementError> {
        let connection = self.connect(server).await?;
        let reading = async {
            if let Some(report) = connection.primary.get() {
                let _ = reported.send(*report);
                return connection.run(statement, parameters).await;
            }
            let prepared =
                join(connection.prepare_cached(REPORT), connection.prepare_cached(statement)).await;
            let (report, prepared) = (prepared.0.map_err(NotSent)?, prepared.1.map_err(NotSent)?);
            let reporting = async {
                let _ = reported.send(self.report(server, &connection, &report).await?);
                Ok(())
            };
            // Pipelined: sent in this order.
            let (reported, rows) = join(reporting, connection.query(&prepared, parameters)).await;
            reported.and(rows.map_err(Sent))
        };
        let rows = reading.await;
        connection.end(rows)
    }

    /// Waits for what a server reads. If that takes long, it is asked for another report, to tell a slow read from a server that
    /// no longer answers.
    async fn await_rows(
        &self,
        server: usize,
        reading: impl Future<Output = Result<Vec<Row>, StatementError>>,
    ) -> Result<Vec<Row>, StatementError> {
        let losing_patience = async {
            sleep(SLOW_READ).await;
            if let Ok((_, Ok((_, session)))) = timeout(PROBE_TIMEOUT, self.ask(server, None)).await {
                session.finished();
                sleep(READ_PATIENCE).await;
            }
        };
        select! {
            biased;
            rows = reading => rows,
            () = losing_patience => Err(Deadline(READ_PATIENCE)),
        }
    }

    /// Reads in a session that has reported.
    async fn read_on(
        &self,
        server: usize,
        connection: BusyConnection,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        let rows = self.await_rows(server, connection.run(statement, parameters)).await;
        connection.end(rows)
    }
}

/// A read that looks for its server.
struct Proof<'a> {
    cluster: &'a Cluster,
    view: ClusterView,
    /// The server that was expected to answer.
    expected: usize,
    /// The same, while its report and its read in one round trip can be used.
    first: Option<usize>,
    first_report: Option<oneshot::Receiver<Report>>,
    reports: Vec<Option<Report>>,
    sessions: Vec<Option<BusyConnection>>,
    /// The servers that were not asked yet, the most useful one last.
    unasked: Vec<usize>,
    asked: FuturesUnordered<BoxFuture<'a, Answer>>,
    /// From when on a standby may be read.
    standbys_from: Instant,
}

impl<'a> Proof<'a> {
    fn new(cluster: &'a Cluster, turn: usize, first: usize, first_report: oneshot::Receiver<Report>) -> Self {
        let (view, count) = (cluster.view(), cluster.servers().len());
        let mut unasked: Vec<usize> = by_turn(turn, count).filter(|server| *server != first).collect();
        let is_spared = |server| cluster.reads() == ReadFrom::Quorum && cluster.primary() == Some(server);
        unasked.sort_by_key(|server| Reverse((is_spared(*server), cluster.servers()[*server].rank())));
        let now = Instant::now();
        let expects_primary = cluster.primary() == Some(first);
        let mut proof = Self {
            cluster,
            view,
            expected: first,
            first: Some(first),
            first_report: Some(first_report),
            reports: vec![None; count],
            sessions: (0..count).map(|_| None).collect(),
            unasked,
            asked: FuturesUnordered::new(),
            standbys_from: if expects_primary { now + PRIMARY_PATIENCE } else { now },
        };
        proof.ask_others(count.saturating_sub(2));
        proof
    }

    /// Asks servers that were not asked yet.
    fn ask_others(&mut self, count: usize) {
        for _ in 0..count.min(self.unasked.len()) {
            if let Some(server) = self.unasked.pop() {
                self.ask(server);
            }
        }
    }

    fn ask(&mut self, server: usize) {
        let (cluster, session) = (self.cluster, self.sessions[server].take());
        self.asked.push(Box::pin(async move { cluster.ask(server, session).await }));
    }

    async fn read(
        &mut self,
        mut reading: Pin<&mut impl Future<Output = Result<Vec<Row>, StatementError>>>,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        let started = Instant::now();
        let (mut slow, mut give_up) = (Some(started + SLOW_REPORT), started + PROOF_TIMEOUT);
        let (mut ask_again, mut pause) = (None, REPLAY_PAUSE);
        let (mut first_rows, mut is_second) = (None, false);
        let mut failure = Unproven(NotFresh::TooFewReports);
        loop {
            let standbys_from = Some(self.standbys_from).filter(|from| Instant::now() < *from);
            let timer = [slow, ask_again, standbys_from].into_iter().flatten().fold(give_up, Instant::min);
            select! {
                biased;
                report = receive(&mut self.first_report) => {
                    self.first_report = None;
                    if let (Ok(report), Some(first)) = (report, self.first) {
                        self.answered(first, started);
                        self.reports[first] = Some(report);
                    }
                }
                rows = reading.as_mut(), if self.first.is_some() && first_rows.is_none() => match (rows, self.first) {
                    (Err(error), Some(first)) if error.is_transient() => {
                        self.first = None;
                        failure = self.failed(first, error);
                    }
                    (rows, _) => first_rows = Some(rows),
                },
                Some((server, answer)) = self.asked.next() => match answer {
                    Ok((report, session)) => {
                        self.answered(server, started);
                        self.reports[server] = Some(report);
                        self.sessions[server] = Some(session);
                    }
                    Err(error) => failure = self.failed(server, error),
                },
                () = sleep_until(timer) => {
                    let is_due = |at: &mut Instant| *at <= timer;
                    if slow.take_if(is_due).is_some() {
                        self.pass_over();
                    }
                    if ask_again.take_if(is_due).is_some() {
                        pause = (pause * 2).min(MAX_REPLAY_PAUSE);
                        self.ask_again();
                    }
                    if give_up <= timer {
                        return Err(failure);
                    }
                }
            }
            let source = loop {
                let source = choose(&self.reports, self.view.last_primary.as_deref(), self.expected);
                let Some(server) = self.usable(source) else { break source };
                let rows = match self.sessions[server].take() {
                    Some(session) => self.cluster.read_on(server, session, statement, parameters).await,
                    None => match first_rows.take() {
                        Some(rows) => rows,
                        None => self.cluster.await_rows(server, reading.as_mut()).await,
                    },
                };
                match rows {
                    // A standby may cancel a read, and any server may die: the next one is tried, once.
                    Err(error) if error.is_transient() && !mem::replace(&mut is_second, true) => {
                        give_up = Instant::now() + PROOF_TIMEOUT;
                        self.first = self.first.filter(|first| *first != server);
                        failure = self.failed(server, error);
                    }
                    rows => {
                        self.remember(source);
                        return rows;
                    }
                }
            };
            if let Err(reason) = source {
                failure = Unproven(reason);
            }
            let is_waiting = self.first_report.is_some()
                || (self.first.is_some() && first_rows.is_none())
                || !self.asked.is_empty();
            if is_waiting || ask_again.is_some() {
                continue;
            }
            match source {
                // The primary could answer, but it is spared for writes: a standby most often needs a moment only.
                Err(NotFresh::Behind(_)) if self.cluster.reads() == ReadFrom::Quorum && slow.is_some() => {
                    ask_again = Some(Instant::now() + pause);
                }
                _ if !self.unasked.is_empty() => self.ask_others(self.unasked.len()),
                // A standby may be read soon.
                Ok(_) if self.reads_standbys() => {}
                Ok(_) | Err(NotFresh::TooFewReports) => return Err(failure),
                // The answers may change: a standby replays, or a new primary gets a standby.
                Err(NotFresh::Behind(_) | NotFresh::TwoPrimaries) => ask_again = Some(Instant::now() + pause),
            }
        }
    }

    fn reads_standbys(&self) -> bool {
        self.view.guarantee == Guarantee::Proven { standbys: true }
    }

    /// The server to read now: one that may be read, and whose report is not being made again.
    fn usable(&self, source: Result<Source, NotFresh>) -> Option<usize> {
        let server = match source {
            Ok(Source::Primary(server)) => server,
            Ok(Source::Standby(server)) if self.reads_standbys() && Instant::now() >= self.standbys_from => {
                server
            }
            _ => return None,
        };
        (self.first == Some(server) || self.sessions[server].is_some()).then_some(server)
    }

    /// Servers that take too long to report: they are asked last by the next reads, and all others by this one.
    fn pass_over(&mut self) {
        for (index, server) in self.cluster.servers().iter().enumerate() {
            if self.reports[index].is_none() && !self.unasked.contains(&index) {
                server.set_rank(Rank::Silent);
            }
        }
        self.ask_others(self.unasked.len());
    }

    /// Asks those that have answered.
    fn ask_again(&mut self) {
        // What the first one has read is too old.
        let first = self.first.take();
        for server in 0..self.reports.len() {
            if first == Some(server) || self.sessions[server].is_some() {
                self.ask(server);
            }
        }
    }

    fn answered(&self, server: usize, started: Instant) {
        let server = &self.cluster.servers()[server];
        if started.elapsed() < SLOW_REPORT && server.rank() == Rank::Silent as u8 {
            server.set_rank(Rank::Answers);
        }
    }

    /// A server is gone: the others are asked instead.
    fn failed(&mut self, server: usize, error: StatementError) -> StatementError {
        tracing::debug!(server, ?error, "database server failed during a read");
        self.reports[server] = None;
        let servers = self.cluster.servers();
        servers[server].set_rank(Rank::Silent);
        if self.cluster.source() == server
            && let Some(next) = (0..servers.len()).min_by_key(|server| servers[*server].rank())
        {
            self.cluster.set_source(next);
        }
        if self.cluster.primary() == Some(server) {
            self.standbys_from = Instant::now();
        }
        self.cluster.want_round();
        self.ask_others(self.unasked.len());
        error
    }

    /// The next reads start with the server that was read.
    fn remember(&self, source: Result<Source, NotFresh>) {
        let Ok(source @ (Source::Primary(server) | Source::Standby(server))) = source else { return };
        count_read(source);
        match self.cluster.reads() {
            ReadFrom::Primary if self.cluster.source() != server => {
                self.cluster.set_source(server);
                self.cluster.want_round();
            }
            // It was behind: others come first until the next round.
            ReadFrom::Quorum if self.expected != server => {
                self.cluster.servers()[self.expected].set_rank(Rank::Answers);
            }
            _ => {}
        }
    }
}

/// All servers, starting with another one at each turn.
fn by_turn(turn: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |offset| (turn + offset) % count)
}

async fn receive(
    report: &mut Option<oneshot::Receiver<Report>>,
) -> Result<Report, oneshot::error::RecvError> {
    match report {
        Some(report) => report.await,
        None => pending().await,
    }
}
