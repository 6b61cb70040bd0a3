//! The scenarios, and how their clients behave.

use std::time::Duration;

use super::faults::{patroni_cluster, three_servers, two_nodes};
use super::{Failures, Length, Pace, Scenario, Topology};
use crate::workload::{Clients, Kind};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "kills",
        topology: Topology::Pair,
        clients: &[(Pace::Clients(32), RETRYING), (Pace::Clients(32), GIVING_UP)],
        pets: (0, 300),
        faults: &[
            two_nodes::NODE_KILLED,
            two_nodes::NODE_KILLED,
            two_nodes::DATABASE_CRASHED,
            two_nodes::ALL_KILLED,
            two_nodes::NODE_PAUSED,
            two_nodes::KEY_REVOKED,
        ],
        pause: 300..1_500,
        length: Length { faults: 200, requests: 2_000_000 },
        short: Length { faults: 10, requests: 20_000 },
        tolerates: Failures::Any,
    },
    Scenario {
        name: "order-history",
        topology: Topology::Pair,
        clients: &[(Pace::Clients(200), BUYERS)],
        pets: (1_000, 1_000),
        faults: &[
            two_nodes::CONNECTION_LOST,
            two_nodes::CONNECTION_LOST,
            two_nodes::CONNECTION_LOST,
            two_nodes::NODE_KILLED,
        ],
        pause: 100..400,
        length: Length { faults: 200, requests: 1_000_000 },
        short: Length { faults: 12, requests: 30_000 },
        tolerates: Failures::Any,
    },
    Scenario {
        name: "stale-reads",
        topology: Topology::Pair,
        clients: &[(Pace::Clients(64), READING_OWN_WRITES)],
        pets: (1_000, 100),
        faults: &[],
        pause: 100..101,
        length: Length { faults: 0, requests: 1_000_000 },
        short: Length { faults: 0, requests: 50_000 },
        tolerates: Failures::None,
    },
    Scenario {
        name: "rolling",
        topology: Topology::Balanced,
        clients: &[(Pace::PerSecond(300), SHOP)],
        pets: (1_000, 1_000),
        faults: &[
            two_nodes::FIRST_NODE_RESTARTED,
            two_nodes::SECOND_NODE_RESTARTED,
            two_nodes::SCHEMA_ADVANCED,
        ],
        pause: 2_000..2_001,
        length: Length { faults: 15, requests: 0 },
        short: Length { faults: 6, requests: 0 },
        tolerates: Failures::None,
    },
    Scenario {
        name: "outage",
        topology: Topology::Balanced,
        clients: &[(Pace::Clients(20), PATIENT)],
        pets: (1_000, 1_000),
        faults: &[two_nodes::DATABASE_STOPPED],
        pause: 3_000..3_001,
        length: Length { faults: 1, requests: 0 },
        short: Length { faults: 1, requests: 0 },
        tolerates: Failures::Errors,
    },
    Scenario {
        name: "fresh-reads",
        topology: Topology::Servers,
        clients: &[(Pace::Clients(6), RENAMING), (Pace::Clients(6), READING)],
        pets: (0, 36),
        faults: &[
            three_servers::NOTHING,
            three_servers::STANDBY_LAGS,
            three_servers::PRIMARY_CRASHED,
            three_servers::KEYS_REVOKED_AROUND_CRASH,
            three_servers::PRIMARY_DEPOSED,
            three_servers::PRIMARY_HANGS,
            three_servers::TWO_CRASHED,
            three_servers::STANDBY_RESTARTED,
            three_servers::STANDBY_RESTARTED_ALONE,
        ],
        pause: 2_500..2_501,
        length: Length { faults: 63, requests: 0 },
        short: Length { faults: 9, requests: 0 },
        tolerates: Failures::Any,
    },
    Scenario {
        name: "faults",
        topology: Topology::Patroni,
        clients: &[(Pace::PerSecond(100), CONTESTING)],
        pets: (1_000, 50),
        faults: &[
            two_nodes::ONE_NODE_KILLED,
            two_nodes::KEY_REVOKED,
            patroni_cluster::POSTMASTER_KILLED,
            patroni_cluster::SWITCHOVER,
            patroni_cluster::ETCD_MAJORITY_LOST,
            patroni_cluster::ETCD_LEADER_LOST,
            patroni_cluster::DISK_FULL,
            patroni_cluster::STANDBYS_KILLED,
            patroni_cluster::CHECKPOINTERS_PAUSED,
            patroni_cluster::STANDBY_BEHIND,
            patroni_cluster::PRIMARY_KILLED,
            patroni_cluster::PRIMARY_CUT_OFF,
            patroni_cluster::PRIMARY_ISOLATED,
            patroni_cluster::PRIMARY_PAUSED,
            patroni_cluster::PATRONI_PAUSED,
        ],
        pause: 3_000..3_001,
        length: Length { faults: 45, requests: 0 },
        short: Length { faults: 3, requests: 0 },
        tolerates: Failures::Any,
    },
    Scenario {
        name: "network",
        topology: Topology::PatroniThroughProxy,
        clients: &[(Pace::PerSecond(100), CONTESTING)],
        pets: (1_000, 50),
        faults: &[
            patroni_cluster::TABLE_LOCKED,
            patroni_cluster::PACKETS_DROPPED,
            patroni_cluster::NETWORK_SLOW,
        ],
        pause: 3_000..3_001,
        length: Length { faults: 3, requests: 0 },
        short: Length { faults: 3, requests: 0 },
        tolerates: Failures::Any,
    },
];

/// The load of a shop: none of its requests may fail.
pub(crate) const SHOP: Clients = Clients {
    mix: &[
        (4, Kind::Create),
        (4, Kind::Available),
        (4, Kind::Find),
        (2, Kind::Get),
        (2, Kind::Page),
        (1, Kind::Rename),
        (1, Kind::Place),
        (1, Kind::Complete),
        (1, Kind::Cancel),
    ],
    ..Clients::DEFAULT
};

/// Each write is retried until it is answered, and some are sent again after that.
const RETRYING: Clients = Clients {
    mix: &[(8, Kind::Create), (1, Kind::Get), (1, Kind::Page)],
    retry: Some(Duration::from_millis(20)),
    repeats: true,
    ..Clients::DEFAULT
};

/// Without retries: an effect that is unknown to its client must be in the feed all the same.
pub(crate) const GIVING_UP: Clients = Clients {
    mix: &[
        (10, Kind::Create),
        (4, Kind::PlaceBriefly),
        (2, Kind::Complete),
        (2, Kind::Cancel),
        (2, Kind::Rename),
        (2, Kind::Get),
    ],
    stay: true,
    ..Clients::DEFAULT
};

const BUYERS: Clients = Clients {
    mix: &[
        (400, Kind::Place),
        (150, Kind::Complete),
        (150, Kind::Cancel),
        (200, Kind::Patch),
        (50, Kind::Rename),
        (50, Kind::Get),
        (1, Kind::Contest(64)),
    ],
    retry: Some(Duration::from_millis(10)),
    abandons: true,
    repeats: true,
    ..Clients::DEFAULT
};

/// A quarter are creates, and some are renames; the rest reads the newest pets in three ways.
const READING_OWN_WRITES: Clients = Clients {
    mix: &[(20, Kind::Create), (5, Kind::Rename), (25, Kind::Get), (25, Kind::Find), (25, Kind::Page)],
    ..Clients::DEFAULT
};

const PATIENT: Clients =
    Clients { mix: &[(1, Kind::Create), (3, Kind::Find)], pause: 50..51, ..Clients::DEFAULT };

/// A write that waits for a standby which is gone must not keep its writer from trying again.
const RENAMING: Clients = Clients {
    mix: &[(1, Kind::Create), (99, Kind::Rename)],
    stay: true,
    retry: Some(Duration::from_millis(50)),
    patience: Duration::from_secs(1),
    pause: 5..25,
    ..Clients::DEFAULT
};

const READING: Clients =
    Clients { mix: &[(1, Kind::Get), (1, Kind::Page)], stay: true, pause: 1..5, ..Clients::DEFAULT };

/// They retry as soon as `Retry-After` says.
const CONTESTING: Clients = Clients {
    mix: &[(3, Kind::Available), (2, Kind::Find), (1, Kind::Page), (3, Kind::Create), (1, Kind::Contest(2))],
    retry: Some(Duration::from_secs(1)),
    patience: Duration::from_secs(11),
    ..Clients::DEFAULT
};
