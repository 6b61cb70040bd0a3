//! The tables of docs/measurements.md about growth, and their charts.

use std::fmt::Write;
use std::iter;

use serde_json::{Value, json};

use super::grid::{CONNECTIONS, Grid, NODES, OPERATIONS, cores};
use super::{BAR, Cold, Database, Growth, LATENCIES, Maintenance, Scale, WORKLOADS};
use crate::Outcome;
use crate::measure::{draw, grouped, machine, record, wrk_version};
use crate::topology::psql;

/// All tables.
pub(super) fn text(
    url: &str,
    scale: &Scale,
    databases: &[Database],
    growth: &Growth,
    maintenance: &[Maintenance],
    cold: Option<&[Cold]>,
    grid: Option<&Grid>,
) -> Outcome<String> {
    let huge = if psql(url, "SHOW huge_pages")?.trim() == "on" { " in huge pages" } else { "" };
    let mut text = format!(
        "Measured on {}, which the load generator and the database shared; PostgreSQL {} with {} of shared buffers{huge}, \
         {}; {} \
         rounds of {} seconds. Each figure is a median; a ratio is the median of the ratios of the rounds, with the minimum and \
         the maximum in brackets.\n\n",
        machine()?,
        psql(url, "SHOW server_version")?.trim(),
        psql(url, "SHOW shared_buffers")?.trim(),
        wrk_version()?,
        scale.rounds,
        scale.seconds,
    );
    with_more_pets(&mut text, databases, growth)?;
    times(&mut text, databases, growth)?;
    storage(&mut text, databases, maintenance, cold)?;
    if let Some(grid) = grid {
        nodes_and_connections(&mut text, grid)?;
        costs(&mut text, grid)?;
    }
    Ok(text)
}

fn with_more_pets(text: &mut String, databases: &[Database], growth: &Growth) -> Outcome {
    writeln!(text, "### With more pets\n\nRequests per second at 64 connections:\n")?;
    head(text, "operation", databases, &["most to fewest".to_owned(), "bar".to_owned()])?;
    for (workload, rates) in WORKLOADS.iter().zip(&growth.rates) {
        write!(text, "| {} |", workload.name)?;
        for rates in rates {
            write!(text, " {:.0} |", rates.median())?;
        }
        let ratio = rates.last().map(|last| last.ratio_to(&rates[0]).spread()).unwrap_or_default();
        let bar = if workload.held { BAR.to_string() } else { String::new() };
        writeln!(text, " {ratio} | {bar} |")?;
    }
    Ok(())
}

fn times(text: &mut String, databases: &[Database], growth: &Growth) -> Outcome {
    writeln!(
        text,
        "\nLatency in milliseconds, p50 and p99, at half of the peak rate with the fewest pets:\n"
    )?;
    head(text, "operation", databases, &["requests/s".to_owned()])?;
    for ((_, name), (rate, times)) in LATENCIES.iter().zip(&growth.latencies) {
        write!(text, "| {name} |")?;
        for times in times {
            write!(text, " {:.1}, {:.1} |", times.median(), times.at(0.99))?;
        }
        writeln!(text, " {rate:.0} |")?;
    }
    Ok(())
}

fn storage(
    text: &mut String,
    databases: &[Database],
    maintenance: &[Maintenance],
    cold: Option<&[Cold]>,
) -> Outcome {
    writeln!(text, "\n### Storage and maintenance\n")?;
    head(text, "", databases, &[])?;
    let mut row = |name: &str, value: &dyn Fn(usize) -> String| -> Outcome {
        let values: Vec<_> = (0..databases.len()).map(value).collect();
        Ok(writeln!(text, "| {name} | {} |", values.join(" | "))?)
    };
    row("bytes per pet: row", &|place| format!("{:.0}", maintenance[place].bytes[0]))?;
    row("bytes per pet: primary key", &|place| format!("{:.0}", maintenance[place].bytes[1]))?;
    row("bytes per pet: status index", &|place| format!("{:.0}", maintenance[place].bytes[2]))?;
    row("bytes per pet, total", &|place| format!("{:.0}", maintenance[place].bytes.iter().sum::<f64>()))?;
    row("creation of an index `CONCURRENTLY`", &|place| format!("{:.1} s", maintenance[place].index))?;
    row("vacuum after one pet in 1,000 was sold", &|place| format!("{:.1} s", maintenance[place].vacuum))?;
    row("status changes that are HOT updates", &|place| format!("{:.0} %", maintenance[place].hot * 100.0))?;
    if let Some(cold) = cold {
        row("cold start: getPet in the first seconds, as a multiple of warm", &|place| {
            format!("{:.2}", cold[place].first)
        })?;
        row("cold start: time to 0.9 of the warm rate", &|place| format!("{:.0} s", cold[place].until_warm))?;
    }
    Ok(())
}

fn nodes_and_connections(text: &mut String, grid: &Grid) -> Outcome {
    writeln!(
        text,
        "\n### Nodes and connections\n\nRequests per second with {} million pets, the model's prediction in brackets, and \
         the p99 (closed loop: each client sends its next request when the last is answered):\n",
        grid.pets / 1e6
    )?;
    writeln!(text, "| operation | connections | 1 node | 2 nodes | 4 nodes |\n|---|---|---|---|---|")?;
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        for connections in CONNECTIONS {
            write!(text, "| {name} | {connections} |")?;
            for nodes in NODES {
                let one = grid
                    .comparison(nodes, connections, operation)
                    .ok_or("a configuration was not measured")?;
                write!(text, " {:.0} ({:.0}), {:.0} ms |", one.rate, one.predicted, one.p99)?;
            }
            writeln!(text)?;
        }
    }
    writeln!(
        text,
        "\nThe model was fitted to 1 and 4 nodes at 16, 64 and 1,024 connections, with the fewest and the most pets. It was not \
         fitted to two nodes, 256 connections or {} million pets:\n\n| operation | predicted | measured | error |\n|---|---|---|---|",
        grid.pets / 1e6
    )?;
    for (name, comparison) in grid.held_out() {
        let (predicted, rate, error) = (comparison.predicted, comparison.rate, comparison.error() * 100.0);
        writeln!(text, "| {name} | {predicted:.0} | {rate:.0} | {error:+.0} % |")?;
    }
    Ok(())
}

fn costs(text: &mut String, grid: &Grid) -> Outcome {
    writeln!(
        text,
        "\n### CPU time per request\n\nMicroseconds on one of the {} cores: per request, per statement (shared by the requests of a \
         batch), and per factor of ten in pets.\n\n\
         | operation | service, request | service, statement | database, request | database, statement | database, factor of \
         ten | load generator | bytes per response |\n|---|---|---|---|---|---|---|---|",
        cores()
    )?;
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        let [service, database, client] = grid.models[operation].costs;
        let values =
            [service.own, service.statement, database.own, database.statement, database.decade, client.own]
                .map(|seconds| format!("{:.1}", seconds * 1e6));
        writeln!(text, "| {name} | {} | {:.0} |", values.join(" | "), grid.bytes(operation))?;
    }
    Ok(())
}

/// The head of a table with one column per size, and others.
fn head(text: &mut String, first: &str, databases: &[Database], others: &[String]) -> Outcome {
    let sizes = databases.iter().map(|database| format!("{} pets", grouped(database.pets)));
    let columns: Vec<_> = sizes.chain(others.iter().cloned()).collect();
    Ok(writeln!(text, "| {first} | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()))?)
}

/// Records the figures, and draws the charts.
pub(super) fn write(text: &str, databases: &[Database], growth: &Growth, grid: Option<&Grid>) -> Outcome {
    record("scale", text)?;
    let sizes: Vec<_> = databases.iter().map(|database| grouped(database.pets)).collect();
    let shown = ["get_any", "page any 0", "page any random", "page pending 0.5", "create"];
    let mut rows = vec![row("", &sizes)];
    for (workload, rates) in
        WORKLOADS.iter().zip(&growth.rates).filter(|(one, _)| shown.contains(&one.script))
    {
        let ratios: Vec<_> = rates.iter().map(|rate| rate.ratio_to(&rates[0]).median()).collect();
        rows.push(row(workload.name, &ratios));
    }
    let title = format!("Throughput with more pets, as a multiple of that with {}", sizes[0]);
    draw("lines", "docs/img/growth.svg", &title, &json!(rows))?;
    let Some(grid) = grid else { return Ok(()) };
    let mut rows = vec![row("", &CONNECTIONS.map(|connections| connections.to_string()))];
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        let rates: Vec<_> = CONNECTIONS
            .iter()
            .filter_map(|count| Some(grid.comparison(1, *count, operation)?.rate))
            .collect();
        rows.push(row(name, &rates));
    }
    draw("lines", "docs/img/connections.svg", "Requests per second of one node, by connections", &json!(rows))
}

/// A row of a chart.
fn row<T: Clone + Into<Value>>(name: &str, values: &[T]) -> Vec<Value> {
    iter::once(name.into()).chain(values.iter().cloned().map(Into::into)).collect()
}
