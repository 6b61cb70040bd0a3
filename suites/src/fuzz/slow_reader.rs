//! A client that reads slowly throughout the run, and the normal client beside it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::Run;
use super::connection::PATIENCE;
use crate::Outcome;
use crate::http::{Connection, slow_reader};

/// How long the normal client waits for an answer.
const NORMAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests pages and reads them one byte at a time.
pub(super) async fn read_slowly(run: Arc<Run>) {
    while run.goes_on() {
        let Ok(mut socket) = slow_reader(run.address, &run.fixtures.key).await else { continue };
        let end = Instant::now() + PATIENCE;
        let mut byte = [0];
        while Instant::now() < end && run.goes_on() && matches!(socket.read(&mut byte).await, Ok(1)) {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Sends 50 requests per second, each of which must succeed in time.
pub(super) async fn send_normally(run: Arc<Run>) {
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut kept = None;
    while run.goes_on() {
        ticks.tick().await;
        let problem = match timeout(NORMAL_TIMEOUT, send(&run, &mut kept)).await {
            Ok(Ok(200)) => continue,
            Ok(Ok(status)) => format!("answered {status}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not answered within {} s", NORMAL_TIMEOUT.as_secs()),
        };
        kept = None;
        run.record.find("normal client", &problem, b"", b"");
    }
}

async fn send(run: &Run, kept: &mut Option<Connection>) -> Outcome<u16> {
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(Connection::open(run.address, &run.fixtures.key).await?),
    };
    Ok(connection.send("GET", "/v1/pets?limit=20", "").await?.0)
}
