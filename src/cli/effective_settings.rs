//! The settings that a command received, and where each came from.

use std::ffi::OsStr;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};
use serde::Serialize;

use super::Cli;

/// A setting and its source.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    pub(super) flag: String,
    pub(super) value: Option<String>,
    pub(super) source: &'static str,
    /// Whether it has its default value.
    #[serde(skip)]
    pub(super) is_default: bool,
}

/// The settings, as this command received them.
pub(super) fn effective_settings() -> Vec<Setting> {
    let mut cli = Cli::command();
    let matches = cli.get_matches_mut();
    let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
    let command = cli.find_subcommand(name);
    let arguments = command.into_iter().flat_map(clap::Command::get_arguments);
    arguments
        .filter(|argument| argument.get_env().is_some())
        .map(|argument| setting(argument, matches))
        .collect()
}

fn setting(argument: &Arg, matches: &ArgMatches) -> Setting {
    let id = argument.get_id().as_str();
    let joined = |values: &mut dyn Iterator<Item = &OsStr>| {
        values.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(",")
    };
    let raw = matches.get_raw(id).map(|mut values| joined(&mut values));
    let default = joined(&mut argument.get_default_values().iter().map(clap::builder::OsStr::as_os_str));
    let is_default = raw.as_ref().is_none_or(|value| *value == default);
    let value =
        raw.map(|value| if argument.is_hide_env_values_set() { redact_password(&value) } else { value });
    let source = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => "flag",
        Some(ValueSource::EnvVariable) => "environment",
        Some(_) => "default",
        None => "not set",
    };
    Setting { flag: format!("--{}", argument.get_long().unwrap_or(id)), value, source, is_default }
}

/// Replaces the password in a URL, whether it is in front of the last `@` before the path or in the query.
fn redact_password(url: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let rest = match rest.rsplit_once('@') {
        Some((user, hosts)) => {
            let user = user.split_once(':').map_or(user.to_owned(), |(user, _)| format!("{user}:***"));
            format!("{user}@{hosts}")
        }
        None => rest.to_owned(),
    };
    let redact = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("pass") => format!("{name}=***"),
        _ => pair.to_owned(),
    };
    let query = query.map(|query| format!("?{}", query.split('&').map(redact).collect::<Vec<_>>().join("&")));
    format!("{scheme}://{rest}{}", query.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_redacted() {
        for (url, redacted) in [
            ("postgresql://shop:secret@db/petstore", "postgresql://shop:***@db/petstore"),
            (
                "postgresql://shop:se@cr:et@a,b:5433/p?sslmode=require",
                "postgresql://shop:***@a,b:5433/p?sslmode=require",
            ),
            (
                "postgresql://db/petstore?user=shop&password=secret",
                "postgresql://db/petstore?user=shop&password=***",
            ),
            ("postgresql://shop@db/petstore", "postgresql://shop@db/petstore"),
        ] {
            assert_eq!(redact_password(url), redacted);
        }
    }
}
