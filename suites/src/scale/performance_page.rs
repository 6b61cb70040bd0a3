//! What docs/performance.md shows of growth and of the plan, and the CSV.

use super::grid::{Grid, OPERATIONS};
use super::{Cold, Database, Growth, LATENCIES, Maintenance, Scale, WORKLOADS, capacity_plan};
use crate::Outcome;
use crate::measure::{Measurements, Table, grouped, wrk_version};
use crate::topology::psql;

/// The workloads in the table; the CSV has the others.
const SHOWN: [&str; 8] = [
    "get_any",
    "page any 0",
    "page any random",
    "page pending random",
    "create",
    "update",
    "orders",
    "events",
];

pub(super) fn publish(
    url: &str,
    scale: &Scale,
    databases: &[Database],
    growth: &Growth,
    maintenance: &[Maintenance],
    cold: Option<&[Cold]>,
    grid: Option<&Grid>,
) -> Outcome {
    let mut measurements = Measurements::default();
    add_growth(&mut measurements, databases, growth);
    add_storage(&mut measurements, databases, maintenance, cold);
    let huge = if psql(url, "SHOW huge_pages")?.trim() == "on" { " in huge pages" } else { "" };
    let text = format!(
        "{{run}}, which the load generator and the database shared: {} rounds of {} seconds, PostgreSQL {} with {} of shared \
         buffers{huge}, {}. Requests per second with 64 connections, as medians of the rounds, with the lowest and the \
         highest round in brackets:\n\n{}\n{}",
        scale.rounds,
        scale.seconds,
        psql(url, "SHOW server_version")?.split_whitespace().next().unwrap_or_default(),
        psql(url, "SHOW shared_buffers")?.trim(),
        wrk_version()?,
        with_more_pets(databases, growth),
        storage(databases, maintenance, cold),
    );
    let mut parts = vec![("scale", text)];
    if let (Some(grid), Some(stored)) = (grid, maintenance.last()) {
        grid.add_to(&mut measurements);
        parts.push(("plan", capacity_plan::table(&grid.models, stored)));
        parts.push(("model", costs(grid)));
    }
    measurements.publish("scale", &parts, scale.record)
}

/// Rows for each round.
fn add_growth(measurements: &mut Measurements, databases: &[Database], growth: &Growth) {
    for (workload, sizes) in WORKLOADS.iter().zip(&growth.rates) {
        for (Database { pets, .. }, rates) in databases.iter().zip(sizes) {
            for (round, rate) in (1..).zip(&rates.0) {
                measurements.add(
                    &[("part", &"pets"), ("operation", &workload.name), ("pets", pets), ("round", &round)],
                    &[("requests_per_s", *rate)],
                );
            }
        }
    }
    for ((_, name), (rate, sizes)) in LATENCIES.iter().zip(&growth.latencies) {
        for (Database { pets, .. }, rounds) in databases.iter().zip(sizes) {
            for (round, times) in (1..).zip(rounds) {
                let what: &[(_, &dyn std::fmt::Display)] =
                    &[("part", &"latency"), ("operation", name), ("pets", pets), ("round", &round)];
                measurements.add_latency(what, (0.5, *rate), times);
            }
        }
    }
}

fn add_storage(
    measurements: &mut Measurements,
    databases: &[Database],
    maintenance: &[Maintenance],
    cold: Option<&[Cold]>,
) {
    for (place, (Database { pets, .. }, one)) in databases.iter().zip(maintenance).enumerate() {
        let mut add = |operation: &str, figures: &[(&'static str, f64)]| {
            measurements.add(
                &[("part", &"storage"), ("operation", &operation), ("pets", pets), ("round", &1)],
                figures,
            );
        };
        for (what, bytes) in ["row", "primary key", "status index"].into_iter().zip(one.bytes) {
            add(what, &[("bytes", bytes)]);
        }
        add("order", &[("bytes", one.order)]);
        add("event", &[("bytes", one.event)]);
        add("create an index concurrently", &[("seconds", one.index)]);
        add("vacuum after one pet in 1000 was sold", &[("seconds", one.vacuum)]);
        if let Some(Cold { first, until_warm }) = cold.map(|all| &all[place]) {
            add("cold start", &[("first_rate_to_warm", *first), ("seconds", *until_warm)]);
        }
    }
}

fn with_more_pets(databases: &[Database], growth: &Growth) -> String {
    let (fewest, most) = (&databases[0], &databases[databases.len() - 1]);
    let mut table = headed("operation", &[fewest, most], " | ratio |");
    for (workload, rates) in
        WORKLOADS.iter().zip(&growth.rates).filter(|(one, _)| SHOWN.contains(&one.script))
    {
        let (fewest, most) = (&rates[0], &rates[rates.len() - 1]);
        table.row(&[workload.name, &fewest.spread(), &most.spread(), &most.ratio_to(fewest).spread()]);
    }
    table.0
}

fn storage(databases: &[Database], maintenance: &[Maintenance], cold: Option<&[Cold]>) -> String {
    let mut table = headed("", &databases.iter().collect::<Vec<_>>(), " |");
    let mut row = |name: &str, value: &dyn Fn(usize) -> String| {
        table.row(&[&[name.to_owned()][..], &(0..databases.len()).map(value).collect::<Vec<_>>()].concat());
    };
    row("bytes per pet, with indexes", &|place| {
        format!("{:.0}", maintenance[place].bytes.iter().sum::<f64>())
    });
    row("creating an index `CONCURRENTLY`", &|place| format!("{:.1} s", maintenance[place].index));
    row("vacuum after one pet in 1,000 was sold", &|place| format!("{:.1} s", maintenance[place].vacuum));
    if let Some(cold) = cold {
        row("getPet just after a cold start, as a multiple of warm", &|place| {
            format!("{:.2}", cold[place].first)
        });
        row("time to 0.9 of the warm rate", &|place| format!("{:.0} s", cold[place].until_warm));
    }
    table.0
}

/// The fitted costs, and how well they predict a configuration that they were not fitted to.
fn costs(grid: &Grid) -> String {
    let mut table = Table::new(
        "| CPU time, µs | service, per request | service, per statement | database, per request | database, per statement \
         | database, per factor of ten in pets | error of the prediction |",
    );
    for (operation, (_, name, _)) in OPERATIONS.iter().enumerate() {
        let [service, database, _] = grid.models[operation].costs;
        let micros = [service.own, service.statement, database.own, database.statement, database.decade]
            .map(|seconds| format!("{:.1}", seconds * 1e6));
        let mut cells = vec![(*name).to_owned()];
        cells.extend(micros);
        cells.push(format!("{:+.0} %", grid.error(operation) * 100.0));
        table.row(&cells);
    }
    table.0
}

/// A table with a column for each size.
fn headed(first: &str, databases: &[&Database], rest: &str) -> Table {
    let sizes: Vec<_> = databases.iter().map(|database| format!("{} pets", grouped(database.pets))).collect();
    Table::new(&format!("| {first} | {}{rest}", sizes.join(" | ")))
}
