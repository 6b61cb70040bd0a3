//! The cost of fresh reads: a node that proves them against one whose URL names the primary alone, with healthy standbys
//! and with faulty ones; and what reads from standbys leave to the primary.

use std::time::Duration;

use clap::Args;
use tokio::time::sleep;

use crate::Outcome;
use crate::measure::{Bars, Extent, Samples, Side, alternate, load, throughput};
use crate::topology::{Cluster, Process, Server, fill};

/// The lowest throughput with proof, as a multiple of that without.
const BAR: f64 = 0.9;
/// The largest factor by which a faulty standby may make reads slower.
const FAULT_BAR: f64 = 1.1;
/// The primary's largest share of its CPU time when standbys are read.
const PRIMARY_BAR: f64 = 0.05;

const PETS: u64 = 100_000;
const CONNECTIONS: u16 = 64;
/// Long enough for a node to notice that a standby failed or returned.
const SETTLED: Duration = Duration::from_secs(3);

/// Three nodes over three PostgreSQL servers, which it starts itself. Many short rounds, so that other load on the machine
/// affects all nodes alike.
#[derive(Args)]
pub(crate) struct FreshReadsCost {
    /// Rounds in each state of the servers.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1)]
    seconds: u16,
}

/// What the standbys do meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Healthy,
    OneCrashed,
    OneReceiverFrozen,
    OneReplayFrozen,
    BothReplaysFrozen,
}

impl FreshReadsCost {
    pub(crate) async fn run(self) -> Outcome {
        let cluster = Cluster::start()?;
        let (primary, all) = (cluster.primary_url(), cluster.url());
        let key = fill(primary, PETS)?;
        cluster.sql(cluster.primary, "VACUUM ANALYZE")?;
        cluster.wait_for_standbys(cluster.primary, 2).await?;
        let [trusting, proving] = [Server::petstore(primary)?, Server::petstore(&all)?];
        let mut bars = Bars::default();
        let extent =
            Extent { pets: PETS, connections: CONNECTIONS, rounds: self.rounds, seconds: self.seconds };

        let mut healthy = Vec::new();
        for (state, name) in [
            (State::Healthy, "healthy standbys"),
            (State::OneCrashed, "a standby crashed"),
            (State::OneReceiverFrozen, "the receiver of a standby frozen"),
            (State::OneReplayFrozen, "the replay of a standby frozen"),
            (State::BothReplaysFrozen, "the replay of both standbys frozen"),
        ] {
            let [one, other] = cluster.standbys();
            let mut frozen = Vec::new();
            match state {
                State::Healthy => {}
                State::OneCrashed => cluster.crash(one)?,
                State::OneReceiverFrozen => frozen.push(cluster.freeze(one, Process::Receiver)?),
                State::OneReplayFrozen => frozen.push(cluster.freeze(one, Process::Replay)?),
                State::BothReplaysFrozen => {
                    frozen.push(cluster.freeze(one, Process::Replay)?);
                    frozen.push(cluster.freeze(other, Process::Replay)?);
                }
            }
            sleep(SETTLED).await;
            for (place, script) in ["get", "list"].into_iter().enumerate() {
                let sides = [&proving, &trusting].map(|server| Side(server, script, &key));
                let [proven, trusted] = throughput(sides, extent).await?;
                let ratio = proven.rate.ratio_to(&trusted.rate);
                let bar = if state == State::Healthy { BAR } else { healthy[place] / FAULT_BAR };
                bars.at_least(
                    &format!("{name}: {script}: throughput, times that without proof"),
                    &ratio,
                    bar,
                );
                if state == State::Healthy {
                    healthy.push(ratio.median());
                }
            }
            drop(frozen);
            if state == State::OneCrashed {
                cluster.start_server(one)?;
            }
            cluster.wait_for_standbys(cluster.primary, 2).await?;
            sleep(SETTLED).await;
        }
        drop(proving);

        let standbys = Server::with_flags(&all, &["--reads", "quorum"])?;
        sleep(SETTLED).await;
        for script in ["get", "list"] {
            let times = alternate(2, (0, self.rounds), async |side, _| {
                let before = cluster.cpu_seconds(cluster.primary)?;
                let address = [&standbys, &trusting][side].address;
                let load = load(address, script, &key, PETS, CONNECTIONS, self.seconds)?;
                Ok((cluster.cpu_seconds(cluster.primary)? - before) / load.requests)
            });
            let [from_standbys, from_primary] = &times.await?[..] else { return Err("two sides".into()) };
            let share = Samples(from_standbys.clone()).ratio_to(&Samples(from_primary.clone()));
            let what = format!("reads from standbys: {script}: share of the primary's CPU time per request");
            bars.at_most(&what, &share, PRIMARY_BAR);
        }
        bars.finish()
    }
}
