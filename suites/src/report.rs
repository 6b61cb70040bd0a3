//! Statistics, tables and charts.

use std::fs;
use std::path::Path;

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

/// Replaces the figures on a page, between `<!-- measured -->` and `<!-- /measured -->`.
pub(crate) fn replace_measured(page: &Path, figures: &str) -> Outcome {
    let text = fs::read_to_string(page)?;
    let (before, after) = text.split_once("<!-- measured -->").ok_or("the page has no <!-- measured -->")?;
    let (_, after) = after.split_once("<!-- /measured -->").ok_or("the page has no <!-- /measured -->")?;
    Ok(fs::write(page, format!("{before}<!-- measured -->\n\n{figures}\n<!-- /measured -->{after}"))?)
}
