//! Asks every server of a cluster, once a second, and makes the [`ClusterView`] from the answers.
//!
//! **Invariants:**
//! - a round ends within [`ROUND_TIMEOUT`], and a new primary is used as soon as it is confirmed, whatever the others do;
//! - rounds never overlap, and requests that ask for one at the same time share it.

use std::convert::Infallible;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use petstore_read_quorum::{ReadSource, choose};
use tokio::select;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Cluster;
use super::cluster_view::{ClusterView, Guarantee};
use super::observation::{Observation, Observed, confirmed_primary};
use super::server::Rank;
use super::server_log::{ServerLog, log_guarantee};
use super::server_metrics::record_round;
use crate::error::StatementError::Deadline;

/// How often all servers are asked.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two rounds, however many requests ask for one.
const MIN_ROUND_INTERVAL: Duration = Duration::from_millis(200);
/// How long a round waits for the servers, connecting included.
const ROUND_TIMEOUT: Duration = Duration::from_millis(1_500);

/// What one round leaves for the next one.
#[derive(Default)]
pub(super) struct ProbeState {
    last: Option<Instant>,
    /// The names under which the servers receive.
    names: Vec<Option<String>>,
    log: ServerLog,
}

impl Cluster {
    /// Asks all servers every second, indefinitely.
    pub async fn watch(&self) -> Infallible {
        loop {
            self.round(&mut *self.0.rounds.lock().await).await;
            sleep(MIN_ROUND_INTERVAL).await;
            select! {
                () = sleep(ROUND_INTERVAL.saturating_sub(MIN_ROUND_INTERVAL)) => {}
                () = self.0.round_wanted.notified() => {}
            }
        }
    }

    /// Asks all servers, unless that has just been done, and returns what is promised of reads.
    ///
    /// Boxed: large and rarely used, it would otherwise be part of every request's future.
    pub(super) fn first_round(&self) -> BoxFuture<'_, Guarantee> {
        Box::pin(async {
            let mut rounds = self.0.rounds.lock().await;
            let is_due = rounds.last.is_none_or(|last| last.elapsed() >= MIN_ROUND_INTERVAL);
            if self.view().guarantee == Guarantee::Unknown && is_due {
                self.round(&mut rounds).await;
            }
            self.view().guarantee
        })
    }

    /// Whether a server is the primary, proven by reports that are made now.
    pub async fn confirms(&self, server: usize) -> bool {
        let count = self.servers().len();
        let mut asked: FuturesUnordered<_> = (0..count).map(|server| self.ask(server, None)).collect();
        let mut reports = vec![None; count];
        let deadline = Instant::now() + ROUND_TIMEOUT;
        while let Ok(Some((answered, outcome))) = timeout_at(deadline, asked.next()).await {
            if let Ok((report, connection)) = outcome {
                connection.finished();
                reports[answered] = Some(report);
            }
            if choose(&reports, None, 0) == Ok(ReadSource::Primary(server)) {
                return true;
            }
        }
        false
    }

    /// Asks all servers, and updates the view.
    async fn round(&self, rounds: &mut ProbeState) {
        let observed = self.observe_all(&mut rounds.names).await;
        let before = self.view();
        self.update(before.after_round(&observed, &rounds.names));
        self.rank(&observed);
        let after = self.view();
        record_round(after.guarantee, self.servers(), &observed);
        rounds.log.log_changes(self.servers(), &observed);
        rounds.log.record_availability(&self.0.availability, self.servers(), (&before, &after));
        rounds.last = Some(Instant::now());
    }

    /// Asks all servers, and updates the names of those that say one.
    async fn observe_all(&self, names: &mut Vec<Option<String>>) -> Vec<Observed> {
        let count = self.servers().len();
        names.resize(count, None);
        let observe = |server| async move {
            let observed = timeout(ROUND_TIMEOUT, self.observe(server)).await;
            (server, observed.unwrap_or(Err(Deadline(ROUND_TIMEOUT))))
        };
        let mut asked: FuturesUnordered<_> = (0..count).map(observe).collect();
        let mut observed: Vec<Observed> = (0..count).map(|_| Err(Deadline(ROUND_TIMEOUT))).collect();
        while let Some((server, observation)) = asked.next().await {
            if let Ok(Observation { name: Some(name), .. }) = &observation {
                names[server] = Some(name.clone());
            }
            observed[server] = observation;
            // A server that does not answer must not delay that the new primary is found.
            if let Some(primary) = confirmed_primary(&observed) {
                self.set_source(primary);
                self.update(self.view().with_primary(primary));
            }
        }
        observed
    }

    fn update(&self, view: ClusterView) {
        let mut current = self.0.view.write().unwrap_or_else(PoisonError::into_inner);
        log_guarantee(current.guarantee, view.guarantee);
        if let Some(former) = current.primary.filter(|former| view.primary != Some(*former)) {
            // Idle connections to a server that is gone would each cost a request its error.
            self.servers()[former].pool.retain(|_, _| false);
        }
        *current = view;
    }

    /// Ranks the servers for the next reads.
    fn rank(&self, observed: &[Observed]) {
        let primary = confirmed_primary(observed);
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
}
