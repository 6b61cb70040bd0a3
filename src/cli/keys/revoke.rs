//! `petstore keys revoke`

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::key_record::KeyId;

use super::{ActorArgs, key_id, no_such_key};
use crate::cli::error::CommandError;
use crate::cli::output::confirm;
use crate::cli::storage::storage;

/// Revokes a key immediately and permanently.
///
/// Every node rejects the key within 3 seconds.
#[derive(Debug, Args)]
pub(in crate::cli) struct RevokeCommand {
    /// The key's id, as `petstore keys list` shows it.
    #[arg(value_parser = key_id)]
    id: KeyId,

    #[command(flatten)]
    by: ActorArgs,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl RevokeCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let storage = storage(&self.database.url())?;
        let text = if storage.revoke_api_key(self.id, &self.by.actor()?).await? {
            format!("key {} revoked\n", self.id.0)
        } else if storage.find_key_record(self.id).await?.is_some() {
            format!("key {} was already revoked\n", self.id.0)
        } else {
            return Err(no_such_key(self.id));
        };
        confirm(&text).await;
        Ok(())
    }
}
