//! Nodes of the service on addresses that stay the same, whatever is killed.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use super::postgres::Postgres;
use super::process::{free_addresses, signal};
use super::server::Server;
use crate::Outcome;

/// Two nodes over one database.
pub(crate) struct Nodes {
    nodes: [Server; 2],
    pub(crate) addresses: [SocketAddr; 2],
}

impl Nodes {
    pub(crate) fn start(url: &str) -> Outcome<Self> {
        let addresses: [_; 2] = free_addresses()?.into();
        let nodes = [Server::petstore_at(url, addresses[0])?, Server::petstore_at(url, addresses[1])?];
        Ok(Self { nodes, addresses })
    }

    /// Kills a node and starts it again.
    pub(crate) fn restart(&mut self, node: usize, url: &str) -> Outcome {
        self.nodes[node].kill();
        self.nodes[node] = Server::petstore_at(url, self.addresses[node])?;
        Ok(())
    }

    /// Kills both nodes.
    pub(crate) fn stop(&mut self) {
        self.nodes.iter_mut().for_each(Server::kill);
    }

    /// Kills both nodes and the postmaster, and starts everything again.
    pub(crate) fn restart_all(&mut self, postgres: &Postgres, url: &mut String) -> Outcome {
        self.stop();
        signal(postgres.pid()?, "KILL")?;
        sleep(Duration::from_millis(100));
        *url = postgres.start()?;
        (0..2).try_for_each(|node| self.restart(node, url))
    }

    /// Kills and restarts the one node, the other or the database, whichever turn it is.
    pub(crate) fn restart_in_turn(&mut self, turn: u32, postgres: &Postgres, url: &mut String) -> Outcome {
        match turn % 3 {
            2 => {
                postgres.crash()?;
                *url = postgres.start()?;
                Ok(())
            }
            node => self.restart(usize::from(node == 1), url),
        }
    }
}
