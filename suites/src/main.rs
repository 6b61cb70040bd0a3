//! Load tests, crash tests and fuzzing of the service, and what its features cost.
//!
//! Comparisons alternate between both sides in rounds of the same run, so that a noisy machine disturbs both alike. The
//! load comes from common tools: pgbench for PostgreSQL alone, wrk for the peak of a server, and a small open-loop client
//! for latency at a fixed rate. `make suites` lists how each command is run.
#![expect(clippy::print_stdout, reason = "a report is what this program is for")]

mod attack;
mod chaos;
mod clocks;
mod compare;
mod connections;
mod events;
mod feature_costs;
mod fresh_reads_cost;
mod fuzz;
mod history;
mod http;
mod import_export;
mod measure;
mod random;
mod report;
mod scale;
mod sdk_mirror;
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
    /// Compares the service with pgbench and peers; writes docs/performance.md.
    Compare(compare::Compare),
    /// Compares the throughput with that of the previous release.
    Regression(compare::Regression),
    /// Compares the throughput on several versions of PostgreSQL.
    PostgresVersions(compare::PostgresVersions),
    /// Measures the cost of an `Idempotency-Key`.
    IdempotencyCost(feature_costs::IdempotencyCost),
    Chaos(chaos::Chaos),
    /// Steps the clocks of PostgreSQL servers: nothing may be doubled, revived or lost.
    Clocks(clocks::Clocks),
    /// Tests and measures the feed of events.
    #[command(subcommand)]
    Events(events::Events),
    /// Kills a mirror of the Python SDK under two readers, and compares it with the table.
    Mirror(sdk_mirror::Mirror),
    /// Measures memory and latency with many idle and slow connections.
    Connections(connections::Connections),
    /// Measures the throughput of a cluster under Patroni, in whose network it runs, against a single server.
    ReplicationCost,
    /// Measures the cost of fresh reads, also beside faulty standbys.
    FreshReadsCost(fresh_reads_cost::FreshReadsCost),
    /// Sends random requests and bytes, and checks every answer.
    Fuzz(fuzz::Fuzz),
    /// Sends the same requests to another build and to this one, and compares the answers.
    Differential(fuzz::Differential),
    /// Upgrades from the previous release, rolls back and upgrades again, under load.
    Upgrade(upgrade::Upgrade),
    /// Measures how throughput grows with pets, nodes and connections; writes docs/performance.md.
    Scale(scale::Scale),
    /// Measures and kills imports and exports.
    #[command(subcommand)]
    ImportExport(import_export::ImportExport),
}

#[tokio::main]
async fn main() -> Outcome {
    match Cli::parse().command {
        Command::Attack(attack) => attack.run().await,
        Command::Compare(compare) => compare.run().await,
        Command::Regression(regression) => regression.run().await,
        Command::PostgresVersions(versions) => versions.run().await,
        Command::IdempotencyCost(idempotency_cost) => idempotency_cost.run().await,
        Command::Chaos(chaos) => chaos.run().await,
        Command::Clocks(clocks) => clocks.run().await,
        Command::Events(events) => events.run().await,
        Command::Mirror(mirror) => mirror.run().await,
        Command::Connections(connections) => connections.run().await,
        Command::ReplicationCost => feature_costs::replication().await,
        Command::FreshReadsCost(fresh_reads_cost) => fresh_reads_cost.run().await,
        Command::Fuzz(fuzz) => fuzz.run().await,
        Command::Differential(differential) => differential.run().await,
        Command::Upgrade(upgrade) => upgrade.run().await,
        Command::Scale(scale) => scale.run().await,
        Command::ImportExport(import_export) => import_export.run().await,
    }
}
