//! Faults of three PostgreSQL servers, of which a commit needs two. Each leaves a primary and two standbys behind; a former
//! primary is rebuilt afterwards.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{ANY, Fault, SystemUnderTest};
use crate::Outcome;
use crate::topology::{Cluster, Process};

/// The longest time without a successful read on a node while two servers can answer, in seconds.
const READS: f64 = 1.5;
/// How long a node may take to find a new primary, from the time that it has a synchronous standby, in seconds.
const WRITES_RETURN: f64 = 3.0;

pub(crate) const NOTHING: Fault = Fault {
    name: "nothing",
    writes: ANY,
    reads: READS,
    cause: |_| {
        Box::pin(async {
            sleep(Duration::from_secs(3)).await;
            Ok(())
        })
    },
};

/// The receiver or the replay of one standby at a time stops for a moment, over and over.
pub(crate) const STANDBY_LAGS: Fault = Fault {
    name: "standby-lags",
    writes: ANY,
    reads: READS,
    cause: |system| {
        Box::pin(async {
            let end = Instant::now() + Duration::from_secs(6);
            while Instant::now() < end {
                let standbys = system.servers()?.standbys();
                let standby = *system.random.pick(&standbys);
                let process = *system.random.pick(&[Process::Receiver, Process::Replay]);
                let frozen = system.servers()?.freeze(standby, process)?;
                system.pause(50, 400).await;
                drop(frozen);
                system.pause(20, 100).await;
            }
            Ok(())
        })
    },
};

/// One standby may be behind.
pub(crate) const PRIMARY_CRASHED: Fault = Fault {
    name: "primary-crashed",
    writes: ANY,
    reads: READS,
    cause: |system| {
        Box::pin(async {
            let mut behind = None;
            if system.random.chance(50) {
                let standbys = system.servers()?.standbys();
                let standby = *system.random.pick(&standbys);
                behind = system.servers()?.freeze(standby, Process::Receiver)?;
                system.pause(50, 300).await;
            }
            system.crash_primary()?;
            if let Some(receiver) = behind {
                receiver.terminate()?;
            }
            system.without_primary().await?;
            system.fail_over().await
        })
    },
};

/// The primary crashes; one key is revoked just before, and one just after a standby was promoted.
pub(crate) const KEYS_REVOKED_AROUND_CRASH: Fault = Fault {
    name: "keys-revoked-around-crash",
    writes: ANY,
    reads: READS,
    cause: |system| {
        Box::pin(async {
            let (one, other) = (system.new_key().await?, system.new_key().await?);
            let before = system.revoke(&one)?;
            system.crash_primary()?;
            system.without_primary().await?;
            system.fail_over().await?;
            let after = system.revoke(&other)?;
            system.must_be_refused(" before the crash", before).await?;
            system.must_be_refused(" after the promotion", after).await
        })
    },
};

/// A standby is promoted, and the other one follows it, while the former primary lives on without standbys. No acknowledged write
/// is lost: before the promotion, the former primary waits for the new one alone.
pub(crate) const PRIMARY_DEPOSED: Fault = Fault {
    name: "primary-deposed",
    writes: ANY,
    reads: READS,
    cause: |system| {
        Box::pin(async {
            let standbys = system.servers()?.standbys();
            let new = *system.random.pick(&standbys);
            let other = standbys[usize::from(standbys[0] == new)];
            let cluster = system.servers()?;
            cluster.follow(other, new)?;
            cluster.wait_for_standbys(new, 1).await?;
            let needed = cluster.received(other)?;
            cluster.wait_for("standby that has everything", || Ok(cluster.received(new)? >= needed)).await?;
            cluster.promote(new)?;
            let mark = system.load.now();
            system.servers()?.wait_for_standbys(new, 1).await?;
            system.write_directly()?;
            system.wait_for(Kind::Writes, mark).await?;
            system.write_directly_for_some_time().await
        })
    },
};

/// All processes of the primary stop, so it accepts connections and never answers. After the failover they continue.
pub(crate) const PRIMARY_HANGS: Fault = Fault {
    name: "primary-hangs",
    writes: ANY,
    reads: READS,
    cause: |system| {
        Box::pin(async {
            let cluster = system.servers()?;
            let hung = cluster.freeze_all(cluster.primary)?;
            system.pause(2_000, 4_000).await;
            system.fail_over().await?;
            system.write_directly()?;
            drop(hung);
            system.write_directly_for_some_time().await
        })
    },
};

/// Two of three servers crash: nothing can be proven until one returns.
pub(crate) const TWO_CRASHED: Fault = Fault {
    name: "two-crashed",
    writes: ANY,
    reads: ANY,
    cause: |system| {
        Box::pin(async {
            let survivor = system.random.index(3);
            let cluster = system.servers()?;
            let (primary, [one, other]) = (cluster.primary, cluster.standbys());
            // Without the primary, a standby that restarts does not know how far it was.
            let (first, second) =
                if survivor == primary { (one, other) } else { (primary, one + other - survivor) };
            cluster.crash(second)?;
            cluster.crash(first)?;
            let begin = system.load.now();
            system.pause(2_000, 4_000).await;
            let mark = system.load.now();
            system.servers()?.start_server(first)?;
            system.wait_for(Kind::Reads, mark).await?;
            let unproven = {
                let log = system.load.log();
                let reads =
                    log.between(begin, mark).filter(|attempt| !attempt.is_write && attempt.succeeded());
                reads.filter(|read| read.began() > begin).count()
            };
            if unproven > 0 {
                system.problem(format!("{unproven} reads were answered by a single server"));
            }
            let cluster = system.servers()?;
            cluster.start_server(second)?;
            cluster.wait_for_standbys(primary, 2).await.map(drop)
        })
    },
};

/// A standby whose replay is behind is killed and restarts. It opens with less than it has acknowledged.
pub(crate) const STANDBY_RESTARTED: Fault = Fault {
    name: "standby-restarted",
    writes: ANY,
    reads: READS,
    cause: |system| Box::pin(async { system.restart_standby(false).await }),
};

/// The same without a primary, and the other standby has received less: nothing can be proven until the primary returns.
pub(crate) const STANDBY_RESTARTED_ALONE: Fault = Fault {
    name: "standby-restarted-alone",
    writes: ANY,
    reads: ANY,
    cause: |system| Box::pin(async { system.restart_standby(true).await }),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    Writes,
}

impl SystemUnderTest {
    fn servers(&mut self) -> Outcome<&mut Cluster> {
        self.database.servers()
    }

    fn crash_primary(&mut self) -> Outcome {
        let cluster = self.servers()?;
        cluster.crash(cluster.primary)
    }

    /// Some seconds in which the replay of a standby stops again and again.
    async fn without_primary(&mut self) -> Outcome {
        let end = Instant::now() + Duration::from_millis(3_000 + self.random.below(5_000));
        let standbys = self.servers()?.standbys();
        let lagging = *self.random.pick(&standbys);
        while Instant::now() < end {
            let frozen = self.servers()?.freeze(lagging, Process::Replay)?;
            self.pause(50, 400).await;
            drop(frozen);
            self.pause(50, 300).await;
        }
        Ok(())
    }

    /// Promotes the standby that has received more. The other one follows it.
    async fn fail_over(&mut self) -> Outcome {
        let cluster = self.servers()?;
        let [one, other] = cluster.standbys();
        let received = [cluster.received(one)?, cluster.received(other)?];
        let (new, other) = if received[0] >= received[1] { (one, other) } else { (other, one) };
        cluster.promote(new)?;
        let mark = self.load.now();
        self.servers()?.follow(other, new)?;
        self.note(format!("one standby {} bytes behind", received[0].abs_diff(received[1])));
        self.wait_for(Kind::Writes, mark).await
    }

    /// Waits until each node has acknowledged a write, or answered a read, that was sent after this time.
    async fn wait_for(&mut self, kind: Kind, after: f64) -> Outcome {
        let cluster = self.servers()?;
        let ready = cluster.wait_for_standbys(cluster.primary, 1).await?;
        let since = self.load.now() - ready.elapsed().as_secs_f64();
        let (what, limit) = match kind {
            Kind::Reads => ("reads", READS),
            Kind::Writes => ("writes", WRITES_RETURN),
        };
        let deadline = since + limit * self.slack;
        loop {
            let succeeded = self.load.log().all_succeeded(kind == Kind::Writes, 2, after);
            if let Some(at) = succeeded.filter(|at| *at <= deadline) {
                self.note(format!("{what} back after {:.2} s", (at - since).max(0.0)));
                return Ok(());
            }
            if self.load.now() > deadline {
                self.problem(format!("{what} did not come back in time"));
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn write_directly_for_some_time(&mut self) -> Outcome {
        for _ in 0..10 {
            self.write_directly()?;
            self.pause(100, 500).await;
        }
        Ok(())
    }

    /// Creates a pet on the primary, and not through the service, which may not have found it.
    fn write_directly(&mut self) -> Outcome {
        let name = self.load.new_name();
        let insert = format!("INSERT INTO pets (name, category_id) VALUES ('{name}', 1) RETURNING id");
        let cluster = self.servers()?;
        let id = cluster.sql(cluster.primary, &insert)?.parse()?;
        self.load.created_in_sql(id, &name, "");
        Ok(())
    }

    async fn restart_standby(&mut self, without_primary: bool) -> Outcome {
        let standbys = self.servers()?.standbys();
        let restarted = *self.random.pick(&standbys);
        let other = standbys[usize::from(standbys[0] == restarted)];
        let cluster = self.servers()?;
        let primary = cluster.primary;
        let receiver = if without_primary { cluster.freeze(other, Process::Receiver)? } else { None };
        let replay = cluster.freeze(restarted, Process::Replay)?;
        self.pause(200, 400).await;
        if without_primary {
            self.crash_primary()?;
        }
        if let Some(receiver) = receiver {
            receiver.terminate()?;
        }
        let cluster = self.servers()?;
        cluster.kill(restarted)?;
        drop(replay);
        cluster.start_server(restarted)?;
        if without_primary {
            self.pause(2_000, 3_000).await;
            let mark = self.load.now();
            self.servers()?.start_server(primary)?;
            self.wait_for(Kind::Reads, mark).await?;
        }
        self.servers()?.wait_for_standbys(primary, 2).await.map(drop)
    }
}
