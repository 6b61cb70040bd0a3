//! A PostgreSQL server for one test.

use std::path::PathBuf;

use petstore_domain::api_key::ApiKey;

use super::postgres::script;
use super::program::run;

/// A PostgreSQL server for one test, which can stop and start it.
pub(crate) struct PrivatePostgres {
    directory: PathBuf,
    pub(crate) url: String,
}

impl PrivatePostgres {
    pub(crate) fn start() -> Self {
        Self::start_in(std::env::temp_dir().join(format!("petstore-private-postgres-{}", std::process::id())))
    }

    /// The same, with its files in this directory.
    pub(crate) fn start_in(directory: PathBuf) -> Self {
        let url = script(&["start", directory.to_str().unwrap()]);
        Self { directory, url }
    }

    /// The same, migrated and with a key.
    pub(crate) fn start_with_key() -> (Self, ApiKey) {
        let postgres = Self::start();
        postgres.petstore(&["migrate"]);
        let key = postgres.petstore(&["keys", "create", "--name", "shop"]).parse().unwrap();
        (postgres, key)
    }

    /// Starts a standby of this server.
    pub(crate) fn start_standby(&self, name: &str) -> Self {
        let directory = PathBuf::from(format!("{}-{name}", self.directory.display()));
        let url = script(&["standby", directory.to_str().unwrap(), self.directory.to_str().unwrap()]);
        Self { directory, url }
    }

    /// Makes a standby accept writes.
    pub(crate) fn promote(&self) {
        script(&["promote", self.directory.to_str().unwrap()]);
    }

    /// The name under which a standby receives.
    pub(crate) fn name(&self) -> &str {
        self.directory.file_name().unwrap().to_str().unwrap()
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.url.split(['@', '/']).nth(3).unwrap()
    }

    /// The directory of its files.
    pub(crate) fn directory(&self) -> &str {
        self.directory.to_str().unwrap()
    }

    pub(crate) fn stop(&self, mode: &str) {
        script(&["stop", self.directory.to_str().unwrap(), mode]);
    }

    pub(crate) fn start_again(&self) {
        script(&["start", self.directory.to_str().unwrap()]);
    }

    /// Runs the program on this server, and returns its output.
    pub(crate) fn petstore(&self, arguments: &[&str]) -> String {
        let output = run(arguments, &[("DATABASE_URL", &self.url)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let directory = self.directory.to_str().unwrap();
        let _ = std::panic::catch_unwind(|| script(&["stop", directory, "immediate"]));
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
