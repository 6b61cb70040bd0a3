//! `petstore serve`

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::Failure;
use crate::app::App;
use crate::config::ServeSettings;
use crate::systemd::Listeners;
use crate::telemetry::traces::start_tracing;

/// Serves the interface until SIGTERM or SIGINT.
///
/// Starts while the database is away: requests are answered with 503 until it is back. Refuses a database
/// whose schema is too old, and says so.
///
/// A signal makes /readyz answer 503 at once, while requests are served as before for the time of --drain-delay. Then
/// no more connections are taken, requests under way are finished within --drain-timeout, and the exit code is 0. A
/// second signal ends the service at once, with exit code 1. SIGHUP is ignored: settings are read at the start only.
///
/// Under systemd it listens on the sockets that it is passed (the one named `admin` is the private listener), tells
/// when it is ready and when it stops, and answers the watchdog.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore serve --database-url postgresql://localhost/petstore
  DATABASE_URL=postgresql://db/petstore?sslmode=verify-full petstore serve --listen 0.0.0.0:8080")]
pub(super) struct Serve {
    #[command(flatten)]
    settings: ServeSettings,
}

impl Serve {
    pub(super) async fn run(self, listeners: Listeners) -> Result<(), Failure> {
        let (mut terminate, mut interrupt, mut hang_up) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        );
        let mut signal = async || {
            select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let _traces = start_tracing(&self.settings.traces)?;
        let app = App::start(self.settings, listeners, Arc::new(Timestamp::now)).await?;
        let (stop, stopped) = oneshot::channel::<()>();
        // It would end the service by default: a terminal that is closed sends it, and some tools to ask for a reload.
        let ignored_signal = async {
            loop {
                hang_up.recv().await;
                tracing::info!(
                    "SIGHUP ignored: settings are read at the start only; restart the service to apply changes"
                );
            }
        };
        let two_signals = async {
            signal().await;
            drop(stop);
            signal().await;
        };
        select! {
            () = app.run(async { drop(stopped.await) }) => Ok(()),
            () = ignored_signal => Ok(()),
            () = two_signals => Err("a second signal ended the service before its time to finish was over".into()),
        }
    }
}
