//! `petstore doctor`

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use petstore_config::ServeSettings;
use petstore_config::version::{COMMIT, VERSION};
use petstore_storage::{
    BlockingSession, DAYS_AHEAD, Diagnosis, EVENT_TRIGGERS, Encryption, ReadFreshness, SCHEMA_LATEST,
    SCHEMA_NEEDED, ServerDiagnosis, TrialWrite, check_encoding, diagnose, lacking_text,
};
use petstore_telemetry::with_causes;
use serde::Serialize;

use super::effective_settings::{Setting, effective_settings};
use super::error::CommandError;
use super::output::print;
use super::progress::{counted, grouped};
use super::unknown_variables::check_environment;

/// The oldest and the newest major version of PostgreSQL that are tested.
const TESTED_POSTGRES: [i32; 2] = [15, 18];
/// A clock skew in seconds above which timestamps in logs and responses mislead.
const MAX_CLOCK_SKEW: f64 = 1.0;
/// With fewer days prepared, the service has not created partitions for more than a day.
const MIN_DAYS_PREPARED: i32 = DAYS_AHEAD - 1;
/// For how long to warn that the event feed was restarted.
const RECENT_EPOCH: Duration = Duration::from_hours(7 * 24);
/// With less free space, in bytes, there is no time left to add more.
const MIN_FREE_SPACE: u64 = 1 << 30;

/// Checks the settings and the database, and reports problems and how to fix them.
///
/// Doctor accepts the flags and environment variables of `petstore serve`, and prints each setting with its source. It
/// does not show passwords. It does not need a running service, and it changes nothing: the write that it tries is
/// rolled back.
///
/// The exit code is 0 if the service can run, even with warnings, and 1 if it cannot.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  petstore doctor
  sudo -u petstore petstore doctor --env-file /etc/petstore/petstore.env
  petstore doctor --json | jq '.checks[] | select(.state != \"ok\")'")]
pub(super) struct DoctorCommand {
    /// Prints a JSON object instead of text.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: ServeSettings,
}

/// The output.
#[derive(Debug, Serialize)]
struct DoctorReport {
    ok: bool,
    version: &'static str,
    commit: &'static str,
    checks: Vec<DoctorCheck>,
    settings: Vec<Setting>,
}

#[derive(Debug, Serialize)]
struct DoctorCheck {
    name: &'static str,
    state: CheckState,
    says: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckState {
    Ok,
    Warning,
    Failure,
}

impl DoctorCommand {
    pub(super) async fn run(self) -> Result<ExitCode, CommandError> {
        let mut checks = match diagnose(&self.settings.database.url(), &self.settings.pool).await {
            Ok(found) => checks(&found, &self.settings),
            Err(error) => vec![failure("database", with_causes(&error))],
        };
        if let Err(error) = check_environment() {
            checks.push(failure("environment", error.to_string()));
        }
        let ok = checks.iter().all(|check| check.state != CheckState::Failure);
        let report =
            DoctorReport { ok, version: VERSION, commit: COMMIT, checks, settings: effective_settings() };
        let text = if self.json { serde_json::to_string_pretty(&report)? + "\n" } else { text(&report) };
        print(&text)?;
        Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn ok(name: &'static str, says: String) -> DoctorCheck {
    DoctorCheck { name, state: CheckState::Ok, says }
}

fn warning(name: &'static str, says: String) -> DoctorCheck {
    DoctorCheck { name, state: CheckState::Warning, says }
}

fn failure(name: &'static str, says: String) -> DoctorCheck {
    DoctorCheck { name, state: CheckState::Failure, says }
}

fn checks(found: &Diagnosis, settings: &ServeSettings) -> Vec<DoctorCheck> {
    let mut checks = servers(&found.servers);
    checks.extend([
        ok("database", format!("connected in {:.1?}, round trip {:.1?}", found.connecting, found.round_trip)),
        ok("sessions", "each connection is a session of its own".to_owned()),
        version(&found.version),
        encoding(&found.encoding),
        schema(found.schema),
        role(found),
        encryption(&found.encryption),
        partitions(found.days_prepared),
        events(found),
        replication(found, settings.single_server),
        clock(found.clock_ahead),
        space(found.space),
        versions(&found.connected_versions),
        connections(found.connections, settings.pool.database_connections),
    ]);
    checks.extend(found.future_day.as_deref().map(future_rows));
    checks.extend(found.servers.iter().filter_map(|ServerDiagnosis { address, role }| {
        let standby = role.as_ref().ok().filter(|role| role.is_standby)?;
        standby_clock(address, standby.clock_ahead - found.clock_ahead)
    }));
    checks.extend(found.trial_write.as_ref().map(write));
    checks.extend(found.reads.map(|ReadFreshness { is_proven, says }| {
        let says = format!("reads are {says}");
        if is_proven { ok("reads", says) } else { warning("reads", says) }
    }));
    checks
}

/// The servers of a cluster. A single one needs no line of its own.
fn servers(found: &[ServerDiagnosis]) -> Vec<DoctorCheck> {
    if found.len() < 2 {
        return Vec::new();
    }
    let mut checks: Vec<DoctorCheck> = found.iter().map(server).collect();
    let is_primary = |server: &&ServerDiagnosis| matches!(&server.role, Ok(role) if !role.is_standby);
    let primaries: Vec<&str> = found.iter().filter(is_primary).map(|server| &*server.address).collect();
    if primaries.len() > 1 {
        let advice = "stop the one that was replaced, or it may serve what others have changed since";
        checks.push(failure("servers", format!("{} accept writes: {advice}", primaries.join(" and "))));
    }
    checks
}

fn server(ServerDiagnosis { address, role }: &ServerDiagnosis) -> DoctorCheck {
    let role = match role {
        Ok(role) => role,
        Err(error) => return warning("server", format!("{address}: {}", with_causes(error))),
    };
    let timeline = role.timeline.map_or(String::new(), |timeline| format!(", timeline {timeline}"));
    let position = role.position;
    if !role.is_standby {
        return ok("server", format!("{address}: primary{timeline}, flushed {position}"));
    }
    if let Some(upstream) = &role.upstream {
        return ok("server", format!("{address}: standby of {upstream}{timeline}, replayed {position}"));
    }
    let reason = "it receives nothing, or this role may not see from where (GRANT pg_monitor)";
    warning("server", format!("{address}: standby, replayed {position}: {reason}"))
}

fn version((name, number): &(String, i32)) -> DoctorCheck {
    let (major, [oldest, newest]) = (number / 10_000, TESTED_POSTGRES);
    if major < oldest {
        failure("version", format!("PostgreSQL {name} is too old: {oldest} or later is required"))
    } else if major > newest {
        warning(
            "version",
            format!("PostgreSQL {name} is not tested with this release; {oldest} to {newest} are"),
        )
    } else {
        ok("version", format!("PostgreSQL {name}"))
    }
}

fn encoding(found: &str) -> DoctorCheck {
    match check_encoding(found) {
        Ok(()) => ok("encoding", found.to_owned()),
        Err(problem) => failure("encoding", problem),
    }
}

fn schema(found: Option<i32>) -> DoctorCheck {
    let Some(found) = found else { return failure("schema", "not visible to this role".to_owned()) };
    if found < SCHEMA_NEEDED {
        failure("schema", format!("version {found}, but {SCHEMA_NEEDED} is required: run `petstore migrate`"))
    } else if found < SCHEMA_LATEST {
        warning("schema", format!("version {found}; `petstore migrate` updates it to {SCHEMA_LATEST}"))
    } else if found > SCHEMA_LATEST {
        ok("schema", format!("version {found}, from a newer release; this one works with it"))
    } else {
        ok("schema", format!("version {found}, the latest"))
    }
}

fn role(found: &Diagnosis) -> DoctorCheck {
    if found.lacking.is_empty() {
        ok("role", format!("{} has the required privileges", found.role))
    } else {
        failure("role", lacking_text(&found.role, &found.lacking))
    }
}

fn encryption(found: &Encryption) -> DoctorCheck {
    match (&found.version, found.is_verified) {
        (Some(version), true) => {
            ok("encryption", format!("{version}, and the server's certificate is checked"))
        }
        (Some(version), false) if found.is_local => ok("encryption", format!("{version}, on this machine")),
        (Some(version), false) => {
            let advice = "anybody in between could pretend to be the server: set sslmode=verify-full";
            warning(
                "encryption",
                format!("{version}, but the server's certificate is not checked, so {advice}"),
            )
        }
        (None, _) if found.is_local => {
            ok("encryption", "none; the connection stays on this machine".to_owned())
        }
        (None, _) => {
            let advice = "set sslmode=verify-full in the database URL, and enable TLS on the server";
            warning(
                "encryption",
                format!("none: passwords and pets cross the network in the clear; {advice}"),
            )
        }
    }
}

fn write(found: &TrialWrite) -> DoctorCheck {
    match found {
        TrialWrite::Succeeded(time, blockers) => {
            let says = format!("a pet was added and rolled back in {time:.1?}");
            if blockers.is_empty() {
                return ok("write", says);
            }
            warning("write", format!("{says}, but statements of the service {}", waiting(blockers)))
        }
        TrialWrite::Failed(error) => failure("write", format!("a pet cannot be added: {error}")),
        TrialWrite::Blocked(sessions) => failure("write", format!("writes {}", waiting(sessions))),
    }
}

fn waiting(sessions: &[BlockingSession]) -> String {
    let sessions: Vec<String> = sessions.iter().map(blocking_session).collect();
    let advice = "end it with pg_terminate_backend(PID) if nobody needs it";
    format!("wait for a lock of {}: {advice}", sessions.join(" and "))
}

fn blocking_session(session: &BlockingSession) -> String {
    let BlockingSession { pid, application, role, activity } = session;
    let application = if application.is_empty() { "an unnamed application" } else { application };
    let activity = match activity {
        Some((state, running)) => format!(", {state} for {} s", running.as_secs()),
        None => String::new(),
    };
    format!("process {pid} ({application}, role {role}{activity})")
}

fn space((size, free): (i64, Option<u64>)) -> DoctorCheck {
    let mib = |bytes: u64| format!("{} MiB", grouped(bytes >> 20));
    let size = size.unsigned_abs();
    let says = format!("the database has {}", mib(size));
    match free {
        None => ok("space", format!("{says}; how much is free cannot be told from here")),
        Some(free) if free < MIN_FREE_SPACE || free < size / 20 => warning(
            "space",
            format!("{says}, and only {} are free: without space, every write fails", mib(free)),
        ),
        Some(free) => ok("space", format!("{says}, and {} are free", mib(free))),
    }
}

fn versions(found: &[(String, i64)]) -> DoctorCheck {
    let version = |name: &str| match name.strip_prefix("petstore/") {
        Some(version) => version.replacen('+', " (", 1) + ")",
        None => "1.0.0 or unknown".to_owned(),
    };
    let each: Vec<String> = found
        .iter()
        .map(|(name, count)| format!("{} on {}", version(name), counted(count.unsigned_abs(), "connection")))
        .collect();
    match each.len() {
        0 => ok("nodes", "none is connected".to_owned()),
        1 => ok("nodes", each.concat()),
        _ => warning(
            "nodes",
            format!("several versions are connected: {}; finish the upgrade", each.join(", ")),
        ),
    }
}

/// Never a failure: the service creates missing partitions when it starts.
fn partitions(days: Option<i32>) -> DoctorCheck {
    let days = days.unwrap_or_default();
    let says = format!("partitions are left for {days} days, including today");
    if days < MIN_DAYS_PREPARED {
        let advice = "the service creates partitions when it starts and every hour, and so does `petstore migrate`; if a \
            service is running, check its log for `could not create`";
        warning("partitions", format!("{says}: {advice}"))
    } else {
        ok("partitions", says)
    }
}

fn events(found: &Diagnosis) -> DoctorCheck {
    let Some(feed) = &found.feed else {
        return warning("events", "there is no event feed yet: a node creates it when it starts".to_owned());
    };
    if found.enabled_triggers < EVENT_TRIGGERS {
        let advice = "changes are missing in the feed: enable them (ALTER TABLE … ENABLE TRIGGER USER), then call \
            start_event_epoch()";
        let enabled = found.enabled_triggers;
        return failure(
            "events",
            format!("{enabled} of {EVENT_TRIGGERS} triggers that record events are enabled: {advice}"),
        );
    }
    let since = Timestamp::try_from(feed.started_at).unwrap_or(Timestamp::MIN);
    let says = format!("recorded without a gap since {since:.0}, when {}", feed.reason);
    if feed.is_interruption() && feed.age < RECENT_EPOCH {
        warning("events", format!("{says}: readers from before get 410"))
    } else {
        ok("events", says)
    }
}

fn replication(found: &Diagnosis, is_single_server: bool) -> DoctorCheck {
    let standbys = match found.standbys {
        0 => "no standby".to_owned(),
        1 => "1 standby".to_owned(),
        count => format!("{count} standbys"),
    };
    if found.is_standby {
        let advice = "name the primary, or all servers, in the database URL";
        failure("replication", format!("this server is a standby, which is read-only: {advice}"))
    } else if found.synchronous.is_empty() && found.standbys > 0 {
        let loss = "but replication is asynchronous: a failover can lose the last commits";
        warning("replication", format!("{standbys}, {loss}"))
    } else if found.synchronous.is_empty() && is_single_server {
        ok("replication", format!("{standbys}, as --single-server says: keep backups"))
    } else if found.synchronous.is_empty() {
        let advice = "data that this server loses exists only in backups. If one server is meant, set --single-server true";
        warning("replication", format!("{standbys}: {advice}"))
    } else if found.standbys == 0 {
        failure("replication", format!("{standbys}, but commits wait for {}", found.synchronous))
    } else {
        ok("replication", format!("{standbys}; commits wait for {}", found.synchronous))
    }
}

fn clock(ahead: f64) -> DoctorCheck {
    let says = format!(
        "the database's clock is {:.3} s {} this machine's",
        ahead.abs(),
        if ahead < 0.0 { "behind" } else { "ahead of" }
    );
    if ahead.abs() > MAX_CLOCK_SKEW {
        let harm = "keys and orders expire by the database's clock; logs have this machine's time";
        warning("clock", format!("{says}: {harm}"))
    } else {
        ok("clock", says)
    }
}

/// Warns of what only a clock that was ahead, or was set back, can have stored.
fn future_rows(day: &str) -> DoctorCheck {
    let reason = "the database's clock was ahead when they were written, or is behind now";
    let harm = "they are kept until then; the log of the time service tells which";
    warning("clock", format!("idempotency keys or events are dated {day}, in the future: {reason}; {harm}"))
}

/// Warns if the clock of a standby differs from the primary's.
fn standby_clock(address: &str, ahead: f64) -> Option<DoctorCheck> {
    let (side, harm) = if ahead < 0.0 {
        (
            "behind",
            "a key that has expired still works on reads from it, and after a failover keys and orders expire later",
        )
    } else {
        (
            "ahead of",
            "a key expires earlier on reads from it, and after a failover keys and orders expire earlier",
        )
    };
    (ahead.abs() > MAX_CLOCK_SKEW).then(|| {
        warning(
            "clock",
            format!("the clock of {address} is {:.3} s {side} the primary's: {harm}", ahead.abs()),
        )
    })
}

fn connections((max, open): (i32, i64), pool: u16) -> DoctorCheck {
    let wanted = i64::from(pool);
    let says =
        format!("{open} of at most {max} database connections are open; this node uses up to {wanted}");
    if i64::from(max) < wanted { failure("pool", says) } else { ok("pool", says) }
}

fn text(report: &DoctorReport) -> String {
    let mut text = String::new();
    for DoctorCheck { name, state, says } in &report.checks {
        let state = match state {
            CheckState::Ok => "ok",
            CheckState::Warning => "warning",
            CheckState::Failure => "FAILURE",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{state:<8} {name:<12} {says}");
    }
    let _ = writeln!(text, "\nSettings of petstore {} ({}):", report.version, report.commit);
    for Setting { flag, value, source, .. } in &report.settings {
        let value = value.as_deref().unwrap_or("-");
        let _ = writeln!(text, "  {flag:<30} {value}  ({source})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_incidents_has_the_line_of_a_wrong_clock() {
        let line = format!("warning clock {}", clock(-600.0).says);
        assert!(include_str!("../../docs/runbook.md").contains(&format!("| `{line}` |")), "{line}");
        assert!(standby_clock("10.0.0.2:5432", -0.5).is_none());
        let line = format!("warning clock {}", standby_clock("10.0.0.2:5432", -600.0).unwrap().says);
        assert!(include_str!("../../docs/runbook.md").contains(&format!("| `{line}` |")), "{line}");
    }

    #[test]
    fn a_check_fails_only_if_the_service_cannot_run() {
        let state = |check: DoctorCheck| check.state;
        assert_eq!(state(version(&("14.9".into(), 140_009))), CheckState::Failure);
        assert_eq!(state(version(&("15.0".into(), 150_000))), CheckState::Ok);
        assert_eq!(state(version(&("18.4".into(), 180_004))), CheckState::Ok);
        assert_eq!(state(version(&("19.0".into(), 190_000))), CheckState::Warning);
        assert_eq!(state(schema(Some(SCHEMA_NEEDED - 1))), CheckState::Failure);
        assert_eq!(state(schema(Some(SCHEMA_LATEST))), CheckState::Ok);
        assert_eq!(state(schema(Some(SCHEMA_LATEST + 1))), CheckState::Ok);
        assert_eq!(state(encoding("SQL_ASCII")), CheckState::Failure);
        assert_eq!(state(partitions(Some(MIN_DAYS_PREPARED))), CheckState::Ok);
        assert_eq!(state(partitions(Some(MIN_DAYS_PREPARED - 1))), CheckState::Warning);
        assert_eq!(state(partitions(None)), CheckState::Warning);
        assert_eq!(state(clock(-1.5)), CheckState::Warning);
        assert_eq!(state(clock(0.2)), CheckState::Ok);
        assert_eq!(state(connections((97, 3), 16)), CheckState::Ok);
        assert_eq!(state(connections((10, 3), 16)), CheckState::Failure);
    }
}
