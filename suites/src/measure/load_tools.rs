//! The tools that measure a server at full load: wrk, and pgbench for PostgreSQL alone.

use std::net::SocketAddr;
use std::process::Command;

use crate::Outcome;
use crate::topology::{Server, output};

/// Transactions per second of PostgreSQL alone.
pub(crate) fn pgbench(url: &str, scripts: &[&str], pets: u64, clients: u16, seconds: u16) -> Outcome<f64> {
    let (pets, clients, seconds) = (format!("pets={pets}"), clients.to_string(), seconds.to_string());
    let jobs = if clients == "1" { "1" } else { "2" };
    let mut arguments = vec!["-n", "-M", "prepared", "-c", &clients, "-j", jobs, "-T", &seconds, "-D", &pets];
    for script in scripts {
        arguments.extend(["-f", *script]);
    }
    arguments.push(url);
    let report = output("pgbench", &arguments)?;
    let line = report.lines().find_map(|line| line.strip_prefix("tps = ")).ok_or("pgbench printed no tps")?;
    Ok(line.split(' ').next().unwrap_or_default().parse()?)
}

/// Throughput and CPU time at full load.
pub(crate) struct Cost {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time of the server's process per request, in microseconds: user and system time.
    pub(crate) cpu_micros: f64,
}

/// Measures a server at full load; any answer but a success fails the measurement.
pub(crate) fn wrk(
    server: &Server,
    workload: &str,
    key: &str,
    pets: u64,
    connections: u16,
    seconds: u16,
) -> Outcome<Cost> {
    let before = server.cpu_seconds()?;
    let load = load(server.address, workload, key, pets, connections, seconds)?;
    let used = server.cpu_seconds()? - before;
    Ok(Cost { rate: load.rate, cpu_micros: used / load.requests * 1e6 })
}

/// The throughput of a server at full load.
pub(crate) struct Load {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Completed requests.
    pub(crate) requests: f64,
    /// Bytes per answer.
    pub(crate) bytes: f64,
    /// The 99th percentile of the latency, in milliseconds.
    pub(crate) p99: f64,
}

/// The same with more figures. `workload` is a name in suites/load/requests.lua, with arguments after spaces.
pub(crate) fn load(
    address: SocketAddr,
    workload: &str,
    key: &str,
    pets: u64,
    connections: u16,
    seconds: u16,
) -> Outcome<Load> {
    let threads = if connections == 1 { "1" } else { "2" };
    let (connections, seconds) = (connections.to_string(), format!("{seconds}s"));
    let (url, pets) = (format!("http://{address}"), pets.to_string());
    let mut arguments =
        vec!["-t", threads, "-c", &connections, "-d", &seconds, "--latency", "--timeout", "10s"];
    arguments.extend(["-s", "suites/load/requests.lua", &url, "--", key, &pets]);
    arguments.extend(workload.split(' '));
    let report = output("wrk", &arguments)?;
    if let Some(errors) =
        report.lines().find(|line| line.contains("Non-2xx") || line.contains("Socket errors"))
    {
        return Err(format!("{workload}: {errors}").into());
    }
    let after = |name: &str| {
        let line = report.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.map(str::trim).ok_or(format!("wrk printed no {name}"))
    };
    let rate = after("Requests/sec:")?.parse()?;
    let requests =
        report.lines().find_map(|line| line.split_once(" requests in ")).ok_or("wrk printed no requests")?;
    let requests = requests.0.trim().parse()?;
    let bytes = with_unit(
        after("Transfer/sec:")?,
        &[("KB", 1024.0), ("MB", 1_048_576.0), ("GB", 1_073_741_824.0), ("B", 1.0)],
    )?;
    let p99 = with_unit(after("99%")?, &[("us", 0.001), ("ms", 1.0), ("s", 1_000.0)])?;
    Ok(Load { rate, requests, bytes: bytes / rate, p99 })
}

/// Parses a number with a unit, by the factor of each unit.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Outcome<f64> {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = found.ok_or(format!("{text} has no known unit"))?;
    Ok(number.parse::<f64>()? * factor)
}

/// The version of wrk. (`wrk -v` exits with an error.)
pub(crate) fn wrk_version() -> Outcome<String> {
    let printed = String::from_utf8(Command::new("wrk").arg("-v").output()?.stdout)?;
    Ok(printed.split(" [").next().unwrap_or_default().to_owned())
}
