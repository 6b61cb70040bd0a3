//! The faults, how long each may keep clients from writing and reading, and a random sequence of them.

use std::iter;
use std::time::{Duration, Instant};

use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    Postmaster,
    Switchover,
    Pause,
    Cut,
    Etcd,
    EtcdLeader,
    FrozenPatroni,
    Isolate,
    StandbyBehind,
    Checkpointer,
    Standbys,
    Service,
    Disk,
    PoolHeld,
    BlackHole,
    Slow,
}

impl Fault {
    /// The longest time without an acknowledged write, in seconds.
    pub(super) fn bar(self) -> f64 {
        match self {
            Self::Kill => 25.0,
            Self::Postmaster | Self::Switchover => 5.0,
            Self::Pause | Self::Cut | Self::Isolate | Self::FrozenPatroni => 30.0,
            Self::StandbyBehind => 15.0,
            Self::Checkpointer => 8.0,
            Self::Standbys => 20.0,
            Self::Etcd | Self::EtcdLeader | Self::Service => 1.0,
            // The duration of the fault, and 2 s.
            Self::Disk | Self::Slow => 12.0,
            Self::PoolHeld | Self::BlackHole => 7.0,
        }
    }

    /// The longest time without a successful read, in seconds.
    pub(super) fn read_bar(self) -> f64 {
        match self {
            Self::Etcd | Self::EtcdLeader | Self::Service => 1.0,
            // Without two of three servers, or without the only one that the service knows, no read is known to be fresh.
            Self::StandbyBehind | Self::Standbys | Self::PoolHeld | Self::BlackHole | Self::Slow => {
                self.bar()
            }
            _ => 1.5,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "primary node killed",
            Self::Postmaster => "postmaster killed",
            Self::Switchover => "switchover",
            Self::Pause => "primary paused for 40 s",
            Self::Cut => "primary partitioned for 40 s",
            Self::Etcd => "etcd's majority lost for 20 s",
            Self::EtcdLeader => "etcd's leader lost for 20 s",
            Self::FrozenPatroni => "primary's Patroni paused for 40 s",
            Self::Isolate => "primary cut off from its peers for 40 s",
            Self::StandbyBehind => "primary and standby that is behind crash",
            Self::Checkpointer => "failover with paused checkpointers",
            Self::Standbys => "both standbys killed for 10 s",
            Self::Service => "node of the service killed",
            Self::Disk => "primary's disk full for 10 s",
            Self::PoolHeld => "table locked for 5 s",
            Self::BlackHole => "packets dropped for 5 s",
            Self::Slow => "50 ms each way and 5 % resets for 10 s",
        }
    }
}

/// Random faults of the cluster and of the service, for so long.
pub(super) fn random_faults(seed: u64, time: Duration) -> impl Iterator<Item = Fault> {
    let all = [
        Fault::Service,
        Fault::Postmaster,
        Fault::Switchover,
        Fault::Etcd,
        Fault::EtcdLeader,
        Fault::Kill,
        Fault::Cut,
        Fault::Isolate,
        Fault::Pause,
        Fault::FrozenPatroni,
        Fault::StandbyBehind,
        Fault::Checkpointer,
        Fault::Standbys,
    ];
    let (mut random, started) = (Random(seed), Instant::now());
    iter::repeat_with(move || *random.pick(&all)).take_while(move |_| started.elapsed() < time)
}
