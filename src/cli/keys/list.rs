//! `petstore keys list`

use clap::Args;
use jiff::Timestamp;
use petstore_config::DatabaseSettings;

use super::output::{KeyOutput, table};
use crate::cli::{CommandError, print, storage};

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
        let keys = storage(&self.database.url())?.list_api_keys().await?;
        let now = Timestamp::now();
        let keys: Vec<KeyOutput> = keys.into_iter().map(|key| KeyOutput::new(key, now)).collect();
        let text = if self.json { serde_json::to_string_pretty(&keys)? + "\n" } else { table(&keys) };
        Ok(print(&text)?)
    }
}
