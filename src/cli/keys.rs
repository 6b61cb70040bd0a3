//! `petstore keys`

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Failure, print};
use crate::config::{DatabaseSettings, PoolSettings};
use crate::domain::api_key::{ApiKey, KeyName, Scope};
use crate::storage::Storage;

/// Manages API keys.
#[derive(Debug, Subcommand)]
pub(super) enum Keys {
    Create(Create),
}

impl Keys {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Create(create) => create.run().await,
        }
    }
}

/// Makes an API key and prints it, and nothing else, to standard output.
///
/// This is the only time that the key can be seen: the database keeps a digest of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(petstore keys create --name shop)
  petstore keys create --name price-display --scope pets:read")]
pub(super) struct Create {
    /// What the key is for, to recognise it by later.
    #[arg(long)]
    name: KeyName,

    /// What the key may do: `pets:read`, `pets:write`, `orders:read` or `orders:write`; repeatable. All
    /// four without it.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let pool = PoolSettings { database_connections: 1, database_timeout: Duration::from_secs(10) };
        let storage = Storage::new(&self.database.database_url, &pool)?;
        let scopes = if self.scopes.is_empty() { Scope::ALL.to_vec() } else { self.scopes };
        let key = ApiKey::generate(rand::random);
        storage.insert_api_key(&self.name, key.prefix(), &key.digest(), &scopes).await?;
        Ok(print(&format!("{}\n", key.reveal()))?)
    }
}
