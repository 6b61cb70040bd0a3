//! `petstore keys rotate`

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::{By, Expiry, duration, expiry, key_id};
use crate::cli::connection::storage;
use crate::cli::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::api_key::ApiKey;
use crate::domain::key_record::KeyId;

/// Makes a key with the rights of another, which ends after a while, and prints the new key, and nothing else, to
/// standard output.
///
/// Both keys work until then, so clients can change over without a refused request.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(petstore keys rotate 7 --overlap 24h)
  petstore keys rotate 7 --overlap 0s        # the old key leaked: end it now")]
pub(in crate::cli) struct Rotate {
    /// The old key's number, as `petstore keys list` shows it.
    #[arg(value_parser = key_id)]
    id: KeyId,

    /// How long the old key goes on working, such as `24h` or `7d`.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    overlap: Duration,

    /// When the new key ends: after a time, such as `90d`, or at the beginning of a day (UTC). As long after its
    /// making as the old key without it.
    #[arg(long, value_name = "TIME|DAY", value_parser = expiry)]
    expires: Option<Expiry>,

    #[command(flatten)]
    by: By,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl Rotate {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let expires_at = self.expires.map(|expires| expires.at(Timestamp::now())).transpose()?;
        let successor = ApiKey::generate(rand::random);
        let rotated = storage(&self.database)?
            .rotate_api_key(self.id, &successor, self.overlap, expires_at, &self.by.actor()?)
            .await?;
        if rotated.is_none() {
            return Err(
                format!("there is no key {} in force: `petstore keys list` shows all", self.id.0).into()
            );
        }
        Ok(print(&format!("{}\n", successor.reveal()))?)
    }
}
