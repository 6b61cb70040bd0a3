//! What the suite does in the hub of the cluster: commands of `tests/cluster/cluster`, and clients on a node's side of the
//! network.

use std::process::Command;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use crate::Outcome;
use crate::topology::output;

const CLUSTER: &str = "tests/cluster/cluster";

/// The address of a node of the cluster.
pub(super) fn address_of(node: &str) -> String {
    format!("10.86.0.1{}", node.trim_start_matches('n'))
}

/// Cuts the primary off for 40 s. It must not acknowledge a write to a client on its side.
pub(super) async fn partition(cut: &[&str]) -> Outcome {
    let node = cluster(&["leader"]).await?.trim().to_owned();
    // The write that must fail behind the partition must succeed without it.
    let before = node.clone();
    if !spawn_blocking(move || is_acknowledged_on(&before)).await?? {
        return Err(format!("{node} acknowledged no write before the partition").into());
    }
    cluster(&[cut, &[&node]].concat()).await?;
    let acknowledged = spawn_blocking(move || acknowledged_on(&node, Duration::from_secs(40))).await??;
    cluster(&["heal"]).await?;
    println!("         {acknowledged} writes were acknowledged behind the partition");
    if acknowledged > 0 { Err("a write was acknowledged behind the partition".into()) } else { Ok(()) }
}

/// The number of writes that a node acknowledges to clients on its side of the partition, during this time.
pub(super) fn acknowledged_on(node: &str, time: Duration) -> Outcome<u32> {
    let started = Instant::now();
    let mut acknowledged = 0;
    while started.elapsed() < time {
        acknowledged += u32::from(is_acknowledged_on(node)?);
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(acknowledged)
}

/// Whether a node acknowledges a write to a client on its side within 4 s.
pub(super) fn is_acknowledged_on(node: &str) -> Outcome<bool> {
    Ok(psql_on(node, &[INSERT])?.is_some())
}

/// The number of writes that a node acknowledges during this time although no standby has flushed them.
pub(super) fn unreplicated_on(node: &str, time: Duration) -> Outcome<u32> {
    let insert =
        format!("{INSERT} RETURNING set_config('suite.written', pg_current_wal_insert_lsn()::text, false)");
    let standbys = "SELECT count(*) || ' standbys' FROM pg_stat_replication \
                    WHERE flush_lsn >= current_setting('suite.written')::pg_lsn";
    let started = Instant::now();
    let mut unreplicated = 0;
    while started.elapsed() < time {
        let printed = psql_on(node, &[&insert, standbys])?;
        unreplicated += u32::from(printed.is_some_and(|printed| printed.contains("\n0 standbys")));
    }
    Ok(unreplicated)
}

pub(super) const INSERT: &str = "INSERT INTO pets (name, category_id) VALUES ('of another client', 1)";

/// Runs commands in one session of a client on a node's side of the network; `None` if they failed or took more than 4 s.
/// Then the client is killed, without a cancel.
pub(super) fn psql_on(node: &str, commands: &[&str]) -> Outcome<Option<String>> {
    let url = format!("postgresql://petstore:petstore@{}/petstore?connect_timeout=3", address_of(node));
    let side = format!("petstore-{node}");
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

pub(super) async fn cluster(arguments: &[&str]) -> Outcome<String> {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    spawn_blocking(move || output(CLUSTER, &arguments.iter().map(String::as_str).collect::<Vec<_>>())).await?
}
