//! The service against pgbench, against the thinnest server on the same parts, and against peers; and on several versions
//! of PostgreSQL.

mod postgres_versions;
mod smoke;
mod thin;
mod workloads;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

pub(crate) use self::postgres_versions::PostgresVersions;
pub(crate) use self::smoke::smoke;
pub(crate) use self::thin::Thin;
use self::thin::{Pair, PairSamples, tables};
use self::workloads::{PEER_GOAL, WORKLOADS, Workload};
use crate::Outcome;
use crate::http::{Connection, cursor};
use crate::measure::{Samples, draw, machine, pgbench, replace_measured, wrk, wrk_version};
use crate::random::Random;
use crate::topology::{Server, database_url, psql};

/// The extent of the measurement.
#[derive(Args)]
pub(crate) struct Compare {
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 1_000_000)]
    pets: u64,
    /// Rounds, each with every workload on pgbench, the service, the thinnest server and the peers.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

/// How long latency is measured.
const LATENCY_TIME: Duration = Duration::from_secs(5);

/// The measurements of one workload, one sample per round.
#[derive(Default)]
struct Figures {
    best_clients: u16,
    /// At 64 connections and at one, as in the next.
    pgbench: [Samples; 2],
    servers: [PairSamples; 2],
    /// FastAPI, Fastify, axum.
    peers: [Samples; 3],
    /// Milliseconds at half of the peak rate, and that rate.
    latency: Samples,
    rate: f64,
}

impl Figures {
    /// The throughput of the service at 64 connections.
    fn service(&self) -> &Samples {
        &self.servers[0].service.rate
    }

    /// The throughput of the service as a multiple of that of pgbench: at 64 connections and at one.
    fn to_pgbench(&self) -> [Samples; 2] {
        [0, 1].map(|place| self.servers[place].service.rate.ratio_to(&self.pgbench[place]))
    }
}

impl Compare {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let pair = Pair::start(&url, self.pets)?;
        let key = &pair.key;
        let peers = [Server::fastapi(&url, key)?, Server::fastify(&url, key)?, Server::axum(&url, key)?];
        let mut figures = self.rounds(&url, &pair, &peers)?;
        for (workload, figures) in WORKLOADS.iter().zip(&mut figures) {
            figures.rate = (figures.service().median() / 2.0).round();
            let end = Instant::now() + LATENCY_TIME;
            let goes_on = Arc::new(move || Instant::now() < end);
            figures.latency =
                latency(&pair.service, workload.service, &pair.key, self.pets, figures.rate, goes_on).await?;
        }
        let Pair { service, key, .. } = pair;
        drop(service);
        let service = Server::petstore(&url)?;
        wrk(&service, "mix", &key, self.pets, 1_000, self.seconds)?;
        let memory = service.peak_megabytes()?;
        self.write(&url, &figures, memory)
    }

    fn rounds(&self, url: &str, pair: &Pair, peers: &[Server]) -> Outcome<Vec<Figures>> {
        let mut all: Vec<Figures> = WORKLOADS.iter().map(|_| Figures::default()).collect();
        for (workload, figures) in WORKLOADS.iter().zip(&mut all) {
            figures.best_clients = best_clients(url, workload, self.pets)?;
            pair.measure(&mut PairSamples::default(), workload, 64, 1)?;
        }
        let single_seconds = self.seconds.min(2);
        for round in 1..=self.rounds {
            for (workload, figures) in WORKLOADS.iter().zip(&mut all) {
                let Figures { best_clients, pgbench: alone, servers, .. } = figures;
                alone[0].push(pgbench(url, workload.pgbench, self.pets, *best_clients, self.seconds)?);
                pair.measure(&mut servers[0], workload, 64, self.seconds)?;
                alone[1].push(pgbench(url, workload.pgbench, self.pets, 1, single_seconds)?);
                pair.measure(&mut servers[1], workload, 1, single_seconds)?;
                for (peer, samples) in peers.iter().zip(&mut figures.peers) {
                    samples.push(wrk(peer, workload.peer, &pair.key, self.pets, 64, 2)?.rate);
                }
            }
            println!("round {round} of {}", self.rounds);
        }
        Ok(all)
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
                figures.service().median(),
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
                figures.servers[1].service.rate.median(),
                ratio.spread(),
                workload.to_pgbench[1].goal
            )?;
        }
        text.push_str(&tables(&figures.iter().map(|figures| &figures.servers).collect::<Vec<_>>())?);
        text.push_str(
            "\n### Against peers, at 64 connections\n\n\
             | operation | FastAPI, requests/s | Fastify, requests/s | axum, requests/s \
             | times FastAPI | times Fastify | times axum | bar (FastAPI, Fastify) |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let [fastapi, fastify, axum] = figures.peers.each_ref().map(Samples::median);
            let times = figures.peers.each_ref().map(|peer| figures.service().ratio_to(peer).spread());
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
        replace_measured(Path::new("docs/performance.md"), &text)?;
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

/// The latency of each request in milliseconds, when requests are sent at a fixed rate, whether or not earlier ones are
/// answered (open loop), while `goes_on`.
pub(crate) async fn latency(
    service: &Server,
    workload: &str,
    key: &str,
    pets: u64,
    rate: f64,
    goes_on: Arc<dyn Fn() -> bool + Send + Sync>,
) -> Outcome<Samples> {
    const CONNECTIONS: u32 = 64;
    let every = Duration::from_secs_f64(f64::from(CONNECTIONS) / rate);
    let begin = Instant::now() + Duration::from_millis(200);
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let mut connection = Connection::open(service.address, key).await?;
        let (workload, goes_on) = (workload.to_owned(), goes_on.clone());
        let mut due = begin + every * number / CONNECTIONS;
        let mut random = Random(u64::from(number) * 7_919 + 1);
        clients.spawn(async move {
            let mut samples = Vec::new();
            while goes_on() {
                // A request that is late because the one before took long has waited since it was due, or the
                // measurement would omit that wait. One that is late because the timer is coarse has not.
                let late = Instant::now() >= due;
                sleep_until(due).await;
                let started = if late { due } else { Instant::now() };
                let (method, path, body) = request(&workload, random.next(), pets);
                let (status, answer) = connection.send(method, &path, body).await?;
                if status >= 300 {
                    return Err(format!("{status} {answer}").into());
                }
                samples.push(started.elapsed().as_secs_f64() * 1_000.0);
                due += every;
            }
            Outcome::Ok(samples)
        });
    }
    let mut all = Samples::default();
    for samples in clients.join_all().await {
        all.0.extend(samples?);
    }
    Ok(all)
}

fn request(workload: &str, random: u64, pets: u64) -> (&'static str, String, &'static str) {
    let id = random % pets + 1;
    match workload {
        "get" => ("GET", format!("/v1/pets/{id}"), ""),
        "list" => ("GET", "/v1/pets?status=available".to_owned(), ""),
        "cursor" => ("GET", format!("/v1/pets?cursor={}", cursor(id.cast_signed())), ""),
        "status_cursor" => {
            ("GET", format!("/v1/pets?status=available&cursor={}", cursor(id.cast_signed())), "")
        }
        "create" => ("POST", "/v1/pets".to_owned(), r#"{"name":"Rex","categoryId":3,"status":"available"}"#),
        _ => match random % 100 {
            0..80 => request("list", random, pets),
            80..95 => request("get", random, pets),
            _ => request("create", random, pets),
        },
    }
}
