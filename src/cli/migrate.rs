//! `petstore migrate`

use clap::Args;
use petstore_config::MigrateSettings;
use petstore_storage::{SCHEMA_LATEST, grant, migrate_within};

use super::error::CommandError;
use super::output::confirm_step;

/// Migrates the database's schema to the latest version.
///
/// You can run this command repeatedly, and on many nodes at once: one node migrates, and the others wait for it.
///
/// You can run it while nodes serve requests. Requests queue behind a migration that waits for a lock, so the migration
/// waits for at most half a second, lets the requests pass, and retries.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  createdb petstore
  petstore migrate --database-url postgresql://localhost/petstore
  petstore migrate --database-url postgresql://owner@localhost/petstore --grant-to petstore_service")]
pub(super) struct MigrateCommand {
    /// Grants this existing role the privileges that the service needs, and no others. If the service does not run as the
    /// owner of the tables, use this option at every upgrade, because a new version may need more privileges. To create
    /// the role too, run roles.sql instead.
    #[arg(long, value_name = "ROLE")]
    grant_to: Option<String>,

    #[command(flatten)]
    settings: MigrateSettings,
}

impl MigrateCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let Self { settings, grant_to } = self;
        let url = settings.database.url();
        let mut is_up_to_date = true;
        // Each as it is applied, so that they are known if a later one fails.
        migrate_within(&url, SCHEMA_LATEST, settings.patience, |name| {
            is_up_to_date = false;
            confirm_step(&format!("applied {name}\n"));
        })
        .await?;
        if is_up_to_date {
            confirm_step("the schema is up to date\n");
        }
        if let Some(role) = grant_to {
            grant(&url, &role).await?;
            confirm_step(&format!("{role} has the privileges that the service needs\n"));
        }
        Ok(())
    }
}
