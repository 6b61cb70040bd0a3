//! Faults of a cluster under load: nothing that was acknowledged may be lost or doubled, and the service comes back by
//! itself.
//!
//! Runs in the hub of the cluster that `tests/cluster/cluster` brings up: `tests/cluster/cluster run petstore-bench
//! faults`.

mod load;
mod proxy;

use std::fs;
use std::iter;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::Outcome;
use crate::random::Random;
use crate::report::Samples;
use crate::tools::{Postgres, Server, database_url, fill, free_addresses, output, psql, wrk};
use load::Load;
use proxy::{Proxy, Trouble};

const CLUSTER: &str = "tests/cluster/cluster";
/// How long all is well between two faults.
const CALM: Duration = Duration::from_secs(3);
/// How long standbys go on believing in a primary that told them that it goes on without etcd: Patroni's `ttl`. Another
/// fault within that time is a second accident at once, which nothing is promised of.
const BELIEF: Duration = Duration::from_secs(20);
/// The longest that 99 % of the refusals may take while there is no primary, in seconds.
const REFUSED_WITHIN: f64 = 0.25;

/// How often each fault is caused.
#[derive(Args)]
pub(crate) struct Faults {
    /// A whole primary node is killed.
    #[arg(long, default_value_t = 2)]
    kill: u32,
    /// The primary's postmaster is killed.
    #[arg(long, default_value_t = 2)]
    postmaster: u32,
    /// A planned switchover.
    #[arg(long, default_value_t = 2)]
    switchover: u32,
    /// The primary is paused for 40 s.
    #[arg(long, default_value_t = 1)]
    pause: u32,
    /// The primary is cut off.
    #[arg(long, default_value_t = 1)]
    cut: u32,
    /// The majority of etcd is lost for 20 s.
    #[arg(long, default_value_t = 1)]
    etcd: u32,
    /// A node of the service is killed.
    #[arg(long, default_value_t = 5)]
    service: u32,
    /// The disk of the primary is full for 10 s; needs `up --disk-megabytes`.
    #[arg(long, default_value_t = 0)]
    disk: u32,
    /// All connections of the pool are held for 5 s, nothing arrives for 5 s, all is slow and breaks for 10 s.
    #[arg(long, default_value_t = 1)]
    network: u32,
    /// Random faults for so many minutes instead, from the seed.
    #[arg(long, default_value_t = 0)]
    soak_minutes: u64,
    /// Decides the faults of a soak.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests a second.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// How many times as long as promised each fault may be felt; above 1 where other work has the machine as well.
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
    /// Measures instead what the cluster costs, against a single server.
    #[arg(long)]
    cost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Postmaster,
    Switchover,
    Pause,
    Cut,
    Etcd,
    Service,
    Disk,
    PoolHeld,
    BlackHole,
    Slow,
}

impl Fault {
    /// The longest time without an acknowledged write.
    fn bar(self) -> f64 {
        match self {
            Self::Kill => 25.0,
            Self::Postmaster | Self::Switchover => 5.0,
            Self::Pause | Self::Cut => 30.0,
            Self::Etcd | Self::Service => 1.0,
            // What the fault lasts, and 2 s.
            Self::Disk | Self::Slow => 12.0,
            Self::PoolHeld | Self::BlackHole => 7.0,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Kill => "primary node killed",
            Self::Postmaster => "postmaster killed",
            Self::Switchover => "switchover",
            Self::Pause => "primary paused for 40 s",
            Self::Cut => "primary cut off for 40 s",
            Self::Etcd => "etcd's majority lost for 20 s",
            Self::Service => "node of the service killed",
            Self::Disk => "primary's disk full for 10 s",
            Self::PoolHeld => "table locked for 5 s",
            Self::BlackHole => "nothing arrives for 5 s",
            Self::Slow => "50 ms each way and 5 % resets for 10 s",
        }
    }
}

/// Faults of the cluster and of the service, by chance, for so long.
fn random_faults(seed: u64, time: Duration) -> impl Iterator<Item = Fault> {
    let all = [
        Fault::Service,
        Fault::Postmaster,
        Fault::Switchover,
        Fault::Etcd,
        Fault::Kill,
        Fault::Cut,
        Fault::Pause,
    ];
    let (mut random, began) = (Random(seed), Instant::now());
    let choose = move || all[usize::try_from(random.below(all.len() as u64)).unwrap_or(0)];
    iter::repeat_with(choose).take_while(move |_| began.elapsed() < time)
}

/// The service, what is before its database, and its clients.
struct Stage {
    url: String,
    /// The same database through the proxy, if there is one.
    service_url: String,
    proxy: Option<Proxy>,
    nodes: Vec<Server>,
    places: Vec<(SocketAddr, SocketAddr)>,
    key: String,
    run: String,
    /// Memory in kilobytes and descriptors, after the first fault, of the node that is never killed.
    at_first: Option<(f64, f64)>,
    slack: f64,
    failures: Vec<String>,
}

impl Faults {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        if self.cost {
            return spawn_blocking(move || cost(&url)).await?;
        }
        let key = fill(&url, 1_000)?;
        let mut failures = Vec::new();
        let cluster: Vec<Fault> = [
            (Fault::Service, self.service),
            (Fault::Postmaster, self.postmaster),
            (Fault::Switchover, self.switchover),
            (Fault::Etcd, self.etcd),
            (Fault::Disk, self.disk),
            (Fault::Kill, self.kill),
            (Fault::Cut, self.cut),
            (Fault::Pause, self.pause),
        ]
        .into_iter()
        .flat_map(|(fault, count)| (0..count).map(move |_| fault))
        .collect();
        if self.soak_minutes > 0 || !cluster.is_empty() {
            let mut stage = Stage::set(&url, &key, false, self.slack).await?;
            if self.soak_minutes > 0 {
                println!("seed {}", self.seed);
                stage
                    .play(random_faults(self.seed, Duration::from_mins(self.soak_minutes)), self.rate)
                    .await?;
            } else {
                stage.play(cluster.into_iter(), self.rate).await?;
            }
            failures.append(&mut stage.failures);
        }
        if self.network > 0 && self.soak_minutes == 0 {
            let network = (0..self.network).flat_map(|_| [Fault::PoolHeld, Fault::BlackHole, Fault::Slow]);
            let mut stage = Stage::set(&url, &key, true, self.slack).await?;
            stage.play(network, self.rate).await?;
            failures.append(&mut stage.failures);
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
    }
}

impl Stage {
    /// Starts two nodes; with a proxy before the primary, if it is to be troubled.
    async fn set(url: &str, key: &str, troubled: bool, slack: f64) -> Outcome<Self> {
        let mut stage = Self {
            url: url.to_owned(),
            service_url: url.to_owned(),
            proxy: None,
            nodes: Vec::new(),
            places: Vec::new(),
            key: key.to_owned(),
            run: format!("f{}-{troubled}", std::process::id()),
            at_first: None,
            slack,
            failures: Vec::new(),
        };
        if troubled {
            let leader = cluster(&["leader"]).await?;
            let proxy = Proxy::before(format!("{}:5432", address_of(leader.trim())).parse()?).await?;
            stage.service_url = format!("postgresql://petstore:petstore@{}/petstore", proxy.address);
            stage.proxy = Some(proxy);
        }
        for _ in 0..2 {
            let (address, admin) = free_addresses()?;
            stage.nodes.push(Server::petstore_node(&stage.service_url, address, admin)?);
            stage.places.push((address, admin));
        }
        Ok(stage)
    }

    /// Causes these faults one after another, and then looks at everything.
    async fn play(&mut self, faults: impl Iterator<Item = Fault>, rate: u32) -> Outcome {
        let addresses: Vec<SocketAddr> = self.places.iter().map(|(address, _)| *address).collect();
        let (load, clients) = Load::start(&addresses, &self.key, &self.run, rate);
        sleep(CALM).await;
        for fault in faults {
            self.cause(fault, &load).await?;
        }
        load.stop();
        clients.await?;
        fs::create_dir_all("target/faults")?;
        fs::write("target/faults/timeline.csv", load.record().timeline())?;
        println!("{}", load.record().check(&self.url, &self.run)?);
        Ok(())
    }

    /// Causes one fault, ends it, waits until all is well, and says what the clients saw.
    async fn cause(&mut self, fault: Fault, load: &Load) -> Outcome {
        let from = load.now();
        match fault {
            Fault::Kill => {
                let node = cluster(&["kill", "leader"]).await?;
                until_written(load, from + 1.0).await?;
                cluster(&["start", node.trim()]).await?;
            }
            Fault::Postmaster => drop(cluster(&["kill", "--postmaster", "leader"]).await?),
            Fault::Switchover => drop(cluster(&["switchover"]).await?),
            Fault::Pause => self.for_a_while(&["pause", "leader"], "resume", 40).await?,
            Fault::Cut => {
                // What is never acknowledged behind the cut is acknowledged in the same way before it.
                let node = cluster(&["leader"]).await?.trim().to_owned();
                let whole = node.clone();
                if !spawn_blocking(move || is_acknowledged_on(&whole)).await?? {
                    return Err(format!("{node} is whole, and acknowledged no write to its own side").into());
                }
                cluster(&["cut", &node]).await?;
                let cut_off =
                    spawn_blocking(move || acknowledged_on(&node, Duration::from_secs(40))).await??;
                cluster(&["heal"]).await?;
                println!("         on the side that was cut off, {cut_off} of the writes were acknowledged");
                if cut_off > 0 {
                    return Err("the side that was cut off acknowledged a write".into());
                }
            }
            Fault::Etcd => {
                self.for_a_while(&["etcd-stop"], "etcd-start", 20).await?;
                sleep(BELIEF).await;
            }
            Fault::Disk => self.for_a_while(&["fill", "leader"], "free", 10).await?,
            Fault::Service => {
                let (address, admin) = self.places[0];
                self.nodes[0].kill();
                sleep(Duration::from_millis(200)).await;
                self.nodes[0] = Server::petstore_node(&self.service_url, address, admin)?;
            }
            Fault::PoolHeld => {
                let url = self.url.clone();
                let held = "BEGIN; LOCK TABLE pets IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT";
                spawn_blocking(move || psql(&url, held)).await??;
            }
            Fault::BlackHole => self.trouble(Trouble::BlackHole, 5).await,
            Fault::Slow => self.trouble(Trouble::Slow, 10).await,
        }
        let ended = load.now();
        let back = until_written(load, ended).await? - ended;
        if self.proxy.is_none() {
            cluster(&["wait", "--timeout", "90"]).await?;
        }
        sleep(CALM).await;
        let to = load.now();
        let record = load.record();
        let gap = record.longest_gap(from, to);
        let ((failed, p99), (broken, _)) =
            (record.with_status(503, from, to), record.with_status(0, from, to));
        let refused_late = fault == Fault::Kill && p99 > REFUSED_WITHIN * self.slack;
        let verdict = if gap > fault.bar() * self.slack || refused_late { "  TOO LONG" } else { "" };
        println!(
            "{:<40} no write for {gap:>5.1} s, back {back:>4.1} s after its end; {failed:>5} answers of 503, 99 % of them \
             within {:>5.0} ms; {broken:>4} broken connections{verdict}",
            fault.words(),
            p99 * 1000.0
        );
        if let Some(problem) = record.problems().first() {
            return Err(problem.clone().into());
        }
        drop(record);
        self.look_for_leaks()?;
        if !verdict.is_empty() {
            let milliseconds = p99 * 1000.0;
            self.failures.push(format!(
                "{}: no write for {gap:.1} s, 99 % of the refusals within {milliseconds:.0} ms",
                fault.words()
            ));
        }
        Ok(())
    }

    /// What a node needs after many faults is about what it needs after one.
    fn look_for_leaks(&mut self) -> Outcome {
        let node = &self.nodes[1];
        // Clients that could not be answered sent again on more and more connections, which stay open for a while.
        let clients = node.metric("petstore_connections")?;
        let (kilobytes, descriptors) = (node.kilobytes()? - 25.0 * clients, node.descriptors()? - clients);
        println!(
            "         the node that stays has {:.1} MB of memory and {descriptors} descriptors, beside {clients} \
             clients' connections",
            kilobytes / 1024.0
        );
        let (first_kilobytes, first_descriptors) = *self.at_first.get_or_insert((kilobytes, descriptors));
        // Not to the last byte: buffers grow with the largest crowd of requests so far.
        if kilobytes > first_kilobytes * 1.5 + 16.0 * 1024.0 || descriptors > first_descriptors * 2.0 + 32.0 {
            return Err("the node that stays needs more and more".into());
        }
        Ok(())
    }

    async fn for_a_while(&self, begin: &[&str], end: &str, seconds: u64) -> Outcome {
        cluster(begin).await?;
        sleep(Duration::from_secs(seconds)).await;
        cluster(&[end]).await.map(drop)
    }

    async fn trouble(&self, trouble: Trouble, seconds: u64) {
        if let Some(proxy) = &self.proxy {
            proxy.set(trouble);
            sleep(Duration::from_secs(seconds)).await;
            proxy.set(Trouble::None);
        }
    }
}

/// Waits for a write that is acknowledged after this moment, and returns when it was.
async fn until_written(load: &Load, after: f64) -> Outcome<f64> {
    loop {
        let written =
            |attempt: &&load::Attempt| attempt.is_write && attempt.status == 201 && attempt.at > after;
        if let Some(first) = load.record().attempts.iter().find(written) {
            return Ok(first.at);
        }
        if load.now() > after + 120.0 {
            return Err("no write was acknowledged for two minutes".into());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// The address that the cluster gives to a node of this name.
fn address_of(node: &str) -> String {
    format!("10.86.0.1{}", node.trim_start_matches('n'))
}

/// How many writes a node acknowledges to clients on its own side, during this time.
fn acknowledged_on(node: &str, time: Duration) -> Outcome<u32> {
    let began = Instant::now();
    let mut acknowledged = 0;
    while began.elapsed() < time {
        acknowledged += u32::from(is_acknowledged_on(node)?);
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(acknowledged)
}

/// Whether a node acknowledges a write to a client on its own side within 4 s; then the client gives up, without a cancel.
fn is_acknowledged_on(node: &str) -> Outcome<bool> {
    let url = format!("postgresql://petstore:petstore@{}/petstore?connect_timeout=3", address_of(node));
    let insert = "INSERT INTO pets (name, category_id) VALUES ('behind the cut', 1)";
    let side = format!("petstore-{node}");
    let client =
        ["netns", "exec", &side, "timeout", "--signal", "KILL", "4", "psql", &url, "--command", insert];
    Ok(Command::new("ip").args(client).output()?.status.success())
}

async fn cluster(arguments: &[&str]) -> Outcome<String> {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    spawn_blocking(move || output(CLUSTER, &arguments.iter().map(String::as_str).collect::<Vec<_>>())).await?
}

/// Pets added a second at 64 connections: on the cluster, on the cluster without waiting for a standby, and on a single
/// server, in turn.
fn cost(url: &str) -> Outcome {
    let postgres = Postgres::temporary();
    let single = postgres.start()?;
    let (key, single_key) = (fill(url, 1_000)?, fill(&single, 1_000)?);
    let without_waiting = format!("{url}&options=-c%20synchronous_commit%3Dlocal");
    let services = [
        (Server::petstore(url)?, &key),
        (Server::petstore(&without_waiting)?, &key),
        (Server::petstore(&single)?, &single_key),
    ];
    let (mut of_waiting, mut of_all) = (Samples::default(), Samples::default());
    for round in 0..=7 {
        let mut rates = [0.0; 3];
        for (rate, (service, key)) in rates.iter_mut().zip(&services) {
            *rate = wrk(service, "create_plain", key, 1_000, 64, 4)?;
        }
        // The first round warms up.
        if round > 0 {
            let [waiting, not_waiting, single] = rates;
            println!(
                "round {round}: {waiting:.0} pets a second on the cluster, {not_waiting:.0} without waiting for a \
                 standby, {single:.0} on a single server"
            );
            of_waiting.push(waiting / not_waiting);
            of_all.push(waiting / single);
        }
    }
    println!("waiting for a standby leaves {} of the rate; the bar is 0.8", of_waiting.spread());
    println!(
        "the whole cluster has {} of the rate of a single server, with all three nodes on the processors of one machine",
        of_all.spread()
    );
    if of_waiting.median() < 0.8 { Err("waiting for a standby costs too much".into()) } else { Ok(()) }
}
