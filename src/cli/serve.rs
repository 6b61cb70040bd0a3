//! `petstore serve`

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use crate::app::App;
use crate::config::ServeSettings;

/// Serves the interface until SIGTERM or SIGINT.
///
/// Starts while the database is away: requests are answered with 503 until it is back. Refuses a database
/// whose schema is too old, and says so.
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
    pub(super) async fn run(self) -> Result<(), Failure> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let app = App::start(self.settings, Arc::new(Timestamp::now)).await?;
        app.run(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await;
        Ok(())
    }
}
