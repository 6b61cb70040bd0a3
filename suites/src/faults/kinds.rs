//! The faults, how long each may keep clients from writing and reading, and a random sequence of them.

use std::iter;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// A node of the service is killed.
    Service,
    Postmaster,
    Switchover,
    /// The majority of etcd is lost.
    Etcd,
    /// The members of etcd answer, but do not reach each other.
    EtcdLeader,
    /// Both standbys are killed.
    Standbys,
    /// The primary crashes while the standbys' checkpointers are paused.
    Checkpointer,
    /// The primary and a standby that has not replayed all that it received crash.
    StandbyBehind,
    /// The whole node of the primary is killed.
    Kill,
    Cut,
    /// The primary is cut off from the other nodes; the service still reaches it.
    Isolate,
    Pause,
    /// Only Patroni is paused on the primary: a standby is promoted while the former primary is still running.
    FrozenPatroni,
    /// The primary's disk is full; needs `up --disk-megabytes`.
    Disk,
    /// From here on between one node of the database and the service, through a proxy.
    PoolHeld,
    BlackHole,
    Slow,
}

/// Those that random sequences consist of.
const ANY: usize = 13;

impl Fault {
    /// What happens, and the longest times without an acknowledged write and without a successful read, in seconds.
    const fn facts(self) -> (&'static str, f64, f64) {
        match self {
            Self::Service => ("node of the service killed", 1.0, 1.0),
            Self::Postmaster => ("postmaster killed", 5.0, 1.5),
            Self::Switchover => ("switchover", 5.0, 1.5),
            Self::Etcd => ("etcd's majority lost for 20 s", 1.0, 1.0),
            Self::EtcdLeader => ("etcd's leader lost for 20 s", 1.0, 1.0),
            // Without two of three servers, no read is known to be fresh.
            Self::Standbys => ("both standbys killed for 10 s", 20.0, 20.0),
            Self::Checkpointer => ("failover with paused checkpointers", 8.0, 1.5),
            Self::StandbyBehind => ("primary and standby that is behind crash", 15.0, 15.0),
            Self::Kill => ("primary node killed", 25.0, 1.5),
            Self::Cut => ("primary partitioned for 40 s", 30.0, 1.5),
            Self::Isolate => ("primary cut off from its peers for 40 s", 30.0, 1.5),
            Self::Pause => ("primary paused for 40 s", 30.0, 1.5),
            Self::FrozenPatroni => ("primary's Patroni paused for 40 s", 30.0, 1.5),
            // The duration of the fault, and 2 s.
            Self::Disk => ("primary's disk full for 10 s", 12.0, 1.5),
            Self::PoolHeld => ("table locked for 5 s", 7.0, 7.0),
            Self::BlackHole => ("packets dropped for 5 s", 7.0, 7.0),
            Self::Slow => ("50 ms each way and 5 % resets for 10 s", 12.0, 12.0),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.facts().0
    }

    /// The longest time without an acknowledged write, in seconds.
    pub(super) fn bar(self) -> f64 {
        self.facts().1
    }

    /// The longest time without a successful read, in seconds.
    pub(super) fn read_bar(self) -> f64 {
        self.facts().2
    }

    /// Whether it needs the proxy in front of the database.
    pub(super) fn needs_proxy(self) -> bool {
        matches!(self, Self::PoolHeld | Self::BlackHole | Self::Slow)
    }
}

/// Reads `fault` or `fault=times`.
pub(super) fn counted(text: &str) -> Result<(Fault, usize), String> {
    let (name, times) = text.split_once('=').unwrap_or((text, "1"));
    let times = times.parse().map_err(|error| format!("{times}: {error}"))?;
    Ok((Fault::from_str(name, false)?, times))
}

/// Random faults of the cluster and of the service, for so long.
pub(super) fn random_faults(seed: u64, time: Duration) -> impl Iterator<Item = Fault> {
    let (mut random, started) = (Random(seed), Instant::now());
    iter::repeat_with(move || *random.pick(&Fault::value_variants()[..ANY]))
        .take_while(move |_| started.elapsed() < time)
}
