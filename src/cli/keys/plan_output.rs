//! The output of `petstore keys apply`: a plan as text and JSON.
//!
//! The text is formatted from the fields of the JSON. One table for new and changed fields would save 11 lines, but needs a
//! comparison and a format for each column, because scopes have no order and times are compared to the second.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::SystemTime;

use petstore_domain::api_key::ApiKey;
use petstore_domain::key_plan::{DeclaredKey, ExistingKey, KeyPlan, KeyStep, KeyTerms};
use petstore_domain::key_record::KeyId;
use serde::Serialize;
use serde_json::{Value, json};

use super::output::time;

/// A plan, as JSON; [`text`](Self::text) formats it for people.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanOutput {
    dry_run: bool,
    steps: Vec<StepOutput>,
    undeclared: Vec<UndeclaredOutput>,
    expired: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StepOutput {
    action: &'static str,
    name: String,
    /// Unknown in a dry run, if the key is to be issued.
    id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<i64>,
    /// Only of a key that was issued and is not kept elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    fields: Vec<FieldOutput>,
}

#[derive(Debug, Serialize)]
struct FieldOutput {
    name: &'static str,
    /// None in a new key.
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<Value>,
    new: Value,
}

#[derive(Debug, Serialize)]
struct UndeclaredOutput {
    id: i64,
    name: String,
}

impl PlanOutput {
    /// A plan that was not carried out.
    pub(super) fn planned(plan: &KeyPlan) -> Self {
        Self::new(plan, None, &HashMap::new())
    }

    /// A plan that was carried out. `issued` has the id that each step issued, and `keys` the generated keys by name.
    pub(super) fn applied(plan: &KeyPlan, issued: &[Option<KeyId>], keys: &HashMap<String, ApiKey>) -> Self {
        Self::new(plan, Some(issued), keys)
    }

    fn new(plan: &KeyPlan, issued: Option<&[Option<KeyId>]>, keys: &HashMap<String, ApiKey>) -> Self {
        let id = |index: usize| issued.and_then(|issued| *issued.get(index)?).map(|id| id.0);
        let steps = plan.steps.iter().enumerate().map(|(index, step)| step_output(step, id(index), keys));
        let undeclared = plan.undeclared.iter();
        Self {
            dry_run: issued.is_none(),
            steps: steps.collect(),
            undeclared: undeclared
                .map(|key| UndeclaredOutput { id: key.id.0, name: key.name.clone() })
                .collect(),
            expired: plan.expired.iter().map(|entry| entry.name().to_owned()).collect(),
        }
    }

    /// The plan as text, with the issued keys at the end.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            step.write(&mut text);
        }
        for UndeclaredOutput { id, name } in &self.undeclared {
            let _ = writeln!(text, "  keep {name} (key {id}): not in the file; --prune revokes it");
        }
        for name in &self.expired {
            let _ = writeln!(text, "  skip {name}: its expiry has passed");
        }
        text.push_str(&self.summary());
        let issued = self.steps.iter().filter_map(|step| Some((&step.name, step.key.as_ref()?)));
        for (index, (name, key)) in issued.enumerate() {
            let heading = if index == 0 { "\nnew keys, shown only this once:\n" } else { "" };
            let _ = writeln!(text, "{heading}{name}  {key}");
        }
        text
    }

    fn summary(&self) -> String {
        if self.steps.is_empty() {
            return "no changes\n".to_owned();
        }
        let counts = ["create", "change", "rotate", "revoke"].map(|action| {
            let count = self.steps.iter().filter(|step| step.action == action).count();
            if self.dry_run { format!("{count} to {action}") } else { format!("{count} {action}d") }
        });
        format!("{}: {}\n", if self.dry_run { "plan" } else { "applied" }, counts.join(", "))
    }
}

impl StepOutput {
    fn write(&self, text: &mut String) {
        let Self { action, name, id, replaces, fields, .. } = self;
        let sign = match *action {
            "create" => '+',
            "revoke" => '-',
            _ => '~',
        };
        let old = replaces.map(|id| format!("key {id}"));
        let new = id.map(|id| format!("key {id}"));
        let keys = match *action {
            "create" => [new, old.map(|old| format!("replaces {old}"))],
            _ => [old.or(new), None],
        };
        let keys = keys.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let keys = if keys.is_empty() { keys } else { format!(" ({keys})") };
        let _ = writeln!(text, "{sign} {action} {name}{keys}");
        for field in fields {
            let old = field.old.as_ref().map(|old| format!("{} → ", field.shown(old))).unwrap_or_default();
            let _ = writeln!(text, "    {:<15} {old}{}", field.label(), field.shown(&field.new));
        }
    }
}

impl FieldOutput {
    fn label(&self) -> &'static str {
        match self.name {
            "rateLimit" => "rate limit",
            "expiresAt" => "expires",
            "replacedUntil" if self.new.is_null() => "old key",
            "replacedUntil" => "old key expires",
            name => name,
        }
    }

    fn shown(&self, value: &Value) -> String {
        match value {
            Value::Null if self.name == "rateLimit" => "default".to_owned(),
            Value::Null if self.name == "replacedUntil" => "revoked at once".to_owned(),
            Value::Null => "never".to_owned(),
            Value::Array(scopes) => scopes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
            // The start is enough to recognise a digest.
            Value::String(digest) if self.name == "digest" => digest.chars().take(12).collect(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

fn step_output(step: &KeyStep, issued: Option<i64>, keys: &HashMap<String, ApiKey>) -> StepOutput {
    let existing = |action, key: &ExistingKey, fields| StepOutput {
        action,
        name: key.name.clone(),
        id: Some(key.id.0),
        replaces: None,
        key: None,
        fields,
    };
    match step {
        KeyStep::Create { declared, predecessor } => StepOutput {
            action: "create",
            name: declared.name().to_owned(),
            id: issued,
            replaces: predecessor.as_ref().map(|key| key.id.0),
            key: issued.and_then(|_| generated(declared, keys)),
            fields: new_fields(declared),
        },
        KeyStep::Change { key, terms } => existing("change", key, changed_fields(&key.terms, terms)),
        KeyStep::Rotate { key, until, declared } => {
            let (old, new) = (Some(json!(key.digest.to_string())), json!(declared.stored().1.to_string()));
            let mut fields = vec![FieldOutput { name: "digest", old, new }];
            fields.push(FieldOutput { name: "replacedUntil", old: None, new: expiry(*until) });
            fields.push(FieldOutput { name: "expiresAt", old: None, new: expiry(declared.key.expires_at) });
            StepOutput { id: issued, replaces: Some(key.id.0), ..existing("rotate", key, fields) }
        }
        KeyStep::End { key, until, .. } => {
            let terms = KeyTerms { expires_at: Some(*until), ..key.terms.clone() };
            existing("change", key, changed_fields(&key.terms, &terms))
        }
        KeyStep::Revoke { key } => existing("revoke", key, Vec::new()),
    }
}

/// The key that was generated for an entry, if the file has no digest.
fn generated(declared: &DeclaredKey, keys: &HashMap<String, ApiKey>) -> Option<String> {
    keys.get(declared.name()).map(|key| key.reveal().to_owned())
}

fn new_fields(declared: &DeclaredKey) -> Vec<FieldOutput> {
    let terms = declared.terms();
    let mut fields = vec![
        FieldOutput { name: "scopes", old: None, new: json!(terms.scopes) },
        FieldOutput { name: "rateLimit", old: None, new: rate_limit(&terms) },
        FieldOutput { name: "expiresAt", old: None, new: expiry(terms.expires_at) },
    ];
    if let Some(digest) = declared.declared_digest() {
        fields.push(FieldOutput { name: "digest", old: None, new: json!(digest.to_string()) });
    }
    fields
}

fn changed_fields(old: &KeyTerms, new: &KeyTerms) -> Vec<FieldOutput> {
    let mut fields = Vec::new();
    let scopes = KeyTerms { scopes: new.scopes.clone(), ..old.clone() };
    if !old.has_same_rights(&scopes) {
        fields.push(FieldOutput { name: "scopes", old: Some(json!(old.scopes)), new: json!(new.scopes) });
    }
    if old.rate_limit != new.rate_limit {
        fields.push(FieldOutput { name: "rateLimit", old: Some(rate_limit(old)), new: rate_limit(new) });
    }
    if !old.has_same_expiry(new) {
        let (old, new) = (Some(expiry(old.expires_at)), expiry(new.expires_at));
        fields.push(FieldOutput { name: "expiresAt", old, new });
    }
    fields
}

fn rate_limit(terms: &KeyTerms) -> Value {
    json!(terms.rate_limit.map(|limit| limit.to_string()))
}

fn expiry(at: Option<SystemTime>) -> Value {
    json!(at.map(time))
}
