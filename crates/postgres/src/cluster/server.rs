//! One server of a cluster: its address, its pool, and how useful it is for reads.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::connect::ServerAddress;
use crate::pool::ConnectionPool;

/// How useful a server is for the next read; lower is better.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Rank {
    /// The primary, or a standby that confirms it.
    Confirms,
    /// It answers, but does not confirm the primary.
    Answers,
    /// It did not answer in time.
    Silent,
}

/// A server of the database URL.
pub(super) struct ClusterServer {
    pub(super) address: ServerAddress,
    pub(super) pool: ConnectionPool,
    rank: AtomicU8,
}

impl ClusterServer {
    pub(super) fn new(address: ServerAddress, pool: ConnectionPool) -> Self {
        Self { address, pool, rank: AtomicU8::new(Rank::Confirms as u8) }
    }

    pub(super) fn rank(&self) -> u8 {
        self.rank.load(Ordering::Relaxed)
    }

    pub(super) fn set_rank(&self, rank: Rank) {
        self.rank.store(rank as u8, Ordering::Relaxed);
    }
}
