//! Statistics, and the CSV, charts and tables that a suite publishes.

use std::borrow::Borrow;
use std::fmt::Display;
use std::fs;

use crate::Outcome;
use crate::topology::output;

/// A figure that was measured several times.
#[derive(Clone, Default)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// Each sample divided by the other's sample of the same round.
    pub(crate) fn ratio_to(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The quantile: 0.5 is the median, 0.99 the 99th percentile.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index into a list of samples"
    )]
    pub(crate) fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let index = (share * (sorted.len().saturating_sub(1)) as f64).round() as usize;
        sorted.get(index).copied().unwrap_or(f64::NAN)
    }

    /// The median, with the minimum and the maximum.
    pub(crate) fn spread(&self) -> String {
        let median = self.median();
        let decimals = match median.abs() {
            0.0..10.0 => 2,
            10.0..100.0 => 1,
            _ => 0,
        };
        let [median, least, most] =
            [median, self.at(0.0), self.at(1.0)].map(|value| readable(value, decimals));
        format!("{median} ({least}–{most})")
    }
}

/// A table in Markdown.
pub(crate) struct Table(pub(crate) String);

impl Table {
    /// A table with this first line.
    pub(crate) fn new(head: &str) -> Self {
        Self(format!("{head}\n|{}\n", "---|".repeat(head.matches(" | ").count() + 1)))
    }

    pub(crate) fn row(&mut self, cells: &[impl Borrow<str>]) {
        self.0.extend(["| ", &cells.join(" | "), " |\n"]);
    }
}

/// An error that lists the failures, if there are any.
pub(crate) fn verdict(failures: &[String]) -> Outcome {
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// A figure with so many decimals, and if there are none, with separators.
pub(crate) fn readable(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    text.parse().map_or(text, grouped)
}

/// A number with separators: 1,000,000.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// The machine, for a report.
fn machine() -> Outcome<String> {
    let printed = output("lscpu", &[])?;
    let model = printed.lines().find_map(|line| line.strip_prefix("Model name:")).unwrap_or("?").trim();
    Ok(format!("{} cores of {model}", std::thread::available_parallelism()?))
}

/// The measurements of a suite, which become its CSV: a row has the names of its columns, and leaves out the others.
#[derive(Default)]
pub(crate) struct Measurements(Vec<Vec<(&'static str, String)>>);

impl Measurements {
    /// Adds a row: what was measured, and the figures, without those that are not numbers.
    pub(crate) fn add(&mut self, what: &[(&'static str, &dyn Display)], figures: &[(&'static str, f64)]) {
        let mut row: Vec<_> = what.iter().map(|(name, value)| (*name, value.to_string())).collect();
        let numbers = figures.iter().filter(|(_, value)| value.is_finite());
        row.extend(numbers.map(|(name, value)| (*name, format!("{value:.3}"))));
        self.0.push(row);
    }

    /// Adds a row with the latencies at a rate, which is this fraction of the highest.
    pub(crate) fn add_latency(
        &mut self,
        what: &[(&'static str, &dyn Display)],
        (load, rate): (f64, f64),
        milliseconds: &Samples,
    ) {
        let at = |share| milliseconds.at(share);
        let figures = [
            ("requests_per_s", rate),
            ("load", load),
            ("p50_ms", at(0.5)),
            ("p99_ms", at(0.99)),
            ("p99.9_ms", at(0.999)),
        ];
        self.add(what, &figures);
    }

    /// CSV with these first columns in every row, and those of all rows in the order in which they first appear.
    fn csv(&self, run: &[(&'static str, &str)]) -> String {
        let mut columns: Vec<&str> = Vec::new();
        for (name, _) in self.0.iter().flatten() {
            if !columns.contains(name) {
                columns.push(name);
            }
        }
        let names = run.iter().map(|(name, _)| *name).chain(columns.iter().copied());
        let mut lines = vec![names.collect::<Vec<_>>().join(",")];
        for row in &self.0 {
            let value =
                |column: &&str| row.iter().find(|(name, _)| name == column).map_or("", |(_, value)| value);
            let values = run.iter().map(|(_, value)| *value).chain(columns.iter().map(value));
            let quoted = values
                .map(|value| if value.contains(',') { format!("\"{value}\"") } else { value.to_owned() });
            lines.push(quoted.collect::<Vec<_>>().join(","));
        }
        lines.join("\n") + "\n"
    }

    /// Writes the CSV, draws the charts from it, and replaces these parts of docs/performance.md, each between
    /// `<!-- NAME -->` and `<!-- /NAME -->`; `{run}` in them becomes the date, the commit and the machine. Unless the run is to
    /// be recorded, all of this is below target/measurements.
    pub(crate) fn publish(&self, suite: &str, parts: &[(&str, String)], record: bool) -> Outcome {
        const PAGE: &str = "docs/performance.md";
        let (folder, pictures) = if record {
            ("docs/measurements", "docs/img")
        } else {
            ("target/measurements", "target/measurements")
        };
        fs::create_dir_all(folder)?;
        let [date, commit] =
            [output("date", &["--utc", "+%F"])?, output("git", &["rev-parse", "--short=7", "HEAD"])?];
        let (date, commit, machine) = (date.trim(), commit.trim(), machine()?);
        let csv = format!("{folder}/{suite}.csv");
        fs::write(&csv, self.csv(&[("date", date), ("commit", commit), ("machine", &machine)]))?;
        let run = format!("Run of {date}, recorded with commit `{commit}`, on {machine}");
        let mut page = fs::read_to_string(PAGE)?;
        for (name, text) in parts {
            let text = text.replace("{run}", &run);
            println!("{text}");
            let [begin, end] = [format!("<!-- {name} -->"), format!("<!-- /{name} -->")];
            let (before, rest) = page.split_once(&begin).ok_or_else(|| format!("{PAGE} has no {begin}"))?;
            let (_, after) = rest.split_once(&end).ok_or_else(|| format!("{PAGE} has no {end}"))?;
            page = format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim());
        }
        let page_file = if record { PAGE } else { "target/measurements/performance.md" };
        fs::write(page_file, page)?;
        output("python3", &["-B", "suites/picture.py", suite, &csv, pictures]).map(drop)
    }
}
