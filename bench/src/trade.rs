//! Imports and exports: how fast they are beside PostgreSQL's own client, whether an import that is killed loses or
//! doubles anything, and what a client of the service notices of one.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use crate::Outcome;
use crate::compare::latency;
use crate::http::Connection;
use crate::random::Random;
use crate::report::Samples;
use crate::stale::cursor;
use crate::tools::{PETSTORE, Server, database_url, output, peak_megabytes, prepare, psql};

#[derive(Subcommand)]
pub(crate) enum Trade {
    /// Imports and exports against psql's `\copy`.
    Copy(Copy),
    /// Kills imports and runs them again.
    Kill(Kill),
    /// Asks the service while an import runs.
    Beside(Beside),
}

impl Trade {
    pub(crate) async fn run(self) -> Outcome {
        let outcome = match self {
            Self::Copy(copy) => copy.run(),
            Self::Kill(kill) => kill.run(),
            Self::Beside(beside) => beside.run().await,
        };
        for file in [PLAIN, KEYED, SHUFFLED, EXPORTED] {
            let _ = fs::remove_file(file);
        }
        outcome
    }
}

const PLAIN: &str = "target/bench-animals.csv";
const KEYED: &str = "target/bench-animals-keyed.csv";
const SHUFFLED: &str = "target/bench-animals-shuffled.csv";
const EXPORTED: &str = "target/bench-exported.csv";

/// The most memory.
const MEGABYTES: f64 = 100.0;

#[derive(Args)]
pub(crate) struct Copy {
    /// How many animals.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// How often each is measured, in turn.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The least share of the rate of `\copy`.
    #[arg(long, default_value_t = 0.6)]
    bar: f64,
}

impl Copy {
    fn run(self) -> Outcome {
        let url = database_url()?;
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        write_rows(PLAIN, self.rows, false, |place| place)?;
        write_rows(KEYED, self.rows, true, |place| place)?;
        let copy_in =
            format!("\\copy pets (name, category_id, status) from '{PLAIN}' with (format csv, header)");
        let copy_out = format!(
            "\\copy (select id, name, category_id, status from pets order by id) to '{EXPORTED}' with (format csv, header)"
        );
        let mut ways: [(&str, Samples); 5] = [
            ("\\copy in", Samples::default()),
            ("import, one transaction", Samples::default()),
            ("import with keys, in chunks", Samples::default()),
            ("\\copy out", Samples::default()),
            ("export", Samples::default()),
        ];
        let mut memory: f64 = 0.0;
        for round in 1..=self.rounds {
            for (place, (name, samples)) in ways.iter_mut().enumerate() {
                if place < 3 {
                    psql(&url, "TRUNCATE pets, orders, imported_chunks")?;
                    psql(&url, "CHECKPOINT")?;
                }
                let began = Instant::now();
                match place {
                    0 => drop(psql(&url, &copy_in)?),
                    1 => memory = memory.max(run_and_watch(&url, &["import", PLAIN])?),
                    2 => memory = memory.max(run_and_watch(&url, &["import", KEYED, "--key-column", "key"])?),
                    3 => drop(psql(&url, &copy_out)?),
                    _ => memory = memory.max(run_and_watch(&url, &["export", EXPORTED])?),
                }
                let seconds = began.elapsed().as_secs_f64();
                if place < 3 {
                    check_each_once(&url, self.rows)?;
                    psql(&url, "VACUUM (ANALYZE, FREEZE) pets")?;
                }
                println!("round {round}: {name}: {} rows in {seconds:.1} s", self.rows);
                samples.push(1.0 / seconds);
            }
        }
        let mut slow = Vec::new();
        for (way, against) in [(1, 0), (2, 0), (4, 3)] {
            let ratio = ways[way].1.ratio_to(&ways[against].1);
            println!("{}: {} times the rate of {}", ways[way].0, ratio.spread(), ways[against].0);
            if ratio.median() < self.bar {
                slow.push(ways[way].0);
            }
        }
        println!("the most memory: {memory:.0} MB");
        if memory >= MEGABYTES {
            return Err(format!("more than {MEGABYTES} MB").into());
        }
        if slow.is_empty() { Ok(()) } else { Err(format!("below {}: {}", self.bar, slow.join(", ")).into()) }
    }
}

/// Writes CSV whose rows are in the order in which `place` puts them.
fn write_rows(file: &str, rows: u64, keyed: bool, place: impl Fn(u64) -> u64) -> Outcome {
    let mut file = BufWriter::new(File::create(file)?);
    writeln!(file, "{}name,categoryId,status", if keyed { "key," } else { "" })?;
    for number in 0..rows {
        let number = place(number) + 1;
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
        Err(format!("{expected} expected, {counts} there").into())
    }
}

fn start(url: &str, arguments: &[&str]) -> Outcome<Child> {
    let mut command = Command::new(PETSTORE);
    command.args(arguments).env("DATABASE_URL", url).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command.stderr(File::create("target/bench-trade.log")?).spawn()?)
}

/// Runs the program to its end and returns the most memory that it had, in megabytes.
fn run_and_watch(url: &str, arguments: &[&str]) -> Outcome<f64> {
    let mut child = start(url, arguments)?;
    let mut memory = 0.0;
    loop {
        // The last look before the end is the one that counts: the figure only grows.
        if let Ok(peak) = peak_megabytes(child.id()) {
            memory = peak;
        }
        if let Some(status) = child.try_wait()? {
            let said = fs::read_to_string("target/bench-trade.log")?;
            return if status.success() { Ok(memory) } else { Err(format!("{arguments:?}: {said}").into()) };
        }
        sleep(Duration::from_millis(20));
    }
}

/// How often an import is killed before it may end.
const KILLS_AN_IMPORT: u32 = 5;

#[derive(Args)]
pub(crate) struct Kill {
    /// How many animals an import has.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// How often an import is killed.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Decides when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Kill {
    fn run(self) -> Outcome {
        let url = database_url()?;
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        write_rows(KEYED, self.rows, true, |place| place)?;
        // A prime that is no divisor, so that every row is there once.
        write_rows(SHUFFLED, self.rows, true, |place| (place * 7_919 + 13) % self.rows)?;
        let began = Instant::now();
        run_and_watch(&url, &["import", KEYED, "--key-column", "key"])?;
        let whole = u64::try_from(began.elapsed().as_millis())?;
        let (mut kills, mut imports, mut random) = (0, 0_u32, Random(self.seed));
        while kills < self.kills {
            psql(&url, "TRUNCATE pets, orders, imported_chunks")?;
            let file = if imports.is_multiple_of(2) { KEYED } else { SHUFFLED };
            let enough = (kills + KILLS_AN_IMPORT).min(self.kills);
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
            "{imports} imports of {} rows, killed {kills} times in all: every row exactly once",
            self.rows
        );
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct Beside {
    /// How many animals are imported.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// How many are there before.
    #[arg(long, default_value_t = 100_000)]
    pets: u64,
    /// How often both are measured, in turn.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Requests a second, due whether or not earlier ones are answered.
    #[arg(long, default_value_t = 300.0)]
    rate: f64,
    /// Seconds without an import, in each round.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// The most that 99 % of the requests may take, as a multiple of what they take alone.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

impl Beside {
    async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, self.pets)?;
        let service = Server::petstore(&url)?;
        write_rows(KEYED, self.rows, true, |place| place)?;
        let mut ratio = Samples::default();
        for round in 1..=self.rounds {
            let end = Instant::now() + Duration::from_secs(self.seconds);
            let alone = move || Instant::now() < end;
            let before = latency(&service, "mix", &key, self.pets, self.rate, Arc::new(alone)).await?;
            let source = format!("round {round}");
            let (during, seconds, _) =
                self.during(&service, &url, &key, &["--key-column", "key", "--source", &source]).await?;
            println!(
                "round {round}: at {} requests a second, p50 {:.1} ms and p99 {:.1} ms before, {:.1} and {:.1} during an \
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
            "an atomic import of {} rows in {seconds:.0} s, seen in part by none of {seen} readers",
            self.rows
        );
        println!("p99 during an import: {} times that before", ratio.spread());
        if ratio.median() > self.bar {
            Err(format!("p99 more than {} times as long", self.bar).into())
        } else {
            Ok(())
        }
    }

    /// Asks while an import runs, and returns the milliseconds, how many seconds it took, and how many looks found it
    /// not begun or whole; with `--atomic` a look that finds a part is a failure.
    async fn during(
        &self,
        service: &Server,
        url: &str,
        key: &str,
        flags: &[&str],
    ) -> Outcome<(Samples, f64, i64)> {
        let running = Arc::new(AtomicBool::new(true));
        let looks = Arc::new(AtomicI64::new(0));
        let atomic = flags.contains(&"--atomic");
        let last: i64 = psql(url, "SELECT max(id) FROM pets")?.trim().parse()?;
        let looking = tokio::spawn(look_for_parts(
            Connection::open(service.address, key).await?,
            last,
            running.clone(),
            looks.clone(),
        ));
        let mut child = start(url, &[&["import", KEYED], flags].concat())?;
        let (began, still) = (Instant::now(), running.clone());
        let waiting = tokio::task::spawn_blocking(move || {
            let status = child.wait();
            running.store(false, Ordering::Relaxed);
            (status, began.elapsed().as_secs_f64())
        });
        let until = Arc::new(move || still.load(Ordering::Relaxed));
        let samples =
            latency(service, if atomic { "list" } else { "mix" }, key, self.pets, self.rate, until).await?;
        let (status, seconds) = waiting.await?;
        if !status?.success() {
            return Err(fs::read_to_string("target/bench-trade.log")?.into());
        }
        let parts = looking.await??;
        if atomic && parts > 0 {
            return Err(format!("{parts} looks found a part of an atomic import").into());
        }
        Ok((samples, seconds, looks.load(Ordering::Relaxed)))
    }
}

/// Looks again and again whether animals of the import are there before it has ended, and returns how often they were.
/// Nothing else adds animals of such names.
async fn look_for_parts(
    mut connection: Connection,
    last: i64,
    running: Arc<AtomicBool>,
    looks: Arc<AtomicI64>,
) -> Outcome<u64> {
    let path = format!("/v1/pets?limit=100&cursor={}", cursor(last));
    let mut parts = 0;
    while running.load(Ordering::Relaxed) {
        let (status, body) = connection.send("GET", &path, "").await?;
        if status != 200 {
            return Err(format!("{status} {body}").into());
        }
        // An import that was whole when it was seen is about to end.
        if body.contains("Pet number") && running.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(500)).await;
            parts += u64::from(running.load(Ordering::Relaxed));
        }
        looks.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(parts)
}
