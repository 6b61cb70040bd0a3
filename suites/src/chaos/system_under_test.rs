//! What a scenario runs on: a database, two nodes of the service, and their clients.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::faults::{Fault, patroni_cluster};
use super::{DEADLINE, Scenario};
use crate::Outcome;
use crate::random::Random;
use crate::topology::{
    BEHIND_BALANCER, Balancer, Cluster, DIRECT, Nodes, Postgres, Proxy, database_url, fill, prepare,
};
use crate::workload::Load;

/// Two nodes of the service, and:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topology {
    /// A PostgreSQL of their own.
    Pair,
    /// The same, and HAProxy before the nodes.
    Balanced,
    /// Three PostgreSQL servers, of which a commit needs two.
    Servers,
    /// A PostgreSQL cluster under Patroni, in whose network this program runs.
    Patroni,
    /// The same, and a proxy between the nodes and the primary.
    PatroniThroughProxy,
}

pub(super) enum Database {
    Single(Postgres, String),
    Servers(Box<Cluster>),
    /// The proxy comes with [`Topology::PatroniThroughProxy`].
    Patroni(String, Option<Proxy>),
}

pub(super) struct SystemUnderTest {
    pub(super) nodes: Nodes,
    _balancer: Option<Balancer>,
    /// The database as the nodes reach it.
    pub(super) url: String,
    pub(super) database: Database,
    /// Where clients send requests.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) key: String,
    pub(super) load: Arc<Load>,
    pub(super) random: Random,
    pub(super) slack: f64,
    /// What is worth a note about the fault that is being injected.
    pub(super) notes: Vec<String>,
    pub(super) problems: Vec<String>,
    /// Memory in kilobytes and file descriptors of the second node after the first fault.
    baseline: Option<(f64, f64)>,
}

impl SystemUnderTest {
    pub(super) async fn start(
        scenario: &Scenario,
        seed: u64,
        slack: f64,
        reads: Option<&str>,
    ) -> Outcome<Self> {
        let topology = scenario.topology;
        let (pets, few) = scenario.pets;
        let (database, url, key) = match topology {
            Topology::Pair | Topology::Balanced => {
                let postgres = Postgres::temporary();
                let url = postgres.start()?;
                let key = prepare(&url, pets)?;
                (Database::Single(postgres, url.clone()), url, key)
            }
            Topology::Servers => {
                let cluster = Cluster::start()?;
                let url = cluster.url();
                let key = fill(&url, pets)?;
                (Database::Servers(Box::new(cluster)), url, key)
            }
            Topology::Patroni => {
                let url = database_url()?;
                let key = fill(&url, pets)?;
                (Database::Patroni(url.clone(), None), url, key)
            }
            Topology::PatroniThroughProxy => {
                let direct = database_url()?;
                let key = fill(&direct, pets)?;
                let proxy = Proxy::start(patroni_cluster::leader_address().await?).await?;
                let url = format!("postgresql://petstore:petstore@{}/petstore", proxy.address);
                (Database::Patroni(direct, Some(proxy)), url, key)
            }
        };
        let flags = if topology == Topology::Balanced { BEHIND_BALANCER } else { DIRECT };
        let reads: Vec<&str> = reads.iter().flat_map(|reads| ["--reads", reads]).collect();
        let nodes = Nodes::start_with(&url, &[flags, &reads].concat())?;
        let balancer = match topology {
            Topology::Balanced => Some(Balancer::start(&nodes.nodes)?),
            _ => None,
        };
        let addresses = balancer.as_ref().map_or(nodes.addresses.to_vec(), |balancer| vec![balancer.address]);
        let load = Load::new(database.url(), &addresses, &key, seed, few)?;
        Ok(Self {
            nodes,
            _balancer: balancer,
            url,
            database,
            addresses,
            key,
            load: Arc::new(load),
            random: Random::of_worker(seed, 1_000),
            slack,
            notes: Vec::new(),
            problems: Vec::new(),
            baseline: None,
        })
    }

    /// The database without a proxy; of three servers, the primary.
    pub(super) fn database_url(&self) -> &str {
        self.database.url()
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn problem(&mut self, problem: String) {
        println!("    PROBLEM: {problem}");
        self.problems.push(problem);
    }

    /// A random time in milliseconds.
    pub(super) async fn pause(&mut self, least: u64, most: u64) {
        sleep(Duration::from_millis(least + self.random.below(most - least + 1))).await;
    }

    /// Injects a fault, waits for the recovery, and checks what the clients saw. Returns the longest times without a successful
    /// write and without a read, in seconds.
    pub(super) async fn inject(&mut self, fault: &Fault) -> Outcome<(f64, f64)> {
        let from = self.load.now();
        (fault.cause)(self).await?;
        let ended = self.load.now();
        let recovered = self.until_written(ended).await? - ended;
        match &mut self.database {
            Database::Servers(cluster) => cluster.rebuild_deposed().await?,
            Database::Patroni(_, None) => patroni_cluster::wait_until_healthy().await?,
            _ => {}
        }
        // A standby shows a commit before the primary does.
        sleep(Duration::from_millis(300)).await;
        let pauses = self.report(fault, from, recovered);
        if matches!(self.database, Database::Patroni(..)) {
            self.check_for_leaks()?;
        }
        Ok(pauses)
    }

    fn report(&mut self, fault: &Fault, from: f64, recovered: f64) -> (f64, f64) {
        let to = self.load.now();
        let log = self.load.log();
        // Where no node is stopped, each must go on.
        let nodes: &[Option<usize>] =
            if matches!(self.database, Database::Servers(_)) { &[Some(0), Some(1)] } else { &[None] };
        let [writes, reads] = [true, false].map(|is_write| {
            nodes.iter().map(|node| log.longest_gap(is_write, *node, from, to)).fold(0.0, f64::max)
        });
        let ((refused, p99), (broken, _)) = (log.with_status(503, from, to), log.with_status(0, from, to));
        let slowest = log.between(from, to).map(|attempt| attempt.seconds).fold(0.0, f64::max);
        drop(log);
        let mut line = format!(
            "{:<34} {:>5.1} s: no write for {writes:.2} s, no read for {reads:.2} s, recovered {recovered:.1} s after its end; \
             {refused} × 503, p99 {:.0} ms; {broken} broken connections",
            fault.name,
            to - from,
            p99 * 1_000.0
        );
        for note in self.notes.drain(..) {
            let _ = write!(line, "; {note}");
        }
        println!("{line}");
        let found = self.load.history().take_problems();
        for problem in found {
            self.problem(format!("{}: {problem}", fault.name));
        }
        for (is_wrong, what) in [
            (writes > fault.writes * self.slack, format!("no write for {writes:.1} s")),
            (reads > fault.reads * self.slack, format!("no read for {reads:.1} s")),
            (slowest > DEADLINE, format!("a request took {slowest:.1} s")),
        ] {
            if is_wrong {
                self.problem(format!("{}: {what}", fault.name));
            }
        }
        (writes, reads)
    }

    /// Waits for a write that is acknowledged after this time, and returns when that was.
    pub(super) async fn until_written(&self, after: f64) -> Outcome<f64> {
        loop {
            if let Some(at) = self.load.log().first_write(after) {
                return Ok(at);
            }
            if self.load.now() > after + 120.0 {
                return Err("no write was acknowledged for two minutes".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A node must need about as much after many faults as after one.
    fn check_for_leaks(&mut self) -> Outcome {
        let node = &self.nodes.nodes[1].server;
        // Clients retried on more and more connections, which stay open for a while.
        let clients = node.metric("petstore_connections")?;
        let (kilobytes, descriptors) = (node.kilobytes()? - 25.0 * clients, node.descriptors()? - clients);
        println!(
            "    the second node has {:.1} MB of memory and {descriptors} file descriptors, besides {clients} client connections",
            kilobytes / 1024.0
        );
        let (first_kilobytes, first_descriptors) = *self.baseline.get_or_insert((kilobytes, descriptors));
        // With a margin: buffers grow with the largest number of requests in flight so far.
        if kilobytes > first_kilobytes * 1.5 + 16.0 * 1024.0 || descriptors > first_descriptors * 2.0 + 32.0 {
            return Err("the second node leaks memory or file descriptors".into());
        }
        Ok(())
    }
}

impl Database {
    fn url(&self) -> &str {
        match self {
            Self::Single(_, url) | Self::Patroni(url, _) => url,
            Self::Servers(cluster) => cluster.primary_url(),
        }
    }

    pub(super) fn postgres(&self) -> Outcome<&Postgres> {
        match self {
            Self::Single(postgres, _) => Ok(postgres),
            _ => Err("this fault needs a PostgreSQL of its own".into()),
        }
    }

    pub(super) fn servers(&mut self) -> Outcome<&mut Cluster> {
        match self {
            Self::Servers(cluster) => Ok(cluster),
            _ => Err("this fault needs three PostgreSQL servers".into()),
        }
    }

    pub(super) fn proxy(&self) -> Outcome<&Proxy> {
        match self {
            Self::Patroni(_, Some(proxy)) => Ok(proxy),
            _ => Err("this fault needs the proxy before the database".into()),
        }
    }
}
