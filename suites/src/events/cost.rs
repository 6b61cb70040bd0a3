//! What the events cost: the throughput of createPet, against a version of the service that records none.

use std::path::PathBuf;

use clap::Args;

use crate::Outcome;
use crate::measure::wrk_in_turn;
use crate::topology::{Server, database_url, output, prepare, psql, sibling};

/// The lowest throughput, as a fraction of that without events.
const BAR: f64 = 0.85;

/// Alternating rounds on two databases of one server.
#[derive(Args)]
pub(crate) struct EventsCost {
    /// The program without events: `petstore` of version 1.0.0.
    #[arg(long)]
    without: PathBuf,
    /// Rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

impl EventsCost {
    pub(crate) fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 100_000)?;
        psql(&url, "CREATE DATABASE without_events")?;
        let without_url = sibling(&url, "without_events");
        let program = self.without.to_str().ok_or("the path is not UTF-8")?;
        output(program, &["migrate", "--database-url", &without_url])?;
        // The same key on both.
        let copy = "SELECT format('INSERT INTO api_keys (name, prefix, digest, scopes) VALUES (%L, %L, %L, %L)', \
            name, prefix, digest, scopes) FROM api_keys LIMIT 1";
        psql(&without_url, psql(&url, copy)?.trim())?;
        let with = Server::petstore(&url)?;
        let without = Server::program(program, &without_url, &[], "target/suite-other-version.log")?;
        for connections in [64, 1] {
            let workload = "create_without_key";
            let [with, without] = wrk_in_turn(
                [&with, &without],
                workload,
                &key,
                100_000,
                connections,
                self.rounds,
                self.seconds,
            )?;
            let ratio = with.rate.ratio_to(&without.rate);
            println!(
                "{connections} connections: {} /s with events, {} /s without: {}; CPU time of the service {} and {} µs",
                with.rate.spread(),
                without.rate.spread(),
                ratio.spread(),
                with.cpu_micros.spread(),
                without.cpu_micros.spread()
            );
            if connections == 64 && ratio.median() < BAR {
                return Err(format!("events cost too much: the bar is {BAR}").into());
            }
        }
        Ok(())
    }
}
