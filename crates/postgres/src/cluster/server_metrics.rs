//! The metrics of a cluster: the role and position of each server, whether reads are proven, and which servers are read.

use metrics::{counter, gauge};
use petstore_read_quorum::{ReadSource, Role};
use petstore_telemetry::metrics::{DATABASE_READS, READS_PROVEN, SERVER_POSITION, SERVER_ROLE, count};

use super::cluster_view::Guarantee;
use super::observation::Observed;
use super::server::ClusterServer;

/// A counter that first appears with value 1 hides its first increment from `rate()`.
pub(super) fn start_counting_reads() {
    for source in ["primary", "standby"] {
        counter!(DATABASE_READS, "source" => source).increment(0);
    }
}

/// Counts a read from a server that was proven to be fresh.
pub(super) fn count_read(source: ReadSource) {
    let label = match source {
        ReadSource::Primary(_) => "primary",
        ReadSource::Standby(_) => "standby",
    };
    counter!(DATABASE_READS, "source" => label).increment(1);
}

/// Records the outcome of a round.
pub(super) fn record_round(guarantee: Guarantee, servers: &[ClusterServer], observed: &[Observed]) {
    gauge!(READS_PROVEN).set(count(u8::from(guarantee.is_proven())));
    for (server, observation) in servers.iter().zip(observed) {
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
