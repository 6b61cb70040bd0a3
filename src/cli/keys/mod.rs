//! `petstore keys`: one file per command.

mod apply;
mod create;
mod generate;
mod keys_file;
mod list;
mod output;
mod plan_output;
mod revoke;
mod rotate;
mod show;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use petstore_domain::key_record::{Actor, KeyId};
use petstore_storage::Storage;

use super::error::CommandError;

/// Manages API keys: creates, lists, rotates and revokes them.
#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    Create(create::CreateCommand),
    List(list::ListCommand),
    Show(show::ShowCommand),
    Rotate(rotate::RotateCommand),
    Revoke(revoke::RevokeCommand),
    Apply(apply::ApplyCommand),
    Generate(generate::GenerateCommand),
}

impl KeysCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        match self {
            Self::Create(create) => create.run().await,
            Self::List(list) => list.run().await,
            Self::Show(show) => show.run().await,
            Self::Rotate(rotate) => rotate.run().await,
            Self::Revoke(revoke) => revoke.run().await,
            Self::Apply(apply) => apply.run().await,
            Self::Generate(generate) => generate.run(),
        }
    }
}

/// Who runs the command.
#[derive(Debug, Args)]
struct ActorArgs {
    /// Who makes this change, for the key's audit log. The default is the system's user and host name, as `user@host`.
    #[arg(long, value_name = "WHO")]
    by: Option<Actor>,
}

impl ActorArgs {
    fn actor(self) -> Result<Actor, CommandError> {
        if let Some(actor) = self.by {
            return Ok(actor);
        }
        // A container may run as a user id that has no name.
        let user = whoami::username().or_else(|_| user_id())?;
        let host = whoami::hostname().unwrap_or_else(|_| "localhost".to_owned());
        Ok(format!("{user}@{host}").parse()?)
    }
}

/// The id of the system's user, such as `uid-12345`.
fn user_id() -> io::Result<String> {
    Ok(format!("uid-{}", fs::metadata("/proc/self")?.uid()))
}

fn key_id(text: &str) -> Result<KeyId, &'static str> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.map(KeyId).ok_or("must be the id of a key: see `petstore keys list`")
}

fn no_such_key(id: KeyId) -> CommandError {
    format!("no key has the id {}: see `petstore keys list`", id.0).into()
}

/// When a key expires, as given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry {
    After(Duration),
    On(Date),
}

impl Expiry {
    fn at(self, now: Timestamp) -> Result<SystemTime, CommandError> {
        let at = match self {
            Self::After(time) => now.checked_add(time),
            Self::On(day) => day.to_zoned(TimeZone::UTC).map(|day| day.timestamp()),
        };
        let at = at
            .map_err(|_| "the expiry must be at most 9999-12-30: without --expires, the key never expires")?;
        if at <= now {
            return Err("the expiry must be in the future".into());
        }
        Ok(at.into())
    }
}

/// When a new key expires. The database's clock decides.
async fn expires_at(storage: &Storage, expiry: Option<Expiry>) -> Result<Option<SystemTime>, CommandError> {
    let Some(expiry) = expiry else { return Ok(None) };
    Ok(Some(expiry.at(storage.now().await?.try_into()?)?))
}

fn expiry(text: &str) -> Result<Expiry, &'static str> {
    let day = text.parse().map(Expiry::On);
    day.or_else(|_| duration(text).map(Expiry::After))
        .map_err(|_| "must be a duration such as 90d or 12h, or a date such as 2027-01-31")
}

/// The longest duration: a time that is so far away can still be written.
const MAX_DURATION: Duration = Duration::from_hours(24 * 365_000);

/// Parses a duration. A day has 24 hours and a week 7 days. Months and years have no fixed length and are rejected.
fn duration(text: &str) -> Result<Duration, &'static str> {
    let problem = "must be a duration such as 24h, 7d or 90m, at most 365000d";
    let span: Span = text.parse().map_err(|_| problem)?;
    let seconds =
        span.total((jiff::Unit::Second, jiff::SpanRelativeTo::days_are_24_hours())).map_err(|_| problem)?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= MAX_DURATION).ok_or(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    #[test]
    fn an_expiry_is_a_duration_or_a_date() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        for (text, at) in [
            ("90d", "2027-02-13T12:00:00Z"),
            ("12h", "2026-11-16T00:00:00Z"),
            ("2w", "2026-11-29T12:00:00Z"),
            ("2027-01-31", "2027-01-31T00:00:00Z"),
        ] {
            let at: Timestamp = at.parse().unwrap();
            assert_eq!(expiry(text).unwrap().at(now).unwrap(), SystemTime::from(at), "{text}");
        }
        assert!(expiry("2026-11-15").unwrap().at(now).is_err(), "already past");
        for bad in ["", "soon", "90", "-1d", "3 months", "2027-13-01"] {
            assert!(expiry(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_day_has_24_hours() {
        assert_eq!(duration("1d"), Ok(Duration::from_secs(DAY)));
        assert_eq!(duration("1d 12h"), Ok(Duration::from_secs(DAY * 3 / 2)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert!(duration("1y").is_err());
    }
}
