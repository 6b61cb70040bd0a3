//! How throughput and latency grow with the number of pets, nodes and connections, and whether a model predicts
//! configurations that it was not fitted to.

mod capacity_model;
mod capacity_plan;
mod grid;
mod performance_page;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use crate::Outcome;
use crate::http::Connection;
use crate::measure::{Samples, alternate, latency, verdict, wrk};
use crate::topology::{Postgres, Server, new_key, output, prepare, psql, sibling};
use grid::Grid;

/// A database with more pets than this is skipped unless so many gigabytes of disk are free.
const LARGE: u64 = 50_000_000;
const GIGABYTES_FOR_LARGE: u64 = 40;
/// The lowest throughput with the most pets, as a multiple of that with the fewest, for the operations that it applies to.
const BAR: f64 = 0.85;

/// Databases of several sizes on one server, measured in turn.
#[derive(Args)]
pub(crate) struct Scale {
    /// Pets in each database, from the fewest to the most. More than 50 million only if 40 GB of disk are free.
    #[arg(long, value_delimiter = ',', default_value = "1000000,10000000,100000000")]
    pets: Vec<u64>,
    /// Rounds, each with every workload on every size.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u16,
    /// A directory in which the databases are kept for the next run; without it, they are removed.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The lowest throughput with the most pets, as a multiple of that with the fewest.
    #[arg(long, default_value_t = BAR)]
    bar: f64,
    /// Skip the nodes and connections, and with them the model.
    #[arg(long)]
    without_model: bool,
    /// Write docs/performance.md, its charts and docs/measurements/scale.csv, instead of the same below target/measurements.
    #[arg(long)]
    record: bool,
}

/// A database with so many pets.
struct Database {
    pets: u64,
    url: String,
    key: String,
    /// A position in the event feed, before the events of this run.
    position: String,
}

impl Database {
    /// A workload with its arguments on one of several nodes, which must not order the same pets.
    fn script(&self, workload: &str, node: usize, nodes: usize) -> Outcome<String> {
        Ok(match workload {
            "orders" => {
                let last = psql(&self.url, "SELECT coalesce(max(pet_id), 0) FROM orders")?;
                format!("orders {} {node} {nodes}", last.trim())
            }
            "events" => format!("events {}", self.position),
            _ => workload.to_owned(),
        })
    }
}

/// A workload of wrk.
struct Workload {
    script: &'static str,
    name: &'static str,
    /// Whether the bar applies: one of the three operations, at any place of the table.
    held: bool,
}

const fn workload(script: &'static str, name: &'static str, held: bool) -> Workload {
    Workload { script, name, held }
}

const WORKLOADS: [Workload; 14] = [
    workload("get_any", "getPet", true),
    workload("page any 0", "listPets, first page", true),
    workload("page any 0.5", "listPets, the page in the middle", true),
    workload("page any last", "listPets, last page", true),
    workload("page any random", "listPets, random pages", false),
    workload("page available 0.5", "listPets by a status of 90 %, middle", true),
    workload("page sold 0.5", "listPets by a status of 9 %, middle", true),
    workload("page pending 0.5", "listPets by a status of 1 %, middle", true),
    workload("page pending random", "listPets by a status of 1 %, random pages", false),
    workload("create", "createPet", true),
    workload("create_with_key", "createPet with an Idempotency-Key", false),
    workload("update", "updatePet", false),
    workload("orders", "placeOrder and cancelOrder", false),
    workload("events", "listEvents, 100 per page", false),
];
/// The workloads whose latency is measured at a fixed rate, by the name that the open-loop client uses.
const LATENCIES: [(&str, &str); 4] = [
    ("get", "getPet"),
    ("list", "listPets, first page"),
    ("cursor", "listPets, random pages"),
    ("create", "createPet"),
];

/// The measurements of all sizes.
struct Growth {
    /// Requests per second: one row per workload, one column per size.
    rates: Vec<Vec<Samples>>,
    /// Requests per second, and the latencies in milliseconds at each size and in each round.
    latencies: Vec<(f64, Vec<Vec<Samples>>)>,
}

/// The storage and the maintenance of one database.
struct Maintenance {
    /// Bytes per pet: the row, the primary key, the status index.
    bytes: [f64; 3],
    /// Bytes per order and per event, with their indexes.
    order: f64,
    event: f64,
    /// Seconds to create an index, and to vacuum after one pet in a thousand was sold.
    index: f64,
    vacuum: f64,
}

/// A start with cold caches.
struct Cold {
    /// Throughput in the first seconds, as a multiple of the warm throughput.
    first: f64,
    /// Seconds until it reached 0.9 of that.
    until_warm: f64,
}

impl Scale {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = self.keep.clone().map_or_else(Postgres::temporary, Postgres::kept);
        let url = postgres.start()?;
        let mut databases = self.open(&url)?;
        let growth = self.growth(&mut databases).await?;
        let grid = if self.without_model {
            None
        } else {
            Some(Grid::measure(&postgres, &databases, self.rounds.div_ceil(2), self.seconds)?)
        };
        let maintenance: Vec<_> = databases.iter().map(maintenance).collect::<Outcome<_>>()?;
        let cold = self.cold(&postgres, &databases, &growth)?;
        performance_page::publish(
            &url,
            &self,
            &databases,
            &growth,
            &maintenance,
            cold.as_deref(),
            grid.as_ref(),
        )?;
        self.judge(&growth, grid.as_ref())
    }

    /// Fills the databases, except those that exist from the last run.
    fn open(&self, url: &str) -> Outcome<Vec<Database>> {
        let mut databases = Vec::new();
        for &pets in &self.pets {
            let name = format!("pets_{pets}");
            let pets_url = sibling(url, &name);
            let found = psql(url, &format!("SELECT 1 FROM pg_database WHERE datname = '{name}'"))?;
            if !found.trim().is_empty() {
                let key = new_key(&pets_url)?;
                databases.push(Database { pets, url: pets_url, key, position: String::new() });
                continue;
            }
            let free = free_gigabytes(psql(url, "SHOW data_directory")?.trim())?;
            if pets > LARGE && free < GIGABYTES_FOR_LARGE {
                println!("{pets} pets skipped: {free} GB of disk are free, {GIGABYTES_FOR_LARGE} are needed");
                continue;
            }
            psql(url, &format!("CREATE DATABASE {name}"))?;
            let started = Instant::now();
            let key = prepare(&pets_url, pets)?;
            println!("{pets} pets in {:.0} s", started.elapsed().as_secs_f64());
            databases.push(Database { pets, url: pets_url, key, position: String::new() });
        }
        // As in a service that has run for a while: in memory.
        for database in databases.iter().rev() {
            psql(&database.url, "CREATE EXTENSION IF NOT EXISTS pg_prewarm")?;
            psql(
                &database.url,
                "SELECT pg_prewarm(name::regclass) FROM unnest('{pets_pkey,pets_status_id_idx,pets}'::text[]) name",
            )?;
        }
        if databases.is_empty() { Err("nothing to measure".into()) } else { Ok(databases) }
    }

    async fn growth(&self, databases: &mut [Database]) -> Outcome<Growth> {
        let services: Vec<_> =
            databases.iter().map(|database| Server::petstore(&database.url)).collect::<Outcome<_>>()?;
        for (database, service) in databases.iter_mut().zip(&services) {
            database.position = end_of_feed(service, &database.key).await?;
        }
        let mut rates: Vec<Vec<Samples>> = Vec::new();
        for workload in &WORKLOADS {
            let measured = alternate(databases.len(), (1, self.rounds), async |side, _| {
                let (database, service) = (&databases[side], &services[side]);
                let script = database.script(workload.script, 0, 1)?;
                let measure = || wrk(service, &script, &database.key, database.pets, 64, self.seconds);
                Ok(with_retries(measure)?.rate)
            });
            rates.push(measured.await?.into_iter().map(Samples).collect());
            println!("measured: {}", workload.name);
        }
        let mut latencies = Vec::new();
        for (name, _) in LATENCIES {
            let script = if name == "get" { "get_any" } else { name };
            let peak = with_retries(|| {
                wrk(&services[0], script, &databases[0].key, databases[0].pets, 64, self.seconds)
            })?;
            let rate = (peak.rate / 2.0).round();
            let times = alternate(databases.len(), (0, self.rounds), async |side, _| {
                let (database, service) = (&databases[side], &services[side]);
                let end = Instant::now() + Duration::from_secs(self.seconds.into());
                let goes_on = Arc::new(move || Instant::now() < end);
                latency(service, name, &database.key, database.pets, rate, goes_on).await
            });
            latencies.push((rate, times.await?));
        }
        Ok(Growth { rates, latencies })
    }

    /// Measures a cold start: restarts the server and drops the page cache, which needs root.
    fn cold(
        &self,
        postgres: &Postgres,
        databases: &[Database],
        growth: &Growth,
    ) -> Outcome<Option<Vec<Cold>>> {
        let mut all = Vec::new();
        for (database, warm) in databases.iter().zip(&growth.rates[0]) {
            postgres.stop()?;
            output("sync", &[])?;
            if fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
                postgres.start()?;
                return Ok(None);
            }
            postgres.start()?;
            let service = Server::petstore(&database.url)?;
            let started = Instant::now();
            let mut first = None;
            let until_warm = loop {
                let now = wrk(&service, "get_any", &database.key, database.pets, 64, self.seconds)?;
                let rate = now.rate / warm.median();
                let _ = first.get_or_insert(rate);
                let passed = started.elapsed().as_secs_f64();
                if rate >= 0.9 || passed > 180.0 {
                    break passed;
                }
            };
            all.push(Cold { first: first.unwrap_or_default(), until_warm });
        }
        Ok(Some(all))
    }

    fn judge(&self, growth: &Growth, grid: Option<&Grid>) -> Outcome {
        let mut failures = Vec::new();
        for (workload, rates) in WORKLOADS.iter().zip(&growth.rates).filter(|(workload, _)| workload.held) {
            let kept = rates.last().map_or(f64::NAN, |last| last.ratio_to(&rates[0]).median());
            if kept < self.bar {
                failures.push(format!("{} keeps {kept:.2} of its throughput", workload.name));
            }
        }
        failures.extend(grid.into_iter().flat_map(Grid::failures));
        verdict(&failures)
    }
}

/// The position after the newest event.
async fn end_of_feed(service: &Server, key: &str) -> Outcome<String> {
    let mut connection = Connection::open(service.address, key).await?;
    let response = connection.exchange("GET", "/v1/events?after=now", "", None).await?;
    let link = response
        .header("link")
        .and_then(|link| link.split_once("after="))
        .ok_or("no link in the event feed")?;
    Ok(link.1.split(['&', '>']).next().unwrap_or_default().to_owned())
}

/// Measures, and repeats up to twice if a slow disk made a request fail.
fn with_retries<T>(measure: impl Fn() -> Outcome<T>) -> Outcome<T> {
    for _ in 0..2 {
        match measure() {
            Ok(measured) => return Ok(measured),
            Err(error) => println!("measured again: {error}"),
        }
    }
    measure()
}

fn maintenance(database: &Database) -> Outcome<Maintenance> {
    let number = |sql: &str| -> Outcome<f64> { Ok(psql(&database.url, sql)?.trim().parse()?) };
    let seconds = |sql: &str| -> Outcome<f64> {
        let started = Instant::now();
        psql(&database.url, sql)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let pets = number("SELECT max(id) FROM pets")?;
    let bytes = [
        number("SELECT pg_table_size('pets')")? / pets,
        number("SELECT pg_relation_size('pets_pkey')")? / pets,
        number("SELECT pg_relation_size('pets_status_id_idx')")? / pets,
    ];
    let order =
        number("SELECT pg_total_relation_size('orders') / greatest(1, count(*))::float8 FROM orders")?;
    // Events of creates in the same batch share a row, unlike those of orders and changes.
    let event = number(
        "SELECT avg(pg_column_size(events)) FILTER (WHERE pet_ids IS NULL) + 4 + (SELECT sum(pg_indexes_size(relid)) \
         FROM pg_partition_tree('events') WHERE isleaf) / count(*) FROM events",
    )?;
    psql(&database.url, "CHECKPOINT")?;
    let index = seconds("CREATE INDEX CONCURRENTLY another ON pets (status, id) WHERE status IS NOT NULL")?;
    psql(&database.url, "DROP INDEX another")?;
    psql(&database.url, "UPDATE pets SET status = 'sold' WHERE id % 1000 = 520")?;
    psql(&database.url, "CHECKPOINT")?;
    let vacuum = seconds("VACUUM pets")?;
    psql(&database.url, "UPDATE pets SET status = 'available' WHERE id % 1000 = 520")?;
    psql(&database.url, "VACUUM ANALYZE pets")?;
    Ok(Maintenance { bytes, order, event, index, vacuum })
}

fn free_gigabytes(directory: &str) -> Outcome<u64> {
    let printed = output("df", &["--output=avail", "-BG", directory])?;
    Ok(printed.lines().last().unwrap_or_default().trim().trim_end_matches('G').parse()?)
}
