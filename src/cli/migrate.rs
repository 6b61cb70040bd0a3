//! `petstore migrate`

use clap::Args;

use super::{CommandError, print};
use crate::config::MigrateSettings;
use crate::storage::{SCHEMA_LATEST, migrate_within};

/// Migrates the database's schema to the latest version.
///
/// Safe to run repeatedly and on many nodes at once: one migrates, the others wait and then have nothing to do.
///
/// Safe while nodes serve requests. Requests queue behind a migration that waits for a lock, so it waits at most half a
/// second, lets them pass, and retries.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  createdb petstore
  petstore migrate --database-url postgresql://localhost/petstore")]
pub(super) struct MigrateCommand {
    #[command(flatten)]
    settings: MigrateSettings,
}

impl MigrateCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let Self { settings } = self;
        let applied = migrate_within(&settings.database.url(), SCHEMA_LATEST, settings.patience).await?;
        for migration in &applied {
            print(&format!("applied {migration}\n"))?;
        }
        if applied.is_empty() {
            print("the schema is up to date\n")?;
        }
        Ok(())
    }
}
