//! The settings that a command received, and where each came from.

use std::ffi::OsStr;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};
use petstore_storage::without_password;
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
    let value = if argument.is_hide_env_values_set() {
        let shown =
            |url: String| without_password(&url).unwrap_or_else(|| "(not shown: not a valid URL)".into());
        raw.map(shown)
    } else {
        raw
    };
    let source = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => "flag",
        Some(ValueSource::EnvVariable) => "environment",
        Some(_) => "default",
        None => "not set",
    };
    Setting { flag: format!("--{}", argument.get_long().unwrap_or(id)), value, source, is_default }
}
