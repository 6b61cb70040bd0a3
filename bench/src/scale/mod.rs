//! How each figure grows with the pets, the nodes and the connections, and whether a model of it predicts what it was not
//! fitted to.

mod grid;
mod model;
mod page;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::compare::latency;
use crate::http::Connection;
use crate::random::Random;
use crate::report::Samples;
use crate::tools::{Postgres, Server, new_key, output, prepare, psql, sibling, wrk};
use grid::Grid;

/// More pets than this are left out unless so many gigabytes of disk are free.
const LARGE: u64 = 50_000_000;
const GIGABYTES_FOR_LARGE: u64 = 40;
/// The least rate with the most pets, as a multiple of the rate with the fewest, of operations that are held to it.
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
    /// Where the databases stay for the next run; else they are removed.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The least that each operation may keep of its rate.
    #[arg(long, default_value_t = BAR)]
    bar: f64,
    /// Leave out the nodes and connections, and with them the model.
    #[arg(long)]
    without_model: bool,
    /// The page that the figures are written to; else they are only printed.
    #[arg(long)]
    page: Option<PathBuf>,
}

/// A database with so many pets.
struct Shop {
    pets: u64,
    url: String,
    key: String,
}

/// What is asked for, by the script that asks for it.
struct Workload {
    script: &'static str,
    name: &'static str,
    /// Whether it is held to the bar: one of the three operations, at any place of the table.
    held: bool,
}

const fn workload(script: &'static str, name: &'static str, held: bool) -> Workload {
    Workload { script, name, held }
}

const ORDERS: &str = "orders";
const WORKLOADS: [Workload; 12] = [
    workload("get_any", "getPet by random id", true),
    workload("page any 0", "listPets, first page", true),
    workload("page any 0.5", "listPets, the page in the middle", true),
    workload("page any last", "listPets, last page", true),
    workload("page any random", "listPets, random pages", false),
    workload("page available 0.5", "listPets by a status of 90 %, middle", true),
    workload("page sold 0.5", "listPets by a status of 9 %, middle", true),
    workload("page pending 0.5", "listPets by a status of 1 %, middle", true),
    workload("page pending random", "listPets by a status of 1 %, random pages", false),
    workload("create", "createPet", true),
    workload("create_once", "createPet with an `Idempotency-Key`", false),
    workload(ORDERS, "placeOrder and cancelOrder in turn", false),
];
/// Those whose times are measured at a fixed rate: by the name that the open-loop client knows.
const LATENCIES: [(&str, &str); 4] = [
    ("get", "getPet by random id"),
    ("list", "listPets, first page by status"),
    ("cursor", "listPets, random pages"),
    ("create", "createPet"),
];

/// What was measured of the sizes.
struct Growth {
    /// Rates: a row a workload, a column a size.
    rates: Vec<Vec<Samples>>,
    /// Requests a second, and the milliseconds at each size.
    latencies: Vec<(f64, Vec<Samples>)>,
}

/// What a database of one size takes to keep.
struct Upkeep {
    /// Bytes a pet: the row, the primary key, the index of statuses.
    bytes: [f64; 3],
    /// Seconds: an index made anew, and a vacuum after one pet in a thousand was sold.
    index: f64,
    vacuum: f64,
    /// The share of changes of a status that changed no index.
    hot: f64,
}

/// A start with nothing in memory.
struct Cold {
    /// Requests a second in the first moments, as a multiple of those later.
    first: f64,
    /// Seconds until it was nine tenths of that.
    until_warm: f64,
}

impl Scale {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = self.keep.clone().map_or_else(Postgres::temporary, Postgres::kept);
        let url = postgres.start()?;
        let shops = self.open(&url)?;
        let growth = self.growth(&shops).await?;
        let grid = if self.without_model {
            None
        } else {
            Some(Grid::measure(&postgres, &shops, self.rounds.div_ceil(2), self.seconds)?)
        };
        let upkeep: Vec<_> = shops.iter().map(upkeep).collect::<Outcome<_>>()?;
        let cold = self.cold(&postgres, &shops, &growth)?;
        let text = page::text(&url, &self, &shops, &growth, &upkeep, cold.as_deref(), grid.as_ref())?;
        println!("{text}");
        if let Some(page) = &self.page {
            page::write(page, &text, &shops, &growth, grid.as_ref())?;
        }
        self.judge(&growth, grid.as_ref())
    }

    /// Fills the databases, but for those that are there from the last time.
    fn open(&self, url: &str) -> Outcome<Vec<Shop>> {
        let mut shops = Vec::new();
        for &pets in &self.pets {
            let (name, place) = (format!("pets_{pets}"), sibling(url, &format!("pets_{pets}")));
            let there = psql(url, &format!("SELECT 1 FROM pg_database WHERE datname = '{name}'"))?;
            if !there.trim().is_empty() {
                let key = new_key(&place)?;
                shops.push(Shop { pets, url: place, key });
                continue;
            }
            let free = free_gigabytes(psql(url, "SHOW data_directory")?.trim())?;
            if pets > LARGE && free < GIGABYTES_FOR_LARGE {
                println!(
                    "{pets} pets are left out: {free} GB of disk are free, and {GIGABYTES_FOR_LARGE} are needed"
                );
                continue;
            }
            psql(url, &format!("CREATE DATABASE {name}"))?;
            let begun = Instant::now();
            let key = prepare(&place, pets)?;
            println!("{pets} pets in {:.0} s", begun.elapsed().as_secs_f64());
            shops.push(Shop { pets, url: place, key });
        }
        // As they are in a shop that has been open for a while: in memory.
        for shop in shops.iter().rev() {
            psql(&shop.url, "CREATE EXTENSION IF NOT EXISTS pg_prewarm")?;
            psql(
                &shop.url,
                "SELECT pg_prewarm(name::regclass) FROM unnest('{pets_pkey,pets_status_id_idx,pets}'::text[]) name",
            )?;
        }
        if shops.is_empty() { Err("there is nothing to measure".into()) } else { Ok(shops) }
    }

    async fn growth(&self, shops: &[Shop]) -> Outcome<Growth> {
        let services: Vec<_> =
            shops.iter().map(|shop| Server::petstore(&shop.url)).collect::<Outcome<_>>()?;
        let mut rates: Vec<Vec<Samples>> =
            WORKLOADS.iter().map(|_| vec![Samples::default(); shops.len()]).collect();
        // The first round warms up.
        for round in 0..=self.rounds {
            for (workload, rates) in WORKLOADS.iter().zip(&mut rates) {
                for ((shop, service), rates) in shops.iter().zip(&services).zip(rates) {
                    let rate = if workload.script == ORDERS {
                        orders(service, shop, self.seconds).await?
                    } else {
                        patiently(|| wrk(service, workload.script, &shop.key, shop.pets, 64, self.seconds))?
                    };
                    if round > 0 {
                        rates.push(rate);
                    }
                }
            }
            println!("round {round} of {}", self.rounds);
        }
        let mut latencies = Vec::new();
        for (name, _) in LATENCIES {
            let script = if name == "get" { "get_any" } else { name };
            let peak =
                patiently(|| wrk(&services[0], script, &shops[0].key, shops[0].pets, 64, self.seconds))?;
            let rate = (peak / 2.0).round();
            let mut times = Vec::new();
            for (shop, service) in shops.iter().zip(&services) {
                let end = Instant::now() + Duration::from_secs(2 * u64::from(self.seconds));
                let goes_on = Arc::new(move || Instant::now() < end);
                times.push(latency(service, name, &shop.key, shop.pets, rate, goes_on).await?);
            }
            latencies.push((rate, times));
        }
        Ok(Growth { rates, latencies })
    }

    /// Restarts the server, and empties the memory of the machine as well, which only root can.
    fn cold(&self, postgres: &Postgres, shops: &[Shop], growth: &Growth) -> Outcome<Option<Vec<Cold>>> {
        let mut all = Vec::new();
        for (shop, warm) in shops.iter().zip(&growth.rates[0]) {
            postgres.stop()?;
            output("sync", &[])?;
            if fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
                postgres.start()?;
                return Ok(None);
            }
            postgres.start()?;
            let service = Server::petstore(&shop.url)?;
            let begun = Instant::now();
            let mut first = None;
            let until_warm = loop {
                let rate = wrk(&service, "get_any", &shop.key, shop.pets, 64, self.seconds)? / warm.median();
                let _ = first.get_or_insert(rate);
                let passed = begun.elapsed().as_secs_f64();
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
                failures.push(format!("{} keeps {kept:.2} of its rate", workload.name));
            }
        }
        failures.extend(grid.into_iter().flat_map(Grid::failures));
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
    }
}

/// Requests a second of 64 clients that each place an order for an animal and cancel it, again and again.
async fn orders(service: &Server, shop: &Shop, seconds: u16) -> Outcome<f64> {
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let mut clients = JoinSet::new();
    for number in 0..64 {
        let mut connection = Connection::open(service.address, &shop.key).await?;
        let (pets, mut random) = (shop.pets, Random(number * 7_919 + 3));
        clients.spawn(async move {
            let mut requests = 0_u32;
            while Instant::now() < end {
                // Each client among animals of its own, and of each hundred one that is available.
                let pet = random.below(pets / 6_400) * 6_400 + number * 100 + 50;
                let body = format!(r#"{{"petId":{pet}}}"#);
                let order = send_patiently(&mut connection, "/v1/store/orders", &body).await?;
                let id = order.split_once("\"id\":").and_then(|(_, rest)| rest.split([',', '}']).next());
                let path = format!("/v1/store/orders/{}/cancel", id.ok_or(order.clone())?);
                send_patiently(&mut connection, &path, "").await?;
                requests += 2;
            }
            Outcome::Ok(requests)
        });
    }
    let mut sum = 0.0;
    for requests in clients.join_all().await {
        sum += f64::from(requests?);
    }
    Ok(sum / f64::from(seconds))
}

/// Sends a request again while the database is too busy for it, as a good client does.
async fn send_patiently(connection: &mut Connection, path: &str, body: &str) -> Outcome<String> {
    loop {
        match connection.send("POST", path, body).await? {
            (200 | 201, answer) => return Ok(answer),
            (503, _) => tokio::time::sleep(Duration::from_millis(100)).await,
            (status, answer) => return Err(format!("{status} {answer}").into()),
        }
    }
}

/// Measures again, twice at most, what a disk that did not answer for a second has spoilt.
fn patiently<T>(measure: impl Fn() -> Outcome<T>) -> Outcome<T> {
    for _ in 0..2 {
        match measure() {
            Ok(measured) => return Ok(measured),
            Err(error) => println!("measured again: {error}"),
        }
    }
    measure()
}

fn upkeep(shop: &Shop) -> Outcome<Upkeep> {
    let number = |sql: &str| -> Outcome<f64> { Ok(psql(&shop.url, sql)?.trim().parse()?) };
    let seconds = |sql: &str| -> Outcome<f64> {
        let begun = Instant::now();
        psql(&shop.url, sql)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let pets = number("SELECT max(id) FROM pets")?;
    let hot = number(
        "SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) FROM pg_stat_user_tables WHERE relname = 'pets'",
    )?;
    let bytes = [
        number("SELECT pg_table_size('pets')")? / pets,
        number("SELECT pg_relation_size('pets_pkey')")? / pets,
        number("SELECT pg_relation_size('pets_status_id_idx')")? / pets,
    ];
    psql(&shop.url, "CHECKPOINT")?;
    let index = seconds("CREATE INDEX CONCURRENTLY another ON pets (status, id) WHERE status IS NOT NULL")?;
    psql(&shop.url, "DROP INDEX another")?;
    psql(&shop.url, "UPDATE pets SET status = 'sold' WHERE id % 1000 = 520")?;
    psql(&shop.url, "CHECKPOINT")?;
    let vacuum = seconds("VACUUM pets")?;
    psql(&shop.url, "UPDATE pets SET status = 'available' WHERE id % 1000 = 520")?;
    psql(&shop.url, "VACUUM ANALYZE pets")?;
    Ok(Upkeep { bytes, index, vacuum, hot })
}

fn free_gigabytes(directory: &str) -> Outcome<u64> {
    let said = output("df", &["--output=avail", "-BG", directory])?;
    Ok(said.lines().last().unwrap_or_default().trim().trim_end_matches('G').parse()?)
}
