//! Runs a read on one server of a cluster, in the session in which that server reports.

use std::time::Duration;

use futures_util::future::join;
use petstore_read_quorum::ServerReport;
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;

use crate::checked_out_connection::{CheckedOutConnection, Parameters};
use crate::cluster::Cluster;
use crate::cluster::replication_status::REPORT;
use crate::error::StatementError::{self, Deadline, NotSent, Sent};

/// How long a server that may be read takes before it is asked whether it is still there.
const SLOW_READ: Duration = Duration::from_millis(50);
/// How long it may take to answer that.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a read may take, before another server is tried.
const READ_PATIENCE: Duration = Duration::from_secs(1);

/// What a statement returned.
pub(super) type Rows = Result<Vec<Row>, StatementError>;

impl Cluster {
    /// Reports, then reads, in one round trip. The report is sent as soon as it is there; without a receiver, another server
    /// was chosen.
    pub(super) async fn report_and_read(
        &self,
        server: usize,
        statement: &'static str,
        parameters: Parameters<'_>,
        reported: oneshot::Sender<ServerReport>,
    ) -> Rows {
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

    /// Reads in a session that has reported.
    pub(super) async fn read_in_session(
        &self,
        server: usize,
        session: CheckedOutConnection,
        statement: &'static str,
        parameters: Parameters<'_>,
    ) -> Rows {
        let rows = self.await_rows(server, session.run(statement, parameters)).await;
        session.end(rows)
    }

    /// Waits for what a server reads. If that takes long, it is asked for another report, to tell a slow read from a server that
    /// no longer answers.
    pub(super) async fn await_rows(&self, server: usize, reading: impl Future<Output = Rows>) -> Rows {
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
}
