//! Fresh reads on real PostgreSQL servers: a read that succeeds must contain every write that was acknowledged before the
//! read was sent, whatever happens to the servers, and reads must go on without a primary.
//!
//! Three servers, of which a commit needs two, and two nodes of the service under load. The phases run in a random order.
//! Each leaves a primary and two standbys behind. A trigger records every version of each pet in the database, so a lost
//! write is found even if a later one has replaced it.

mod cost;
mod faults;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::Outcome;
use crate::history::Counts;
use crate::http::Connection;
use crate::measure::{grouped, verdict};
use crate::random::{Random, printed_seed};
use crate::topology::{Cluster, PETSTORE, Server, new_key, output};
use crate::workload::{Clients, Kind, Load};
pub(crate) use cost::FreshReadsCost;

/// The longest time without a successful read on a node while two servers can answer, in seconds.
const READ_GAP_BAR: f64 = 1.5;
/// How long a node may take to find a new primary, from the time that it has a synchronous standby, in seconds.
const WRITE_GAP_BAR: f64 = 3.0;
/// How long a revoked key may be accepted, in seconds.
const REVOCATION_BAR: f64 = 5.0;

/// The pause before a fault. Nodes ask the servers once a second; with one that they have not seen since it was started, a fault
/// would be a double fault, for which nothing is guaranteed.
const CALM: Duration = Duration::from_millis(2_500);

/// A write that waits for a standby which is gone must not keep its writer from trying again.
const WRITERS: Clients = Clients {
    mix: &[(1, Kind::Create), (99, Kind::Rename)],
    stay: true,
    retry: Some(Duration::from_millis(50)),
    patience: Duration::from_secs(1),
    pause: 5..25,
    ..Clients::DEFAULT
};
const READERS: Clients = Clients {
    mix: &[(1, Kind::Get), (1, Kind::Page)],
    stay: true,
    patience: READ_TIMEOUT,
    pause: 1..5,
    ..Clients::DEFAULT
};
/// Clients of each kind, half of them on each node.
const CLIENTS: u64 = 6;
/// The pets that are changed.
const FEW: usize = 36;
/// No read may take longer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Two nodes over three PostgreSQL servers, which it starts itself.
#[derive(Args)]
pub(crate) struct FreshReads {
    /// How long to repeat the phases.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Run every phase this often instead.
    #[arg(long)]
    rounds: Option<u32>,
    /// Run only these phases.
    #[arg(long, value_delimiter = ',')]
    phases: Vec<Phase>,
    /// Repeats the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// A factor on all time limits; above 1 on a machine with other load.
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
    /// The service's setting of the same name.
    #[arg(long)]
    reads: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Phase {
    /// Nothing fails.
    Healthy,
    /// The receiver or the replay of a standby stops for a moment, over and over.
    Lagging,
    /// The primary crashes. After some seconds, a standby is promoted.
    Crashed,
    /// The same; one key is revoked just before, and one just after.
    Revoked,
    /// A standby is promoted while the former primary lives on.
    Deposed,
    /// The primary hangs. After some seconds, a standby is promoted; then the former primary continues.
    Hung,
    /// Two of the three servers crash.
    TwoCrashed,
    /// A standby is killed while its replay is behind, and restarts.
    Restarted,
}

struct Test {
    cluster: Cluster,
    url: String,
    nodes: [SocketAddr; 2],
    load: Arc<Load>,
    random: Random,
    slack: f64,
    /// The name of the phase.
    phase: String,
    /// When it began, in seconds since the start.
    from: f64,
    /// When no server could be proven fresh.
    unprovable: Option<(f64, f64)>,
    /// How many effects were checked, and what was counted, before this phase.
    checked: usize,
    counted: Counts,
    failures: Vec<String>,
}

impl FreshReads {
    pub(crate) async fn run(self) -> Outcome {
        let seed = printed_seed(self.seed);
        let cluster = Cluster::start()?;
        let url = cluster.url();
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        let key = new_key(&url)?;
        let flags: Vec<&str> = self.reads.iter().flat_map(|reads| ["--reads", reads]).collect();
        let services = [
            Server::with_log(&url, &flags, "target/fresh-reads-0.log")?,
            Server::with_log(&url, &flags, "target/fresh-reads-1.log")?,
        ];
        let nodes = services.each_ref().map(|service| service.address);
        let load = Arc::new(Load::new(cluster.primary_url(), &nodes, &key, seed, FEW)?);
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, CLIENTS, &WRITERS);
        load.spawn(&mut tasks, CLIENTS, &READERS);

        let mut test = Test {
            cluster,
            url,
            nodes,
            load,
            random: Random::of_worker(seed, 1_000),
            slack: self.slack,
            phase: String::new(),
            from: 0.0,
            unprovable: None,
            checked: 0,
            counted: Counts::default(),
            failures: Vec::new(),
        };
        let phases = if self.phases.is_empty() { Phase::value_variants() } else { &self.phases[..] };
        let (started, time) = (Instant::now(), Duration::from_mins(self.minutes));
        let mut round = 0;
        'rounds: while self.rounds.is_none_or(|rounds| round < rounds) {
            round += 1;
            for phase in shuffled(phases, &mut test.random) {
                if self.rounds.is_none() && started.elapsed() > time {
                    break 'rounds;
                }
                test.run(phase).await?;
            }
        }
        test.load.stop();
        tasks.join_all().await;
        let (journal, problems) = test.load.check(test.cluster.primary_url())?;
        test.failures.extend(problems);
        let history = test.load.history();
        println!(
            "{:<11} {:>5.0} s: {}; {} shown, then lost",
            "all",
            started.elapsed().as_secs_f64(),
            summary(&history.counts),
            history.shown_and_lost(&journal)
        );
        verdict(&test.failures)
    }
}

fn shuffled<T: Copy>(items: &[T], random: &mut Random) -> Vec<T> {
    let mut items = items.to_vec();
    for place in (1..items.len()).rev() {
        items.swap(place, random.index(place + 1));
    }
    items
}

impl Test {
    /// Runs a phase, and restores the cluster.
    async fn run(&mut self, phase: Phase) -> Outcome {
        self.phase = phase.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        self.from = self.load.now();
        let deposed = self.cluster.primary;
        let mut notes = Vec::new();
        sleep(CALM).await;
        let reads_go_on = match phase {
            Phase::Healthy => {
                sleep(Duration::from_secs(3)).await;
                true
            }
            Phase::Lagging => self.lagging().await?,
            Phase::Crashed => self.crashed(false, &mut notes).await?,
            Phase::Revoked => self.crashed(true, &mut notes).await?,
            Phase::Deposed => self.deposed(&mut notes).await?,
            Phase::Hung => self.hung(&mut notes).await?,
            Phase::TwoCrashed => self.two_crashed(&mut notes).await?,
            Phase::Restarted => self.restarted(&mut notes).await?,
        };
        self.finish(reads_go_on, &notes).await?;
        if self.cluster.primary != deposed {
            self.from = self.load.now();
            "rebuilt".clone_into(&mut self.phase);
            // It may have crashed already.
            let _ = self.cluster.crash(deposed);
            self.cluster.rebuild(deposed)?;
            self.cluster.wait_for_standbys(self.cluster.primary, 2).await?;
            self.finish(true, &[]).await?;
        }
        Ok(())
    }

    /// Prints what happened in this phase, and checks it.
    async fn finish(&mut self, reads_go_on: bool, notes: &[String]) -> Outcome {
        let (effects, to) = (self.load.history().effects.len(), self.load.now());
        // A standby shows a commit before the primary does.
        sleep(Duration::from_millis(300)).await;
        let journal = self.load.journal(self.cluster.primary_url())?;
        let (counts, lost, problems) = {
            let mut history = self.load.history();
            let lost = history.missing(&journal, self.checked..effects);
            (history.counts.clone(), lost, history.take_problems())
        };
        let this = counts.since(&self.counted);
        (self.checked, self.counted) = (effects, counts);
        let (gap, slowest, unproven, (unavailable, _)) = {
            let log = self.load.log();
            let gap = (0..2).map(|node| log.longest_gap(false, Some(node), self.from, to));
            let reads = || log.between(self.from, to).filter(|attempt| !attempt.is_write);
            let slowest = reads().map(|attempt| attempt.seconds).fold(0.0, f64::max);
            let unproven = self.unprovable.take().map_or(0, |(from, to)| {
                reads().filter(|read| read.succeeded() && read.began() > from && read.at < to).count()
            });
            (gap.fold(0.0, f64::max), slowest, unproven, log.with_status(503, self.from, to))
        };
        let mut parts = vec![summary(&this), format!("{unavailable} × 503, longest gap {gap:.2} s")];
        parts.extend(notes.iter().cloned());
        println!("{:<11} {:>5.1} s: {}", self.phase, to - self.from, parts.join("; "));
        for (failed, text) in [
            (!problems.is_empty(), format!("{} stale; {}", this.stale, problems.join("; "))),
            (unproven > 0, format!("{unproven} reads answered by a single server")),
            (slowest >= READ_TIMEOUT.as_secs_f64(), format!("a read took {slowest:.1} s")),
            (!lost.is_empty(), format!("{} acknowledged writes lost: {lost:?}", lost.len())),
            (reads_go_on && gap > READ_GAP_BAR * self.slack, format!("no read for {gap:.1} s")),
        ] {
            if failed {
                self.fail(&text);
            }
        }
        Ok(())
    }

    fn fail(&mut self, text: &str) {
        println!("            FAILED: {text}");
        self.failures.push(format!("{}: {text}", self.phase));
    }

    /// A random time in milliseconds.
    async fn pause(&mut self, least: u64, most: u64) {
        sleep(Duration::from_millis(least + self.random.below(most - least + 1))).await;
    }

    /// Creates a key and uses it on both nodes, so that they know it.
    async fn new_key(&self, name: &str) -> Outcome<String> {
        let key = output(PETSTORE, &["keys", "create", "--name", name, "--database-url", &self.url])?;
        let key = key.trim().to_owned();
        for node in self.nodes {
            let (status, answer) =
                Connection::open(node, &key).await?.send("GET", "/v1/pets?limit=1", "").await?;
            if status != 200 {
                return Err(format!("a new key was answered {status} {answer}").into());
            }
        }
        Ok(key)
    }

    /// Revokes a key, and checks in the background that both nodes refuse it.
    fn revoke(
        &self,
        name: &'static str,
        key: &str,
    ) -> Outcome<JoinHandle<(&'static str, Result<f64, String>)>> {
        let find = format!("SELECT max(id) FROM api_keys WHERE name = '{name}'");
        let id = self.cluster.sql(self.cluster.primary, &find)?;
        output(PETSTORE, &["keys", "revoke", &id, "--database-url", &self.url])?;
        let (nodes, key, bar) = (self.nodes, key.to_owned(), REVOCATION_BAR * self.slack);
        Ok(tokio::spawn(async move { (name, last_accepted(nodes, &key, bar).await) }))
    }
}

/// Returns for how many seconds a revoked key was accepted.
async fn last_accepted(nodes: [SocketAddr; 2], key: &str, bar: f64) -> Result<f64, String> {
    let revoked = Instant::now();
    let seconds = || revoked.elapsed().as_secs_f64();
    let (mut accepted, mut refused) = (0.0, [false; 2]);
    while seconds() < bar + 2.0 {
        for (node, refused) in nodes.into_iter().zip(&mut refused) {
            let sent = seconds();
            let answer =
                async { Connection::open(node, key).await?.send("GET", "/v1/pets?limit=1", "").await };
            match answer.await {
                Ok((401, _)) => *refused = true,
                Ok((200, _)) => accepted = sent,
                _ => {}
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    if accepted > bar {
        return Err(format!("accepted for {accepted:.1} s"));
    }
    if refused == [true; 2] { Ok(accepted) } else { Err("not refused with 401".to_owned()) }
}

/// The counts in one line.
fn summary(counts: &Counts) -> String {
    format!(
        "{} reads, {} stale, {} backwards; {} writes, {} unknown",
        grouped(counts.reads),
        grouped(counts.stale),
        counts.backwards,
        grouped(counts.writes),
        counts.unknown
    )
}
