//! Numbers on the pages for operators that would mislead them if the program had others.
//!
//! **To add one**, add the part of the sentence: the page must contain it once, wherever its lines break.

use clap::CommandFactory;
use petstore::cli::Cli;
use petstore_config::GET_PET_REMOVAL;
use petstore_config::version::VERSION;
use petstore_storage::{DAYS_AHEAD, SCHEMA_LATEST, SCHEMA_NEEDED};

use crate::support::memory::memory_needed;
use crate::support::repository::read;

/// The default of a flag.
fn default_of(command: &str, flag: &str) -> String {
    let cli = Cli::command();
    let keys = cli.find_subcommand("keys").unwrap();
    let command = cli.find_subcommand(command).or_else(|| keys.find_subcommand(command)).unwrap();
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag)).unwrap();
    argument.get_default_values()[0].to_str().unwrap().to_owned()
}

/// The same for a number with or without a unit.
fn number(command: &str, flag: &str) -> u64 {
    default_of(command, flag).trim_end_matches(['s', 'h']).parse().unwrap()
}

fn gigabytes(megabytes: u64) -> String {
    let tenths = (megabytes + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// With a comma before the thousands.
fn grouped(number: u64) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

#[test]
fn the_pages_for_operators_have_the_numbers_of_the_program() {
    let (listen, admin) = (default_of("serve", "listen"), default_of("serve", "admin-listen"));
    let (requests, connections) = (number("serve", "max-requests"), number("serve", "max-connections"));
    let memory = gigabytes(memory_needed(connections, requests));
    let flags = ["drain-delay", "drain-timeout", "database-timeout"];
    let stopping: u64 = flags.into_iter().map(|flag| number("serve", flag)).sum();
    let job = VERSION.replace('.', "-");
    let pool = number("serve", "database-connections");
    let shared = format!("`--max-requests` | {} in total, {} per key |", grouped(requests), requests / 4);
    for (page, part) in [
        ("operations", format!("a public listener for clients (`{listen}`)")),
        ("operations", format!("health checks and metrics (`{admin}`)")),
        ("operations", format!("This is {memory} GB with the defaults")),
        (
            "operations",
            format!("is kept for {} days (`--event-retention`)", number("serve", "event-retention")),
        ),
        ("operations", format!("`--database-timeout` ({stopping} seconds by default)")),
        ("upgrade", format!("`--patience` ({} seconds)", number("migrate", "patience"))),
        ("upgrade", format!("--timeout 10m job/petstore-migrate-{job} ")),
        ("upgrade", format!("logs job/petstore-migrate-{job}`")),
        ("upgrade", format!("| {VERSION} | {SCHEMA_NEEDED} | {SCHEMA_LATEST} | yes |")),
        ("upgrade", format!("| {SCHEMA_LATEST} | a function that finds an idempotency key")),
        ("monitoring", format!("normally {DAYS_AHEAD} or {}; at 0, changes get 503", DAYS_AHEAD + 1)),
        ("runbook", format!("schema version {SCHEMA_LATEST}, the latest")),
        ("runbook", format!("partitions are left for {} days, including today", DAYS_AHEAD + 1)),
        ("runbook", format!("nodes {VERSION} (<commit>) on")),
        ("runbook", format!("this node uses up to {pool} ")),
        ("runbook", format!("Settings of petstore {VERSION} (<commit>)")),
        ("runbook", format!("getPet will be removed on {GET_PET_REMOVAL}.")),
        ("keys", format!("for `--overlap`, {} hours by default", number("apply", "overlap"))),
        ("keys", format!("| requests in flight | `--max-requests` | {} |", grouped(requests))),
        ("keys", format!("| requests whose body is still arriving | {shared}")),
        ("keys", format!("| requests that wait for an event | {shared}")),
        ("keys", format!("| half of `--database-connections` | {} |", pool / 2)),
        ("keys", format!("half of that for each operation | {} and {} |", pool / 4, pool / 8)),
        ("keys", format!("| `--max-connections` | {} |", grouped(connections))),
    ] {
        let text = read(&format!("docs/{page}.md")).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.matches(&part).count(), 1, "docs/{page}.md: {part}");
    }
}
