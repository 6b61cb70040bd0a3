//! Finds environment variables that look like settings but aren't, such as a misspelt one.

use clap::{Command, CommandFactory};
use petstore_wire::suggestions::nearest;
use thiserror::Error;

use super::Cli;

/// What our own clients read, and examples set in a shell.
const OF_CLIENTS: [&str; 2] = ["PETSTORE_URL", "PETSTORE_KEY"];

/// A variable that no setting has.
#[derive(Debug, Error)]
#[error("the environment variable {name} is not a setting; the nearest is {nearest}")]
pub(super) struct UnknownVariable {
    name: String,
    nearest: String,
}

/// Checks all variables of the environment that start like those of this program.
pub(super) fn check_environment() -> Result<(), UnknownVariable> {
    check_variables(petstore_config::variables())
}

/// Checks all of these variables that start like those of this program.
pub(super) fn check_variables(names: impl IntoIterator<Item = String>) -> Result<(), UnknownVariable> {
    let known = known_variables();
    let mut ours = names.into_iter().filter(|name| name.starts_with(petstore_config::PREFIX));
    match ours.find(|name| is_unknown(name, &known)) {
        Some(name) => {
            let nearest = nearest(&name, known.iter().map(String::as_str)).unwrap_or_default().to_owned();
            Err(UnknownVariable { name, nearest })
        }
        None => Ok(()),
    }
}

fn is_unknown(name: &str, known: &[String]) -> bool {
    !known.iter().any(|known| known == name) && !OF_CLIENTS.contains(&name) && !is_service_link(name)
}

/// Whether Kubernetes sets it, in every pod of a namespace, for a service whose name starts with `petstore`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

/// The variables of all commands.
pub(super) fn known_variables() -> Vec<String> {
    fn collect(command: &Command, known: &mut Vec<String>) {
        let variables = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
        known.extend(variables.map(ToOwned::to_owned));
        command.get_subcommands().for_each(|command| collect(command, known));
    }
    let mut known = Vec::new();
    collect(&Cli::command(), &mut known);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_is_unknown_and_what_others_set_is_not() {
        let known = known_variables();
        for name in ["PETSTORE_LISTNE", "PETSTORE_TRUSTED_PROXY", "PETSTORE_"] {
            assert!(is_unknown(name, &known), "{name}");
        }
        for name in [
            "PETSTORE_LISTEN",
            "PETSTORE_MIGRATE_PATIENCE",
            "PETSTORE_KEY",
            "PETSTORE_SERVICE_HOST",
            "PETSTORE_SERVICE_PORT_HTTP",
            "PETSTORE_PORT",
            "PETSTORE_ADMIN_PORT_9090_TCP_ADDR",
        ] {
            assert!(!is_unknown(name, &known), "{name}");
        }
    }
}
