//! The service against pgbench and against peers.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::Outcome;
use crate::http::{Connection, cursor};
use crate::random::Random;
use crate::report::{Samples, draw, machine, replace_measured, verdict};
use crate::tools::{Server, database_url, pgbench, prepare, psql, wrk, wrk_version};

/// The extent of the measurement.
#[derive(Args)]
pub(crate) struct Compare {
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 1_000_000)]
    pets: u64,
    /// Rounds, each with every workload on pgbench, the service and the peers.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u16,
}

/// The same work for pgbench, the service and the peers.
struct Workload {
    name: &'static str,
    pgbench: &'static [&'static str],
    service: &'static str,
    peer: &'static str,
    /// The goal for the ratio of the service to pgbench.
    bar: f64,
    /// The ratios in docs/performance.md, at 64 connections and at one.
    recorded: [f64; 2],
}

const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "getPet by random id",
        pgbench: &["bench/load/get.sql"],
        service: "get",
        peer: "get",
        bar: 1.8,
        recorded: [0.82, 0.30],
    },
    Workload {
        name: "listPets, first page by status",
        pgbench: &["bench/load/list.sql"],
        service: "list",
        peer: "list",
        bar: 2.0,
        recorded: [1.39, 0.24],
    },
    Workload {
        name: "listPets at random cursors",
        pgbench: &["bench/load/cursor.sql"],
        service: "cursor",
        peer: "peer_cursor",
        bar: 1.0,
        recorded: [0.63, 0.28],
    },
    Workload {
        name: "createPet",
        pgbench: &["bench/load/create.sql"],
        service: "create",
        peer: "create",
        bar: 3.0,
        recorded: [1.90, 0.38],
    },
    Workload {
        name: "80 % list, 15 % get, 5 % create",
        pgbench: &["bench/load/list.sql@80", "bench/load/get.sql@15", "bench/load/create.sql@5"],
        service: "mix",
        peer: "mix",
        bar: 1.0,
        recorded: [1.06, 0.25],
    },
];

const SINGLE_BAR: f64 = 0.5;
const PEER_BAR: f64 = 8.0;

/// How long latency is measured.
const LATENCY_TIME: Duration = Duration::from_secs(5);

/// The measurements of one workload, one sample per round.
#[derive(Default)]
struct Figures {
    best_clients: u16,
    pgbench: Samples,
    service: Samples,
    single_pgbench: Samples,
    single_service: Samples,
    fastapi: Samples,
    fastify: Samples,
    /// Milliseconds at half of the peak rate, and that rate.
    latency: Samples,
    rate: f64,
}

impl Compare {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, self.pets)?;
        let service = Server::petstore(&url)?;
        let peers = [Server::fastapi(&url, &key)?, Server::fastify(&url, &key)?];
        let mut figures = self.rounds(&url, &key, &service, Some(&peers))?;
        for (workload, figures) in WORKLOADS.iter().zip(&mut figures) {
            figures.rate = (figures.service.median() / 2.0).round();
            let end = Instant::now() + LATENCY_TIME;
            let goes_on = Arc::new(move || Instant::now() < end);
            figures.latency =
                latency(&service, workload.service, &key, self.pets, figures.rate, goes_on).await?;
        }
        drop(service);
        let service = Server::petstore(&url)?;
        wrk(&service, "mix", &key, self.pets, 1_000, self.seconds)?;
        let memory = service.peak_megabytes()?;
        self.write(&url, &figures, memory)
    }

    fn rounds(
        &self,
        url: &str,
        key: &str,
        service: &Server,
        peers: Option<&[Server; 2]>,
    ) -> Outcome<Vec<Figures>> {
        let mut all: Vec<Figures> = WORKLOADS.iter().map(|_| Figures::default()).collect();
        for (workload, figures) in WORKLOADS.iter().zip(&mut all) {
            figures.best_clients = best_clients(url, workload, self.pets)?;
            wrk(service, workload.service, key, self.pets, 64, 1)?;
        }
        for round in 1..=self.rounds {
            for (workload, figures) in WORKLOADS.iter().zip(&mut all) {
                let bare = pgbench(url, workload.pgbench, self.pets, figures.best_clients, self.seconds)?;
                let served = wrk(service, workload.service, key, self.pets, 64, self.seconds)?;
                figures.pgbench.push(bare);
                figures.service.push(served);
                figures.single_pgbench.push(pgbench(url, workload.pgbench, self.pets, 1, 2)?);
                figures.single_service.push(wrk(service, workload.service, key, self.pets, 1, 2)?);
                if let Some([fastapi, fastify]) = peers {
                    figures.fastapi.push(wrk(fastapi, workload.peer, key, self.pets, 64, 2)?);
                    figures.fastify.push(wrk(fastify, workload.peer, key, self.pets, 64, 2)?);
                }
                println!("round {round}: {}: {bare:.0}/s pgbench, {served:.0}/s service", workload.name);
            }
        }
        Ok(all)
    }

    fn write(&self, url: &str, figures: &[Figures], memory: f64) -> Outcome {
        let machine = machine()?;
        let server = psql(url, "SHOW server_version")?;
        let wrk_version = wrk_version()?;
        let mut tables = format!(
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
            let ratio = figures.service.ratio_to(&figures.pgbench);
            writeln!(
                tables,
                "| {} | {:.0} ({}) | {:.0} | {} | {} |",
                workload.name,
                figures.pgbench.median(),
                figures.best_clients,
                figures.service.median(),
                ratio.spread(),
                workload.bar
            )?;
        }
        tables.push_str(
            "\n### At a single connection, where nothing is batched\n\n\
             | operation | pgbench, tx/s | service, requests/s | ratio | bar |\n|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let (bare, service) = (&figures.single_pgbench, &figures.single_service);
            let ratio = service.ratio_to(bare).spread();
            let (bare, service) = (bare.median(), service.median());
            writeln!(tables, "| {} | {bare:.0} | {service:.0} | {ratio} | {SINGLE_BAR} |", workload.name)?;
        }
        tables.push_str(
            "\n### Against peers, at 64 connections\n\n\
             | operation | FastAPI, requests/s | Fastify, requests/s | times FastAPI | times Fastify | bar |\n\
             |---|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            writeln!(
                tables,
                "| {} | {:.0} | {:.0} | {} | {} | {PEER_BAR} |",
                workload.name,
                figures.fastapi.median(),
                figures.fastify.median(),
                figures.service.ratio_to(&figures.fastapi).spread(),
                figures.service.ratio_to(&figures.fastify).spread(),
            )?;
        }
        tables.push_str(
            "\n### Latency at half of the peak rate, open loop\n\n\
             | operation | requests/s | p50, ms | p99, ms | p99.9, ms |\n|---|---|---|---|---|\n",
        );
        for (workload, figures) in WORKLOADS.iter().zip(figures) {
            let at = |share| figures.latency.at(share);
            let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
            writeln!(
                tables,
                "| {} | {:.0} | {p50:.2} | {p99:.2} | {p999:.2} |",
                workload.name, figures.rate
            )?;
        }
        writeln!(tables, "\nPeak memory at 1,000 connections under full load: {memory:.0} MB.")?;
        println!("{tables}");
        replace_measured(Path::new("docs/performance.md"), &tables)?;
        let rows: Vec<_> = WORKLOADS
            .iter()
            .zip(figures)
            .map(|(workload, figures)| {
                let ratio = figures.service.ratio_to(&figures.pgbench);
                json!([workload.name, ratio.median(), ratio.at(0.0), ratio.at(1.0), workload.bar])
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
        "create" => ("POST", "/v1/pets".to_owned(), r#"{"name":"Rex","categoryId":3,"status":"available"}"#),
        _ => match random % 100 {
            0..80 => request("list", random, pets),
            80..95 => request("get", random, pets),
            _ => request("create", random, pets),
        },
    }
}

/// Few rounds on a smaller table: enough to notice that something became much slower.
pub(crate) fn smoke() -> Outcome {
    let compare = Compare { pets: 100_000, rounds: 3, seconds: 2 };
    let url = database_url()?;
    let key = prepare(&url, compare.pets)?;
    let service = Server::petstore(&url)?;
    let figures = compare.rounds(&url, &key, &service, None)?;
    let mut failures = Vec::new();
    for (workload, figures) in WORKLOADS.iter().zip(&figures) {
        let [many, single] = workload.recorded;
        for (what, ratio, recorded) in [
            ("64 connections", figures.service.ratio_to(&figures.pgbench), many),
            ("1 connection", figures.single_service.ratio_to(&figures.single_pgbench), single),
        ] {
            println!(
                "{}, {what}: {} times pgbench; docs/performance.md has {recorded}",
                workload.name,
                ratio.spread()
            );
            if ratio.median() < 0.4 * recorded {
                failures.push(format!("{} at {what} is below 40 % of that", workload.name));
            }
        }
    }
    verdict(&failures)
}
