//! `petstore keys show`

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::record::{EventBody, RecordBody};
use super::{key_id, no_such_key};
use crate::cli::connection::storage;
use crate::cli::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::key_record::KeyId;

/// Shows one key, and what was done to it, when and by whom.
#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    /// The key's number, as `petstore keys list` shows it.
    #[arg(value_parser = key_id)]
    id: KeyId,

    /// Prints a JSON object instead of text.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    database: DatabaseSettings,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    key: RecordBody,
    events: Vec<EventBody>,
}

impl Show {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let storage = storage(&self.database)?;
        let key = storage.find_key_record(self.id).await?.ok_or_else(|| no_such_key(self.id))?;
        let key = RecordBody::new(key, Timestamp::now());
        let events: Vec<EventBody> = storage.key_events(self.id).await?.into_iter().map(Into::into).collect();
        let text = if self.json {
            serde_json::to_string_pretty(&Shown { key, events })? + "\n"
        } else {
            let history: String = events.iter().map(EventBody::line).collect();
            format!("{}\n{history}", key.lines())
        };
        Ok(print(&text)?)
    }
}
