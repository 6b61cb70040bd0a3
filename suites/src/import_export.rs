//! Imports and exports: their throughput against psql, whether an import that is killed loses or duplicates rows, and the
//! latency of the service while one runs.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::Outcome;
use crate::http::{Connection, cursor};
use crate::measure::{Bars, Samples, alternate, latency};
use crate::random::Random;
use crate::topology::{PETSTORE, Server, database_url, output, peak_megabytes, prepare, psql};

#[derive(Subcommand)]
pub(crate) enum ImportExport {
    /// Compares imports and exports with psql's `\copy`.
    AgainstCopy(AgainstCopy),
    /// Kills imports and restarts them.
    Kill(Kill),
    /// Measures the service while an import runs.
    LatencyDuringImport(LatencyDuringImport),
}

impl ImportExport {
    pub(crate) async fn run(self) -> Outcome {
        let outcome = match self {
            Self::AgainstCopy(throughput) => throughput.run().await,
            Self::Kill(kill) => kill.run(),
            Self::LatencyDuringImport(latency) => latency.run().await,
        };
        for file in [PLAIN, KEYED, SHUFFLED, EXPORTED] {
            let _ = fs::remove_file(file);
        }
        outcome
    }
}

const PLAIN: &str = "target/suite-pets.csv";
const KEYED: &str = "target/suite-pets-keyed.csv";
const SHUFFLED: &str = "target/suite-pets-shuffled.csv";
const EXPORTED: &str = "target/suite-exported.csv";
const LOG: &str = "target/suite-import-export.log";

/// The most memory, in megabytes.
const MEGABYTES: f64 = 100.0;

#[derive(Args)]
pub(crate) struct AgainstCopy {
    /// Rows.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Rounds, each with every import and export.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The lowest throughput, as a multiple of that of `\copy`.
    #[arg(long, default_value_t = 0.6)]
    bar: f64,
}

impl AgainstCopy {
    async fn run(self) -> Outcome {
        let url = database_url()?;
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        write_rows(PLAIN, self.rows, false, |row| row)?;
        write_rows(KEYED, self.rows, true, |row| row)?;
        let copy_in =
            format!("\\copy pets (name, category_id, status) from '{PLAIN}' with (format csv, header)");
        let copy_out = format!(
            "\\copy (select id, name, category_id, status from pets order by id) to '{EXPORTED}' with (format csv, header)"
        );
        let names =
            ["\\copy in", "import, one transaction", "import with keys, in chunks", "\\copy out", "export"];
        let mut memory: f64 = 0.0;
        let rates = alternate(names.len(), (0, self.rounds), async |side, _| {
            let is_import = side < 3;
            if is_import {
                psql(&url, "TRUNCATE pets, orders, imported_chunks")?;
                psql(&url, "CHECKPOINT")?;
            }
            let started = Instant::now();
            match side {
                0 => drop(psql(&url, &copy_in)?),
                1 => memory = memory.max(peak_memory(&url, &["import", PLAIN])?),
                2 => memory = memory.max(peak_memory(&url, &["import", KEYED, "--key-column", "key"])?),
                3 => drop(psql(&url, &copy_out)?),
                _ => memory = memory.max(peak_memory(&url, &["export", EXPORTED])?),
            }
            let seconds = started.elapsed().as_secs_f64();
            if is_import {
                check_each_once(&url, self.rows)?;
                psql(&url, "VACUUM (ANALYZE, FREEZE) pets")?;
            }
            println!("{}: {} rows in {seconds:.1} s", names[side], self.rows);
            Ok(1.0 / seconds)
        });
        let rates: Vec<Samples> = rates.await?.into_iter().map(Samples).collect();
        let mut bars = Bars::default();
        for (way, against) in [(1, 0), (2, 0), (4, 3)] {
            let what = format!("{}: throughput, times {}", names[way], names[against]);
            bars.at_least(&what, &rates[way].ratio_to(&rates[against]), self.bar);
        }
        bars.at_most("peak memory in megabytes", &Samples(vec![memory]), MEGABYTES);
        bars.finish()
    }
}

/// Writes CSV whose rows are permuted by `order`.
fn write_rows(file: &str, rows: u64, keyed: bool, order: impl Fn(u64) -> u64) -> Outcome {
    let mut file = BufWriter::new(File::create(file)?);
    writeln!(file, "{}name,categoryId,status", if keyed { "key," } else { "" })?;
    for number in 0..rows {
        let number = order(number) + 1;
        let status = ["pending", "sold", "available"][usize::try_from((number % 100).div_ceil(10).min(2))?];
        if keyed {
            write!(file, "{number},")?;
        }
        writeln!(file, "Pet number {number},{},{status}", number % 100)?;
    }
    Ok(file.flush()?)
}

fn check_each_once(url: &str, rows: u64) -> Outcome {
    let counts = psql(url, "SELECT count(*), count(DISTINCT hashtextextended(name, 0)) FROM pets")?;
    let expected = format!("{rows}|{rows}");
    if counts.trim() == expected {
        Ok(())
    } else {
        Err(format!("expected {expected} rows and names, found {counts}").into())
    }
}

fn start(url: &str, arguments: &[&str]) -> Outcome<Child> {
    let mut command = Command::new(PETSTORE);
    command.args(arguments).env("DATABASE_URL", url).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command.stderr(File::create(LOG)?).spawn()?)
}

/// Runs the program to completion and returns its peak memory, in megabytes.
fn peak_memory(url: &str, arguments: &[&str]) -> Outcome<f64> {
    let mut child = start(url, arguments)?;
    let mut memory = 0.0;
    loop {
        // The last value before the exit counts: it only grows.
        if let Ok(peak) = peak_megabytes(child.id()) {
            memory = peak;
        }
        if let Some(status) = child.try_wait()? {
            let log = fs::read_to_string(LOG)?;
            return if status.success() { Ok(memory) } else { Err(format!("{arguments:?}: {log}").into()) };
        }
        sleep(Duration::from_millis(20));
    }
}

/// How often an import is killed before it may complete.
const KILLS_PER_IMPORT: u32 = 5;

#[derive(Args)]
pub(crate) struct Kill {
    /// Rows of an import.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Kills in total.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Seed of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Kill {
    fn run(self) -> Outcome {
        let url = database_url()?;
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        write_rows(KEYED, self.rows, true, |row| row)?;
        // A prime that is not a divisor, so that every row appears once.
        write_rows(SHUFFLED, self.rows, true, |row| (row * 7_919 + 13) % self.rows)?;
        let started = Instant::now();
        peak_memory(&url, &["import", KEYED, "--key-column", "key"])?;
        let whole = u64::try_from(started.elapsed().as_millis())?;
        let (mut kills, mut imports, mut random) = (0, 0_u32, Random(self.seed));
        while kills < self.kills {
            psql(&url, "TRUNCATE pets, orders, imported_chunks")?;
            let file = if imports.is_multiple_of(2) { KEYED } else { SHUFFLED };
            let enough = (kills + KILLS_PER_IMPORT).min(self.kills);
            loop {
                let mut child = start(&url, &["import", file, "--key-column", "key"])?;
                let moment = Instant::now() + Duration::from_millis(random.below(whole / 2));
                while kills < enough && Instant::now() < moment && child.try_wait()?.is_none() {
                    sleep(Duration::from_millis(1));
                }
                if kills < enough && child.try_wait()?.is_none() {
                    child.kill()?;
                    kills += 1;
                }
                if child.wait()?.success() {
                    break;
                }
            }
            imports += 1;
            check_each_once(&url, self.rows)?;
        }
        println!(
            "{imports} imports of {} rows, killed {kills} times in total: every row exists exactly once",
            self.rows
        );
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct LatencyDuringImport {
    /// Rows of the import.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Pets in the database at the start.
    #[arg(long, default_value_t = 100_000)]
    pets: u64,
    /// Rounds, each without and with an import.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Requests per second, sent whether or not earlier ones are answered.
    #[arg(long, default_value_t = 300.0)]
    rate: f64,
    /// Seconds without an import in each round.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// The highest p99 during an import, as a multiple of that without.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

impl LatencyDuringImport {
    async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, self.pets)?;
        let service = Server::petstore(&url)?;
        write_rows(KEYED, self.rows, true, |row| row)?;
        let mut ratio = Samples::default();
        for round in 1..=self.rounds {
            let end = Instant::now() + Duration::from_secs(self.seconds);
            let alone = move || Instant::now() < end;
            let before = latency(&service, "mix", &key, self.pets, self.rate, Arc::new(alone)).await?;
            let source = format!("round {round}");
            let (during, seconds, _) =
                self.during(&service, &url, &key, &["--key-column", "key", "--source", &source]).await?;
            println!(
                "round {round}: at {} requests per second, p50 {:.1} ms and p99 {:.1} ms before, {:.1} and {:.1} during an \
                 import of {} rows in {seconds:.0} s",
                self.rate,
                before.median(),
                before.at(0.99),
                during.median(),
                during.at(0.99),
                self.rows
            );
            ratio.push(during.at(0.99) / before.at(0.99));
        }
        let (_, seconds, seen) =
            self.during(&service, &url, &key, &["--atomic", "--key-column", "key"]).await?;
        println!(
            "an atomic import of {} rows in {seconds:.0} s: none of {seen} reads saw a part of it",
            self.rows
        );
        println!("p99 during an import: {} times that without", ratio.spread());
        if ratio.median() > self.bar {
            Err(format!("p99 is more than {} times that without an import", self.bar).into())
        } else {
            Ok(())
        }
    }

    /// Measures while an import runs. Returns the latencies in milliseconds, the seconds that the import took, and the number
    /// of reads that checked whether it is partly visible, which is a failure with `--atomic`.
    async fn during(
        &self,
        service: &Server,
        url: &str,
        key: &str,
        flags: &[&str],
    ) -> Outcome<(Samples, f64, i64)> {
        let running = Arc::new(AtomicBool::new(true));
        let reads = Arc::new(AtomicI64::new(0));
        let atomic = flags.contains(&"--atomic");
        let last: i64 = psql(url, "SELECT max(id) FROM pets")?.trim().parse()?;
        let reader = tokio::spawn(count_partial_reads(
            Connection::open(service.address, key).await?,
            last,
            running.clone(),
            reads.clone(),
        ));
        let mut child = start(url, &[&["import", KEYED], flags].concat())?;
        let (started, still) = (Instant::now(), running.clone());
        let waiting = tokio::task::spawn_blocking(move || {
            let status = child.wait();
            running.store(false, Ordering::Relaxed);
            (status, started.elapsed().as_secs_f64())
        });
        let until = Arc::new(move || still.load(Ordering::Relaxed));
        let samples =
            latency(service, if atomic { "list" } else { "mix" }, key, self.pets, self.rate, until).await?;
        let (status, seconds) = waiting.await?;
        if !status?.success() {
            return Err(fs::read_to_string(LOG)?.into());
        }
        let partial = reader.await??;
        if atomic && partial > 0 {
            return Err(format!("{partial} reads saw a part of an atomic import").into());
        }
        Ok((samples, seconds, reads.load(Ordering::Relaxed)))
    }
}

/// Reads repeatedly, and returns how often pets of the import were visible before it had completed. Nothing else creates
/// pets with such names.
async fn count_partial_reads(
    mut connection: Connection,
    last: i64,
    running: Arc<AtomicBool>,
    reads: Arc<AtomicI64>,
) -> Outcome<u64> {
    let path = format!("/v1/pets?limit=100&cursor={}", cursor(last));
    let mut partial = 0;
    while running.load(Ordering::Relaxed) {
        let (status, body) = connection.send("GET", &path, "").await?;
        if status != 200 {
            return Err(format!("{status} {body}").into());
        }
        // An import that was complete when it was seen exits soon.
        if body.contains("Pet number") && running.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(500)).await;
            partial += u64::from(running.load(Ordering::Relaxed));
        }
        reads.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(partial)
}
