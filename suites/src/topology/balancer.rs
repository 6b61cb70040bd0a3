//! HAProxy with the configuration in deploy/, and the nodes behind it.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::sleep;

use super::process::{free_address, free_addresses, output};
use super::server::{PETSTORE, Server, node_log};
use crate::Outcome;

/// The load balancer's configuration, as shipped.
const SETTINGS: &str = "deploy/haproxy/haproxy.cfg";

/// A node behind the load balancer.
pub(crate) struct Node {
    server: Server,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Node {
    pub(crate) fn start(url: &str) -> Outcome<Self> {
        Self::start_version(PETSTORE, url)
    }

    /// Starts a node of another version.
    pub(crate) fn start_version(program: &str, url: &str) -> Outcome<Self> {
        let (address, admin) = free_addresses()?;
        Ok(Self { server: Server::node_of(program, url, address, admin)?, address, admin })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> Outcome<String> {
        Ok(fs::read_to_string(node_log(self.address))?)
    }

    /// Sends SIGTERM, waits for the exit, starts a new process and gives the load balancer time to find it.
    pub(crate) async fn restart(&mut self, program: &str, url: &str) -> Outcome<Duration> {
        let stopped_in = self.server.terminate().await?;
        self.server = Server::node_of(program, url, self.address, self.admin)?;
        sleep(Duration::from_secs(2)).await;
        Ok(stopped_in)
    }
}

/// HAProxy, killed on drop.
pub(crate) struct Balancer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Balancer {
    pub(crate) fn start([one, two]: &[Node; 2]) -> Outcome<Self> {
        let address = free_address()?;
        let mut settings = fs::read_to_string(SETTINGS)?;
        for (documented, ours) in [
            ("127.0.0.1:8000", address.to_string()),
            ("127.0.0.1:8081", one.address.to_string()),
            ("check port 9091", format!("check port {}", one.admin.port())),
            ("127.0.0.1:8082", two.address.to_string()),
            ("check port 9092", format!("check port {}", two.admin.port())),
        ] {
            if settings.matches(documented).count() != 1 {
                return Err(format!("{SETTINGS} does not contain `{documented}` exactly once").into());
            }
            settings = settings.replace(documented, &ours);
        }
        let file = "target/suite-haproxy.cfg";
        fs::write(file, settings)?;
        output("haproxy", &["-c", "-q", "-f", file])?;
        let child = Command::new("haproxy")
            .args(["-db", "-f", file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create("target/suite-haproxy.log")?)
            .spawn()?;
        let mut balancer = Self { child, address };
        // It considers every node up until its first health check.
        std::thread::sleep(Duration::from_secs(2));
        if let Some(end) = balancer.child.try_wait()? {
            return Err(format!("HAProxy exited with {end}: see target/suite-haproxy.log").into());
        }
        Ok(balancer)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
