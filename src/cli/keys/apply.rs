//! `petstore keys apply`

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::api_key::ApiKey;
use petstore_domain::key_plan::{DeclaredKey, DeclaredKeyIdentity};
use petstore_storage::{AppliedKeys, KeysToApply, apply_keys, check_url, plan_keys};

use super::keys_file::{self, KeyEntry};
use super::plan_output::PlanOutput;
use super::{ActorArgs, duration};
use crate::cli::error::CommandError;
use crate::cli::output::{print, print_secret};

/// Makes the API keys match a file: creates missing keys, changes others in place, and can revoke the rest.
///
/// The file is TOML, with one table per key. An entry is matched by name with a key that is neither revoked nor
/// expired. All changes are made in one transaction. If you run the command again, it changes nothing.
///
/// Without `digest`, a missing key is generated and printed once. With `digest`, you keep the key elsewhere, and nothing
/// is printed. If the digest changes, the key is rotated. The changes are made when they have been printed: if the output
/// fails, nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "\
The file:
  [keys.kiosk]
  scopes = [\"pets:read\"]          # required: see `petstore keys create --help`
  rate-limit = \"10/s\"             # by default, the service's --default-rate-limit
  expires = 2027-01-31            # a date (UTC), or a time with an offset; by default, never
  digest = \"60303ae22b998861…\"    # the SHA-256 of the key; by default, a key is generated

Only the owner of the database can change the scopes and the rate limit of a key.

Examples:
  petstore keys apply keys.toml --dry-run
  petstore keys apply keys.toml --prune
  petstore keys apply keys.toml --json | jq -r '.steps[] | select(.key) | \"\\(.name) \\(.key)\"'")]
pub(in crate::cli) struct ApplyCommand {
    /// The file, or `-` for standard input.
    file: PathBuf,

    /// Revokes the active keys that the file does not declare. By default, these keys are listed and keep working.
    #[arg(long)]
    prune: bool,

    /// Prints the plan and changes nothing.
    #[arg(long)]
    dry_run: bool,

    /// How long the old key keeps working after a digest in the file changes, such as `24h` or `7d`. With `0s`, the old
    /// key is revoked.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "24h")]
    overlap: Duration,

    /// Prints a JSON object instead of text.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    by: ActorArgs,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl ApplyCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let url = self.database.url();
        check_url(&url)?;
        let entries = read(&self.file)?;
        if self.prune && entries.is_empty() {
            return Err(
                "the file declares no keys, so --prune would revoke all of them: revoke single keys with \
                `petstore keys revoke`"
                    .into(),
            );
        }
        let mut generated = HashMap::new();
        let declared: Vec<DeclaredKey> =
            entries.into_iter().map(|entry| declared_key(entry, &mut generated)).collect();
        let keys = KeysToApply { declared: &declared, prune: self.prune, overlap: self.overlap };
        let format = |output: PlanOutput| {
            if self.json { Ok(serde_json::to_string_pretty(&output)? + "\n") } else { Ok(output.text()) }
        };
        if self.dry_run {
            let text: io::Result<String> = format(PlanOutput::planned(&plan_keys(&url, keys).await?));
            return Ok(print(&text?)?);
        }
        apply_keys(&url, keys, &self.by.actor()?, |AppliedKeys { plan, issued }| {
            print_secret(&format(PlanOutput::applied(plan, issued, &generated))?)
        })
        .await?;
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<KeyEntry>, CommandError> {
    let name = path.display().to_string();
    let text = if name == "-" { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    let text = text.map_err(|error| format!("cannot read {name}: {error}"))?;
    Ok(keys_file::parse(&name, &text)?)
}

/// Generates a key for an entry without a digest.
fn declared_key(entry: KeyEntry, generated: &mut HashMap<String, ApiKey>) -> DeclaredKey {
    let KeyEntry { key, digest } = entry;
    let identity = if let Some(digest) = digest {
        DeclaredKeyIdentity::Digest(digest)
    } else {
        let new = ApiKey::generate(rand::random);
        let identity = DeclaredKeyIdentity::Named { prefix: new.prefix().to_owned(), digest: new.digest() };
        generated.insert(key.name.as_str().to_owned(), new);
        identity
    };
    DeclaredKey { key, identity }
}
