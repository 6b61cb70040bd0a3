//! `petstore keys rotate`

use std::time::Duration;

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::api_key::ApiKey;
use petstore_domain::key_record::KeyId;
use petstore_storage::{Rotation, rotate_api_key};

use super::{ActorArgs, Expiry, duration, expires_at, expiry, key_id};
use crate::cli::error::CommandError;
use crate::cli::output::print_secret;
use crate::cli::storage::storage;

/// Replaces a key, prints only the new key to standard output, and lets the old key expire or revokes it.
///
/// The new key has the same name, scopes and rate limit. Both keys work during the overlap, so clients can switch without
/// a rejected request. If the new key cannot be printed, nothing is changed.
///
/// A key is rotated once. If you lost the new key, rotate that one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(petstore keys rotate 7 --overlap 24h)
  petstore keys rotate 7 --overlap 0s        # the old key leaked: revoke it now")]
pub(in crate::cli) struct RotateCommand {
    /// The old key's id, as `petstore keys list` shows it.
    #[arg(value_parser = key_id)]
    id: KeyId,

    /// How long the old key keeps working, such as `24h` or `7d`. Allow enough time to update every client. With `0s`, the
    /// old key is revoked, and every node rejects it within 3 seconds.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    overlap: Duration,

    /// When the new key expires: after a duration, such as `90d`, or at the start of a date (UTC). By default, it has
    /// the same lifetime as the old key.
    #[arg(long, value_name = "DURATION|DATE", value_parser = expiry)]
    expires: Option<Expiry>,

    #[command(flatten)]
    by: ActorArgs,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl RotateCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let url = self.database.url();
        let expires_at = expires_at(&storage(&url)?, self.expires).await?;
        let successor = ApiKey::generate(rand::random);
        let show = |_| print_secret(&format!("{}\n", successor.reveal()));
        let actor = self.by.actor()?;
        let id = self.id.0;
        match rotate_api_key(&url, self.id, &successor, self.overlap, expires_at, &actor, show).await? {
            Rotation::Rotated(_) => Ok(()),
            Rotation::AlreadyRotated(KeyId(newest)) => {
                Err(format!("API key {id} was rotated to {newest}: rotate {newest} instead").into())
            }
            Rotation::NoActiveKey => {
                Err(format!("no active key has the id {id}: see `petstore keys list`").into())
            }
        }
    }
}
