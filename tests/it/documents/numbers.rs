//! Numbers that pages repeat, checked against the code.
//!
//! **To add a number**, add a row: the page, a part of a sentence with `{}` in place of each number, and the numbers as the code
//! has them. The page must contain exactly that, once, wherever its lines break. So the test fails if a number changes, in the
//! code or on the page, and if the sentence is gone.

use std::fmt::{Display, Write};
use std::time::Duration;

use clap::CommandFactory;
use petstore::cli::Cli;
use petstore_config::GET_PET_REMOVAL;
use petstore_config::version::VERSION;
use petstore_storage::{DAYS_AHEAD, SCHEMA_LATEST, SCHEMA_NEEDED};

use crate::support::memory::memory_needed;
use crate::support::repository::read;

/// A part of a page that has numbers of the code.
struct Row {
    page: &'static str,
    text: String,
}

/// A row: `text` with each `{}` replaced by the next number.
fn row(page: &'static str, text: &str, numbers: &[&dyn Display]) -> Row {
    let parts: Vec<&str> = text.split("{}").collect();
    assert!(!numbers.is_empty() && parts.len() == numbers.len() + 1, "{page}: one {{}} per number: {text}");
    let mut filled = parts[0].to_owned();
    for (number, part) in numbers.iter().zip(&parts[1..]) {
        write!(filled, "{number}{part}").unwrap();
    }
    Row { page, text: filled }
}

/// All rows, by page.
fn rows() -> Vec<Row> {
    [operations(), upgrade(), monitoring(), runbook(), keys()].into_iter().flatten().collect()
}

#[test]
fn the_numbers_on_the_pages_are_those_of_the_code() {
    let occurrences = |Row { page, text }: &Row| single_spaced(&read(page)).matches(text.as_str()).count();
    let wrong: Vec<String> = rows()
        .iter()
        .map(|row| (row, occurrences(row)))
        .filter(|(_, count)| *count != 1)
        .map(|(Row { page, text }, count)| format!("{page} has this {count} times instead of once: {text}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// The pages for operators.

fn operations() -> Vec<Row> {
    const PAGE: &str = "docs/operations.md";
    let [oldest, newest] = supported_postgresql();
    let deployment = "deploy/kubernetes/deployment.yaml";
    let deployed = number_after(deployment, "PETSTORE_MAX_CONNECTIONS, value: \"");
    let requests = default_number("serve", "max-requests");
    let memory = |connections| tenths(memory_needed(connections, requests));
    let autoscaler = "deploy/kubernetes/horizontalpodautoscaler.yaml";
    let stopping: u64 = ["drain-delay", "drain-timeout", "database-timeout"]
        .into_iter()
        .map(|flag| default_number("serve", flag))
        .sum();
    vec![
        row(PAGE, "**PostgreSQL {} to {}**", &[&oldest, &newest]),
        row(
            PAGE,
            "a public listener for clients (`{}`), and a private listener for health checks and metrics (`{}`)",
            &[&default_of("serve", "listen"), &default_of("serve", "admin-listen")],
        ),
        row(PAGE, "apt-get install ./petstore_{}-1_amd64.deb", &[&VERSION]),
        row(PAGE, "runs as user {}.", &[&number_after("deploy/Containerfile", "USER ")]),
        row(
            PAGE,
            "base with {} to {} pods",
            &[&number_after(autoscaler, "minReplicas: "), &number_after(autoscaler, "maxReplicas: ")],
        ),
        row(
            PAGE,
            "This is {} GB with the defaults, and {} GB with the {} connections that `deploy/kubernetes` allows",
            &[&memory(default_number("serve", "max-connections")), &memory(deployed), &grouped(deployed)],
        ),
        row(PAGE, "`LimitNOFILE={}`", &[&number_after("deploy/deb/petstore.service", "LimitNOFILE=")]),
        row(PAGE, "is kept for {} days (`--event-retention`)", &[&default_of("serve", "event-retention")]),
        row(PAGE, "`--database-timeout` ({} seconds by default)", &[&stopping]),
    ]
}

fn upgrade() -> Vec<Row> {
    const PAGE: &str = "docs/upgrade.md";
    let [oldest, newest] = supported_postgresql();
    let job = VERSION.replace('.', "-");
    let lock_timeout = constant("crates/storage/src/migrations.rs", "SET_LOCK_TIMEOUT");
    let lock_timeout = lock_timeout.split('\'').nth(1).unwrap().strip_suffix("ms").unwrap();
    let pause = number_after("deploy/kubernetes/deployment.yaml", "minReadySeconds: ");
    vec![
        row(PAGE, "waits for at most {} ms", &[&lock_timeout]),
        row(PAGE, "`--patience` ({} seconds)", &[&default_number("migrate", "patience")]),
        row(PAGE, "--timeout 10m job/petstore-migrate-{} ", &[&job]),
        row(PAGE, "logs job/petstore-migrate-{}`", &[&job]),
        row(PAGE, "replaces one pod every {} seconds", &[&pause]),
        row(PAGE, "| {} | {} | {} | yes |", &[&VERSION, &SCHEMA_NEEDED, &SCHEMA_LATEST]),
        row(PAGE, "| {}, {} | the [metadata]", &[&SCHEMA_NEEDED, &SCHEMA_LATEST]),
        row(PAGE, "petstore runs on PostgreSQL {} to {}.", &[&oldest, &newest]),
    ]
}

fn monitoring() -> Vec<Row> {
    const PAGE: &str = "docs/monitoring.md";
    let check = duration("crates/storage/src/database_metrics.rs", "POLL_INTERVAL").as_secs();
    let scrape = number_after("deploy/prometheus/prometheus.yaml", "scrape_interval: ");
    let mut rows = vec![
        row(PAGE, "Prometheus, every {} seconds or more often", &[&scrape]),
        row(PAGE, "a node checks every {} seconds", &[&check]),
        row(PAGE, "normally {} or {}; at 0, changes get 503", &[&DAYS_AHEAD, &(DAYS_AHEAD + 1)]),
    ];
    for rule in [
        "petstore:availability:objective",
        "petstore:latency:objective",
        "petstore:latency:threshold",
        "petstore:failures:minimum",
    ] {
        rows.push(row(PAGE, &format!("| `{rule}` | {{}} |"), &[&rule_setting(rule)]));
    }
    rows
}

fn runbook() -> Vec<Row> {
    const PAGE: &str = "docs/runbook.md";
    let threshold: f64 = rule_setting("petstore:latency:threshold").parse().unwrap();
    vec![
        row(PAGE, "schema version {}, the latest", &[&SCHEMA_LATEST]),
        row(PAGE, "partitions are left for {} days, including today", &[&(DAYS_AHEAD + 1)]),
        row(PAGE, "nodes {} (<commit>) on", &[&VERSION]),
        row(PAGE, "this node uses up to {} ", &[&default_of("serve", "database-connections")]),
        row(PAGE, "Settings of petstore {} (<commit>)", &[&VERSION]),
        row(
            PAGE,
            "for {}, Prometheus has not been able to reach any of the nodes",
            &[&alert_duration("PetstoreDown")],
        ),
        row(PAGE, "unable to reach one of the nodes for {}.", &[&alert_duration("PetstoreNodeDown")]),
        row(PAGE, "or commits have been running for {}.", &[&alert_duration("PetstoreVersionsMixed")]),
        row(PAGE, "check has failed for {}.", &[&alert_duration("PetstoreDatabaseAway")]),
        row(PAGE, "requests that take longer than {} ms", &[&(threshold * 1_000.0)]),
        row(PAGE, "for {}, PostgreSQL has not been able", &[&alert_duration("PetstoreArchivingFailing")]),
        row(PAGE, "fewer than {} days of partitions for", &[&in_words(DAYS_AHEAD - 1)]),
        row(PAGE, "should create the partitions for the next {} days", &[&in_words(DAYS_AHEAD)]),
        row(PAGE, "for the last {}, the [event feed]", &[&alert_duration("PetstoreEventsHeldBack")]),
        row(PAGE, "for the last {}, some orders have been open", &[&alert_duration("PetstoreOrdersOverdue")]),
        row(
            PAGE,
            "an API key expires within {} days",
            &[&number_after("deploy/prometheus/rules.yaml", "- time() < ")],
        ),
        row(PAGE, "for {}, a node has used more than 80 %", &[&alert_duration("PetstoreFileDescriptors")]),
        row(PAGE, "getPet will be removed on {}.", &[&GET_PET_REMOVAL]),
    ]
}

fn keys() -> Vec<Row> {
    const PAGE: &str = "docs/keys.md";
    let cache = "crates/http/src/authentication/key_cache.rs";
    let throttle = "crates/http/src/authentication/unknown_key_throttle.rs";
    let limits = "crates/http/src/rate_limits.rs";
    let busy = "crates/postgres/src/checked_out_connection.rs";
    let usable = duration(cache, "RECORD_TTL").as_secs();
    let recorded = i32::try_from(duration(cache, "FLUSH_INTERVAL").as_secs()).unwrap();
    let requests = default_number("serve", "max-requests");
    let of_a_key = requests / digits(&constant("crates/http/src/admission_control.rs", "KEY_SHARE_DIVISOR"));
    let shared = format!("{} in total, {} per key", grouped(requests), grouped(of_a_key));
    let connections = grouped(default_number("serve", "max-connections"));
    let per_address = grouped(default_number("serve", "max-connections-per-address"));
    vec![
        row(PAGE, "Nodes record it every {} seconds", &[&in_words(recorded)]),
        row(PAGE, "for `--overlap`, {} hours by default", &[&default_number("apply", "overlap")]),
        row(PAGE, "caches a key for at most {} seconds", &[&usable]),
        row(
            PAGE,
            "for the next {} seconds without looking it up again. If a node receives more than {} unknown \
             keys per second from one address, it delays each lookup for that address by one second. Above {} \
             unknown keys per second from all addresses",
            &[
                &usable,
                &digits(&constant(throttle, "MAX_PER_ADDRESS")),
                &digits(&constant(throttle, "MAX_IN_TOTAL")),
            ],
        ),
        row(PAGE, "are accepted for up to {} seconds", &[&usable]),
        row(PAGE, "tracks the limits of {} keys", &[&grouped(digits(&constant(limits, "MAX_LIMITERS")))]),
        row(PAGE, "| requests in flight | `--max-requests` | {} |", &[&grouped(requests)]),
        row(PAGE, "| requests whose body is still arriving | `--max-requests` | {} |", &[&shared]),
        row(PAGE, "| requests that wait for an event | `--max-requests` | {} |", &[&shared]),
        row(
            PAGE,
            "| orders, updates and deletions in progress | half of `--database-connections` | {} |",
            &[&(default_number("serve", "database-connections") / 2)],
        ),
        row(
            PAGE,
            "one at a time | further ones queue for at most {} seconds",
            &[&duration("crates/postgres/src/transaction.rs", "QUEUE_WAIT").as_secs()],
        ),
        row(PAGE, "lock for longer than {} milliseconds", &[&duration(busy, "BRIEF_WAIT").as_millis()]),
        row(
            PAGE,
            "half of that for each operation | {} and {} | further ones queue for at most {} second,",
            &[
                &(default_number("serve", "database-connections") / 4),
                &(default_number("serve", "database-connections") / 8),
                &duration(busy, "LONG_WAIT").as_secs(),
            ],
        ),
        row(
            PAGE,
            "| time in the queue for the database | not configurable | {} second, or until a running statement ends |",
            &[&duration("crates/postgres/src/pool.rs", "POOL_WAIT").as_secs()],
        ),
        row(PAGE, "| `--max-connections` | {} |", &[&connections]),
        row(PAGE, "| `--max-connections-per-address` | {} |", &[&per_address]),
    ]
}

// What the code has.

/// The text with one space instead of each line break, indentation or alignment.
fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The value of a private constant, as its file has it.
fn constant(file: &str, name: &str) -> String {
    let source = read(file);
    let declared = source.split_once(&format!("const {name}: "));
    let value = declared.and_then(|(_, rest)| rest.split_once("= ")?.1.split_once(';'));
    value.unwrap_or_else(|| panic!("{file} has no constant {name}")).0.to_owned()
}

/// The value of a private constant that is a duration.
fn duration(file: &str, name: &str) -> Duration {
    let value = constant(file, name);
    let count = digits(&value);
    match value.split('(').next().unwrap() {
        "Duration::from_millis" => Duration::from_millis(count),
        "Duration::from_secs" => Duration::from_secs(count),
        "Duration::from_mins" => Duration::from_mins(count),
        "Duration::from_hours" => Duration::from_hours(count),
        _ => panic!("{file}: {name} is {value}"),
    }
}

/// The digits of a text that has one number, such as `10_000`, `5s` or `NonZeroU32::new(20)`.
fn digits(text: &str) -> u64 {
    let number = text.rsplit("NonZeroU32").next().unwrap();
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

/// The number that follows this text in a file.
fn number_after(file: &str, text: &str) -> u64 {
    let content = read(file);
    let (_, rest) = content.split_once(text).unwrap_or_else(|| panic!("{file} has no {text}"));
    digits(&rest.chars().take_while(char::is_ascii_digit).collect::<String>())
}

/// The default of a flag.
fn default_of(command: &str, flag: &str) -> String {
    let cli = Cli::command();
    let keys = cli.find_subcommand("keys").unwrap();
    let command = cli.find_subcommand(command).or_else(|| keys.find_subcommand(command)).unwrap();
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag));
    let argument = argument.unwrap_or_else(|| panic!("there is no --{flag}"));
    argument.get_default_values()[0].to_str().unwrap().to_owned()
}

/// The default of a flag that is a number, with or without a unit.
fn default_number(command: &str, flag: &str) -> u64 {
    digits(&default_of(command, flag))
}

/// The oldest and the newest version of PostgreSQL that are tested.
fn supported_postgresql() -> [u64; 2] {
    let versions = constant("src/cli/doctor.rs", "TESTED_POSTGRES");
    let (oldest, newest) = versions.split_once(", ").unwrap();
    [digits(oldest), digits(newest)]
}

/// The value of a rule that is a setting.
fn rule_setting(name: &str) -> String {
    let rules = read("deploy/prometheus/rules.yaml");
    let rule = rules.split_once(&format!("- record: {name}\n")).unwrap().1;
    rule.split_once("vector(").unwrap().1.split_once(')').unwrap().0.to_owned()
}

/// How long the condition of an alert must hold, in words.
fn alert_duration(alert: &str) -> &'static str {
    let rules = read("deploy/prometheus/rules.yaml");
    let rule = rules.split_once(&format!("- alert: {alert}\n")).unwrap().1;
    match rule.split_once(" for: ").unwrap().1.lines().next().unwrap() {
        "30s" => "half a minute",
        "1m" => "one minute",
        "2m" => "two minutes",
        "5m" => "five minutes",
        "15m" => "15 minutes",
        "1h" => "an hour",
        other => panic!("{alert} is for {other}: add how to say that"),
    }
}

/// A number from one to twelve.
fn in_words(number: i32) -> &'static str {
    let words =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    words[usize::try_from(number - 1).unwrap()]
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    if number < 1_000 {
        number.to_string()
    } else {
        format!("{},{:03}", grouped(number / 1_000), number % 1_000)
    }
}

/// Megabytes as gigabytes, to one decimal.
fn tenths(megabytes: u64) -> String {
    let tenths = (megabytes + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}
