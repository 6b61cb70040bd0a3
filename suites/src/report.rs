//! Statistics, tables and charts.

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
        format!("{:.2} ({:.2}–{:.2})", self.median(), self.at(0.0), self.at(1.0))
    }
}

/// Draws a chart; suites/picture.py says what the rows of each kind are.
pub(crate) fn draw(kind: &str, file: &str, title: &str, rows: &serde_json::Value) -> Outcome {
    output("python3", &["-B", "suites/picture.py", kind, file, title, &rows.to_string()]).map(drop)
}

/// An error that lists the failures, if there are any.
pub(crate) fn verdict(failures: &[String]) -> Outcome {
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// A number with separators: 1,000,000.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// The machine, for a report.
pub(crate) fn machine() -> Outcome<String> {
    let printed = output("lscpu", &[])?;
    let model = printed.lines().find_map(|line| line.strip_prefix("Model name:")).unwrap_or("?").trim();
    Ok(format!("{} cores of {model}", std::thread::available_parallelism()?))
}

/// Replaces a suite's figures in docs/measurements.md, between `<!-- suite -->` and `<!-- /suite -->`, and states their run.
pub(crate) fn record(suite: &str, figures: &str) -> Outcome {
    const PAGE: &str = "docs/measurements.md";
    let [begin, end] = [format!("<!-- {suite} -->"), format!("<!-- /{suite} -->")];
    let text = fs::read_to_string(PAGE)?;
    let (before, rest) = text.split_once(&begin).ok_or_else(|| format!("{PAGE} has no {begin}"))?;
    let (_, after) = rest.split_once(&end).ok_or_else(|| format!("{PAGE} has no {end}"))?;
    let date = output("date", &["--utc", "+%F"])?;
    let commit = output("git", &["rev-parse", "--short=7", "HEAD"])?;
    let run = format!("Run of {}, recorded with commit `{}`.", date.trim(), commit.trim());
    Ok(fs::write(PAGE, format!("{before}{begin}\n\n{run}\n\n{}\n\n{end}{after}", figures.trim()))?)
}
