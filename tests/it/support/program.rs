//! The program, as an operator runs it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use petstore_domain::api_key::ApiKey;

use super::client::Client;
use super::postgres::key;
use super::wait::{eventually, eventually_blocking, poll};

/// A command that runs the program with an empty environment.
pub(crate) fn petstore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_petstore"));
    command.env_clear().args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program and waits until it exits.
pub(crate) fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    petstore(arguments).envs(environment.iter().copied()).output().unwrap()
}

/// Sends a signal, such as `TERM`, to a process.
pub(crate) fn signal(name: &str, process: u32) {
    let kill = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(kill.success());
}

/// Creates a key with `petstore keys create`.
pub(crate) fn new_key(database_url: &str, flags: &[&str]) -> ApiKey {
    let output =
        run(&[&["keys", "create", "--name", "other"], flags].concat(), &[("DATABASE_URL", database_url)]);
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// A separate `petstore serve` process, killed when this value is dropped.
pub(crate) struct ServeProcess {
    child: Child,
    log: PathBuf,
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    pub(crate) admin_address: SocketAddr,
}

impl ServeProcess {
    /// Starts `petstore serve` with these flags and waits until it listens.
    pub(crate) fn start(database_url: &str, flags: &[&str]) -> Self {
        let mut command = petstore(&["serve"]);
        command.args(flags);
        Self::start_as(command, database_url, free_address(), free_address())
    }

    /// Starts a command that runs `petstore serve`, and waits until it listens. The command may get these addresses in
    /// another way, such as by socket activation, and the URL, if it is empty here, too.
    pub(crate) fn start_as(
        mut command: Command,
        database_url: &str,
        address: SocketAddr,
        admin_address: SocketAddr,
    ) -> Self {
        let log = std::env::temp_dir().join(format!("petstore-test-{}.log", address.port()));
        if !database_url.is_empty() {
            command.env("DATABASE_URL", database_url);
        }
        let child = command
            .env("PETSTORE_LISTEN", address.to_string())
            .env("PETSTORE_ADMIN_LISTEN", admin_address.to_string())
            .env("PETSTORE_DRAIN_DELAY", "0s")
            // A file, not a pipe: a pipe that is not read blocks the program.
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let client = Client::new(address, Some(&key()));
        let process = Self { child, log, client, address, admin_address };
        let listens = || process.log().contains("\"message\":\"listening\"");
        eventually_blocking(|| format!("petstore serve listens: {}", process.log()), listens);
        process
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log contains this text.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        poll(&format!("the log contains {text:?}"), async || self.log(), |log| log.contains(text)).await;
    }

    /// Sends a signal, such as `TERM`, to the process.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.id());
    }

    /// Stops the process, as SIGSTOP does, until it gets SIGCONT.
    pub(crate) async fn stop_process(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.id());
        eventually("every thread is stopped", async || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap();
            tasks.all(|task| {
                let status = std::fs::read_to_string(task.unwrap().path().join("status"));
                status.is_ok_and(|status| status.contains("State:\tT"))
            })
        })
        .await;
    }

    /// Waits until the process exits, and returns its exit code and its log.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.log())
    }

    /// Sends SIGTERM, waits until the process exits, and returns whether its exit code was 0, and its log.
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

/// An address with a free port, another one on each call.
pub(crate) fn free_address() -> SocketAddr {
    static RETURNED: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());
    let mut returned = RETURNED.lock().unwrap();
    loop {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        if !returned.contains(&address) {
            returned.push(address);
            return address;
        }
    }
}
