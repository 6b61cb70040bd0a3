//! `petstore keys list`

use clap::Args;
use petstore_config::DatabaseSettings;

use super::output::{KeyOutput, table};
use crate::cli::error::CommandError;
use crate::cli::output::print;
use crate::cli::storage::storage;

/// Lists all keys, including expired and revoked keys, with their scopes, rate limit, expiry and last use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore keys list
  petstore keys list --json | jq '.[] | select(.lastUsedAt == null)'")]
pub(in crate::cli) struct ListCommand {
    /// Prints a JSON array instead of a table.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl ListCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let storage = storage(&self.database.url())?;
        let (keys, now) = (storage.list_api_keys().await?, storage.now().await?);
        let keys: Vec<KeyOutput> = keys.into_iter().map(|key| KeyOutput::new(key, now)).collect();
        let text = if self.json { serde_json::to_string_pretty(&keys)? + "\n" } else { table(&keys) };
        Ok(print(&text)?)
    }
}
