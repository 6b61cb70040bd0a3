//! What the log says of a cluster: one line when what is promised of reads changes, and one when the state of a server does.

use petstore_read_quorum::Role;

use super::cluster_view::{ClusterView, Guarantee};
use super::observation::{Observed, is_denied};
use super::server::ClusterServer;
use crate::availability_log::AvailabilityLog;

/// The state of each server that was logged last.
#[derive(Default)]
pub(super) struct ServerLog {
    states: Vec<String>,
}

impl ServerLog {
    /// Logs each server whose state has changed.
    pub(super) fn log_changes(&mut self, servers: &[ClusterServer], observed: &[Observed]) {
        let states: Vec<String> = observed.iter().map(|observation| state(servers, observation)).collect();
        for (index, state) in states.iter().enumerate() {
            if self.states.get(index) != Some(state) {
                let server = servers[index].address.to_string();
                match &observed[index] {
                    Ok(_) => tracing::info!(server, "database server: {state}"),
                    Err(error) => tracing::warn!(server, cause = %error, "database server: {state}"),
                }
            }
        }
        self.states = states;
    }

    /// Records whether there is a server for writes. Unless reads are proven, the pool that looks for one records it.
    pub(super) fn record_availability(
        &self,
        availability: &AvailabilityLog,
        servers: &[ClusterServer],
        (before, after): (&ClusterView, &ClusterView),
    ) {
        let address = |server: usize| servers[server].address.to_string();
        match (after.guarantee, after.primary) {
            (Guarantee::Trusted(_), _) if before.guarantee == after.guarantee => {}
            (_, Some(primary)) => availability.found(&address(primary)),
            (_, None) => {
                let former = before.primary.map(address).unwrap_or_default();
                availability.lost(&former, || {
                    let states = self.states.iter().enumerate();
                    let states: Vec<_> =
                        states.map(|(server, state)| format!("{}: {state}", address(server))).collect();
                    format!("no server accepts writes: {}", states.join(", "))
                });
            }
        }
    }
}

/// Logs what is promised of reads, if that has changed.
pub(super) fn log_guarantee(before: Guarantee, after: Guarantee) {
    if before != after {
        tracing::info!("reads are {}", after.text());
    }
}

fn state(servers: &[ClusterServer], observation: &Observed) -> String {
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
            format!("standby of {} on timeline {timeline}", servers[upstream].address)
        }
        Role::Standby { .. } => format!("standby on timeline {timeline} that receives nothing"),
    }
}
