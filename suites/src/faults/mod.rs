//! Faults of a PostgreSQL cluster under load: no acknowledged write may be lost or duplicated, no read may miss one, a reader
//! of the feed gets each event once, and the service must recover by itself.
//!
//! Runs in the hub of the cluster that `tests/cluster/cluster` starts: `tests/cluster/cluster run petstore-suites
//! faults`.

mod hub;
mod kinds;

use std::collections::BTreeMap;
use std::fs;
use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::history::feed::Reader;
use crate::measure::{Samples, verdict};
use crate::topology::{NetworkFault, Proxy, Server, database_url, fill, free_addresses, psql};
use crate::workload::{Clients, Kind, Load, none_of};
use crate::{Outcome, costs};
use hub::{address_of, cluster, partition, unreplicated_on};
use kinds::{Fault, counted, random_faults};

const DATABASE_NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The pause between two faults.
const CALM: Duration = Duration::from_secs(3);
/// How long standbys rely on a primary that continues without etcd: Patroni's `ttl`. Another fault within that time would
/// be a double fault, for which nothing is guaranteed.
const PATRONI_TTL: Duration = Duration::from_secs(20);
/// How long Patroni is frozen: until another server is the primary, and some time of two primaries.
const FROZEN: Duration = Duration::from_secs(40);
/// How long checkpointers are paused: until another server is the primary, and its first writes.
const CHECKPOINTER_PAUSE: Duration = Duration::from_secs(10);
/// The highest p99 of the refusals while there is no primary, in seconds.
const REFUSED_WITHIN: f64 = 0.25;

/// No request may take longer: the queue, the connection and the statement each have a deadline. Half a second more for the
/// round trip.
const DEADLINE: f64 = 10.5;
/// They retry as soon as `Retry-After` says.
const CLIENTS: Clients = Clients {
    mix: &[(3, Kind::Available), (2, Kind::Find), (1, Kind::Page), (3, Kind::Create), (1, Kind::Contest)],
    retry: Some(Duration::from_secs(1)),
    patience: Duration::from_secs(11),
    ..Clients::DEFAULT
};

/// Two nodes of the service over the cluster.
#[derive(Args)]
pub(crate) struct Faults {
    /// The faults, one after another, such as `kill=3`.
    #[arg(value_name = "FAULT[=TIMES]", value_parser = counted)]
    injected: Vec<(Fault, usize)>,
    /// Inject random faults for this many minutes instead.
    #[arg(long, default_value_t = 0)]
    soak_minutes: u64,
    /// Seed of the random faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests per second.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// A factor on all time limits; above 1 on a machine with other load.
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
    /// Measure the throughput of the cluster against a single server instead.
    #[arg(long)]
    cost: bool,
}

/// Two nodes of the service under load, and a proxy in front of their database if the network is to fail.
struct Test {
    url: String,
    /// The same database through the proxy, if there is one.
    service_url: String,
    proxy: Option<Proxy>,
    nodes: Vec<Server>,
    addresses: Vec<(SocketAddr, SocketAddr)>,
    key: String,
    /// Memory in kilobytes and file descriptors of the node that is never killed, after the first fault.
    baseline: Option<(f64, f64)>,
    slack: f64,
    /// The longest times without an acknowledged write and without a successful read, by the name of the fault.
    gaps: BTreeMap<&'static str, (Samples, Samples)>,
    failures: Vec<String>,
}

impl Faults {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        if self.cost {
            return costs::replication(&url).await;
        }
        let key = fill(&url, 1_000)?;
        let mut failures = Vec::new();
        let all = self.injected.iter().flat_map(|(fault, times)| iter::repeat_n(*fault, *times));
        let (network, cluster): (Vec<Fault>, Vec<Fault>) = all.partition(|fault| fault.needs_proxy());
        if self.soak_minutes > 0 {
            println!("seed {}", self.seed);
            let mut test = Test::start(&url, &key, false, self.slack).await?;
            test.run(random_faults(self.seed, Duration::from_mins(self.soak_minutes)), self.rate).await?;
            failures.append(&mut test.failures);
        }
        for (faults, with_proxy) in [(cluster, false), (network, true)] {
            if !faults.is_empty() {
                let mut test = Test::start(&url, &key, with_proxy, self.slack).await?;
                test.run(faults.into_iter(), self.rate).await?;
                failures.append(&mut test.failures);
            }
        }
        verdict(&failures)
    }
}

impl Test {
    /// Starts two nodes, with a proxy in front of the primary if wanted.
    async fn start(url: &str, key: &str, with_proxy: bool, slack: f64) -> Outcome<Self> {
        let mut test = Self {
            url: url.to_owned(),
            service_url: url.to_owned(),
            proxy: None,
            nodes: Vec::new(),
            addresses: Vec::new(),
            key: key.to_owned(),
            baseline: None,
            slack,
            gaps: BTreeMap::new(),
            failures: Vec::new(),
        };
        if with_proxy {
            let leader = cluster(&["leader"]).await?;
            let proxy = Proxy::start(format!("{}:5432", address_of(leader.trim())).parse()?).await?;
            test.service_url = format!("postgresql://petstore:petstore@{}/petstore", proxy.address);
            test.proxy = Some(proxy);
        }
        for _ in 0..2 {
            let (address, admin) = free_addresses()?;
            test.nodes.push(Server::node(&test.service_url, address, admin)?);
            test.addresses.push((address, admin));
        }
        Ok(test)
    }

    /// Injects these faults one after another, and then checks the record.
    async fn run(&mut self, faults: impl Iterator<Item = Fault>, rate: u32) -> Outcome {
        let addresses: Vec<SocketAddr> = self.addresses.iter().map(|(address, _)| *address).collect();
        let load = Load::new(&self.url, &addresses, &self.key, 1, 50)?;
        let (load, mut tasks) = (Arc::new(load), JoinSet::new());
        load.spawn_at_rate(&mut tasks, rate, &CLIENTS);
        let reader = Reader::start(&addresses, &self.key, 100, None);
        sleep(CALM).await;
        for fault in faults {
            self.inject(fault, &load).await?;
        }
        load.stop();
        tasks.join_all().await;
        fs::create_dir_all("target/faults")?;
        fs::write("target/faults/timeline.csv", load.log().timeline())?;
        for (name, (writes, reads)) in &self.gaps {
            let (times, writes, reads) = (writes.0.len(), writes.spread(), reads.spread());
            println!("{name:<40} {times:>3} times: no write for {writes} s, no read for {reads} s");
        }
        let (_, reading, problems) = load.check_with_feed(&self.url, reader).await?;
        none_of(&problems)?;
        println!(
            "{} attempts, {} writes acknowledged: none lost, none duplicated, no pet in two open orders; a reader of the feed \
             got {} events, each once, with {} failures",
            load.log().attempts.len(),
            load.history().counts.writes,
            reading.events.len(),
            reading.failures
        );
        Ok(())
    }

    /// Injects one fault, ends it, waits for recovery, and reports what the clients saw.
    async fn inject(&mut self, fault: Fault, load: &Load) -> Outcome {
        let from = load.now();
        self.cause(fault, load).await?;
        let ended = load.now();
        let back = until_written(load, ended).await? - ended;
        if self.proxy.is_none() {
            cluster(&["wait", "--timeout", "90"]).await?;
        }
        sleep(CALM).await;
        self.report(fault, load, from, back)?;
        self.check_for_leaks()
    }

    /// Causes a fault and ends it.
    async fn cause(&mut self, fault: Fault, load: &Load) -> Outcome {
        match fault {
            Fault::Kill => {
                let node = cluster(&["kill", "leader"]).await?;
                until_written(load, load.now() + 1.0).await?;
                cluster(&["start", node.trim()]).await?;
            }
            Fault::Postmaster => drop(cluster(&["kill", "--postmaster", "leader"]).await?),
            Fault::Switchover => drop(cluster(&["switchover"]).await?),
            Fault::Pause => self.for_a_while(&["pause", "leader"], "resume", 40).await?,
            Fault::Cut => partition(&["cut"]).await?,
            Fault::Isolate => partition(&["cut", "--from-peers"]).await?,
            Fault::FrozenPatroni => self.freeze_patroni(load).await?,
            Fault::StandbyBehind => {
                let standby = cluster(&["replay-pause", "standby"]).await?;
                sleep(Duration::from_secs(5)).await;
                cluster(&["kill", "--postmaster", "leader"]).await?;
                cluster(&["kill", "--postmaster", standby.trim()]).await?;
            }
            Fault::Checkpointer => {
                let leader = cluster(&["leader"]).await?.trim().to_owned();
                let standbys = DATABASE_NODES.into_iter().filter(|&node| node != leader);
                for standby in standbys.clone() {
                    cluster(&["pause", "--only", "checkpointer", standby]).await?;
                }
                cluster(&["kill", "--postmaster", &leader]).await?;
                let writers =
                    standbys.map(|node| spawn_blocking(|| unreplicated_on(node, CHECKPOINTER_PAUSE)));
                let mut unreplicated = 0;
                for writer in writers.collect::<Vec<_>>() {
                    unreplicated += writer.await??;
                }
                cluster(&["resume"]).await?;
                if unreplicated > 0 {
                    return Err(format!("{unreplicated} writes were acknowledged that no standby had").into());
                }
            }
            Fault::Standbys => {
                // With their etcd, the primary would lose its leader key, too.
                for _ in 0..2 {
                    cluster(&["kill", "--keep-etcd", "standby"]).await?;
                }
                sleep(Duration::from_secs(10)).await;
                cluster(&["start"]).await?;
            }
            Fault::Etcd => {
                self.for_a_while(&["etcd-stop"], "etcd-start", 20).await?;
                sleep(PATRONI_TTL).await;
            }
            Fault::EtcdLeader => {
                self.for_a_while(&["etcd-stop", "--peers"], "etcd-start", 20).await?;
                sleep(PATRONI_TTL).await;
            }
            Fault::Disk => self.for_a_while(&["fill", "leader"], "free", 10).await?,
            Fault::Service => {
                let (address, admin) = self.addresses[0];
                self.nodes[0].kill();
                sleep(Duration::from_millis(200)).await;
                self.nodes[0] = Server::node(&self.service_url, address, admin)?;
            }
            Fault::PoolHeld => {
                let url = self.url.clone();
                let lock = "BEGIN; LOCK TABLE pets IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT";
                spawn_blocking(move || psql(&url, lock)).await??;
            }
            Fault::BlackHole => self.break_network(NetworkFault::BlackHole, 5).await,
            Fault::Slow => self.break_network(NetworkFault::Slow, 10).await,
        }
        Ok(())
    }

    /// Reports what the clients saw of a fault that began at `from`.
    fn report(&mut self, fault: Fault, load: &Load, from: f64, back: f64) -> Outcome {
        let to = load.now();
        let log = load.log();
        let [gap, read_gap] = [true, false].map(|of_writes| log.longest_gap(of_writes, None, from, to));
        let ((failed, p99), (broken, _)) = (log.with_status(503, from, to), log.with_status(0, from, to));
        let slowest = log.between(from, to).map(|attempt| attempt.seconds).fold(0.0, f64::max);
        drop(log);
        let problems = load.history().take_problems();
        let refused_late = fault == Fault::Kill && p99 > REFUSED_WITHIN * self.slack;
        let read_late = read_gap > fault.read_bar() * self.slack;
        let verdict =
            if gap > fault.bar() * self.slack || refused_late || read_late { "  TOO LONG" } else { "" };
        println!(
            "{:<40} no write for {gap:>5.1} s, no read for {read_gap:>5.1} s, recovered {back:>4.1} s after its end; \
             {failed:>5} answers of 503, p99 {:>5.0} ms; {broken:>4} broken connections{verdict}",
            fault.name(),
            p99 * 1000.0
        );
        let gaps = self.gaps.entry(fault.name()).or_default();
        gaps.0.push(gap);
        gaps.1.push(read_gap);
        none_of(&problems)?;
        if slowest > DEADLINE {
            return Err(format!("a request took {slowest:.1} s").into());
        }
        if !verdict.is_empty() {
            let milliseconds = p99 * 1000.0;
            self.failures.push(format!(
                "{}: no write for {gap:.1} s, no read for {read_gap:.1} s, p99 of the refusals {milliseconds:.0} ms",
                fault.name()
            ));
        }
        Ok(())
    }

    /// A node must need about as much after many faults as after one.
    fn check_for_leaks(&mut self) -> Outcome {
        let node = &self.nodes[1];
        // Clients retried on more and more connections, which stay open for a while.
        let clients = node.metric("petstore_connections")?;
        let (kilobytes, descriptors) = (node.kilobytes()? - 25.0 * clients, node.descriptors()? - clients);
        println!(
            "         the node that is never killed has {:.1} MB of memory and {descriptors} file descriptors, besides {clients} \
             client connections",
            kilobytes / 1024.0
        );
        let (first_kilobytes, first_descriptors) = *self.baseline.get_or_insert((kilobytes, descriptors));
        // With a margin: buffers grow with the largest number of requests in flight so far.
        if kilobytes > first_kilobytes * 1.5 + 16.0 * 1024.0 || descriptors > first_descriptors * 2.0 + 32.0 {
            return Err("the node that is never killed leaks memory or file descriptors".into());
        }
        Ok(())
    }

    async fn for_a_while(&self, begin: &[&str], end: &str, seconds: u64) -> Outcome {
        cluster(begin).await?;
        sleep(Duration::from_secs(seconds)).await;
        cluster(&[end]).await.map(drop)
    }

    /// Pauses Patroni on the primary for 40 s. As soon as there is another primary, adds pets to it as a node of the service
    /// that has found it would: reads must show them.
    async fn freeze_patroni(&self, load: &Load) -> Outcome {
        let started = Instant::now();
        let old = cluster(&["pause", "--only", "patroni", "leader"]).await?;
        let new = loop {
            match cluster(&["leader"]).await {
                Ok(new) if new != old => break new.trim().to_owned(),
                _ if started.elapsed() > FROZEN => return Err("no standby was promoted".into()),
                _ => sleep(Duration::from_millis(100)).await,
            }
        };
        println!("         {new} is the primary after {:.1} s", started.elapsed().as_secs_f64());
        let url = format!("postgresql://petstore:petstore@{}/petstore", address_of(&new));
        while started.elapsed() < FROZEN {
            let (url, name) = (url.clone(), load.new_name());
            let insert = format!(
                "INSERT INTO pets (name, category_id, status) VALUES ('{name}', 1, 'available') RETURNING id"
            );
            let id = spawn_blocking(move || psql(&url, &insert)).await??.trim().parse()?;
            load.created_in_sql(id, &name, "available");
            sleep(Duration::from_millis(200)).await;
        }
        cluster(&["resume"]).await.map(drop)
    }

    async fn break_network(&self, fault: NetworkFault, seconds: u64) {
        if let Some(proxy) = &self.proxy {
            proxy.set(fault);
            sleep(Duration::from_secs(seconds)).await;
            proxy.set(NetworkFault::None);
        }
    }
}

/// Waits for a write that is acknowledged after this time, and returns when that was.
async fn until_written(load: &Load, after: f64) -> Outcome<f64> {
    loop {
        if let Some(at) = load.log().first_write(after) {
            return Ok(at);
        }
        if load.now() > after + 120.0 {
            return Err("no write was acknowledged for two minutes".into());
        }
        sleep(Duration::from_millis(20)).await;
    }
}
