//! The file of `petstore keys apply`: a TOML table of keys by name.
//!
//! **Invariant:** every problem is reported with its line, and no message repeats a value that may be a key.
//!
//! Deserialising into a struct with serde would save 88 lines, but serde stops at the first problem, suggests no names, and
//! repeats a value of the wrong type, which may be a key.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use petstore_domain::api_key::{ApiKey, KeyDigest};
use petstore_domain::key_record::{KeyName, NewKey, Scope};
use petstore_wire::suggestions::{listed, shown, similar};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const ROOT: [&str; 1] = ["keys"];
const MEMBERS: [&str; 4] = ["scopes", "rate-limit", "expires", "digest"];

/// A key as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyEntry {
    pub(super) key: NewKey,
    pub(super) digest: Option<KeyDigest>,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(super) struct KeysFileError {
    file: String,
    /// By line.
    problems: Vec<(usize, String)>,
}

impl fmt::Display for KeysFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (line, problem)) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_char('\n')?;
            }
            write!(f, "{}:{line}: {problem}", self.file)?;
        }
        Ok(())
    }
}

/// Reads the keys, in the order of the file.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<KeyEntry>, KeysFileError> {
    let mut reader = Reader { text, problems: Vec::new() };
    let entries = match DeTable::parse(text) {
        Ok(root) => reader.root(root.get_ref()),
        Err(error) => {
            let span = error.span().unwrap_or_default();
            reader.problem(&span, error.message().replace('\n', ", "));
            Vec::new()
        }
    };
    if reader.problems.is_empty() {
        return Ok(entries);
    }
    reader.problems.sort();
    Err(KeysFileError { file: file.to_owned(), problems: reader.problems })
}

type Member<'a> = Spanned<DeValue<'a>>;

struct Reader<'a> {
    text: &'a str,
    problems: Vec<(usize, String)>,
}

impl Reader<'_> {
    fn problem(&mut self, at: &Range<usize>, problem: impl Into<String>) {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        self.problems.push((before.matches('\n').count() + 1, problem.into()));
    }

    fn root(&mut self, root: &DeTable<'_>) -> Vec<KeyEntry> {
        for (name, _) in root.iter().filter(|(name, _)| !ROOT.contains(&&**name.get_ref())) {
            let problem =
                format!("unknown table `{}`: {}", shown(name.get_ref()), meant(name.get_ref(), &ROOT));
            self.problem(&name.span(), problem);
        }
        let Some(keys) = root.get("keys") else { return Vec::new() };
        let Some(table) = keys.get_ref().as_table() else {
            self.problem(&keys.span(), "`keys` must be a table: declare a key as [keys.NAME]");
            return Vec::new();
        };
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|(name, _)| name.span().start);
        let mut entries = Vec::new();
        let mut digests: BTreeMap<String, String> = BTreeMap::new();
        for (name, member) in members {
            let shown_name = shown(name.get_ref());
            let Some(table) = member.get_ref().as_table() else {
                self.problem(&name.span(), format!("`{shown_name}` must be a table: [keys.{shown_name}]"));
                continue;
            };
            let Some(entry) = self.entry(name, &shown_name, table) else { continue };
            if let Some(digest) = entry.digest
                && let Some(other) = digests.insert(digest.to_string(), shown_name.clone())
            {
                self.problem(&name.span(), format!("`{shown_name}` has the same digest as `{other}`"));
            }
            entries.push(entry);
        }
        entries
    }

    fn entry(
        &mut self,
        name: &Spanned<impl AsRef<str>>,
        shown_name: &str,
        table: &DeTable<'_>,
    ) -> Option<KeyEntry> {
        let problems = self.problems.len();
        for (member, _) in table.iter().filter(|(member, _)| !MEMBERS.contains(&&**member.get_ref())) {
            let unknown = member.get_ref();
            let problem = format!(
                "`{shown_name}` has an unknown member `{}`: {}",
                shown(unknown),
                meant(unknown, &MEMBERS)
            );
            self.problem(&member.span(), problem);
        }
        let key_name = name.get_ref().as_ref().parse::<KeyName>();
        if let Err(error) = &key_name {
            self.problem(&name.span(), error.to_string());
        }
        let scopes = if let Some(scopes) = table.get("scopes") {
            self.scopes(shown_name, scopes)
        } else {
            let names = listed(Scope::ALL.iter().map(|scope| scope.as_str()));
            let problem = format!("`{shown_name}` has no `scopes`: list what the key may do, of {names}");
            self.problem(&name.span(), problem);
            Vec::new()
        };
        let rate_limit = table.get("rate-limit").and_then(|member| {
            self.value(shown_name, "rate-limit", member, |value| {
                value.as_str().unwrap_or_default().parse().map_err(|error| format!("{error}"))
            })
        });
        let expires_at =
            table.get("expires").and_then(|member| self.value(shown_name, "expires", member, expires));
        let digest = table.get("digest").and_then(|member| self.value(shown_name, "digest", member, digest));
        if self.problems.len() > problems {
            return None;
        }
        let expires_at = expires_at.map(Into::into);
        Some(KeyEntry { key: NewKey { name: key_name.ok()?, scopes, expires_at, rate_limit }, digest })
    }

    fn value<T>(
        &mut self,
        entry: &str,
        name: &str,
        member: &Member<'_>,
        parse: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        let parsed = parse(member.get_ref());
        parsed.map_err(|error| self.problem(&member.span(), format!("`{name}` of `{entry}` {error}"))).ok()
    }

    fn scopes(&mut self, entry: &str, member: &Member<'_>) -> Vec<Scope> {
        let mut scopes = Vec::new();
        let Some(list) = member.get_ref().as_array().filter(|list| !list.is_empty()) else {
            self.problem(
                &member.span(),
                format!(
                    "`scopes` of `{entry}` must be a list of at least one scope, such as [\"pets:read\"]"
                ),
            );
            return scopes;
        };
        for item in list {
            let text = item.get_ref().as_str().unwrap_or_default();
            match text.parse::<Scope>() {
                Ok(scope) if scopes.contains(&scope) => {}
                Ok(scope) => scopes.push(scope),
                Err(error) => {
                    let known = Scope::ALL.iter().map(|scope| scope.as_str());
                    let advice = similar(text, known)
                        .map_or(error.to_string(), |known| format!("did you mean `{known}`?"));
                    self.problem(
                        &item.span(),
                        format!("`{entry}` has an unknown scope `{}`: {advice}", shown(text)),
                    );
                }
            }
        }
        scopes
    }
}

/// What an unknown name may have meant.
fn meant(name: &str, known: &[&'static str]) -> String {
    let names = || {
        format!(
            "only {} {} known",
            listed(known.iter().copied()),
            if known.len() == 1 { "is" } else { "are" }
        )
    };
    similar(name, known.iter().copied()).map_or_else(names, |known| format!("did you mean `{known}`?"))
}

/// When a key expires. A duration would mean another time whenever the file is applied.
fn expires(value: &DeValue<'_>) -> Result<Timestamp, String> {
    let text = match value {
        DeValue::Datetime(time) => time.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    // A time also begins with a date, which jiff would accept.
    let day = (text.len() == "2027-01-31".len()).then(|| text.parse::<Date>().ok()).flatten();
    let midnight = day.and_then(|day| day.to_zoned(TimeZone::UTC).ok()).map(|day| day.timestamp());
    midnight.or_else(|| text.parse().ok()).ok_or_else(|| {
        "must be a date, such as 2027-01-31, or a time with an offset, such as 2027-01-31T12:00:00Z"
            .to_owned()
    })
}

fn digest(value: &DeValue<'_>) -> Result<KeyDigest, String> {
    let text = value.as_str().unwrap_or_default();
    if text.parse::<ApiKey>().is_ok() {
        return Err(
            "must be the digest of a key, but it is a key: rotate that key, it is in a file now".to_owned()
        );
    }
    text.parse().map_err(|error| format!("{error}"))
}
