//! Fresh reads on real PostgreSQL servers: a read that succeeds must contain every write that was acknowledged before the
//! read was sent, whatever happens to the servers, and reads must go on without a primary.
//!
//! Three servers, of which a commit needs two, and two nodes of the service under load. The phases run in a random order.
//! Each leaves a primary and two standbys behind. A trigger records every version of each pet in the database, so a lost
//! write is found even if a later one has replaced it.

mod cluster;
mod cost;
mod load;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::Outcome;
use crate::http::Connection;
use crate::random::{Random, printed_seed};
use crate::report::{grouped, verdict};
use crate::tools::{PETSTORE, Server, new_key, output};
use cluster::{Cluster, Process};
pub(crate) use cost::FreshReadsCost;
use load::{Counts, Load, Version, name_of, version_of};

/// The longest time without a successful read on a node while two servers can answer, in seconds.
const READ_GAP_BAR: f64 = 1.5;
/// How long a node may take to find a new primary, from the time that it has a synchronous standby, in seconds.
const WRITE_GAP_BAR: f64 = 3.0;
/// How long a revoked key may be accepted, in seconds.
const REVOCATION_BAR: f64 = 5.0;

/// The pause before a fault. Nodes ask the servers once a second; with one that they have not seen since it was started, a fault
/// would be a double fault, for which nothing is guaranteed.
const CALM: Duration = Duration::from_millis(2_500);

/// The table that has every version of every pet.
const RECORD_VERSIONS: &str = "\
    CREATE TABLE versions (name text NOT NULL);
    CREATE FUNCTION record_version() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN INSERT INTO versions VALUES (NEW.name); RETURN NULL; END';
    CREATE TRIGGER record_version AFTER INSERT OR UPDATE ON pets
      FOR EACH ROW EXECUTE FUNCTION record_version();";

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
    totals: Counts,
    failures: Vec<String>,
}

impl FreshReads {
    pub(crate) async fn run(self) -> Outcome {
        let seed = printed_seed(self.seed);
        let cluster = Cluster::start()?;
        let url = cluster.url();
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        cluster.sql(cluster.primary, RECORD_VERSIONS)?;
        let key = new_key(&url)?;
        let flags: Vec<&str> = self.reads.iter().flat_map(|reads| ["--reads", reads]).collect();
        let services = [
            Server::with_log(&url, &flags, "target/fresh-reads-0.log")?,
            Server::with_log(&url, &flags, "target/fresh-reads-1.log")?,
        ];
        let nodes = services.each_ref().map(|service| service.address);
        let (load, clients) = Load::start(nodes, &key, seed);

        let mut test = Test {
            cluster,
            url,
            nodes,
            load,
            random: Random::of_worker(seed, 1_000),
            slack: self.slack,
            phase: String::new(),
            totals: Counts::default(),
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
        clients.join_all().await;
        println!("{:<11} {:>5.0} s: {}", "all", started.elapsed().as_secs_f64(), summary(&test.totals));
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
        let started = Instant::now();
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
        self.finish(started, reads_go_on, &notes).await?;
        if self.cluster.primary != deposed {
            let started = Instant::now();
            "rebuilt".clone_into(&mut self.phase);
            // It may have crashed already.
            let _ = self.cluster.crash(deposed);
            self.cluster.rebuild(deposed)?;
            self.cluster.wait_for_standbys(self.cluster.primary, 2).await?;
            self.finish(started, true, &[]).await?;
        }
        Ok(())
    }

    /// Prints what happened since the last call, and checks it.
    async fn finish(&mut self, started: Instant, reads_go_on: bool, notes: &[String]) -> Outcome {
        let (acknowledged, shown) = self.load.versions();
        // A standby shows a commit before the primary does.
        sleep(Duration::from_millis(300)).await;
        let stored = self.cluster.sql(self.cluster.primary, "SELECT name FROM versions")?;
        let stored: HashSet<Version> = stored.lines().filter_map(version_of).collect();
        let lost: Vec<Version> = acknowledged.difference(&stored).copied().collect();
        let shown_and_lost: Vec<Version> =
            shown.difference(&stored).filter(|version| !acknowledged.contains(version)).copied().collect();
        self.load.forget(&lost);
        self.load.forget(&shown_and_lost);

        let mut counts = self.load.take_counts();
        (counts.lost, counts.shown_and_lost) = (lost.len(), shown_and_lost.len());
        let gap = counts.longest_gap.as_secs_f64();
        let (seconds, summary) = (started.elapsed().as_secs_f64(), summary(&counts));
        println!("{:<11} {seconds:>5.1} s: {}", self.phase, [&[summary], notes].concat().join("; "));
        for (failed, text) in [
            (counts.stale > 0, format!("{} stale reads", counts.stale)),
            (counts.unproven > 0, format!("{} reads answered by a single server", counts.unproven)),
            (counts.errors > 0, format!("{} errors", counts.errors)),
            (counts.lost > 0, format!("{} acknowledged writes lost", counts.lost)),
            (reads_go_on && gap > READ_GAP_BAR * self.slack, format!("no read for {gap:.1} s")),
        ] {
            if failed {
                self.fail(&text);
            }
        }
        for example in &counts.examples {
            println!("            {example}");
        }
        self.totals.add(&counts);
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

    /// One standby at a time lags.
    async fn lagging(&mut self) -> Outcome<bool> {
        let end = Instant::now() + Duration::from_secs(6);
        while Instant::now() < end {
            let standby = *self.random.pick(&self.cluster.standbys());
            let process = *self.random.pick(&[Process::Receiver, Process::Replay]);
            let frozen = self.cluster.freeze(standby, process)?;
            self.pause(50, 400).await;
            drop(frozen);
            self.pause(20, 100).await;
        }
        Ok(true)
    }

    /// The primary crashes under load, and one standby may be behind. Reads go on without a primary, while the replay of a
    /// standby stops again and again. Then the standby that has received more is promoted.
    async fn crashed(&mut self, with_keys: bool, notes: &mut Vec<String>) -> Outcome<bool> {
        let standbys = self.cluster.standbys();
        let keys = if with_keys {
            Some([self.new_key("before").await?, self.new_key("after").await?])
        } else {
            None
        };
        let mut behind = None;
        let mut revocations = Vec::new();
        if let Some([key, _]) = &keys {
            revocations.push(self.revoke("before", key)?);
        } else if self.random.chance(50) {
            let standby = *self.random.pick(&standbys);
            behind = self.cluster.freeze(standby, Process::Receiver)?;
            self.pause(50, 300).await;
        }
        self.cluster.crash(self.cluster.primary)?;
        if let Some(receiver) = behind {
            receiver.terminate()?;
        }

        let without_primary = 3_000 + self.random.below(5_000);
        let end = Instant::now() + Duration::from_millis(without_primary);
        let lagging = *self.random.pick(&standbys);
        while Instant::now() < end {
            let frozen = self.cluster.freeze(lagging, Process::Replay)?;
            self.pause(50, 400).await;
            drop(frozen);
            self.pause(50, 300).await;
        }

        self.fail_over(standbys, notes).await?;
        if let Some([_, key]) = &keys {
            revocations.push(self.revoke("after", key)?);
        }
        for revocation in revocations {
            let (name, outcome) = revocation.await?;
            match outcome {
                Ok(seconds) => notes.push(format!("key revoked {name} accepted for {seconds:.2} s")),
                Err(text) => self.fail(&format!("key revoked {name}: {text}")),
            }
        }
        Ok(true)
    }

    /// Promotes the standby that has received more. The other one follows it.
    async fn fail_over(&mut self, [one, other]: [usize; 2], notes: &mut Vec<String>) -> Outcome {
        let received = [self.cluster.received(one)?, self.cluster.received(other)?];
        let (new, other) = if received[0] >= received[1] { (one, other) } else { (other, one) };
        notes.push(format!("one standby {} bytes behind", received[0].abs_diff(received[1])));
        self.cluster.promote(new)?;
        self.load.mark();
        self.cluster.follow(other, new)?;
        self.wait_for_writes(notes).await
    }

    /// Waits until both nodes write to the new primary.
    async fn wait_for_writes(&mut self, notes: &mut Vec<String>) -> Outcome {
        let since = self.cluster.wait_for_standbys(self.cluster.primary, 1).await?;
        let load = self.load.clone();
        let wrote = self.within(since, WRITE_GAP_BAR, || load.all_wrote_since_mark()).await;
        match wrote {
            Some(seconds) => notes.push(format!("writes back after {seconds:.2} s")),
            None => self.fail("writes did not find the new primary in time"),
        }
        Ok(())
    }

    /// Waits until something has happened, and returns how long it took; `None` if it took too long.
    async fn within(&self, since: Instant, bar: f64, happened: impl Fn() -> Option<Instant>) -> Option<f64> {
        let deadline = since + Duration::from_secs_f64(bar * self.slack);
        loop {
            if let Some(at) = happened() {
                return (at <= deadline).then_some((at.saturating_duration_since(since)).as_secs_f64());
            }
            if Instant::now() > deadline {
                return None;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// A standby is promoted, and the other one follows it, while the former primary lives on without standbys. No
    /// acknowledged write is lost: before the promotion, the former primary waits for the new one alone.
    async fn deposed(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
        let standbys = self.cluster.standbys();
        let new = *self.random.pick(&standbys);
        let other = standbys[usize::from(standbys[0] == new)];
        self.cluster.follow(other, new)?;
        self.cluster.wait_for_standbys(new, 1).await?;
        let (cluster, needed) = (&self.cluster, self.cluster.received(other)?);
        cluster.wait_for("standby that has everything", || Ok(cluster.received(new)? >= needed)).await?;
        self.cluster.promote(new)?;
        self.load.mark();
        self.cluster.wait_for_standbys(new, 1).await?;
        self.write_directly()?;
        self.wait_for_writes(notes).await?;
        self.write_directly_for_some_time().await?;
        Ok(true)
    }

    /// All processes of the primary stop, so it accepts connections and never answers. After the failover they continue.
    async fn hung(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
        let standbys = self.cluster.standbys();
        let hung = self.cluster.freeze_all(self.cluster.primary)?;
        self.pause(2_000, 4_000).await;
        self.fail_over(standbys, notes).await?;
        self.write_directly()?;
        drop(hung);
        self.write_directly_for_some_time().await?;
        Ok(true)
    }

    async fn write_directly_for_some_time(&mut self) -> Outcome {
        for _ in 0..10 {
            self.write_directly()?;
            self.pause(100, 500).await;
        }
        Ok(())
    }

    /// Creates a pet on the primary, and not through the service, which may not have found it.
    fn write_directly(&self) -> Outcome {
        let version = (self.load.new_number(), 0);
        let name = name_of(version);
        let insert = format!("INSERT INTO pets (name, category_id) VALUES ('{name}', 1) RETURNING id");
        let id = self.cluster.sql(self.cluster.primary, &insert)?.parse()?;
        self.load.acknowledge(id, version);
        Ok(())
    }

    /// Two of three servers crash: nothing can be proven until one returns.
    async fn two_crashed(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
        let survivor = self.random.index(3);
        let (primary, [one, other]) = (self.cluster.primary, self.cluster.standbys());
        // Without the primary, a standby that restarts does not know how far it was.
        let (first, second) =
            if survivor == primary { (one, other) } else { (primary, one + other - survivor) };
        self.cluster.crash(second)?;
        self.cluster.crash(first)?;
        self.load.set_unprovable(true);
        self.pause(2_000, 4_000).await;
        self.load.set_unprovable(false);
        self.load.mark();
        self.cluster.start_server(first)?;
        self.wait_for_reads(notes).await?;
        self.cluster.start_server(second)?;
        self.cluster.wait_for_standbys(primary, 2).await?;
        Ok(false)
    }

    /// Waits until both nodes read again.
    async fn wait_for_reads(&mut self, notes: &mut Vec<String>) -> Outcome {
        let since = self.cluster.wait_for_standbys(self.cluster.primary, 1).await?;
        let load = self.load.clone();
        match self.within(since, READ_GAP_BAR, || load.all_read_since_mark()).await {
            Some(seconds) => notes.push(format!("reads back after {seconds:.2} s")),
            None => self.fail("reads did not come back in time"),
        }
        Ok(())
    }

    /// A standby whose replay is behind is killed and restarts. It opens with less than it has acknowledged. Every second
    /// time there is also no primary, and the other standby has received less: nothing can be proven until the primary
    /// returns.
    async fn restarted(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
        let standbys = self.cluster.standbys();
        let (primary, restarted) = (self.cluster.primary, *self.random.pick(&standbys));
        let other = standbys[usize::from(standbys[0] == restarted)];
        let without_primary = self.random.chance(50);
        let receiver = if without_primary { self.cluster.freeze(other, Process::Receiver)? } else { None };
        let replay = self.cluster.freeze(restarted, Process::Replay)?;
        self.pause(200, 400).await;
        if without_primary {
            self.cluster.crash(primary)?;
        }
        if let Some(receiver) = receiver {
            receiver.terminate()?;
        }
        if without_primary {
            let [further, behind] = [self.cluster.received(restarted)?, self.cluster.received(other)?];
            notes.push(format!("without primary, the other {} bytes behind", further.saturating_sub(behind)));
        }
        self.cluster.kill(restarted)?;
        drop(replay);
        self.cluster.start_server(restarted)?;
        if without_primary {
            self.pause(2_000, 3_000).await;
            self.load.mark();
            self.cluster.start_server(primary)?;
            self.wait_for_reads(notes).await?;
        }
        self.cluster.wait_for_standbys(primary, 2).await?;
        Ok(!without_primary)
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
        "{} reads, {} stale, {} backwards, {} × 503, longest gap {:.2} s; {} writes, {} lost, {} shown, then lost; \
         {} broken connections",
        grouped(counts.reads),
        grouped(counts.stale),
        counts.backwards,
        grouped(counts.unavailable),
        counts.longest_gap.as_secs_f64(),
        grouped(counts.writes),
        counts.lost,
        counts.shown_and_lost,
        counts.broken
    )
}
