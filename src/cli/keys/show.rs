//! `petstore keys show`

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::key_record::KeyId;
use serde::Serialize;

use super::output::{KeyAuditEntryOutput, KeyOutput};
use super::{key_id, no_such_key};
use crate::cli::error::CommandError;
use crate::cli::output::print;
use crate::cli::storage::storage;

/// Shows a key and its audit log: when the key was created, changed, rotated and revoked, and by whom.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowCommand {
    /// The key's id, as `petstore keys list` shows it.
    #[arg(value_parser = key_id)]
    id: KeyId,

    /// Prints a JSON object instead of text.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    database: DatabaseSettings,
}

#[derive(Serialize)]
struct KeyDetailsOutput {
    #[serde(flatten)]
    key: KeyOutput,
    events: Vec<KeyAuditEntryOutput>,
}

impl ShowCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let storage = storage(&self.database.url())?;
        let key = storage.find_key_record(self.id).await?.ok_or_else(|| no_such_key(self.id))?;
        let key = KeyOutput::new(key, storage.now().await?);
        let events: Vec<KeyAuditEntryOutput> =
            storage.key_events(self.id).await?.into_iter().map(Into::into).collect();
        let text = if self.json {
            serde_json::to_string_pretty(&KeyDetailsOutput { key, events })? + "\n"
        } else {
            let history: String = events.iter().map(KeyAuditEntryOutput::line).collect();
            format!("{}\n{history}", key.text())
        };
        Ok(print(&text)?)
    }
}
