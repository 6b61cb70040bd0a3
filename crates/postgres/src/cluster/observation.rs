//! What a server of a cluster says in a round: its report, and what it knows of replication.

use futures_util::future::join;
use petstore_read_quorum::{ReadSource, ServerReport, choose};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::Cluster;
use super::replication_status::REPORT;
use crate::error::StatementError::{self, NotSent, Sent};

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

/// What a server said, or why it said nothing.
pub(super) type Observed = Result<Observation, StatementError>;

/// What a server said in a round.
#[derive(Debug, Clone)]
pub(super) struct Observation {
    pub(super) report: ServerReport,
    /// Whether the role may see the following.
    pub(super) is_permitted: bool,
    pub(super) is_synchronous: bool,
    /// The names of the standbys that may acknowledge.
    pub(super) acknowledging: Vec<String>,
    /// The name under which a standby receives.
    pub(super) name: Option<String>,
}

impl Observation {
    fn decode(report: ServerReport, row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            report,
            is_permitted: row.try_get("is_permitted")?,
            is_synchronous: row.try_get("is_synchronous")?,
            acknowledging: row.try_get("acknowledging")?,
            name: row.try_get("name")?,
        })
    }

    /// Whether every standby that may acknowledge has one of these names, each of them once.
    pub(super) fn acknowledged_only_by(&self, names: &[Option<String>]) -> bool {
        let mut names: Vec<&String> = names.iter().flatten().collect();
        self.acknowledging.iter().all(|name| {
            names.iter().position(|known| *known == name).map(|index| names.swap_remove(index)).is_some()
        })
    }
}

impl Cluster {
    /// Asks a server, in one round trip.
    pub(super) async fn observe(&self, server: usize) -> Observed {
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
}

/// The report of each server that has answered.
pub(super) fn reports(observed: &[Observed]) -> Vec<Option<ServerReport>> {
    observed
        .iter()
        .map(|observation| observation.as_ref().ok().map(|observation| observation.report))
        .collect()
}

/// The primary that enough of the other servers confirm.
pub(super) fn confirmed_primary(observed: &[Observed]) -> Option<usize> {
    match choose(&reports(observed), None, 0) {
        Ok(ReadSource::Primary(server)) => Some(server),
        _ => None,
    }
}

/// Whether the role lacks the privilege to see how a server replicates.
pub(super) fn is_denied(observation: &Observed) -> bool {
    match observation {
        Ok(observation) => !observation.is_permitted,
        Err(NotSent(error) | Sent(error)) => error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE),
        Err(_) => false,
    }
}
