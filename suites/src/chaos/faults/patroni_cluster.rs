//! Faults of a PostgreSQL cluster under Patroni, and of the network before it: commands of `tests/cluster/cluster`, and clients on
//! a server's side of the network.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Fault, SystemUnderTest};
use crate::Outcome;
use crate::topology::{NetworkFault, output, psql};

const CLUSTER: &str = "tests/cluster/cluster";
const SERVERS: [&str; 3] = ["n1", "n2", "n3"];
/// How long standbys rely on a primary that continues without etcd: Patroni's `ttl`. Another fault within that time would be a
/// double fault, for which nothing is guaranteed.
const PATRONI_TTL: Duration = Duration::from_secs(20);
/// How long Patroni is frozen: until another server is the primary, and some time of two primaries.
const FROZEN: Duration = Duration::from_secs(40);
/// How long checkpointers are paused: until another server is the primary, and its first writes.
const CHECKPOINTER_PAUSE: Duration = Duration::from_secs(10);
/// The highest p99 of the refusals while there is no primary, in seconds.
const REFUSED_WITHIN: f64 = 0.25;

pub(crate) const POSTMASTER_KILLED: Fault = Fault {
    name: "postmaster-killed",
    writes: 5.0,
    reads: 1.5,
    cause: |_| Box::pin(async { cluster(&["kill", "--postmaster", "leader"]).await.map(drop) }),
};

pub(crate) const SWITCHOVER: Fault = Fault {
    name: "switchover",
    writes: 5.0,
    reads: 1.5,
    cause: |_| Box::pin(async { cluster(&["switchover"]).await.map(drop) }),
};

pub(crate) const ETCD_MAJORITY_LOST: Fault = Fault {
    name: "etcd-majority-lost",
    writes: 1.0,
    reads: 1.0,
    cause: |_| Box::pin(without_etcd(&["etcd-stop"])),
};

/// The members of etcd answer, but do not reach each other.
pub(crate) const ETCD_LEADER_LOST: Fault = Fault {
    name: "etcd-leader-lost",
    writes: 1.0,
    reads: 1.0,
    cause: |_| Box::pin(without_etcd(&["etcd-stop", "--peers"])),
};

/// Needs `up --disk-megabytes`. The limit is the duration of the fault, and 2 s.
pub(crate) const DISK_FULL: Fault = Fault {
    name: "disk-full",
    writes: 12.0,
    reads: 1.5,
    cause: |_| Box::pin(for_a_while(&["fill", "leader"], "free", 10)),
};

/// Without two of three servers, no read is known to be fresh.
pub(crate) const STANDBYS_KILLED: Fault = Fault {
    name: "standbys-killed",
    writes: 20.0,
    reads: 20.0,
    cause: |_| {
        Box::pin(async {
            // With their etcd, the primary would lose its leader key, too.
            for _ in 0..2 {
                cluster(&["kill", "--keep-etcd", "standby"]).await?;
            }
            sleep(Duration::from_secs(10)).await;
            cluster(&["start"]).await.map(drop)
        })
    },
};

/// The primary crashes while the standbys' checkpointers are paused. What is written next must be on a standby, too.
pub(crate) const CHECKPOINTERS_PAUSED: Fault = Fault {
    name: "checkpointers-paused",
    writes: 8.0,
    reads: 1.5,
    cause: |system| {
        Box::pin(async {
            let leader = leader().await?;
            let standbys = SERVERS.into_iter().filter(|&server| server != leader);
            for standby in standbys.clone() {
                cluster(&["pause", "--only", "checkpointer", standby]).await?;
            }
            cluster(&["kill", "--postmaster", &leader]).await?;
            let writers =
                standbys.map(|server| spawn_blocking(|| unreplicated_on(server, CHECKPOINTER_PAUSE)));
            let mut unreplicated = 0;
            for writer in writers.collect::<Vec<_>>() {
                unreplicated += writer.await??;
            }
            cluster(&["resume"]).await?;
            if unreplicated > 0 {
                system.problem(format!("{unreplicated} writes were acknowledged that no standby had"));
            }
            Ok(())
        })
    },
};

/// The primary crashes, and a standby that has not replayed all that it received.
pub(crate) const STANDBY_BEHIND: Fault = Fault {
    name: "primary-and-standby-behind-crash",
    writes: 15.0,
    reads: 15.0,
    cause: |_| {
        Box::pin(async {
            let standby = cluster(&["replay-pause", "standby"]).await?;
            sleep(Duration::from_secs(5)).await;
            cluster(&["kill", "--postmaster", "leader"]).await?;
            cluster(&["kill", "--postmaster", standby.trim()]).await.map(drop)
        })
    },
};

/// The whole machine of the primary. Meanwhile writes are refused at once.
pub(crate) const PRIMARY_KILLED: Fault = Fault {
    name: "primary-killed",
    writes: 25.0,
    reads: 1.5,
    cause: |system| {
        Box::pin(async {
            let from = system.load.now();
            let server = cluster(&["kill", "leader"]).await?;
            system.until_written(system.load.now() + 1.0).await?;
            cluster(&["start", server.trim()]).await?;
            let (_, p99) = system.load.log().with_status(503, from, system.load.now());
            if p99 > REFUSED_WITHIN * system.slack {
                system.problem(format!("p99 of the refusals without a primary: {p99:.2} s"));
            }
            Ok(())
        })
    },
};

/// From the other servers and from the nodes.
pub(crate) const PRIMARY_CUT_OFF: Fault = Fault {
    name: "primary-cut-off",
    writes: 30.0,
    reads: 1.5,
    cause: |system| Box::pin(partition(system, &["cut"])),
};

/// From the other servers; the nodes still reach it.
pub(crate) const PRIMARY_ISOLATED: Fault = Fault {
    name: "primary-isolated",
    writes: 30.0,
    reads: 1.5,
    cause: |system| Box::pin(partition(system, &["cut", "--from-peers"])),
};

pub(crate) const PRIMARY_PAUSED: Fault = Fault {
    name: "primary-paused",
    writes: 30.0,
    reads: 1.5,
    cause: |_| Box::pin(for_a_while(&["pause", "leader"], "resume", 40)),
};

/// Only Patroni is paused on the primary: a standby is promoted while the former primary is still running. Pets are added to the
/// new one as a node would that has found it: reads must show them.
pub(crate) const PATRONI_PAUSED: Fault = Fault {
    name: "patroni-paused",
    writes: 30.0,
    reads: 1.5,
    cause: |system| {
        Box::pin(async {
            let started = Instant::now();
            let old = cluster(&["pause", "--only", "patroni", "leader"]).await?;
            let new = loop {
                match leader().await {
                    Ok(new) if new != old.trim() => break new,
                    _ if started.elapsed() > FROZEN => return Err("no standby was promoted".into()),
                    _ => sleep(Duration::from_millis(100)).await,
                }
            };
            system.note(format!("{new} was the primary after {:.1} s", started.elapsed().as_secs_f64()));
            let url = url_of(&new);
            while started.elapsed() < FROZEN {
                let (url, name) = (url.clone(), system.load.new_name());
                let insert = format!(
                    "INSERT INTO pets (name, category_id, status) VALUES ('{name}', 1, 'available') RETURNING id"
                );
                let id = spawn_blocking(move || psql(&url, &insert)).await??.trim().parse()?;
                system.load.created_in_sql(id, &name, "available");
                sleep(Duration::from_millis(200)).await;
            }
            cluster(&["resume"]).await.map(drop)
        })
    },
};

pub(crate) const TABLE_LOCKED: Fault = Fault {
    name: "table-locked",
    writes: 7.0,
    reads: 7.0,
    cause: |system| {
        Box::pin(async {
            let url = system.database_url().to_owned();
            let lock = "BEGIN; LOCK TABLE pets IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT";
            spawn_blocking(move || psql(&url, lock)).await?.map(drop)
        })
    },
};

pub(crate) const PACKETS_DROPPED: Fault = Fault {
    name: "packets-dropped",
    writes: 7.0,
    reads: 7.0,
    cause: |system| Box::pin(break_network(system, NetworkFault::BlackHole, 5)),
};

/// 50 ms each way, and one send in twenty closes the connection.
pub(crate) const NETWORK_SLOW: Fault = Fault {
    name: "network-slow",
    writes: 12.0,
    reads: 12.0,
    cause: |system| Box::pin(break_network(system, NetworkFault::Slow, 10)),
};

async fn break_network(system: &mut SystemUnderTest, fault: NetworkFault, seconds: u64) -> Outcome {
    let proxy = system.database.proxy()?;
    proxy.set(fault);
    sleep(Duration::from_secs(seconds)).await;
    proxy.set(NetworkFault::None);
    Ok(())
}

async fn without_etcd(stop: &[&str]) -> Outcome {
    for_a_while(stop, "etcd-start", 20).await?;
    sleep(PATRONI_TTL).await;
    Ok(())
}

async fn for_a_while(begin: &[&str], end: &str, seconds: u64) -> Outcome {
    cluster(begin).await?;
    sleep(Duration::from_secs(seconds)).await;
    cluster(&[end]).await.map(drop)
}

/// Cuts the primary off for 40 s. It must not acknowledge a write to a client on its side.
async fn partition(system: &mut SystemUnderTest, cut: &[&str]) -> Outcome {
    let server = leader().await?;
    // The write that must fail behind the partition must succeed without it.
    let before = server.clone();
    if !spawn_blocking(move || is_acknowledged_on(&before)).await?? {
        return Err(format!("{server} acknowledged no write before the partition").into());
    }
    cluster(&[cut, &[&server]].concat()).await?;
    let acknowledged = spawn_blocking(move || acknowledged_on(&server, Duration::from_secs(40))).await??;
    cluster(&["heal"]).await?;
    if acknowledged > 0 {
        system.problem(format!("{acknowledged} writes were acknowledged behind the partition"));
    }
    Ok(())
}

/// The number of writes that a server acknowledges to clients on its side of the partition, during this time.
fn acknowledged_on(server: &str, time: Duration) -> Outcome<u32> {
    let started = Instant::now();
    let mut acknowledged = 0;
    while started.elapsed() < time {
        acknowledged += u32::from(is_acknowledged_on(server)?);
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(acknowledged)
}

/// Whether a server acknowledges a write to a client on its side within 4 s.
fn is_acknowledged_on(server: &str) -> Outcome<bool> {
    Ok(psql_on(server, &[INSERT])?.is_some())
}

/// The number of writes that a server acknowledges during this time although no standby has flushed them.
fn unreplicated_on(server: &str, time: Duration) -> Outcome<u32> {
    let insert =
        format!("{INSERT} RETURNING set_config('suite.written', pg_current_wal_insert_lsn()::text, false)");
    let standbys = "SELECT count(*) || ' standbys' FROM pg_stat_replication \
                    WHERE flush_lsn >= current_setting('suite.written')::pg_lsn";
    let started = Instant::now();
    let mut unreplicated = 0;
    while started.elapsed() < time {
        let printed = psql_on(server, &[&insert, standbys])?;
        unreplicated += u32::from(printed.is_some_and(|printed| printed.contains("\n0 standbys")));
    }
    Ok(unreplicated)
}

const INSERT: &str = "INSERT INTO pets (name, category_id) VALUES ('of another client', 1)";

/// Runs commands in one session of a client on a server's side of the network; `None` if they failed or took more than 4 s.
/// Then the client is killed, without a cancel.
fn psql_on(server: &str, commands: &[&str]) -> Outcome<Option<String>> {
    let url = format!("{}?connect_timeout=3", url_of(server));
    let side = format!("petstore-{server}");
    let client = ["netns", "exec", &side, "timeout", "--signal", "KILL", "4"];
    let psql =
        ["psql", &url, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"];
    let output = Command::new("ip")
        .args(client)
        .args(psql)
        .args(commands.iter().flat_map(|command| ["--command", command]))
        .output()?;
    Ok(if output.status.success() { Some(String::from_utf8(output.stdout)?) } else { None })
}

/// The address of a server of the cluster.
fn address_of(server: &str) -> String {
    format!("10.86.0.1{}", server.trim_start_matches('n'))
}

fn url_of(server: &str) -> String {
    format!("postgresql://petstore:petstore@{}/petstore", address_of(server))
}

async fn leader() -> Outcome<String> {
    Ok(cluster(&["leader"]).await?.trim().to_owned())
}

pub(crate) async fn leader_address() -> Outcome<SocketAddr> {
    Ok(format!("{}:5432", address_of(&leader().await?)).parse()?)
}

/// Waits until all servers of the cluster are in sync.
pub(crate) async fn wait_until_healthy() -> Outcome {
    cluster(&["wait", "--timeout", "90"]).await.map(drop)
}

async fn cluster(arguments: &[&str]) -> Outcome<String> {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    spawn_blocking(move || output(CLUSTER, &arguments.iter().map(String::as_str).collect::<Vec<_>>())).await?
}
