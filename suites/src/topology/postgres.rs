//! PostgreSQL: private servers, the database to test on, and what it is filled with.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use super::clock::Clock;
use super::process::{output, run};
use super::server::PETSTORE;
use crate::Outcome;

/// The URL of the database to test on.
pub(crate) fn database_url() -> Outcome<String> {
    env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL, or use `make suite`".into())
}

/// The URL of another database on the same server.
pub(crate) fn sibling(url: &str, name: &str) -> String {
    format!("{}/{name}", url.rsplit_once('/').map_or(url, |(server, _)| server))
}

/// A private PostgreSQL, stopped on drop.
pub(crate) struct Postgres {
    directory: PathBuf,
    kept: bool,
    /// More options of the server, instead of those in `POSTGRES_OPTIONS`.
    options: Option<String>,
    /// The directory of its programs, instead of that in `PGBIN`.
    bin: Option<PathBuf>,
    /// Its clock, instead of the machine's.
    clock: Option<Arc<Clock>>,
}

impl Postgres {
    /// In a new directory, removed on drop.
    pub(crate) fn temporary() -> Self {
        let directory = env::temp_dir().join(format!("petstore-suites-{}", std::process::id()));
        Self { directory, kept: false, options: None, bin: None, clock: None }
    }

    /// In a directory that is kept, and may exist already.
    pub(crate) fn kept(directory: PathBuf) -> Self {
        Self { directory, kept: true, options: None, bin: None, clock: None }
    }

    /// One of several in a new directory, removed on drop. Its name is that of the directory.
    pub(crate) fn member(directory: PathBuf, options: &str) -> Self {
        Self { directory, kept: false, options: Some(options.to_owned()), bin: None, clock: None }
    }

    /// With the programs in `bin`, in a new directory, removed on drop.
    pub(crate) fn of_version(directory: PathBuf, bin: PathBuf) -> Self {
        Self { directory, kept: false, options: None, bin: Some(bin), clock: None }
    }

    /// With this clock.
    pub(crate) fn with_clock(mut self, clock: &Arc<Clock>) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Starts it, and returns its URL.
    pub(crate) fn start(&self) -> Outcome<String> {
        let mut last = String::new();
        // The processes of a killed server may need a moment to exit.
        for _ in 0..10 {
            match self.script("start", &[]) {
                Ok(url) => return Ok(url),
                Err(error) => last = error.to_string(),
            }
            sleep(Duration::from_millis(300));
        }
        Err(last.into())
    }

    /// Starts it again. It must have the same URL as before.
    pub(crate) fn start_again(&self, url: &str) -> Outcome {
        if self.start()? == url { Ok(()) } else { Err("another process took a server's port".into()) }
    }

    /// Starts it as a standby, with a new copy of the other server's data, and returns its URL.
    pub(crate) fn start_as_standby_of(&self, other: &Self) -> Outcome<String> {
        let data = self.directory.join("data");
        if data.exists() {
            fs::remove_dir_all(data)?;
        }
        self.script("standby", &[&other.directory.to_string_lossy()])
    }

    /// Makes a standby accept writes.
    pub(crate) fn promote(&self) -> Outcome {
        self.script("promote", &[]).map(drop)
    }

    /// Stops it in fast mode.
    pub(crate) fn stop(&self) -> Outcome {
        self.script("stop", &[]).map(drop)
    }

    /// Stops it without a checkpoint: its next start recovers as after a crash.
    pub(crate) fn crash(&self) -> Outcome {
        self.script("stop", &["immediate"]).map(drop)
    }

    fn script(&self, command: &str, arguments: &[&str]) -> Outcome<String> {
        let mut script = Command::new("scripts/postgres");
        script.arg(command).arg(&self.directory).args(arguments);
        if let Some(options) = &self.options {
            script.env("POSTGRES_OPTIONS", options);
        }
        if let Some(bin) = &self.bin {
            script.env("PGBIN", bin);
        }
        if let Some(clock) = &self.clock {
            clock.apply_to(&mut script)?;
        }
        run(&mut script).map(|printed| printed.trim().to_owned())
    }

    /// The last lines of its log.
    pub(crate) fn end_of_log(&self) -> String {
        let log = fs::read_to_string(self.directory.join("data/server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("{}:\n{}", self.directory.display(), lines[lines.len().saturating_sub(10)..].join("\n"))
    }

    /// The process id of the postmaster.
    pub(crate) fn pid(&self) -> Outcome<u32> {
        let lines = fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        Ok(lines.lines().next().unwrap_or_default().parse()?)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.crash();
        if !self.kept {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Runs SQL.
pub(crate) fn psql(url: &str, sql: &str) -> Outcome<String> {
    output("psql", &[url, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", sql])
}

/// Migrates a database, fills it with pets, 90 % of them available, and returns an API key. Needs a superuser.
pub(crate) fn prepare(url: &str, pets: u64) -> Outcome<String> {
    let key = fill(url, pets)?;
    psql(url, "VACUUM ANALYZE")?;
    psql(url, "CHECKPOINT")?;
    Ok(key)
}

/// The same with the privileges of the service.
pub(crate) fn fill(url: &str, pets: u64) -> Outcome<String> {
    // The trigger that records the events needs memory for all ids of a statement, and fails at 100 million.
    const AT_ONCE: u64 = 1_000_000;
    output(PETSTORE, &["migrate", "--database-url", url])?;
    for before in (0..pets).step_by(usize::try_from(AT_ONCE)?) {
        psql(
            url,
            &format!(
                "INSERT INTO pets (name, category_id, status) SELECT 'Pet number ' || n, n % 100, \
                 (CASE WHEN n % 100 = 0 THEN 'pending' WHEN n % 100 < 10 THEN 'sold' ELSE 'available' END)::pet_status \
                 FROM generate_series({}, {}) n",
                before + 1,
                pets.min(before + AT_ONCE)
            ),
        )?;
    }
    new_key(url)
}

/// An API key for a database that is filled already.
pub(crate) fn new_key(url: &str) -> Outcome<String> {
    Ok(output(PETSTORE, &["keys", "create", "--name", "suite", "--database-url", url])?.trim().to_owned())
}
