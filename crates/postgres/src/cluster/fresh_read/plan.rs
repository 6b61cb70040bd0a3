//! Which servers a read asks, and in which order.

use std::sync::Arc;

use petstore_config::ReadFrom;
use petstore_read_quorum::LastPrimary;

use crate::cluster::Cluster;
use crate::cluster::cluster_view::Guarantee;
use crate::cluster::server::Rank;

/// What is known when a read begins.
pub(super) struct ReadPlan {
    pub(super) reads: ReadFrom,
    /// Whether standbys may be read.
    pub(super) reads_standbys: bool,
    pub(super) last_primary: Option<Arc<LastPrimary>>,
    /// The server that is expected to answer: it reports and reads in one round trip.
    pub(super) first: usize,
    /// Whether that is the primary, as far as is known.
    pub(super) expects_primary: bool,
    /// The other servers, the most useful one first.
    pub(super) others: Vec<usize>,
}

impl ReadPlan {
    pub(super) fn new(cluster: &Cluster) -> Self {
        // The same standby confirms the primary each time: its server process has the most in its caches.
        let turn = if cluster.reads() == ReadFrom::Quorum { cluster.next_turn() } else { 0 };
        let (first, view) = (first_server(cluster, turn), cluster.view());
        Self {
            reads: cluster.reads(),
            reads_standbys: view.guarantee == Guarantee::Proven { standbys: true },
            last_primary: view.last_primary,
            first,
            expects_primary: view.primary == Some(first),
            others: other_servers(cluster, turn, first),
        }
    }
}

fn first_server(cluster: &Cluster, turn: usize) -> usize {
    if cluster.reads() == ReadFrom::Primary {
        return cluster.source();
    }
    let rank = |server: &usize| cluster.servers()[*server].rank();
    let standbys = by_turn(turn, cluster.servers().len()).filter(|server| cluster.primary() != Some(*server));
    let best = standbys.min_by_key(rank).filter(|server| rank(server) < Rank::Silent as u8);
    best.unwrap_or_else(|| cluster.source())
}

fn other_servers(cluster: &Cluster, turn: usize, first: usize) -> Vec<usize> {
    let servers = by_turn(turn, cluster.servers().len());
    let mut others: Vec<usize> = servers.rev().filter(|server| *server != first).collect();
    let is_spared = |server| cluster.reads() == ReadFrom::Quorum && cluster.primary() == Some(server);
    others.sort_by_key(|server| (is_spared(*server), cluster.servers()[*server].rank()));
    others
}

/// All servers, starting with another one at each turn.
fn by_turn(turn: usize, count: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..count).map(move |offset| (turn + offset) % count)
}
