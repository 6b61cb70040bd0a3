//! `petstore migrate`

use clap::Args;

use super::{Failure, print};
use crate::config::DatabaseSettings;
use crate::storage::{SCHEMA_LATEST, migrate};

/// Brings the database's schema up to date.
///
/// Safe to run again, and by many nodes at once: one migrates, the others wait and then find nothing to do.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  createdb petstore
  petstore migrate --database-url postgresql://localhost/petstore")]
pub(super) struct Migrate {
    #[command(flatten)]
    database: DatabaseSettings,
}

impl Migrate {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let applied = migrate(&self.database.database_url, SCHEMA_LATEST).await?;
        for migration in &applied {
            print(&format!("applied {migration}\n"))?;
        }
        if applied.is_empty() {
            print("the schema is up to date\n")?;
        }
        Ok(())
    }
}
