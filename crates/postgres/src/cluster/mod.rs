//! The servers of a PostgreSQL cluster: which of them takes writes, and what can be proven about reads.
//!
//! Every server has its own pool, with its own circuit breaker. Once a second each of them is asked for a report
//! (`probe.rs`), and the [`ClusterView`] is made from the answers. A read asks enough of them again, to prove that its server
//! has every acknowledged write (`fresh_read/`).

mod cluster_view;
mod fresh_read;
mod observation;
mod probe;
mod replication_status;
mod server;
mod server_log;
mod server_metrics;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use petstore_config::{PoolSettings, ReadFrom};
use petstore_read_quorum::{Lsn, Role, ServerReport};
use tokio::sync::{Mutex, Notify};
use tokio_postgres::Statement;

use super::availability_log::AvailabilityLog;
use super::checked_out_connection::CheckedOutConnection;
use super::connect::{Connector, ServerAddress, Target};
use super::database_url::DatabaseUrlError;
use super::error::StatementError::{self, NoConnection, NotSent, Sent};
use super::pool::{self, ConnectionPool};
use cluster_view::ClusterView;
pub use cluster_view::Guarantee;
use probe::ProbeState;
use replication_status::{REPORT, UpstreamFinder};
use server::ClusterServer;
use server_metrics::start_counting_reads;

/// A cluster of at least two servers. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    servers: Vec<ClusterServer>,
    upstreams: UpstreamFinder,
    deadline: Duration,
    reads: ReadFrom,
    view: RwLock<ClusterView>,
    rounds: Mutex<ProbeState>,
    round_wanted: Notify,
    /// The server to read first: the confirmed primary, or else the one that was read last.
    source: AtomicUsize,
    turn: AtomicUsize,
    availability: AvailabilityLog,
}

impl Cluster {
    /// None if the database URL names a single server.
    pub fn new(
        connector: &Connector,
        settings: &PoolSettings,
        schema_needed: i32,
        deadline: Duration,
        availability: AvailabilityLog,
    ) -> Result<Option<Self>, DatabaseUrlError> {
        let addresses: Vec<ServerAddress> = connector.addresses().collect();
        if addresses.len() < 2 {
            return Ok(None);
        }
        start_counting_reads();
        let any_role = connector.including_standbys();
        let server = |(index, address)| {
            pool::pool(&any_role, Target::Server(index), settings, schema_needed, None)
                .map(|pool| ClusterServer::new(address, pool))
        };
        let servers = addresses.iter().cloned().enumerate().map(server).collect::<Result<_, _>>()?;
        Ok(Some(Self(Arc::new(ClusterInner {
            servers,
            upstreams: UpstreamFinder::new(addresses),
            deadline,
            reads: settings.reads,
            view: RwLock::new(ClusterView::UNKNOWN),
            rounds: Mutex::default(),
            round_wanted: Notify::new(),
            source: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            availability,
        }))))
    }

    /// What is promised of reads. If that is not known yet, the servers are asked first.
    pub async fn guarantee(&self) -> Guarantee {
        match self.view().guarantee {
            Guarantee::Unknown => self.first_round().await,
            known => known,
        }
    }

    /// The server for writes, if there is one. Only meaningful while reads are proven.
    pub fn primary(&self) -> Option<usize> {
        self.0.view.read().unwrap_or_else(PoisonError::into_inner).primary
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &ConnectionPool> {
        self.servers().iter().map(|server| &server.pool)
    }

    pub(super) fn pool(&self, server: usize) -> &ConnectionPool {
        &self.servers()[server].pool
    }
}

/// What the files of this folder share.
impl Cluster {
    fn servers(&self) -> &[ClusterServer] {
        &self.0.servers
    }

    fn reads(&self) -> ReadFrom {
        self.0.reads
    }

    fn view(&self) -> ClusterView {
        self.0.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn source(&self) -> usize {
        self.0.source.load(Ordering::Relaxed)
    }

    fn set_source(&self, server: usize) {
        self.0.source.store(server, Ordering::Relaxed);
    }

    /// A number that differs from read to read, so that servers take turns.
    fn next_turn(&self) -> usize {
        self.0.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a round soon: something has changed.
    fn want_round(&self) {
        self.0.round_wanted.notify_one();
    }

    /// Asks a server for its report, in a session that it has reported in before, or else in any.
    async fn ask(
        &self,
        server: usize,
        session: Option<CheckedOutConnection>,
    ) -> (usize, Result<(ServerReport, CheckedOutConnection), StatementError>) {
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

    async fn connect(&self, server: usize) -> Result<CheckedOutConnection, StatementError> {
        let connection = self.pool(server).get().await.map_err(NoConnection)?;
        Ok(CheckedOutConnection::new(connection, self.0.deadline))
    }

    /// Runs [`REPORT`] in a session.
    async fn report(
        &self,
        server: usize,
        connection: &CheckedOutConnection,
        statement: &Statement,
    ) -> Result<ServerReport, StatementError> {
        let report = self.0.upstreams.report(server, connection, statement).await.map_err(Sent)?;
        if let Role::Primary { .. } = report.role {
            connection
                .primary
                .get_or_init(|| ServerReport { role: Role::Primary { flushed: Lsn::UNKNOWN }, ..report });
        }
        Ok(report)
    }
}
