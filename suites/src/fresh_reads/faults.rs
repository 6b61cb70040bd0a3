//! What happens to the servers in each phase. Each returns whether two servers could answer all the time, so that reads must
//! have gone on.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{READ_GAP_BAR, Test, WRITE_GAP_BAR};
use crate::Outcome;
use crate::topology::Process;

impl Test {
    /// One standby at a time lags.
    pub(super) async fn lagging(&mut self) -> Outcome<bool> {
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
    pub(super) async fn crashed(&mut self, with_keys: bool, notes: &mut Vec<String>) -> Outcome<bool> {
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
        let mark = self.load.now();
        self.cluster.follow(other, new)?;
        self.wait_for(true, mark, notes).await
    }

    /// Waits until each node has acknowledged a write, or answered a read, that was sent after this time.
    async fn wait_for(&mut self, is_write: bool, after: f64, notes: &mut Vec<String>) -> Outcome {
        let ready = self.cluster.wait_for_standbys(self.cluster.primary, 1).await?;
        let since = self.load.now() - ready.elapsed().as_secs_f64();
        let (what, bar) = if is_write { ("writes", WRITE_GAP_BAR) } else { ("reads", READ_GAP_BAR) };
        let deadline = since + bar * self.slack;
        loop {
            let succeeded = self.load.log().all_succeeded(is_write, 2, after);
            if let Some(at) = succeeded.filter(|at| *at <= deadline) {
                notes.push(format!("{what} back after {:.2} s", (at - since).max(0.0)));
                return Ok(());
            }
            if self.load.now() > deadline {
                self.fail(&format!("{what} did not come back in time"));
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// A standby is promoted, and the other one follows it, while the former primary lives on without standbys. No
    /// acknowledged write is lost: before the promotion, the former primary waits for the new one alone.
    pub(super) async fn deposed(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
        let standbys = self.cluster.standbys();
        let new = *self.random.pick(&standbys);
        let other = standbys[usize::from(standbys[0] == new)];
        self.cluster.follow(other, new)?;
        self.cluster.wait_for_standbys(new, 1).await?;
        let (cluster, needed) = (&self.cluster, self.cluster.received(other)?);
        cluster.wait_for("standby that has everything", || Ok(cluster.received(new)? >= needed)).await?;
        self.cluster.promote(new)?;
        let mark = self.load.now();
        self.cluster.wait_for_standbys(new, 1).await?;
        self.write_directly()?;
        self.wait_for(true, mark, notes).await?;
        self.write_directly_for_some_time().await?;
        Ok(true)
    }

    /// All processes of the primary stop, so it accepts connections and never answers. After the failover they continue.
    pub(super) async fn hung(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
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
        let name = self.load.new_name();
        let insert = format!("INSERT INTO pets (name, category_id) VALUES ('{name}', 1) RETURNING id");
        let id = self.cluster.sql(self.cluster.primary, &insert)?.parse()?;
        self.load.created_in_sql(id, &name, "");
        Ok(())
    }

    /// Two of three servers crash: nothing can be proven until one returns.
    pub(super) async fn two_crashed(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
        let survivor = self.random.index(3);
        let (primary, [one, other]) = (self.cluster.primary, self.cluster.standbys());
        // Without the primary, a standby that restarts does not know how far it was.
        let (first, second) =
            if survivor == primary { (one, other) } else { (primary, one + other - survivor) };
        self.cluster.crash(second)?;
        self.cluster.crash(first)?;
        let begin = self.load.now();
        self.pause(2_000, 4_000).await;
        let mark = self.load.now();
        self.unprovable = Some((begin, mark));
        self.cluster.start_server(first)?;
        self.wait_for(false, mark, notes).await?;
        self.cluster.start_server(second)?;
        self.cluster.wait_for_standbys(primary, 2).await?;
        Ok(false)
    }

    /// A standby whose replay is behind is killed and restarts. It opens with less than it has acknowledged. Every second
    /// time there is also no primary, and the other standby has received less: nothing can be proven until the primary
    /// returns.
    pub(super) async fn restarted(&mut self, notes: &mut Vec<String>) -> Outcome<bool> {
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
            let mark = self.load.now();
            self.cluster.start_server(primary)?;
            self.wait_for(false, mark, notes).await?;
        }
        self.cluster.wait_for_standbys(primary, 2).await?;
        Ok(!without_primary)
    }
}
