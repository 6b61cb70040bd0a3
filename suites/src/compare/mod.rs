//! The service against pgbench, peers and the previous release; and on several versions of PostgreSQL.

mod postgres_versions;
mod regression;
mod workloads;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

pub(crate) use self::postgres_versions::PostgresVersions;
pub(crate) use self::regression::Regression;
use self::workloads::{WORKLOADS, Workload};
use crate::Outcome;
use crate::measure::{
    Cost, CostSamples, Measurements, Samples, Table, alternate, grouped, latency, pgbench, wrk, wrk_version,
};
use crate::topology::{Server, database_url, prepare, psql};

/// The extent of the measurement.
#[derive(Args)]
pub(crate) struct Compare {
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 1_000_000)]
    pets: u64,
    /// Rounds, each on pgbench, the service and the peers.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
    /// Write docs/performance.md, its charts and docs/measurements/compare.csv, instead of the same below target/measurements.
    #[arg(long)]
    record: bool,
}

/// How long latency is measured in each round.
const LATENCY_TIME: Duration = Duration::from_secs(3);
/// The rates at which latency is measured, as fractions of the peak rate. The page shows the one at half of the peak.
const LOADS: [f64; 3] = [0.25, 0.5, 0.75];
const SHOWN_LOAD: usize = 1;
/// The connections of the two measurements: requests are batched, or not at all.
const CONNECTIONS: [u16; 2] = [64, 1];
const PEERS: [&str; 3] = ["FastAPI", "Fastify", "axum"];

/// One side of the comparison: at 64 connections, or at one.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Pgbench(usize),
    Service(usize),
    /// One of `PEERS`.
    Peer(usize),
}

const SIDES: [Side; 7] = [
    Side::Pgbench(0),
    Side::Service(0),
    Side::Pgbench(1),
    Side::Service(1),
    Side::Peer(0),
    Side::Peer(1),
    Side::Peer(2),
];

/// All servers, on one database.
struct Contest {
    url: String,
    key: String,
    pets: u64,
    service: Server,
    peers: [Server; 3],
}

/// The measurements of one workload, one sample per round.
#[derive(Default)]
struct Figures {
    best_clients: u16,
    /// At 64 connections and at one, as in the next two.
    pgbench: [CostSamples; 2],
    service: [CostSamples; 2],
    peers: [CostSamples; 3],
    /// Requests per second at each of the loads, and the latencies of each round.
    latencies: Vec<(f64, Vec<Samples>)>,
}

impl Figures {
    /// The throughput of the service as a multiple of that of pgbench: at 64 connections and at one.
    fn to_pgbench(&self) -> [Samples; 2] {
        [0, 1].map(|place| self.service[place].rate.ratio_to(&self.pgbench[place].rate))
    }

    /// A row for each round of each server, and of each load at which latency was measured.
    fn add_to(&self, measurements: &mut Measurements, operation: &str) {
        let [many, alone] = CONNECTIONS;
        let mut sides = vec![
            ("petstore", many, &self.service[0]),
            ("petstore", alone, &self.service[1]),
            ("pgbench", self.best_clients, &self.pgbench[0]),
            ("pgbench", alone, &self.pgbench[1]),
        ];
        sides.extend(PEERS.into_iter().zip(&self.peers).map(|(name, samples)| (name, many, samples)));
        for (server, connections, CostSamples { rate, cpu_micros }) in sides {
            for (round, (rate, cpu)) in (1..).zip(rate.0.iter().zip(&cpu_micros.0)) {
                measurements.add(
                    &[
                        ("operation", &operation),
                        ("server", &server),
                        ("connections", &connections),
                        ("round", &round),
                    ],
                    &[("requests_per_s", *rate), ("cpu_us_per_request", *cpu)],
                );
            }
        }
        for (load, (rate, rounds)) in LOADS.into_iter().zip(&self.latencies) {
            for (round, times) in (1..).zip(rounds) {
                measurements.add_latency(
                    &[
                        ("operation", &operation),
                        ("server", &"petstore"),
                        ("connections", &many),
                        ("round", &round),
                    ],
                    (load, *rate),
                    times,
                );
            }
        }
    }
}

impl Contest {
    fn start(pets: u64) -> Outcome<Self> {
        let url = database_url()?;
        let key = prepare(&url, pets)?;
        let service = Server::petstore(&url)?;
        let peers = [Server::fastapi(&url, &key)?, Server::fastify(&url, &key)?, Server::axum(&url, &key)?];
        Ok(Self { url, key, pets, service, peers })
    }

    /// Measures all sides in alternating rounds.
    async fn measure(&self, workload: &Workload, rounds: usize, seconds: u16) -> Outcome<Figures> {
        let mut figures =
            Figures { best_clients: best_clients(&self.url, workload, self.pets)?, ..Figures::default() };
        let clients = [figures.best_clients, 1];
        let measured = alternate(SIDES.len(), (1, rounds), async |side, is_warm_up| {
            let seconds = if is_warm_up { 1 } else { seconds };
            let at = |server, script, place: usize| {
                let seconds = if CONNECTIONS[place] == 1 { seconds.min(2) } else { seconds };
                wrk(server, script, &self.key, self.pets, CONNECTIONS[place], seconds)
            };
            match SIDES[side] {
                Side::Pgbench(place) => {
                    let seconds = if place == 1 { seconds.min(2) } else { seconds };
                    let rate = pgbench(&self.url, workload.pgbench, self.pets, clients[place], seconds)?;
                    Ok(Cost { rate, cpu_micros: f64::NAN })
                }
                Side::Service(place) => at(&self.service, workload.service, place),
                // Without the CPU time, which would be that of one of several processes.
                Side::Peer(peer) => {
                    let server = &self.peers[peer];
                    let cost =
                        wrk(server, workload.peer, &self.key, self.pets, CONNECTIONS[0], seconds.min(2))?;
                    Ok(Cost { cpu_micros: f64::NAN, ..cost })
                }
            }
        });
        for (side, costs) in SIDES.iter().zip(measured.await?) {
            let samples = CostSamples::of(&costs);
            match *side {
                Side::Pgbench(place) => figures.pgbench[place] = samples,
                Side::Service(place) => figures.service[place] = samples,
                Side::Peer(peer) => figures.peers[peer] = samples,
            }
        }
        println!("measured: {}", workload.name);
        Ok(figures)
    }
}

impl Compare {
    pub(crate) async fn run(self) -> Outcome {
        let contest = Contest::start(self.pets)?;
        let (url, key) = (contest.url.clone(), contest.key.clone());
        let mut all = Vec::new();
        for workload in &WORKLOADS {
            let mut figures = contest.measure(workload, self.rounds, self.seconds).await?;
            let peak = figures.service[0].rate.median();
            let rates = LOADS.map(|load| (peak * load).round());
            let times = alternate(LOADS.len(), (0, self.rounds), async |load, _| {
                let end = Instant::now() + LATENCY_TIME;
                let goes_on = Arc::new(move || Instant::now() < end);
                latency(&contest.service, workload.service, &key, self.pets, rates[load], goes_on).await
            });
            figures.latencies = rates.into_iter().zip(times.await?).collect();
            all.push(figures);
        }
        drop(contest);
        let service = Server::petstore(&url)?;
        wrk(&service, "mix", &key, self.pets, 1_000, self.seconds)?;
        let memory = service.peak_megabytes()?;
        self.publish(&url, &all, memory)
    }

    fn publish(&self, url: &str, all: &[Figures], memory: f64) -> Outcome {
        let mut measurements = Measurements::default();
        let mut table = Table::new(
            "| operation | requests/s | times `pgbench` | times `pgbench`, 1 connection | p50, ms | p99, ms |",
        );
        for (workload, figures) in WORKLOADS.iter().zip(all) {
            figures.add_to(&mut measurements, workload.name);
            let [pgbench, pgbench_alone] = figures.to_pgbench().map(|ratio| ratio.spread());
            let (_, rounds) = &figures.latencies[SHOWN_LOAD];
            let at = |share| Samples(rounds.iter().map(|times| times.at(share)).collect()).spread();
            let rate = figures.service[0].rate.spread();
            table.row(&[workload.name, &rate, &pgbench, &pgbench_alone, &at(0.5), &at(0.99)]);
        }
        measurements.add(
            &[("operation", &"mix"), ("server", &"petstore"), ("connections", &1_000), ("round", &1)],
            &[("peak_memory_mb", memory)],
        );
        let text = format!(
            "{{run}}, which the load generator and the database shared: {} pets, {} rounds of {} seconds, PostgreSQL {}, {}. \
             Figures are medians of the rounds, with the lowest and the highest round in brackets. Latencies were measured at \
             half of the highest rate. Unless a column says otherwise, 64 connections were used.\n\n{}\n\
             Peak memory with 1,000 connections at full load: {memory:.0} MB.",
            grouped(self.pets),
            self.rounds,
            self.seconds,
            psql(url, "SHOW server_version")?.split_whitespace().next().unwrap_or_default(),
            wrk_version()?,
            table.0,
        );
        measurements.publish("compare", &[("compare", text)], self.record)
    }
}

/// The number of clients with which pgbench is fastest.
fn best_clients(url: &str, workload: &Workload, pets: u64) -> Outcome<u16> {
    let mut best = (0.0, 8);
    for clients in [8, 16, 32, 64] {
        let rate = pgbench(url, workload.pgbench, pets, clients, 2)?;
        if rate > best.0 {
            best = (rate, clients);
        }
    }
    Ok(best.1)
}
