//! `petstore keys create`

use clap::Args;
use jiff::Timestamp;

use super::{By, Expiry, expiry};
use crate::cli::connection::storage;
use crate::cli::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::api_key::ApiKey;
use crate::domain::key_record::{KeyName, NewKey, Scope};
use crate::domain::rate_limit::RateLimit;

/// Makes an API key and prints it, and nothing else, to standard output.
///
/// This is the only time that the key can be seen: the database keeps a digest of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(petstore keys create --name shop)
  petstore keys create --name price-display --scope pets:read --rate-limit 10/s
  petstore keys create --name contractor --expires 90d")]
pub(in crate::cli) struct Create {
    /// What the key is for, to recognise it by later.
    #[arg(long)]
    name: KeyName,

    /// What the key may do: `pets:read`, `pets:write`, `orders:read` or `orders:write`; repeatable. All
    /// four without it.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,

    /// When the key ends: after a time, such as `90d` or `12h`, or at the beginning of a day (UTC), such as
    /// `2027-01-31`. Never without it.
    #[arg(long, value_name = "TIME|DAY", value_parser = expiry)]
    expires: Option<Expiry>,

    /// How often the key may ask of each node: so many requests a second, minute or hour, such as `100/s`,
    /// `600/m` or `10000/h`. The service's own setting holds without it.
    #[arg(long, value_name = "LIMIT")]
    rate_limit: Option<RateLimit>,

    #[command(flatten)]
    by: By,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl Create {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let mut scopes = if self.scopes.is_empty() { Scope::ALL.to_vec() } else { self.scopes };
        scopes.dedup();
        let new = NewKey {
            name: self.name,
            scopes,
            expires_at: self.expires.map(|expires| expires.at(Timestamp::now())).transpose()?,
            rate_limit: self.rate_limit,
        };
        let key = ApiKey::generate(rand::random);
        storage(&self.database)?.insert_api_key(&new, &key, &self.by.actor()?).await?;
        Ok(print(&format!("{}\n", key.reveal()))?)
    }
}
