//! The cost of fresh reads: a node that proves them against one whose URL names the primary alone, with healthy standbys
//! and with faulty ones; and what reads from standbys leave to the primary.

use std::time::Duration;

use clap::Args;
use tokio::time::sleep;

use crate::Outcome;
use crate::measure::{Samples, load, verdict, wrk_in_turn};
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
        let mut failures = Vec::new();

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
                let servers = [&proving, &trusting];
                let [proven, trusted] =
                    wrk_in_turn(servers, script, &key, PETS, CONNECTIONS, self.rounds, self.seconds)?;
                let ratio = proven.rate.ratio_to(&trusted.rate);
                println!("{name}: {script}: {} of the throughput without proof", ratio.spread());
                if state == State::Healthy {
                    if ratio.median() < BAR {
                        failures.push(format!("{script}: below {BAR} of the throughput without proof"));
                    }
                    healthy.push(ratio.median());
                } else if ratio.median() < healthy[place] / FAULT_BAR {
                    failures.push(format!("{name}: {script}: more than {FAULT_BAR} times slower"));
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
            let mut times = [Samples::default(), Samples::default()];
            for _ in 0..self.rounds {
                for (time, server) in times.iter_mut().zip([&standbys, &trusting]) {
                    let before = cluster.cpu_seconds(cluster.primary)?;
                    let load = load(server.address, script, &key, PETS, CONNECTIONS, self.seconds)?;
                    time.push((cluster.cpu_seconds(cluster.primary)? - before) / load.requests);
                }
            }
            let share = times[0].ratio_to(&times[1]);
            println!(
                "reads from standbys: {script}: {} of the primary's CPU time per request",
                share.spread()
            );
            if share.median() > PRIMARY_BAR {
                failures.push(format!(
                    "reads from standbys: {script}: more than {PRIMARY_BAR} of the primary's time"
                ));
            }
        }
        verdict(&failures)
    }
}
