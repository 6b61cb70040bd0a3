//! The figures as docs/scaling.md has them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::grid::{CONNECTIONS, Grid, NODES, OPERATIONS, processors};
use super::{BAR, Cold, Growth, LATENCIES, Scale, Shop, Upkeep, WORKLOADS};
use crate::Outcome;
use crate::report::{Line, grouped, lines, machine, replace_measured};
use crate::tools::{psql, wrk_version};

/// All tables.
pub(super) fn text(
    url: &str,
    scale: &Scale,
    shops: &[Shop],
    growth: &Growth,
    upkeep: &[Upkeep],
    cold: Option<&[Cold]>,
    grid: Option<&Grid>,
) -> Outcome<String> {
    let huge = if psql(url, "SHOW huge_pages")?.trim() == "on" { " in huge pages" } else { "" };
    let mut text = format!(
        "Measured on {}, which the load generator and the database shared; PostgreSQL {} with {} of shared buffers{huge}, \
         {}; {} \
         rounds of {} seconds. Each rate is a median; a ratio is the median of the ratios of the rounds, with the least and \
         the greatest.\n\n",
        machine()?,
        psql(url, "SHOW server_version")?.trim(),
        psql(url, "SHOW shared_buffers")?.trim(),
        wrk_version()?,
        scale.rounds,
        scale.seconds,
    );
    with_more_pets(&mut text, shops, growth)?;
    times(&mut text, shops, growth)?;
    keeping(&mut text, shops, upkeep, cold)?;
    if let Some(grid) = grid {
        nodes_and_connections(&mut text, grid)?;
        costs(&mut text, grid)?;
    }
    Ok(text)
}

fn with_more_pets(text: &mut String, shops: &[Shop], growth: &Growth) -> Outcome {
    writeln!(text, "### With more pets\n\nRequests a second at 64 connections:\n")?;
    let first = grouped(shops[0].pets);
    head(text, "operation", shops, &[format!("the most to {first}"), "bar".to_owned()])?;
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

fn times(text: &mut String, shops: &[Shop], growth: &Growth) -> Outcome {
    writeln!(
        text,
        "\nMilliseconds, p50 and p99, when requests are due at half of the rate that the fewest pets allow:\n"
    )?;
    head(text, "operation", shops, &["requests/s".to_owned()])?;
    for ((_, name), (rate, times)) in LATENCIES.iter().zip(&growth.latencies) {
        write!(text, "| {name} |")?;
        for times in times {
            write!(text, " {:.1}, {:.1} |", times.median(), times.at(0.99))?;
        }
        writeln!(text, " {rate:.0} |")?;
    }
    Ok(())
}

fn keeping(text: &mut String, shops: &[Shop], upkeep: &[Upkeep], cold: Option<&[Cold]>) -> Outcome {
    writeln!(text, "\n### What pets take\n")?;
    head(text, "", shops, &[])?;
    let mut row = |name: &str, value: &dyn Fn(usize) -> String| -> Outcome {
        let values: Vec<_> = (0..shops.len()).map(value).collect();
        Ok(writeln!(text, "| {name} | {} |", values.join(" | "))?)
    };
    row("bytes a pet: the row", &|place| format!("{:.0}", upkeep[place].bytes[0]))?;
    row("bytes a pet: primary key", &|place| format!("{:.0}", upkeep[place].bytes[1]))?;
    row("bytes a pet: index of statuses", &|place| format!("{:.0}", upkeep[place].bytes[2]))?;
    row("bytes a pet, together", &|place| format!("{:.0}", upkeep[place].bytes.iter().sum::<f64>()))?;
    row("an index made anew, `CONCURRENTLY`", &|place| format!("{:.1} s", upkeep[place].index))?;
    row("vacuum after one pet in 1,000 was sold", &|place| format!("{:.1} s", upkeep[place].vacuum))?;
    row("changes of a status that touch no index", &|place| format!("{:.0} %", upkeep[place].hot * 100.0))?;
    if let Some(cold) = cold {
        row("nothing in memory: the first seconds' rate of getPet", &|place| {
            format!("{:.2}", cold[place].first)
        })?;
        row("nothing in memory: until 0.9 of the rate", &|place| format!("{:.0} s", cold[place].until_warm))?;
    }
    Ok(())
}

fn nodes_and_connections(text: &mut String, grid: &Grid) -> Outcome {
    writeln!(
        text,
        "\n### Nodes and connections\n\nRequests a second with {} million pets, with what the model predicts in brackets, and \
         milliseconds for 99 % of them (all clients ask as fast as they can):\n",
        grid.pets / 1e6
    )?;
    writeln!(text, "| operation | connections | 1 node | 2 nodes | 4 nodes |\n|---|---|---|---|---|")?;
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        for connections in CONNECTIONS {
            write!(text, "| {name} | {connections} |")?;
            for nodes in NODES {
                let one = grid.outlook(nodes, connections, operation).ok_or("a hole in the grid")?;
                write!(text, " {:.0} ({:.0}), {:.0} ms |", one.rate, one.predicted, one.p99)?;
            }
            writeln!(text)?;
        }
    }
    writeln!(
        text,
        "\nThe model was fitted to 1 and 4 nodes at 16, 64 and 1,024 connections, with the fewest and the most pets. Two nodes, \
         256 connections and {} million pets are all new to it:\n\n| operation | predicted | measured | off by |\n|---|---|---|---|",
        grid.pets / 1e6
    )?;
    for (name, outlook) in grid.held_out() {
        let (predicted, rate, error) = (outlook.predicted, outlook.rate, outlook.error() * 100.0);
        writeln!(text, "| {name} | {predicted:.0} | {rate:.0} | {error:+.0} % |")?;
    }
    Ok(())
}

fn costs(text: &mut String, grid: &Grid) -> Outcome {
    writeln!(
        text,
        "\n### What a request costs\n\nMicroseconds of one of the {} processors: a request by itself, the statement that requests \
         share, and each tenfold of the pets.\n\n\
         | operation | service, itself | service, a statement | database, itself | database, a statement | database, a tenfold \
         | load generator | bytes of an answer |\n|---|---|---|---|---|---|---|---|",
        processors()
    )?;
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        let [service, database, client] = grid.models[operation].costs;
        let values =
            [service.own, service.statement, database.own, database.statement, database.tenfold, client.own]
                .map(|seconds| format!("{:.1}", seconds * 1e6));
        writeln!(text, "| {name} | {} | {:.0} |", values.join(" | "), grid.bytes(operation))?;
    }
    Ok(())
}

/// The head of a table with a column a size, and others.
fn head(text: &mut String, first: &str, shops: &[Shop], others: &[String]) -> Outcome {
    let sizes = shops.iter().map(|shop| format!("{} pets", grouped(shop.pets)));
    let columns: Vec<_> = sizes.chain(others.iter().cloned()).collect();
    Ok(writeln!(text, "| {first} | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()))?)
}

/// Writes the figures to the page, and draws its charts.
pub(super) fn write(
    page: &Path,
    text: &str,
    shops: &[Shop],
    growth: &Growth,
    grid: Option<&Grid>,
) -> Outcome {
    replace_measured(page, text)?;
    let sizes: Vec<_> = shops.iter().map(|shop| grouped(shop.pets)).collect();
    let drawn = ["get_any", "page any 0", "page any random", "page pending 0.5", "create"];
    let growing: Vec<_> = WORKLOADS
        .iter()
        .zip(&growth.rates)
        .filter(|(workload, _)| drawn.contains(&workload.script))
        .map(|(workload, rates)| Line {
            name: workload.name,
            values: rates.iter().map(|rate| rate.ratio_to(&rates[0]).median()).collect(),
        })
        .collect();
    let title = format!("Rate with more pets, as a multiple of the rate with {}", sizes[0]);
    fs::write("docs/img/growth.svg", lines(&title, &sizes, &growing))?;
    let Some(grid) = grid else { return Ok(()) };
    let counts = CONNECTIONS.map(|connections| connections.to_string());
    let mut all = Vec::new();
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        let values =
            CONNECTIONS.iter().filter_map(|count| Some(grid.outlook(1, *count, operation)?.rate)).collect();
        all.push(Line { name, values });
    }
    fs::write(
        "docs/img/connections.svg",
        lines("Requests a second of one node, by connections", &counts, &all),
    )?;
    Ok(())
}
