//! Load tests, crash tests and fuzzing of the service, and what its features cost.
//!
//! Comparisons alternate between both sides in rounds of the same run, so that a noisy machine disturbs both alike. The
//! load comes from common tools: pgbench for PostgreSQL alone, wrk for the peak of a server, and a small open-loop client
//! for latency at a fixed rate. `make suites` lists how each command is run.
#![expect(clippy::print_stdout, reason = "a report is what this program is for")]

mod attack;
mod clocks;
mod compare;
mod connections;
mod costs;
mod crash;
mod events;
mod faults;
mod fresh_reads;
mod fuzz;
mod history;
mod http;
mod import_export;
mod measure;
mod mirror;
mod order_history;
mod outage;
mod overload;
mod random;
mod report;
mod rolling;
mod scale;
mod stale_reads;
mod topology;
mod upgrade;
mod workload;

use std::error::Error;

use clap::{Parser, Subcommand};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Tests and measures the service. Run it from the root of the repository, with `DATABASE_URL` naming an empty database.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures the latency of a normal client beside slow bodies and invalid keys.
    Attack(attack::Attack),
    /// Compares the service with pgbench, the thinnest server and peers; writes docs/performance.md.
    Compare(compare::Compare),
    /// Compares the service with the thinnest server on the same parts: throughput and CPU time.
    Thin(compare::Thin),
    /// Compares in a few minutes; fails when a ratio is much lower than the recorded one.
    Smoke,
    /// Compares the throughput on several versions of PostgreSQL.
    PostgresVersions(compare::PostgresVersions),
    /// Measures API keys and limits under too much load.
    Overload(overload::Overload),
    /// Measures the cost of the log and the metrics.
    TelemetryCost(costs::TelemetryCost),
    /// Measures the cost of an `Idempotency-Key`.
    IdempotencyCost(costs::IdempotencyCost),
    /// Kills the service and the database under clients that retry.
    Crash(crash::Crash),
    /// Steps the clocks of PostgreSQL servers: nothing may be doubled, revived or lost.
    Clocks(clocks::Clocks),
    /// Tests and measures the feed of events.
    #[command(subcommand)]
    Events(events::Events),
    /// Kills a mirror of the Python SDK under two readers, and compares it with the table.
    Mirror(mirror::Mirror),
    /// Measures memory and latency with many idle and slow connections.
    Connections(connections::Connections),
    /// Breaks a PostgreSQL cluster under load in every way.
    Faults(faults::Faults),
    /// Breaks PostgreSQL servers under load; no read may be stale, and reads must go on without a primary.
    FreshReads(fresh_reads::FreshReads),
    /// Measures the cost of fresh reads, also beside faulty standbys.
    FreshReadsCost(fresh_reads::FreshReadsCost),
    /// Sends random requests and bytes, and checks every answer.
    Fuzz(fuzz::Fuzz),
    /// Sends the same requests to another build and to this one, and compares the answers.
    Differential(fuzz::Differential),
    /// Restarts nodes in turn behind a load balancer; no request may fail.
    Rolling(rolling::Rolling),
    Outage(outage::Outage),
    /// Upgrades from the previous release, rolls back and upgrades again, under load.
    Upgrade(upgrade::Upgrade),
    /// Measures how throughput grows with pets, nodes and connections; writes docs/performance.md.
    Scale(scale::Scale),
    /// Sells pets on nodes that are killed, and checks the whole history.
    OrderHistory(order_history::OrderHistory),
    /// Checks for stale reads on two nodes.
    StaleReads(stale_reads::StaleReads),
    /// Measures and kills imports and exports.
    #[command(subcommand)]
    ImportExport(import_export::ImportExport),
}

#[tokio::main]
async fn main() -> Outcome {
    match Cli::parse().command {
        Command::Attack(attack) => attack.run().await,
        Command::Compare(compare) => compare.run().await,
        Command::Thin(thin) => thin.run().await,
        Command::Smoke => compare::smoke().await,
        Command::PostgresVersions(versions) => versions.run().await,
        Command::Overload(overload) => overload.run().await,
        Command::TelemetryCost(telemetry_cost) => telemetry_cost.run().await,
        Command::IdempotencyCost(idempotency_cost) => idempotency_cost.run().await,
        Command::Crash(crash) => crash.run().await,
        Command::Clocks(clocks) => clocks.run().await,
        Command::Events(events) => events.run().await,
        Command::Mirror(mirror) => mirror.run().await,
        Command::Connections(connections) => connections.run().await,
        Command::Faults(faults) => faults.run().await,
        Command::FreshReads(fresh_reads) => fresh_reads.run().await,
        Command::FreshReadsCost(fresh_reads_cost) => fresh_reads_cost.run().await,
        Command::Fuzz(fuzz) => fuzz.run().await,
        Command::Differential(differential) => differential.run().await,
        Command::Rolling(rolling) => rolling.run().await,
        Command::Outage(outage) => outage.run().await,
        Command::Upgrade(upgrade) => upgrade.run().await,
        Command::Scale(scale) => scale.run().await,
        Command::OrderHistory(order_history) => order_history.run().await,
        Command::StaleReads(stale_reads) => stale_reads.run().await,
        Command::ImportExport(import_export) => import_export.run().await,
    }
}
