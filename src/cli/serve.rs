//! `petstore serve`

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use petstore_config::ServeSettings;
use petstore_config::version::{COMMIT, VERSION};
use petstore_http::public_pipeline;
use petstore_telemetry::traces::start_tracing;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::effective_settings::effective_settings;
use super::error::CommandError;
use super::stop_signal::stop_signals;
use super::unknown_variables::check_environment;
use crate::app::App;
use crate::systemd::Listeners;

/// Serves requests until SIGTERM or SIGINT.
///
/// The service starts even if the database is unavailable, and answers 503 until the database is back. It does not start
/// if the schema is too old: run `petstore migrate` first.
///
/// The private listener has /livez (the process responds), /startupz (the database was reached once) and /readyz (like
/// /startupz, and the service is not stopping).
///
/// After the signal, /readyz answers 503 immediately, but requests are served for another --drain-delay. Then the
/// service accepts no more connections, finishes the requests in flight within --drain-timeout, and exits with code 0. A
/// second signal stops it immediately, with exit code 1. SIGHUP is ignored: restart the service to change settings.
///
/// Under systemd, the service listens on the sockets that systemd passes to it (the socket named `admin` is the
/// private listener). It tells systemd when it is ready, which is when /startupz answers 200, and when it is stopping.
/// It also notifies the watchdog.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore serve --database-url postgresql://localhost/petstore
  DATABASE_URL=postgresql://db/petstore?sslmode=verify-full petstore serve --listen 0.0.0.0:8080")]
pub(super) struct ServeCommand {
    #[command(flatten)]
    settings: ServeSettings,
}

impl ServeCommand {
    pub(super) async fn run(self, listeners: Listeners) -> Result<(), CommandError> {
        let (mut stop_signal, mut hangup) = (stop_signals()?, signal(SignalKind::hangup())?);
        log_start();
        check_environment()?;
        let _traces = start_tracing(&self.settings.traces)?;
        let app = App::start(self.settings, listeners, Arc::new(Timestamp::now)).await?;
        let (stop, stopped) = oneshot::channel::<()>();
        // Its default action would end the service: a closed terminal sends it, and some tools do to request a reload.
        let ignored_signal = async {
            loop {
                hangup.recv().await;
                tracing::info!("SIGHUP ignored: restart the service to apply changed settings");
            }
        };
        let two_signals = async {
            stop_signal().await;
            drop(stop);
            stop_signal().await;
        };
        select! {
            () = app.run(public_pipeline, async { drop(stopped.await) }) => Ok(()),
            () = ignored_signal => Ok(()),
            () = two_signals => Err("stopped by a second signal before requests in flight had finished".into()),
        }
    }
}

/// Logs the version, and the settings that differ from the defaults.
fn log_start() {
    let settings = effective_settings().into_iter().filter(|setting| !setting.is_default);
    let settings: Vec<String> =
        settings.map(|setting| format!("{} {}", setting.flag, setting.value.unwrap_or_default())).collect();
    tracing::info!(version = VERSION, commit = COMMIT, settings = settings.join(" "), "starting");
}
