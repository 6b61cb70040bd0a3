//! Three PostgreSQL servers: a primary that waits for one of its two standbys. All can change roles, and keep their
//! addresses.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::clock::Clock;
use super::postgres::{Postgres, psql};
use super::process::{Frozen, cpu_seconds, output, signal};
use crate::Outcome;

const NAMES: [&str; 3] = ["s0", "s1", "s2"];
/// Each server waits for any other one when it is the primary, from its first write on: a list that is set only after
/// the promotion comes too late. It keeps what a standby may still need.
const OPTIONS: &str = "-c synchronous_standby_names='ANY 1 (s0,s1,s2)' -c wal_retrieve_retry_interval=200ms \
                       -c wal_keep_size=2GB -c shared_buffers=64MB -c max_connections=200";
/// How long a change of the cluster may take: no promise of the service depends on it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of a standby.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Process {
    /// Receives what the primary writes, and acknowledges it.
    Receiver,
    /// Makes it visible.
    Replay,
}

pub(crate) struct Cluster {
    servers: [Postgres; 3],
    urls: [String; 3],
    pub(crate) primary: usize,
    /// The former primary, if it has not been rebuilt.
    deposed: Option<usize>,
    /// Last, so that it is removed when the servers have stopped.
    _directory: Directory,
}

impl Cluster {
    /// The first server is the primary, the others are its standbys.
    pub(crate) fn start() -> Outcome<Self> {
        Self::start_servers(|server| server)
    }

    /// The same, and every server has this clock.
    pub(crate) fn start_with_clocks(clocks: &[Arc<Clock>; 3]) -> Outcome<Self> {
        let mut clocks = clocks.iter();
        Self::start_servers(|server| match clocks.next() {
            Some(clock) => server.with_clock(clock),
            None => server,
        })
    }

    fn start_servers(mut prepared: impl FnMut(Postgres) -> Postgres) -> Outcome<Self> {
        let directory = Directory(env::temp_dir().join(format!("petstore-suites-{}", std::process::id())));
        let servers = NAMES.map(|name| prepared(Postgres::member(directory.0.join(name), OPTIONS)));
        let urls = [
            servers[0].start()?,
            servers[1].start_as_standby_of(&servers[0])?,
            servers[2].start_as_standby_of(&servers[0])?,
        ];
        Ok(Self { servers, urls, primary: 0, deposed: None, _directory: directory })
    }

    /// The URL that names all servers.
    pub(crate) fn url(&self) -> String {
        let addresses = self.urls.each_ref().map(|url| url.split(['@', '/']).nth(3).unwrap_or_default());
        format!("postgresql://postgres@{}/postgres?target_session_attrs=read-write", addresses.join(","))
    }

    /// The URL that names the primary alone.
    pub(crate) fn primary_url(&self) -> &str {
        &self.urls[self.primary]
    }

    pub(crate) fn standbys(&self) -> [usize; 2] {
        [(self.primary + 1) % 3, (self.primary + 2) % 3]
    }

    /// Runs SQL on one server.
    pub(crate) fn sql(&self, server: usize, sql: &str) -> Outcome<String> {
        psql(&self.urls[server], sql).map(|printed| printed.trim().to_owned())
    }

    /// Starts a server that was stopped.
    pub(crate) fn start_server(&self, server: usize) -> Outcome {
        self.servers[server].start_again(&self.urls[server])
    }

    /// Stops a server at once, as in a crash.
    pub(crate) fn crash(&self, server: usize) -> Outcome {
        self.servers[server].crash()
    }

    /// Kills the postmaster of a server. Its other processes notice that, unless they are frozen, and exit.
    pub(crate) fn kill(&self, server: usize) -> Outcome {
        signal(self.servers[server].pid()?, "KILL")
    }

    /// Replaces a former primary by a standby with a new copy of the primary's data.
    pub(crate) async fn rebuild_deposed(&mut self) -> Outcome {
        let Some(server) = self.deposed.take() else { return Ok(()) };
        // It may have crashed already.
        let _ = self.crash(server);
        let url = self.servers[server].start_as_standby_of(&self.servers[self.primary])?;
        if url != self.urls[server] {
            return Err("another process took a server's port".into());
        }
        self.wait_for_standbys(self.primary, 2).await.map(drop)
    }

    /// Makes a standby the primary. The former one is not told.
    pub(crate) fn promote(&mut self, server: usize) -> Outcome {
        self.servers[server].promote()?;
        self.deposed = Some(std::mem::replace(&mut self.primary, server));
        Ok(())
    }

    /// Makes a standby follow another server.
    pub(crate) fn follow(&self, standby: usize, upstream: usize) -> Outcome {
        let set = format!("ALTER SYSTEM SET primary_conninfo = '{}'", self.urls[upstream]);
        self.sql(standby, &set)?;
        self.sql(standby, "SELECT pg_reload_conf()").map(drop)
    }

    /// How far a standby has received the write-ahead log. When the timeline changes, PostgreSQL counts from the start of
    /// a segment again.
    pub(crate) fn received(&self, standby: usize) -> Outcome<u64> {
        let position = "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn";
        Ok(self.sql(standby, position)?.parse()?)
    }

    /// Waits until so many standbys stream from a server, and returns when that was. Each of them is synchronous if the
    /// server is the primary.
    pub(crate) async fn wait_for_standbys(&self, server: usize, count: u64) -> Outcome<Instant> {
        let followers = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        self.wait_for(&format!("{count} standbys of {}", NAMES[server]), || {
            Ok(self.sql(server, followers)?.parse::<u64>()? >= count)
        })
        .await
    }

    /// Waits for a condition, and returns when it was met.
    pub(crate) async fn wait_for(&self, what: &str, is_met: impl Fn() -> Outcome<bool>) -> Outcome<Instant> {
        let deadline = Instant::now() + PATIENCE;
        while !is_met()? {
            if Instant::now() > deadline {
                let logs = self.servers.each_ref().map(Postgres::end_of_log);
                return Err(format!("no {what} within {PATIENCE:?}\n{}", logs.join("\n")).into());
            }
            sleep(Duration::from_millis(30)).await;
        }
        Ok(Instant::now())
    }

    /// Stops a process of a standby until the result is dropped. `None` if it does not run.
    pub(crate) fn freeze(&self, standby: usize, process: Process) -> Outcome<Option<Frozen>> {
        let title = match process {
            Process::Receiver => ": walreceiver",
            Process::Replay => ": startup",
        };
        let processes = self.processes(standby)?;
        let found = processes.iter().find(|(_, name)| name.contains(title));
        found.map(|(process, _)| Frozen::stop(*process)).transpose()
    }

    /// Stops all processes of a server until the result is dropped.
    pub(crate) fn freeze_all(&self, server: usize) -> Outcome<Vec<Frozen>> {
        // The postmaster first: it starts no more processes then.
        let postmaster = Frozen::stop(self.servers[server].pid()?)?;
        let mut frozen = vec![postmaster];
        // A process may exit before it is stopped.
        frozen.extend(
            self.processes(server)?.into_iter().filter_map(|(process, _)| Frozen::stop(process).ok()),
        );
        Ok(frozen)
    }

    /// The CPU time that the processes of a server have used so far.
    pub(crate) fn cpu_seconds(&self, server: usize) -> Outcome<f64> {
        let exited = cpu_seconds(self.servers[server].pid()?)?.exited_children;
        let running = self.processes(server)?.into_iter().map(|(process, _)| Ok(cpu_seconds(process)?.own));
        Ok(exited + running.sum::<Outcome<f64>>()?)
    }

    /// The processes of a server, except the postmaster: their ids and titles.
    fn processes(&self, server: usize) -> Outcome<Vec<(u32, String)>> {
        let postmaster = self.servers[server].pid()?.to_string();
        let printed = output("ps", &["--ppid", &postmaster, "-o", "pid=,args="])?;
        let lines = printed.lines().filter_map(|line| line.trim().split_once(' '));
        lines.map(|(process, title)| Ok((process.parse()?, title.to_owned()))).collect()
    }
}

/// Removed on drop.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
