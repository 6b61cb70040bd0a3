//! `petstore migrate`

use clap::Args;

use super::{Failure, print};
use crate::config::MigrateSettings;
use crate::storage::{SCHEMA_LATEST, migrate_within};

/// Brings the database's schema up to date.
///
/// Safe to run again, and by many nodes at once: one migrates, the others wait and then find nothing to do.
///
/// Safe beside nodes that serve: it waits half a second at most for a table that a long transaction holds, because
/// requests wait behind it, and then lets them pass before it tries again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  createdb petstore
  petstore migrate --database-url postgresql://localhost/petstore")]
pub(super) struct Migrate {
    #[command(flatten)]
    settings: MigrateSettings,
}

impl Migrate {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let Self { settings } = self;
        let applied =
            migrate_within(&settings.database.database_url, SCHEMA_LATEST, settings.patience).await?;
        for migration in &applied {
            print(&format!("applied {migration}\n"))?;
        }
        if applied.is_empty() {
            print("the schema is up to date\n")?;
        }
        Ok(())
    }
}
