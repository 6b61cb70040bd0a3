//! `petstore keys generate`

use clap::Args;
use petstore_domain::api_key::ApiKey;
use serde::Serialize;

use crate::cli::error::CommandError;
use crate::cli::output::print;

/// Generates a key for a secret store and prints it. Nothing is stored, and no database is needed.
///
/// The service accepts the key once `petstore keys apply` has applied a file with its digest.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(petstore keys generate)
  printf %s \"$KEY\" | sha256sum            # the digest for the file
  printf %s \"$KEY\" | vault kv put -mount=secret kiosk key=-")]
pub(in crate::cli) struct GenerateCommand {
    /// Prints a JSON object with the key and its digest.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct GeneratedKeyOutput<'a> {
    key: &'a str,
    digest: String,
}

impl GenerateCommand {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let key = ApiKey::generate(rand::random);
        let text = if self.json {
            let output = GeneratedKeyOutput { key: key.reveal(), digest: key.digest().to_string() };
            serde_json::to_string_pretty(&output)?
        } else {
            key.reveal().to_owned()
        };
        Ok(print(&format!("{text}\n"))?)
    }
}
