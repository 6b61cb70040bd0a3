//! Nodes of the service on addresses that stay the same, whatever is killed.

use std::fs;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use super::postgres::Postgres;
use super::process::{Frozen, free_addresses, signal};
use super::server::{PETSTORE, Server};
use crate::Outcome;

/// Settings of a node without a load balancer: it stops at once, and orders may expire after seconds.
pub(crate) const DIRECT: &[&str] = &["--drain-delay", "0s", "--order-hold", "168h"];
/// Settings of a node behind the load balancer in deploy/, which keeps connections open for a minute.
pub(crate) const BEHIND_BALANCER: &[&str] = &["--header-timeout", "75s"];

/// One node.
pub(crate) struct Node {
    pub(crate) server: Server,
    flags: Vec<String>,
    pub(crate) address: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Node {
    pub(crate) fn start(program: &str, url: &str, flags: &[&str]) -> Outcome<Self> {
        let (address, admin) = free_addresses()?;
        let server = Server::start_program(program, url, (address, admin), flags, &log_of(address))?;
        Ok(Self { server, flags: flags.iter().map(|&flag| flag.to_owned()).collect(), address, admin })
    }

    /// Starts it again after it was stopped.
    pub(crate) fn start_again(&mut self, program: &str, url: &str) -> Outcome {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let log = log_of(self.address);
        self.server = Server::start_program(program, url, (self.address, self.admin), &flags, &log)?;
        Ok(())
    }

    /// Sends SIGTERM, waits for the exit, starts a new process and gives the load balancer time to find it.
    pub(crate) async fn restart(&mut self, program: &str, url: &str) -> Outcome<Duration> {
        let stopped_in = self.server.terminate().await?;
        self.start_again(program, url)?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(stopped_in)
    }

    /// Stops its process until the result is dropped.
    pub(crate) fn freeze(&self) -> Outcome<Frozen> {
        Frozen::stop(self.server.id())
    }

    /// What its process has logged so far.
    pub(crate) fn log(&self) -> Outcome<String> {
        Ok(fs::read_to_string(log_of(self.address))?)
    }
}

fn log_of(address: SocketAddr) -> String {
    format!("target/suite-petstore-{}.log", address.port())
}

/// Two nodes over one database.
pub(crate) struct Nodes {
    pub(crate) nodes: [Node; 2],
    pub(crate) addresses: [SocketAddr; 2],
}

impl Nodes {
    pub(crate) fn start(url: &str) -> Outcome<Self> {
        Self::start_with(url, DIRECT)
    }

    pub(crate) fn start_with(url: &str, flags: &[&str]) -> Outcome<Self> {
        let nodes = [Node::start(PETSTORE, url, flags)?, Node::start(PETSTORE, url, flags)?];
        let addresses = nodes.each_ref().map(|node| node.address);
        Ok(Self { nodes, addresses })
    }

    /// Kills a node and starts it again.
    pub(crate) fn restart(&mut self, node: usize, url: &str) -> Outcome {
        self.nodes[node].server.kill();
        self.nodes[node].start_again(PETSTORE, url)
    }

    /// Kills both nodes.
    pub(crate) fn stop(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.server.kill());
    }

    /// Kills both nodes and the postmaster, and starts everything again.
    pub(crate) fn restart_all(&mut self, postgres: &Postgres, url: &str) -> Outcome {
        self.stop();
        signal(postgres.pid()?, "KILL")?;
        sleep(Duration::from_millis(100));
        postgres.start_again(url)?;
        (0..2).try_for_each(|node| self.restart(node, url))
    }

    /// Kills and restarts the one node, the other or the database, whichever turn it is.
    pub(crate) fn restart_in_turn(&mut self, turn: u32, postgres: &Postgres, url: &str) -> Outcome {
        match turn % 3 {
            2 => {
                postgres.crash()?;
                postgres.start_again(url)
            }
            node => self.restart(usize::from(node == 1), url),
        }
    }
}
