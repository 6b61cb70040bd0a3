//! The service and the servers that it is compared with.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::process::{cpu_seconds, free_address, free_addresses, kilobytes, output, peak_megabytes};
use crate::Outcome;

/// The service, from the same build as this program.
pub(crate) const PETSTORE: &str =
    if cfg!(debug_assertions) { "target/debug/petstore" } else { "target/release/petstore" };

/// The log of the service, unless it is one of two nodes.
pub(crate) const LOG: &str = "target/suite-petstore.log";

/// A server under test, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The service's admin address; a peer has none.
    admin: Option<SocketAddr>,
}

impl Server {
    /// The service with default settings, everything on.
    pub(crate) fn petstore(url: &str) -> Outcome<Self> {
        Self::with_flags(url, &[])
    }

    /// The service with more flags.
    pub(crate) fn with_flags(url: &str, flags: &[&str]) -> Outcome<Self> {
        Self::with_log(url, flags, LOG)
    }

    /// The service with more flags and its own log.
    pub(crate) fn with_log(url: &str, flags: &[&str], log: &str) -> Outcome<Self> {
        Self::program(PETSTORE, url, flags, log)
    }

    /// The service with room for thousands of connections that stay open.
    pub(crate) fn with_many_connections(url: &str) -> Outcome<Self> {
        let limits = ["--header-timeout", "120s", "--max-connections", "15000", "--max-requests", "15000"];
        Self::with_flags(url, &limits)
    }

    /// Another version of the service, with more flags and its own log.
    pub(crate) fn program(program: &str, url: &str, flags: &[&str], log: &str) -> Outcome<Self> {
        Self::start_program(program, url, free_addresses()?, &[&["--drain-delay", "0s"], flags].concat(), log)
    }

    /// A version of the service on these addresses.
    pub(super) fn start_program(
        program: &str,
        url: &str,
        (address, admin): (SocketAddr, SocketAddr),
        flags: &[&str],
        log: &str,
    ) -> Outcome<Self> {
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", &address.to_string(), "--admin-listen", &admin.to_string()])
            .args(flags)
            .env("DATABASE_URL", url)
            .stderr(File::create(log)?);
        let mut server = Self::start(command, address)?;
        server.admin = Some(admin);
        Ok(server)
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU seconds used so far.
    pub(crate) fn cpu_seconds(&self) -> Outcome<f64> {
        cpu_seconds(self.child.id()).map(|time| time.own)
    }

    /// The resident memory, in kilobytes.
    pub(crate) fn kilobytes(&self) -> Outcome<f64> {
        kilobytes(self.child.id(), "VmRSS:")
    }

    /// Sends SIGTERM and returns how long the exit took; a non-zero exit code is an error.
    pub(crate) async fn terminate(&mut self) -> Outcome<Duration> {
        let started = Instant::now();
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        loop {
            if let Some(exit) = self.child.try_wait()? {
                return if exit.success() { Ok(started.elapsed()) } else { Err(exit.to_string().into()) };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The peer on FastAPI.
    pub(crate) fn fastapi(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("target/tools/peers/bin/uvicorn");
        command
            .args(["--app-dir", "suites/peers", "fastapi_peer:app", "--workers", "2", "--no-access-log"])
            .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
            .env("DATABASE_URL", url)
            .env("KEY", key);
        Self::start(command, address)
    }

    /// The peer on Fastify.
    pub(crate) fn fastify(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("node");
        command
            .arg("target/tools/peers/fastify_peer.mjs")
            .env("DATABASE_URL", url)
            .env("KEY", key)
            .env("PORT", address.port().to_string());
        Self::start(command, address)
    }

    /// The peer on axum.
    pub(crate) fn axum(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("target/axum-peer/release/axum-peer");
        command.env("DATABASE_URL", url).env("KEY", key).env("PORT", address.port().to_string());
        Self::start(command, address)
    }

    fn start(mut command: Command, address: SocketAddr) -> Outcome<Self> {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = spawned.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let server = Self { child, address, admin: None };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(format!("{command:?} does not listen").into());
            }
            sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The value of the metric with this name and these labels, or 0.
    pub(crate) fn metric(&self, name: &str) -> Outcome<f64> {
        let admin = self.admin.ok_or("a peer has no metrics")?;
        let metrics = output("curl", &["--silent", "--fail", &format!("http://{admin}/metrics")])?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(Ok(0.0), |value| Ok(value.parse()?))
    }

    /// The number of open file descriptors.
    pub(crate) fn descriptors(&self) -> Outcome<f64> {
        let count = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count();
        Ok(f64::from(u32::try_from(count)?))
    }

    /// The peak resident memory, in megabytes.
    pub(crate) fn peak_megabytes(&self) -> Outcome<f64> {
        peak_megabytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // A peer's parent process stops its workers on SIGTERM only.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
