//! A running `petstore demo`, and the directory that it has to leave empty.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};

use petstore_domain::api_key::ApiKey;

use super::client::Client;
use super::program::{petstore, signal};
use super::wait::{eventually_blocking, holds_in_time};

/// The directory for the temporary files of demo, removed when this value is dropped.
pub(crate) struct TemporaryDirectory(pub(crate) PathBuf);

impl TemporaryDirectory {
    pub(crate) fn new() -> Self {
        let name = format!("petstore-test-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        // As for /tmp: if root runs demo, PostgreSQL runs as another user.
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        Self(path)
    }

    /// Its files, and the processes that run in it.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let here = |process: &PathBuf| {
            // Not readable for a process that has exited or belongs to another user.
            fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0))
        };
        files.chain(processes.filter(here)).map(|path| path.display().to_string()).collect()
    }

    /// Waits until nothing is left.
    pub(crate) fn assert_empties(&self) {
        eventually_blocking(|| format!("removed: {:?}", self.leftovers()), || self.leftovers().is_empty());
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // A demo that was killed with its test may still be removing files from it.
        holds_in_time(|| fs::remove_dir_all(&self.0).is_ok() || !self.0.exists());
    }
}

/// A running demo, killed when this value is dropped.
pub(crate) struct Demo {
    child: Child,
    output: BufReader<ChildStdout>,
    /// What it has printed so far.
    pub(crate) printed: String,
}

impl Demo {
    pub(crate) fn spawn(
        directory: &TemporaryDirectory,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = petstore(&[&["demo"], arguments].concat());
        command.env("TMPDIR", &directory.0);
        // Where the developer has PostgreSQL.
        command.envs(["PATH", "PGBIN"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, printed: String::new() }
    }

    /// Starts it on a free port and waits until it has printed everything.
    pub(crate) fn start(directory: &TemporaryDirectory, environment: &[(&str, &str)]) -> Self {
        Self::start_with(directory, &[], environment)
    }

    /// The same with these arguments.
    pub(crate) fn start_with(
        directory: &TemporaryDirectory,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let listen = ["--listen", "127.0.0.1:0"];
        let mut demo = Self::spawn(directory, &[&listen, arguments].concat(), environment);
        demo.read_until("Ctrl-C stops ");
        demo
    }

    /// Reads up to a line that starts with this text.
    pub(crate) fn read_until(&mut self, start: &str) {
        loop {
            let before = self.printed.len();
            let read = self.output.read_line(&mut self.printed).unwrap();
            if read == 0 {
                let errors = self.child.stderr.take().unwrap();
                panic!("demo exited: {} {}", self.printed, std::io::read_to_string(errors).unwrap());
            }
            if self.printed[before..].starts_with(start) {
                return;
            }
        }
    }

    /// The rest of the printed line that starts with this label.
    pub(crate) fn field(&self, label: &str) -> &str {
        let line = self.printed.lines().find_map(|line| line.trim().strip_prefix(label));
        line.unwrap_or_else(|| panic!("no {label}: {}", self.printed)).trim()
    }

    pub(crate) fn client(&self) -> Client {
        let address = self.field("Address").strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap();
        let key: ApiKey = self.field("Key").parse().unwrap();
        Client::new(address.parse().unwrap(), Some(&key))
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// Waits until it exits, and returns its exit status and its standard error.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let exited = || self.child.try_wait().unwrap().is_some();
        eventually_blocking(|| format!("demo exits: {}", self.printed), exited);
        let status = self.child.wait().unwrap();
        let errors = self.child.stderr.take().unwrap();
        (status, std::io::read_to_string(errors).unwrap())
    }

    pub(crate) fn assert_stops_cleanly(self, signal: &str) {
        self.signal(signal);
        let (status, errors) = self.wait();
        assert!(status.success(), "{signal}: {errors}");
        assert_eq!(errors, "", "{signal}");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
