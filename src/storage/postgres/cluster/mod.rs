//! The servers of a PostgreSQL cluster: which of them takes writes, and what can be proven about reads.
//!
//! Every server has its own pool, with its own circuit breaker. Once a second each of them is asked for a report, and the
//! [`ClusterView`] is made from the answers.
//!
//! **Invariants:**
//! - until a primary was seen, nothing is read: only a primary tells whether replication is synchronous;
//! - once reads are proven, only a confirmed primary ends that. (A former primary may have other settings.)

mod fresh_read;
mod server_report;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join};
use futures_util::stream::FuturesUnordered;
use metrics::{counter, gauge};
use tokio::select;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Row, Statement};

use super::availability::Availability;
use super::busy_connection::BusyConnection;
use super::connect::{Connector, ServerAddress, Target};
use super::database_url::DatabaseUrlError;
use super::error::StatementError::{self, Deadline, NoConnection, NotSent, Sent};
use super::pool::{self, ConnectionPool};
use crate::config::{PoolSettings, ReadFrom};
use crate::storage::read_quorum::{LastPrimary, Lsn, Report, Role, Source, choose};
use crate::telemetry::metrics::{DATABASE_READS, READS_PROVEN, SERVER_POSITION, SERVER_ROLE, count};
use server_report::{REPORT, Upstreams};

/// How often all servers are asked.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two rounds, however many requests ask for one.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(200);
/// How long a round waits for the servers, connecting included.
const ROUND_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Whether replication is synchronous, and the names of the standbys that may acknowledge; the name under which a standby
/// receives; whether the role may see that.
const REPLICATION: &str = "\
    SELECT
      pg_has_role('pg_monitor', 'USAGE') AS is_permitted,
      current_setting('synchronous_standby_names') <> '' AS is_synchronous,
      ARRAY(SELECT lower(application_name) FROM pg_stat_replication WHERE sync_state <> 'async') AS acknowledging,
      (SELECT lower(coalesce(
          substring(conninfo FROM '(?:^| )application_name=''?([^ '']+)'),
          substring(conninfo FROM '(?:^| )fallback_application_name=''?([^ '']+)')))
        FROM pg_stat_wal_receiver) AS name";

/// What is promised of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::storage) enum Guarantee {
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
pub(in crate::storage) enum Unproven {
    Asynchronous,
    NotPermitted,
    SameServer,
}

impl Guarantee {
    pub(in crate::storage) fn text(self) -> &'static str {
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
}

/// What is known of the cluster.
#[derive(Debug, Clone)]
pub(super) struct ClusterView {
    pub(super) guarantee: Guarantee,
    /// The server for writes: the confirmed primary, or else the one on the highest timeline.
    primary: Option<usize>,
    pub(super) last_primary: Option<Arc<LastPrimary>>,
    /// Whether the confirmed primary had a standby that may acknowledge, and that no server of the URL is known to be.
    has_unknown_standby: bool,
}

/// How useful a server is for the next read; lower is better.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Rank {
    /// The primary, or a standby that confirms it.
    Confirms,
    /// It answers, but does not confirm the primary.
    Answers,
    /// It did not answer in time.
    Silent,
}

pub(super) struct Server {
    address: ServerAddress,
    pub(super) pool: ConnectionPool,
    rank: AtomicU8,
}

impl Server {
    pub(super) fn rank(&self) -> u8 {
        self.rank.load(Ordering::Relaxed)
    }

    pub(super) fn set_rank(&self, rank: Rank) {
        self.rank.store(rank as u8, Ordering::Relaxed);
    }
}

/// A cluster of at least two servers. Cheap to clone.
#[derive(Clone)]
pub(in crate::storage) struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    servers: Vec<Server>,
    upstreams: Upstreams,
    deadline: Duration,
    reads: ReadFrom,
    view: RwLock<ClusterView>,
    rounds: Mutex<Rounds>,
    round_wanted: Notify,
    /// The server to read first: the confirmed primary, or else the one that was read last.
    source: AtomicUsize,
    turn: AtomicUsize,
    availability: Availability,
}

/// What one round leaves for the next one.
#[derive(Default)]
struct Rounds {
    last: Option<Instant>,
    /// The names under which the servers receive.
    names: Vec<Option<String>>,
    states: Vec<String>,
}

/// What a server said in a round.
#[derive(Debug, Clone)]
struct Observation {
    report: Report,
    is_permitted: bool,
    is_synchronous: bool,
    acknowledging: Vec<String>,
    name: Option<String>,
}

impl Cluster {
    /// None if the database URL names a single server.
    pub(in crate::storage) fn new(
        connector: &Connector,
        settings: &PoolSettings,
        deadline: Duration,
        availability: Availability,
    ) -> Result<Option<Self>, DatabaseUrlError> {
        let addresses: Vec<ServerAddress> = connector.addresses().collect();
        if addresses.len() < 2 {
            return Ok(None);
        }
        // A counter that first appears with value 1 hides its first increment from `rate()`.
        for source in ["primary", "standby"] {
            counter!(DATABASE_READS, "source" => source).increment(0);
        }
        let any_role = connector.including_standbys();
        let server = |(index, address)| {
            pool::pool(&any_role, Target::Server(index), settings, None).map(|pool| Server {
                address,
                pool,
                rank: AtomicU8::new(Rank::Confirms as u8),
            })
        };
        let servers = addresses.iter().cloned().enumerate().map(server).collect::<Result<_, _>>()?;
        let view = ClusterView {
            guarantee: Guarantee::Unknown,
            primary: None,
            last_primary: None,
            has_unknown_standby: false,
        };
        Ok(Some(Self(Arc::new(ClusterInner {
            servers,
            upstreams: Upstreams::new(addresses),
            deadline,
            reads: settings.reads,
            view: RwLock::new(view),
            rounds: Mutex::default(),
            round_wanted: Notify::new(),
            source: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            availability,
        }))))
    }

    pub(super) fn servers(&self) -> &[Server] {
        &self.0.servers
    }

    pub(super) fn deadline(&self) -> Duration {
        self.0.deadline
    }

    pub(super) fn reads(&self) -> ReadFrom {
        self.0.reads
    }

    pub(super) fn view(&self) -> ClusterView {
        self.0.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn source(&self) -> usize {
        self.0.source.load(Ordering::Relaxed)
    }

    pub(super) fn set_source(&self, server: usize) {
        self.0.source.store(server, Ordering::Relaxed);
    }

    /// A number that differs from read to read, so that servers take turns.
    pub(super) fn next_turn(&self) -> usize {
        self.0.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// What is promised of reads. If that is not known yet, the servers are asked first.
    pub(in crate::storage) async fn guarantee(&self) -> Guarantee {
        match self.view().guarantee {
            Guarantee::Unknown => self.first_round().await,
            known => known,
        }
    }

    /// Boxed: large and rarely used, it would otherwise be part of every request's future.
    fn first_round(&self) -> BoxFuture<'_, Guarantee> {
        Box::pin(async {
            let mut rounds = self.0.rounds.lock().await;
            let is_due = rounds.last.is_none_or(|last| last.elapsed() >= MIN_ROUND_INTERVAL);
            if self.view().guarantee == Guarantee::Unknown && is_due {
                self.round(&mut rounds).await;
            }
            self.view().guarantee
        })
    }

    /// The server for writes, if there is one. Only meaningful while reads are proven.
    pub(in crate::storage) fn primary(&self) -> Option<usize> {
        self.0.view.read().unwrap_or_else(PoisonError::into_inner).primary
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &ConnectionPool> {
        self.0.servers.iter().map(|server| &server.pool)
    }

    pub(super) fn pool(&self, server: usize) -> &ConnectionPool {
        &self.0.servers[server].pool
    }

    /// Starts a round soon: something has changed.
    pub(super) fn want_round(&self) {
        self.0.round_wanted.notify_one();
    }

    /// Asks all servers every second, indefinitely.
    pub(in crate::storage) async fn watch(&self) {
        loop {
            self.round(&mut *self.0.rounds.lock().await).await;
            sleep(MIN_ROUND_INTERVAL).await;
            select! {
                () = sleep(ROUND_INTERVAL.saturating_sub(MIN_ROUND_INTERVAL)) => {}
                () = self.0.round_wanted.notified() => {}
            }
        }
    }

    /// Whether a server is the primary, proven by reports that are made now.
    pub(in crate::storage) async fn confirms(&self, server: usize) -> bool {
        let mut asked: FuturesUnordered<_> =
            (0..self.servers().len()).map(|server| self.ask(server, None)).collect();
        let mut reports = vec![None; self.servers().len()];
        let deadline = Instant::now() + ROUND_TIMEOUT;
        while let Ok(Some((answered, outcome))) = timeout_at(deadline, asked.next()).await {
            if let Ok((report, connection)) = outcome {
                connection.finished();
                reports[answered] = Some(report);
            }
            if choose(&reports, None, 0) == Ok(Source::Primary(server)) {
                return true;
            }
        }
        false
    }

    /// Asks a server for its report, in a session that it has reported in before, or else in any.
    pub(super) async fn ask(
        &self,
        server: usize,
        session: Option<BusyConnection>,
    ) -> (usize, Result<(Report, BusyConnection), StatementError>) {
        let asking = async {
            let connection = match session {
                Some(connection) => connection,
                None => self.connect(server).await?,
            };
            let statement = connection.prepare_cached(REPORT).await.map_err(NotSent)?;
            match self.report(server, &connection, &statement).await {
                Ok(report) => Ok((report, connection)),
                Err(error) => {
                    connection.failed(&error);
                    Err(error)
                }
            }
        };
        (server, asking.await)
    }

    pub(super) async fn connect(&self, server: usize) -> Result<BusyConnection, StatementError> {
        let connection = self.pool(server).get().await.map_err(NoConnection)?;
        Ok(BusyConnection::new(connection, self.deadline()))
    }

    /// Runs [`REPORT`] in a session.
    pub(super) async fn report(
        &self,
        server: usize,
        connection: &BusyConnection,
        statement: &Statement,
    ) -> Result<Report, StatementError> {
        let report = self.0.upstreams.report(server, connection, statement).await.map_err(Sent)?;
        if let Role::Primary { .. } = report.role {
            connection
                .primary
                .get_or_init(|| Report { role: Role::Primary { flushed: Lsn::UNKNOWN }, ..report });
        }
        Ok(report)
    }

    /// Asks all servers, and updates the view.
    async fn round(&self, rounds: &mut Rounds) {
        let count = self.servers().len();
        rounds.names.resize(count, None);
        let observe = |server| async move {
            let observed = timeout(ROUND_TIMEOUT, self.observe(server)).await;
            (server, observed.unwrap_or(Err(Deadline(ROUND_TIMEOUT))))
        };
        let mut asked: FuturesUnordered<_> = (0..count).map(observe).collect();
        let mut observed: Vec<Result<Observation, StatementError>> =
            (0..count).map(|_| Err(Deadline(ROUND_TIMEOUT))).collect();
        while let Some((server, observation)) = asked.next().await {
            if let Ok(Observation { name: Some(name), .. }) = &observation {
                rounds.names[server] = Some(name.clone());
            }
            observed[server] = observation;
            // A server that does not answer must not delay that the new primary is found.
            if let Some(primary) = Self::confirmed(&observed) {
                self.set_source(primary);
                self.update(ClusterView { primary: Some(primary), ..self.view() });
            }
        }
        let before = self.view();
        self.update(before.updated(&observed, &rounds.names));
        self.rank(&observed);
        self.record_metrics(&observed);
        self.log_states(rounds, &observed);
        self.record_availability(&before, &rounds.states);
        rounds.last = Some(Instant::now());
    }

    async fn observe(&self, server: usize) -> Result<Observation, StatementError> {
        let connection = self.connect(server).await?;
        let prepared = join(connection.prepare_cached(REPORT), connection.prepare_cached(REPLICATION)).await;
        let (report, replication) = (prepared.0.map_err(NotSent)?, prepared.1.map_err(NotSent)?);
        let (report, row) = join(self.report(server, &connection, &report), async {
            connection.query_one(&replication, &[]).await.map_err(Sent)
        })
        .await;
        let observation = report.and_then(|report| Observation::decode(report, &row?).map_err(Sent));
        connection.end(observation)
    }

    fn confirmed(observed: &[Result<Observation, StatementError>]) -> Option<usize> {
        match choose(&reports(observed), None, 0) {
            Ok(Source::Primary(server)) => Some(server),
            _ => None,
        }
    }

    fn update(&self, view: ClusterView) {
        let mut current = self.0.view.write().unwrap_or_else(PoisonError::into_inner);
        if current.guarantee != view.guarantee {
            tracing::info!("reads are {}", view.guarantee.text());
        }
        if let Some(former) = current.primary.filter(|former| view.primary != Some(*former)) {
            // Idle connections to a server that is gone would each cost a request its error.
            self.0.servers[former].pool.retain(|_, _| false);
        }
        *current = view;
    }

    /// Ranks the servers for the next reads.
    fn rank(&self, observed: &[Result<Observation, StatementError>]) {
        let primary = Self::confirmed(observed);
        for (index, (server, observation)) in self.servers().iter().zip(observed).enumerate() {
            server.set_rank(match observation {
                Err(_) => Rank::Silent,
                Ok(Observation { report, .. })
                    if primary == Some(index) || (primary.is_some() && report.upstream() == primary) =>
                {
                    Rank::Confirms
                }
                Ok(_) => Rank::Answers,
            });
        }
    }

    fn record_metrics(&self, observed: &[Result<Observation, StatementError>]) {
        let proven = matches!(self.view().guarantee, Guarantee::Proven { .. });
        gauge!(READS_PROVEN).set(count(u8::from(proven)));
        for (server, observation) in self.servers().iter().zip(observed) {
            let server = server.address.to_string();
            let (role, position) = match observation.as_ref().map(|observation| observation.report.role) {
                Ok(Role::Primary { flushed }) => ("primary", Some(flushed)),
                Ok(Role::Standby { replayed, .. }) => ("standby", Some(replayed)),
                Err(_) => ("unreachable", None),
            };
            for known in ["primary", "standby", "unreachable"] {
                gauge!(SERVER_ROLE, "server" => server.clone(), "role" => known)
                    .set(count(u8::from(known == role)));
            }
            if let Some(position) = position {
                gauge!(SERVER_POSITION, "server" => server).set(count(position.0));
            }
        }
    }

    /// Records whether there is a server for writes. Unless reads are proven, the pool that looks for one records it.
    fn record_availability(&self, before: &ClusterView, states: &[String]) {
        let ClusterView { guarantee, primary, .. } = self.view();
        let address = |server: usize| self.servers()[server].address.to_string();
        match (guarantee, primary) {
            (Guarantee::Trusted(_), _) if before.guarantee == guarantee => {}
            (_, Some(primary)) => self.0.availability.found(&address(primary)),
            (_, None) => {
                let server = before.primary.map(address).unwrap_or_default();
                self.0.availability.lost(&server, || {
                    let states = states.iter().enumerate();
                    let states: Vec<_> =
                        states.map(|(it, state)| format!("{}: {state}", address(it))).collect();
                    format!("no server accepts writes: {}", states.join(", "))
                });
            }
        }
    }

    /// Logs each server whose state has changed.
    fn log_states(&self, rounds: &mut Rounds, observed: &[Result<Observation, StatementError>]) {
        let states: Vec<String> = observed.iter().map(|observation| self.state(observation)).collect();
        for (index, state) in states.iter().enumerate() {
            if rounds.states.get(index) != Some(state) {
                let server = self.servers()[index].address.to_string();
                match &observed[index] {
                    Ok(_) => tracing::info!(server, "database server: {state}"),
                    Err(error) => tracing::warn!(server, cause = %error, "database server: {state}"),
                }
            }
        }
        rounds.states = states;
    }

    fn state(&self, observation: &Result<Observation, StatementError>) -> String {
        let report = match observation {
            Ok(observation) => observation.report,
            Err(_) if is_denied(observation) => {
                return "refuses to report: the role is not a member of pg_monitor".into();
            }
            Err(_) => return "does not answer".into(),
        };
        let timeline = report.timeline;
        match report.role {
            Role::Primary { .. } => format!("primary on timeline {timeline}"),
            Role::Standby { upstream: Some(upstream), .. } => {
                format!("standby of {} on timeline {timeline}", self.servers()[upstream].address)
            }
            Role::Standby { .. } => format!("standby on timeline {timeline} that receives nothing"),
        }
    }
}

fn reports(observed: &[Result<Observation, StatementError>]) -> Vec<Option<Report>> {
    observed
        .iter()
        .map(|observation| observation.as_ref().ok().map(|observation| observation.report))
        .collect()
}

fn is_denied(observation: &Result<Observation, StatementError>) -> bool {
    match observation {
        Ok(observation) => !observation.is_permitted,
        Err(NotSent(error) | Sent(error)) => error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE),
        Err(_) => false,
    }
}

impl Observation {
    fn decode(report: Report, row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            report,
            is_permitted: row.try_get("is_permitted")?,
            is_synchronous: row.try_get("is_synchronous")?,
            acknowledging: row.try_get("acknowledging")?,
            name: row.try_get("name")?,
        })
    }

    /// Whether every standby that may acknowledge has one of these names, each of them once.
    fn acknowledged_only_by(&self, names: &[Option<String>]) -> bool {
        let mut names: Vec<&String> = names.iter().flatten().collect();
        self.acknowledging.iter().all(|name| {
            names.iter().position(|known| *known == name).map(|index| names.swap_remove(index)).is_some()
        })
    }
}

impl ClusterView {
    /// The view after a round.
    fn updated(&self, observed: &[Result<Observation, StatementError>], names: &[Option<String>]) -> Self {
        let was_proven = matches!(self.guarantee, Guarantee::Proven { .. });
        let is_denied = !was_proven && observed.iter().any(is_denied);
        if !is_denied
            && let Some(server) = Cluster::confirmed(observed)
            && let Ok(primary) = &observed[server]
        {
            let has_unknown_standby = !primary.acknowledged_only_by(names);
            // Once, it may be a server that has just been started, and says its name in the next round.
            let is_first =
                self.guarantee == Guarantee::Proven { standbys: true } && !self.has_unknown_standby;
            let guarantee = if primary.is_synchronous {
                Guarantee::Proven { standbys: !has_unknown_standby || is_first }
            } else {
                Guarantee::Trusted(Unproven::Asynchronous)
            };
            let last_primary =
                LastPrimary::confirmed_by(&reports(observed), server, self.last_primary.as_deref());
            let last_primary = last_primary.map(Arc::new);
            return Self { guarantee, primary: Some(server), last_primary, has_unknown_standby };
        }
        let primaries: Vec<(usize, &Observation)> = observed
            .iter()
            .enumerate()
            .filter_map(|(server, observation)| Some((server, observation.as_ref().ok()?)))
            .filter(|(_, observation)| matches!(observation.report.role, Role::Primary { .. }))
            .collect();
        let newest = primaries.iter().max_by_key(|(_, observation)| observation.report.timeline);
        let identity = |(_, observation): &(usize, &Observation)| observation.report.start;
        let guarantee = match self.guarantee {
            proven if was_proven => proven,
            _ if is_denied => Guarantee::Trusted(Unproven::NotPermitted),
            before if primaries.is_empty() => before,
            _ if primaries
                .iter()
                .any(|one| primaries.iter().filter(|it| identity(it) == identity(one)).count() > 1) =>
            {
                Guarantee::Trusted(Unproven::SameServer)
            }
            _ if primaries.iter().any(|(_, primary)| primary.is_synchronous) => {
                Guarantee::Proven { standbys: false }
            }
            _ => Guarantee::Trusted(Unproven::Asynchronous),
        };
        Self {
            guarantee,
            primary: newest.map(|(server, _)| *server),
            last_primary: self.last_primary.clone(),
            has_unknown_standby: self.has_unknown_standby,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "`updated` takes results")]
mod tests {
    use super::*;

    const NOTHING_KNOWN: ClusterView = ClusterView {
        guarantee: Guarantee::Unknown,
        primary: None,
        last_primary: None,
        has_unknown_standby: false,
    };
    const ALL: Guarantee = Guarantee::Proven { standbys: true };
    const ASYNCHRONOUS: Guarantee = Guarantee::Trusted(Unproven::Asynchronous);

    type Observed = Result<Observation, StatementError>;

    fn primary(start: u64, timeline: u32, acknowledging: Option<&[&str]>) -> Observed {
        Ok(Observation {
            report: Report { start, timeline, role: Role::Primary { flushed: Lsn(100) } },
            is_permitted: true,
            is_synchronous: acknowledging.is_some(),
            acknowledging: acknowledging.unwrap_or_default().iter().copied().map(String::from).collect(),
            name: None,
        })
    }

    fn standby(start: u64, timeline: u32, upstream: usize) -> Observed {
        let role = Role::Standby { received: Some(Lsn(90)), replayed: Lsn(90), upstream: Some(upstream) };
        Ok(Observation {
            report: Report { start, timeline, role },
            is_permitted: true,
            is_synchronous: true,
            acknowledging: Vec::new(),
            name: None,
        })
    }

    fn silent() -> Observed {
        Err(Deadline(ROUND_TIMEOUT))
    }

    /// The view after a round, in which the second and the third server receive under the names `s1` and `s2`.
    fn after(before: &ClusterView, observed: &[Observed]) -> ClusterView {
        before.updated(observed, &[None, Some("s1".into()), Some("s2".into())])
    }

    fn healthy() -> ClusterView {
        after(&NOTHING_KNOWN, &[primary(1, 1, Some(&["s1", "s2"])), standby(2, 1, 0), standby(3, 1, 0)])
    }

    #[test]
    fn reads_are_proven_if_replication_is_synchronous_with_servers_of_the_url() {
        assert_eq!((healthy().guarantee, healthy().primary), (ALL, Some(0)));
        for acknowledging in [&["s1", "foreign"][..], &["s1", "s1"]] {
            let observed = [primary(1, 1, Some(acknowledging)), standby(2, 1, 0), standby(3, 1, 0)];
            let once = after(&healthy(), &observed);
            assert_eq!(once.guarantee, ALL, "perhaps it has just been started");
            assert_eq!(after(&once, &observed).guarantee, Guarantee::Proven { standbys: false });
            assert_eq!(after(&NOTHING_KNOWN, &observed).guarantee, Guarantee::Proven { standbys: false });
        }
    }

    #[test]
    fn nothing_is_promised_without_synchronous_replication_or_the_right_to_see_it() {
        let asynchronous = [primary(1, 1, None), standby(2, 1, 0), standby(3, 1, 0)];
        assert_eq!(after(&NOTHING_KNOWN, &asynchronous).guarantee, ASYNCHRONOUS);
        // Not confirmed, but as good as one server.
        assert_eq!(after(&NOTHING_KNOWN, &[primary(1, 1, None), silent(), silent()]).guarantee, ASYNCHRONOUS);
        let mut hidden = [primary(1, 1, Some(&[])), standby(2, 1, 0), standby(3, 1, 0)];
        hidden[1].as_mut().unwrap().is_permitted = false;
        let not_permitted = Guarantee::Trusted(Unproven::NotPermitted);
        assert_eq!(after(&NOTHING_KNOWN, &hidden).guarantee, not_permitted);
        let twice = [primary(1, 1, Some(&["x"])), primary(1, 1, Some(&["x"]))];
        assert_eq!(after(&NOTHING_KNOWN, &twice).guarantee, Guarantee::Trusted(Unproven::SameServer));
    }

    #[test]
    fn without_a_primary_in_sight_nothing_is_known() {
        let observed = [silent(), standby(2, 1, 0), standby(3, 1, 0)];
        let view = after(&NOTHING_KNOWN, &observed);
        assert_eq!((view.guarantee, view.primary), (Guarantee::Unknown, None));
        // It says that replication is synchronous, and nothing that would prove a read.
        let view = after(&NOTHING_KNOWN, &[primary(1, 1, Some(&["s1"])), silent(), silent()]);
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
