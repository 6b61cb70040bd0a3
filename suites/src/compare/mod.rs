//! The service against pgbench, against the thinnest server on the same parts, and against peers; and on several versions
//! of PostgreSQL.

mod postgres_versions;
mod smoke;
mod thin;
mod workloads;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::Instant;

pub(crate) use self::postgres_versions::PostgresVersions;
pub(crate) use self::smoke::smoke;
pub(crate) use self::thin::Thin;
use self::workloads::{PEER_GOAL, WORKLOADS, Workload};
use crate::Outcome;
use crate::measure::{
    Cost, CostSamples, Samples, alternate, draw, latency, machine, pgbench, record, wrk, wrk_version,
};
use crate::topology::{Server, database_url, prepare, psql, wait_until_idle};

/// The extent of the measurement.
#[derive(Args)]
pub(crate) struct Compare {
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 1_000_000)]
    pets: u64,
    /// Rounds, each on pgbench, the service, the thinnest server and the peers.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

/// How long latency is measured.
const LATENCY_TIME: Duration = Duration::from_secs(5);
/// The connections of the two measurements: requests are batched, or not at all.
const CONNECTIONS: [u16; 2] = [64, 1];

/// One side of the comparison: at 64 connections, or at one.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Pgbench(usize),
    Service(usize),
    Thin(usize),
    /// FastAPI, Fastify or axum.
    Peer(usize),
}

const ALL: [Side; 6] =
    [Side::Pgbench(0), Side::Service(0), Side::Thin(0), Side::Pgbench(1), Side::Service(1), Side::Thin(1)];

/// All servers, on one database.
struct Contest {
    url: String,
    key: String,
    pets: u64,
    service: Server,
    thin: Server,
    peers: Vec<Server>,
    /// Until then, each measurement waits until nothing else runs on the machine.
    wait_until: Option<std::time::Instant>,
}

/// The measurements of one workload, one sample per round.
#[derive(Default)]
struct Figures {
    best_clients: u16,
    /// At 64 connections and at one, as in the next two.
    pgbench: [Samples; 2],
    service: [CostSamples; 2],
    thin: [CostSamples; 2],
    peers: [Samples; 3],
    /// Milliseconds at half of the peak rate, and that rate.
    latency: Samples,
    rate: f64,
}

impl Figures {
    /// The throughput of the service as a multiple of that of pgbench: at 64 connections and at one.
    fn to_pgbench(&self) -> [Samples; 2] {
        [0, 1].map(|place| self.service[place].rate.ratio_to(&self.pgbench[place]))
    }

    /// The same as a multiple of that of the thinnest server.
    fn to_thin(&self, place: usize) -> Samples {
        self.service[place].rate.ratio_to(&self.thin[place].rate)
    }

    /// The CPU time per request as a multiple of that of the thinnest server.
    fn cpu_to_thin(&self, place: usize) -> Samples {
        self.service[place].cpu_micros.ratio_to(&self.thin[place].cpu_micros)
    }
}

impl Contest {
    fn start(pets: u64) -> Outcome<Self> {
        let url = database_url()?;
        let key = prepare(&url, pets)?;
        let (service, thin) = (Server::petstore(&url)?, Server::thin(&url)?);
        Ok(Self { url, key, pets, service, thin, peers: Vec::new(), wait_until: None })
    }

    /// Measures these sides in alternating rounds. A workload that is not compared with the thinnest server skips that.
    async fn measure(
        &self,
        workload: &Workload,
        sides: &[Side],
        rounds: usize,
        seconds: u16,
    ) -> Outcome<Figures> {
        let is_compared = |side: &&Side| workload.to_thin.is_some() || !matches!(side, Side::Thin(_));
        let sides: Vec<Side> = sides.iter().filter(is_compared).copied().collect();
        let mut figures = Figures::default();
        if sides.iter().any(|side| matches!(side, Side::Pgbench(_))) {
            figures.best_clients = best_clients(&self.url, workload, self.pets)?;
        }
        let clients = [figures.best_clients, 1];
        let measured = alternate(sides.len(), (1, rounds), async |side, is_warm_up| {
            let seconds = if is_warm_up { 1 } else { seconds };
            if let Some(deadline) = self.wait_until {
                wait_until_idle(deadline)?;
            }
            let at = |server, script, place: usize| {
                let seconds = if CONNECTIONS[place] == 1 { seconds.min(2) } else { seconds };
                wrk(server, script, &self.key, self.pets, CONNECTIONS[place], seconds)
            };
            match sides[side] {
                Side::Pgbench(place) => {
                    let seconds = if place == 1 { seconds.min(2) } else { seconds };
                    let rate = pgbench(&self.url, workload.pgbench, self.pets, clients[place], seconds)?;
                    Ok(Cost { rate, cpu_micros: f64::NAN })
                }
                Side::Service(place) => at(&self.service, workload.service, place),
                Side::Thin(place) => at(&self.thin, workload.service, place),
                Side::Peer(peer) => {
                    wrk(&self.peers[peer], workload.peer, &self.key, self.pets, 64, seconds.min(2))
                }
            }
        });
        for (side, costs) in sides.iter().zip(measured.await?) {
            let samples = CostSamples::of(&costs);
            match *side {
                Side::Pgbench(place) => figures.pgbench[place] = samples.rate,
                Side::Service(place) => figures.service[place] = samples,
                Side::Thin(place) => figures.thin[place] = samples,
                Side::Peer(peer) => figures.peers[peer] = samples.rate,
            }
        }
        println!("measured: {}", workload.name);
        Ok(figures)
    }
}

impl Compare {
    pub(crate) async fn run(self) -> Outcome {
        let mut contest = Contest::start(self.pets)?;
        let (url, key) = (contest.url.clone(), contest.key.clone());
        contest.peers =
            vec![Server::fastapi(&url, &key)?, Server::fastify(&url, &key)?, Server::axum(&url, &key)?];
        let sides = [&ALL[..], &[Side::Peer(0), Side::Peer(1), Side::Peer(2)]].concat();
        let mut all = Vec::new();
        for workload in &WORKLOADS {
            let mut figures = contest.measure(workload, &sides, self.rounds, self.seconds).await?;
            figures.rate = (figures.service[0].rate.median() / 2.0).round();
            let end = Instant::now() + LATENCY_TIME;
            let goes_on = Arc::new(move || Instant::now() < end);
            figures.latency =
                latency(&contest.service, workload.service, &key, self.pets, figures.rate, goes_on).await?;
            all.push(figures);
        }
        drop(contest);
        let service = Server::petstore(&url)?;
        wrk(&service, "mix", &key, self.pets, 1_000, self.seconds)?;
        let memory = service.peak_megabytes()?;
        self.write(&url, &all, memory)
    }

    fn write(&self, url: &str, figures: &[Figures], memory: f64) -> Outcome {
        let machine = machine()?;
        let server = psql(url, "SHOW server_version")?;
        let wrk_version = wrk_version()?;
        let mut text = format!(
            "Measured on {machine}, which the load generator and the database shared; PostgreSQL {}, {wrk_version}; \
             {} pets; {} rounds of {} seconds. Each figure is a median, with the minimum and the maximum in brackets.\n\n\
             ### At 64 connections, against pgbench\n\n\
             | operation | pgbench, tx/s (clients) | service, requests/s | ratio | bar |\n|---|---|---|---|---|\n",
            server.trim(),
            self.pets,
            self.rounds,
            self.seconds,
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let [ratio, _] = figures.to_pgbench();
            writeln!(
                text,
                "| {} | {:.0} ({}) | {:.0} | {} | {} |",
                workload.name,
                figures.pgbench[0].median(),
                figures.best_clients,
                figures.service[0].rate.median(),
                ratio.spread(),
                workload.to_pgbench[0].goal
            )?;
        }
        text.push_str(
            "\n### At a single connection, where nothing is batched\n\n\
             | operation | pgbench, tx/s | service, requests/s | ratio | bar |\n|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let [_, ratio] = figures.to_pgbench();
            writeln!(
                text,
                "| {} | {:.0} | {:.0} | {} | {} |",
                workload.name,
                figures.pgbench[1].median(),
                figures.service[1].rate.median(),
                ratio.spread(),
                workload.to_pgbench[1].goal
            )?;
        }
        text.push_str(&thin::tables(figures)?);
        text.push_str(
            "\n### Against peers, at 64 connections\n\n\
             | operation | FastAPI, requests/s | Fastify, requests/s | axum, requests/s \
             | times FastAPI | times Fastify | times axum | bar (FastAPI, Fastify) |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let [fastapi, fastify, axum] = figures.peers.each_ref().map(Samples::median);
            let times = figures.peers.each_ref().map(|peer| figures.service[0].rate.ratio_to(peer).spread());
            writeln!(
                text,
                "| {} | {fastapi:.0} | {fastify:.0} | {axum:.0} | {} | {PEER_GOAL} |",
                workload.name,
                times.join(" | ")
            )?;
        }
        text.push_str(
            "\n### Latency at half of the peak rate, open loop\n\n\
             | operation | requests/s | p50, ms | p99, ms | p99.9, ms |\n|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let at = |share| figures.latency.at(share);
            let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
            writeln!(text, "| {} | {:.0} | {p50:.2} | {p99:.2} | {p999:.2} |", workload.name, figures.rate)?;
        }
        writeln!(text, "\nPeak memory at 1,000 connections under full load: {memory:.0} MB.")?;
        println!("{text}");
        record("compare", &text)?;
        let rows: Vec<_> = WORKLOADS
            .iter()
            .zip(figures)
            .map(|(workload, figures)| {
                let [ratio, _] = figures.to_pgbench();
                let goal = workload.to_pgbench[0].goal;
                json!([workload.name, ratio.median(), ratio.at(0.0), ratio.at(1.0), goal])
            })
            .collect();
        let title = "Throughput of the service as a multiple of pgbench";
        draw("bars", "docs/img/against-the-engine.svg", title, &json!(rows))
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
