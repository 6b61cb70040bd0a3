//! What operators are told, held against the program.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};
use petstore::cli::Cli;

use crate::support::postgres::ROOT;

const PAGE: &str = "docs/operations.md";

/// The settings of a command that have an environment variable.
fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|setting| setting.get_env().is_some())
}

fn variable(setting: &Arg) -> &str {
    setting.get_env().unwrap().to_str().unwrap()
}

/// The settings of `serve` and `migrate`, each once, as a table.
fn table() -> String {
    let cli = Cli::command();
    let mut table = String::from("| flag | environment variable | default | |\n|---|---|---|---|\n");
    let mut known = BTreeSet::new();
    for name in ["serve", "migrate"] {
        for setting in settings(cli.find_subcommand(name).unwrap()).chain(settings(&cli)) {
            if !known.insert(variable(setting)) {
                continue;
            }
            let default = setting.get_default_values().first().map(|value| value.to_str().unwrap());
            let default = default.map(|value| format!("`{value}`")).unwrap_or_default();
            let flag = setting.get_long().unwrap();
            let help = setting.get_help().unwrap().to_string().replace('\n', " ");
            writeln!(table, "| `--{flag}` | `{}` | {default} | {help} |", variable(setting)).unwrap();
        }
    }
    table
}

#[test]
fn the_table_of_settings_is_made_from_the_command_line() {
    let path = Path::new(ROOT).join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let begin = page.find("| flag | environment variable |").unwrap();
    let end = begin + page[begin..].find("\n\n").unwrap() + 1;
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        fs::write(&path, [&page[..begin], &table(), &page[end..]].concat()).unwrap();
        return;
    }
    assert_eq!(&page[begin..end], table(), "run `make settings`");
}

/// Every file below a folder.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(path) } else { vec![path] }).collect()
}

#[test]
fn what_is_deployed_names_only_settings_that_exist() {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    let migrate = cli.find_subcommand("migrate").unwrap();
    let known: BTreeSet<&str> =
        settings(serve).chain(settings(migrate)).chain(settings(&cli)).map(variable).collect();
    let mut named = 0;
    for file in files(Path::new(ROOT).join("deploy")).into_iter().chain([Path::new(ROOT).join(PAGE)]) {
        let text = fs::read_to_string(&file).unwrap();
        let is_part = |character: char| character.is_ascii_uppercase() || character == '_';
        for word in text.split(|character| !is_part(character)).filter(|word| word.starts_with("PETSTORE_")) {
            assert!(known.contains(word), "{} names {word}", file.display());
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}
