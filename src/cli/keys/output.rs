//! The output of `petstore keys`: text and JSON.

use std::time::SystemTime;

use petstore_domain::api_key::ApiKey;
use petstore_domain::key_record::{KeyEvent, KeyId, KeyRecord, NewKey};
use serde::Serialize;

/// A key's record, as JSON; [`text`](Self::text) and [`table`] format it for people.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeyOutput {
    id: i64,
    prefix: String,
    name: String,
    scopes: Vec<String>,
    created_at: String,
    expires_at: Option<String>,
    last_used_at: Option<String>,
    rate_limit: Option<String>,
    state: &'static str,
}

impl KeyOutput {
    /// `now` is the database's time.
    pub(super) fn new(key: KeyRecord, now: SystemTime) -> Self {
        let state = key.state(now).as_str();
        Self {
            id: key.id.0,
            prefix: key.prefix,
            name: key.name,
            scopes: key.scopes,
            created_at: time(key.created_at),
            expires_at: key.expires_at.map(time),
            last_used_at: key.last_used_at.map(time),
            rate_limit: key.rate_limit.map(|limit| limit.to_string()),
            state,
        }
    }

    /// The record as text, one field per line.
    pub(super) fn text(&self) -> String {
        format!(
            "id         {}\nprefix     {}\nname       {}\nscopes     {}\nstate      {}\ncreated    {}\n\
             expires    {}\nlast used  {}\nrate limit {}\n",
            self.id,
            self.prefix,
            self.name,
            self.scopes.join(" "),
            self.state,
            self.created_at,
            self.expires_at.as_deref().unwrap_or("never"),
            self.last_used_at.as_deref().unwrap_or("never"),
            self.rate_limit.as_deref().unwrap_or("default"),
        )
    }
}

/// A key that was just issued, as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewKeyOutput<'a> {
    id: i64,
    key: &'a str,
    prefix: &'a str,
    name: &'a str,
    scopes: Vec<&'static str>,
    expires_at: Option<String>,
    rate_limit: Option<String>,
}

impl<'a> NewKeyOutput<'a> {
    pub(super) fn new(id: KeyId, key: &'a ApiKey, new: &'a NewKey) -> Self {
        Self {
            id: id.0,
            key: key.reveal(),
            prefix: key.prefix(),
            name: new.name.as_str(),
            scopes: new.scopes.iter().map(|scope| scope.as_str()).collect(),
            expires_at: new.expires_at.map(time),
            rate_limit: new.rate_limit.map(|limit| limit.to_string()),
        }
    }
}

/// An entry of a key's audit log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeyAuditEntryOutput {
    happened_at: String,
    action: String,
    actor: String,
    successor_id: Option<i64>,
}

impl From<KeyEvent> for KeyAuditEntryOutput {
    fn from(event: KeyEvent) -> Self {
        Self {
            happened_at: time(event.happened_at),
            action: event.action,
            actor: event.actor,
            successor_id: event.successor.map(|id| id.0),
        }
    }
}

impl KeyAuditEntryOutput {
    /// The entry as text.
    pub(super) fn line(&self) -> String {
        let successor = self.successor_id.map(|id| format!(", replaced by key {id}")).unwrap_or_default();
        format!("{}  {} by {}{successor}\n", self.happened_at, self.action, self.actor)
    }
}

/// The keys as a table, one row per key.
pub(super) fn table(keys: &[KeyOutput]) -> String {
    let heading =
        ["ID", "PREFIX", "NAME", "STATE", "SCOPES", "RATE LIMIT", "CREATED", "EXPIRES", "LAST USED"];
    let rows = keys.iter().map(|key| {
        [
            key.id.to_string(),
            key.prefix.clone(),
            key.name.clone(),
            key.state.to_owned(),
            key.scopes.join(" "),
            key.rate_limit.clone().unwrap_or_else(|| "-".to_owned()),
            key.created_at.clone(),
            key.expires_at.clone().unwrap_or_else(|| "never".to_owned()),
            key.last_used_at.clone().unwrap_or_else(|| "never".to_owned()),
        ]
    });
    let rows: Vec<[String; 9]> = std::iter::once(heading.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; 9] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats a time in RFC 3339 format, to the second. A time that has no such form is shown as the nearest one that has.
pub(super) fn time(moment: SystemTime) -> String {
    petstore_wire::time::timestamp(moment).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
