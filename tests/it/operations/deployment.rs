//! The pages for operators and the deployment files, checked against the program.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};
use petstore::cli::Cli;

use crate::support::memory::{KILOBYTES_PER_CONNECTION, memory_needed};
use crate::support::repository::{ROOT, read};

const OPERATIONS: &str = "docs/operations.md";
const CONFIGURATION: &str = "docs/configuration.md";
/// The pages for operators.
const PAGES: [&str; 7] = [
    OPERATIONS,
    CONFIGURATION,
    "docs/runbook.md",
    "docs/backup.md",
    "docs/keys.md",
    "docs/monitoring.md",
    "docs/upgrade.md",
];

/// The settings of a command that have an environment variable.
fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|setting| setting.get_env().is_some())
}

fn variable(setting: &Arg) -> &str {
    setting.get_env().unwrap().to_str().unwrap()
}

/// The settings of `serve` and `migrate`, each once, as a table with the first sentence of each help text.
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
            let first = help.split(". ").next().unwrap();
            writeln!(table, "| `--{flag}` | `{}` | {default} | {first} |", variable(setting)).unwrap();
        }
    }
    table
}

#[test]
fn the_table_of_settings_is_made_from_the_command_line() {
    let path = Path::new(ROOT).join(CONFIGURATION);
    let page = read(CONFIGURATION);
    let start = page.find("| flag | environment variable |").unwrap();
    let end = start + page[start..].find("\n\n").unwrap() + 1;
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        fs::write(&path, [&page[..start], &table(), &page[end..]].concat()).unwrap();
        return;
    }
    assert_eq!(&page[start..end], table(), "run `make generate NAME=settings`");
}

/// Every file below a folder.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(path) } else { vec![path] }).collect()
}

#[test]
fn deployment_files_name_only_existing_settings() {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    let migrate = cli.find_subcommand("migrate").unwrap();
    let known: BTreeSet<&str> =
        settings(serve).chain(settings(migrate)).chain(settings(&cli)).map(variable).collect();
    let mut named = 0;
    let pages = PAGES.map(|page| Path::new(ROOT).join(page));
    for file in files(Path::new(ROOT).join("deploy")).into_iter().chain(pages) {
        let text = fs::read_to_string(&file).unwrap();
        let is_part = |character: char| character.is_ascii_uppercase() || character == '_';
        // Not `PETSTORE_…`, which stands for all of them.
        let is_name = |word: &&str| word.starts_with("PETSTORE_") && *word != "PETSTORE_";
        for word in text.split(|character| !is_part(character)).filter(is_name) {
            assert!(known.contains(word), "{} names {word}", file.display());
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

#[test]
fn the_deployed_memory_limit_is_enough_for_the_allowed_connections() {
    let manifest = read("deploy/kubernetes/deployment.yaml");
    let after = |text: &str| {
        let rest = manifest.split_once(text).unwrap_or_else(|| panic!("no {text}")).1;
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
    };
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    let requests = settings(serve).find(|setting| variable(setting) == "PETSTORE_MAX_REQUESTS").unwrap();
    let requests = requests.get_default_values()[0].to_str().unwrap().parse().unwrap();
    assert!(!manifest.contains("PETSTORE_MAX_REQUESTS"), "the default is expected");
    let connections = after("PETSTORE_MAX_CONNECTIONS, value: \"");
    let limit = after("limits: { memory: ");
    assert!(manifest.contains(&format!("limits: {{ memory: {limit}Mi }}")));
    let needed = memory_needed(connections, requests);
    assert!(
        needed <= limit,
        "{connections} connections and {requests} requests may need {needed} MB of {limit}"
    );
    let sum =
        format!("64 MB + {KILOBYTES_PER_CONNECTION} KB × `--max-connections` + 64 KB × `--max-requests`");
    assert!(read(OPERATIONS).contains(&sum), "{OPERATIONS} lacks the formula: {sum}");
}

#[test]
fn the_pods_of_a_rollout_fit_into_the_default_number_of_connections() {
    let after = |manifest: &str, text: &str| {
        let rest = manifest.split_once(text).unwrap_or_else(|| panic!("no {text}")).1;
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
    };
    let deployment = read("deploy/kubernetes/deployment.yaml");
    // One pod stops while the next one starts, and is gone before that one counts as available.
    assert!(
        after(&deployment, "\n  minReadySeconds: ") >= after(&deployment, "terminationGracePeriodSeconds: "),
        "several pods would be stopping at the same time"
    );
    assert_eq!(after(&deployment, "maxUnavailable: "), 0);
    let replicas = after(&read("deploy/kubernetes/horizontalpodautoscaler.yaml"), "maxReplicas: ");
    let pods = replicas + after(&deployment, "maxSurge: ") + 1;
    let connections = after(&deployment, "PETSTORE_DATABASE_CONNECTIONS, value: \"");
    // Those of `petstore migrate`.
    let needed = pods * connections + 3;
    // PostgreSQL's default, without those for superusers, and with some for backups and psql.
    assert!(needed <= 100 - 3 - 5, "{pods} pods need {needed} connections");
    let sum = format!("{pods} × {connections} + 3 = {needed}");
    assert!(read(OPERATIONS).contains(&sum), "{OPERATIONS} lacks the sum: {sum}");
}

#[test]
fn the_service_has_its_own_role_and_only_the_job_is_the_owner() {
    let read = |file: &str| read(&format!("deploy/kubernetes/{file}"));
    let (deployment, migrate, secrets) =
        (read("deployment.yaml"), read("migrate.yaml"), read("secret.example.yaml"));
    assert!(deployment.contains("secretName: petstore,") && migrate.contains("secretName: petstore-owner,"));
    assert!(migrate.contains("args: [migrate, --grant-to, petstore_service]"));
    let (service, owner) = secrets.split_once("\n---\n").unwrap();
    assert!(service.contains("name: petstore\n") && service.contains("//petstore_service:"));
    assert!(owner.contains("name: petstore-owner\n") && owner.contains("//petstore_owner:"));
    // GitOps would create it again.
    assert!(!migrate.contains("  ttlSecondsAfterFinished"));
}
