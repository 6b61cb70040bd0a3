//! Measures the service against the bare engine, in alternating rounds of the same run, so that a noisy machine
//! disturbs both alike.
//!
//! Everything is done by tools that anyone has: pgbench for the engine, wrk for the service's peak, and a small
//! open-loop client of this program's own for latency at a fixed rate.
#![expect(clippy::print_stdout, reason = "a report is what this program is for")]

mod attack;
mod compare;
mod crash;
mod crowd;
mod faults;
mod fuzz;
mod http;
mod observe;
mod once;
mod protect;
mod random;
mod report;
mod rolling;
mod scale;
mod sell;
mod stale;
mod tools;
mod trade;

use std::error::Error;

use clap::{Parser, Subcommand};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Measures the service. Run from the repository's root, with `DATABASE_URL` naming an empty server's database.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What a hostile client does to a good one.
    Attack(attack::Attack),
    /// The service against pgbench and against peers; writes docs/performance.md.
    Compare(compare::Compare),
    /// A short comparison that fails when a ratio falls below 40 % of what docs/performance.md has.
    Smoke,
    /// What keys and limits promise.
    Protect(protect::Protect),
    /// What the log and the metrics cost.
    Observe(observe::Observe),
    /// What an `Idempotency-Key` costs.
    Once(once::Once),
    /// Kills service and database under clients that send again.
    Crash(crash::Crash),
    /// Many clients that do nothing, or too slowly.
    Crowd(crowd::Crowd),
    /// Breaks a cluster under load, in every way.
    Faults(faults::Faults),
    /// Attacks the service with random requests and bytes.
    Fuzz(fuzz::Fuzz),
    /// Restarts nodes in turn behind a balancer; no request may fail.
    Rolling(rolling::Rolling),
    /// How each figure grows with the pets, the nodes and the connections; writes docs/scaling.md.
    Scale(scale::Scale),
    /// Sells animals on nodes that are killed, and looks at the whole history.
    Sell(sell::Sell),
    /// Looks for stale answers on two nodes.
    Stale(stale::Stale),
    /// Imports and exports.
    #[command(subcommand)]
    Trade(trade::Trade),
}

#[tokio::main]
async fn main() -> Outcome {
    match Cli::parse().command {
        Command::Attack(attack) => attack.run().await,
        Command::Compare(compare) => compare.run().await,
        Command::Smoke => compare::smoke(),
        Command::Protect(protect) => protect.run().await,
        Command::Observe(observe) => observe.run(),
        Command::Once(once) => once.run(),
        Command::Crash(crash) => crash.run().await,
        Command::Crowd(crowd) => crowd.run().await,
        Command::Faults(faults) => faults.run().await,
        Command::Fuzz(fuzz) => fuzz.run().await,
        Command::Rolling(rolling) => rolling.run().await,
        Command::Scale(scale) => scale.run().await,
        Command::Sell(sell) => sell.run().await,
        Command::Stale(stale) => stale.run().await,
        Command::Trade(trade) => trade.run().await,
    }
}
