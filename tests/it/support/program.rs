//! The program itself, as an operator runs it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use petstore::domain::api_key::ApiKey;

use super::client::Client;
use super::postgres::key;

/// The program with an environment of its own: nothing of the developer's leaks in.
pub(crate) fn petstore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_petstore"));
    command.env_clear().args(arguments).stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub(crate) fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    petstore(arguments).envs(environment.iter().copied()).output().unwrap()
}

/// Makes a key as an operator does.
pub(crate) fn new_key(database_url: &str, flags: &[&str]) -> ApiKey {
    let output =
        run(&[&["keys", "create", "--name", "other"], flags].concat(), &[("DATABASE_URL", database_url)]);
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// `petstore serve` as a process of its own, killed with this value.
pub(crate) struct ServeProcess {
    child: Child,
    log: PathBuf,
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    pub(crate) admin_address: SocketAddr,
}

impl ServeProcess {
    /// Starts it and waits until it listens.
    pub(crate) fn start(database_url: &str, flags: &[&str]) -> Self {
        let mut command = petstore(&["serve"]);
        command.args(flags);
        Self::start_as(command, database_url, free_address(), free_address())
    }

    /// Starts it by a command of the test's own, which may have another way to these addresses, and waits until it
    /// listens.
    pub(crate) fn start_as(
        mut command: Command,
        database_url: &str,
        address: SocketAddr,
        admin_address: SocketAddr,
    ) -> Self {
        let log = std::env::temp_dir().join(format!("petstore-test-{}.log", address.port()));
        let child = command
            .env("DATABASE_URL", database_url)
            .env("PETSTORE_LISTEN", address.to_string())
            .env("PETSTORE_ADMIN_LISTEN", admin_address.to_string())
            .env("PETSTORE_DRAIN_DELAY", "0s")
            // A file, not a pipe: nobody reads it while the program runs.
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let client = Client::new(address, Some(&key()));
        let process = Self { child, log, client, address, admin_address };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !process.log().contains("\"message\":\"listening\"") {
            assert!(Instant::now() < deadline, "petstore serve does not listen: {}", process.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        process
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Sends it a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    /// Waits for its end and returns its exit code and its log.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.log())
    }

    /// Ends it with SIGTERM and returns whether it exited well, and its log.
    pub(crate) fn terminate(self) -> (bool, String) {
        self.signal("TERM");
        let (code, log) = self.wait();
        (code == Some(0), log)
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

/// An address that nobody listens on.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
