//! `petstore keys create`

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::api_key::ApiKey;
use petstore_domain::key_record::{KeyName, NewKey, Scope};
use petstore_domain::rate_limit::RateLimit;
use petstore_storage::insert_api_key;

use super::output::NewKeyOutput;
use super::{ActorArgs, Expiry, expires_at, expiry};
use crate::cli::error::CommandError;
use crate::cli::output::print_secret;
use crate::cli::storage::storage;

/// Creates an API key, and prints only the key to standard output.
///
/// The key is shown only once, because the database stores only a digest. The key becomes valid when it has been printed: if
/// the output fails, no key is created.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(petstore keys create --name shop)
  petstore keys create --name price-display --scope pets:read --rate-limit 10/s
  petstore keys create --name contractor --expires 90d")]
pub(in crate::cli) struct CreateCommand {
    /// A name for the key, such as the name of the client that uses it.
    #[arg(long)]
    name: KeyName,

    /// What the key may do: `pets:read`, `pets:write`, `orders:read`, `orders:write` or `events:read`; repeatable. The
    /// default is all scopes. Give each client only the scopes that it needs.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,

    /// When the key expires: after a duration, such as `90d` or `12h`, or at the start of a date (UTC), such as
    /// `2027-01-31`. By default, it never expires.
    #[arg(long, value_name = "DURATION|DATE", value_parser = expiry)]
    expires: Option<Expiry>,

    /// The key's rate limit on each node, in requests per second, minute or hour: `100/s`, `600/m` or `10000/h`. The
    /// default is the service's --default-rate-limit.
    #[arg(long, value_name = "LIMIT")]
    rate_limit: Option<RateLimit>,

    /// Prints a JSON object that contains the key with its id, prefix, name, scopes, expiry and rate limit.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    by: ActorArgs,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl CreateCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let mut scopes = if self.scopes.is_empty() { Scope::ALL.to_vec() } else { self.scopes };
        scopes.dedup();
        let url = self.database.url();
        let expires_at = expires_at(&storage(&url)?, self.expires).await?;
        let new = NewKey { name: self.name, scopes, expires_at, rate_limit: self.rate_limit };
        let key = ApiKey::generate(rand::random);
        insert_api_key(&url, &new, &key, &self.by.actor()?, |id| {
            let text = if self.json {
                serde_json::to_string_pretty(&NewKeyOutput::new(id, &key, &new))?
            } else {
                key.reveal().to_owned()
            };
            print_secret(&format!("{text}\n"))
        })
        .await?;
        Ok(())
    }
}
