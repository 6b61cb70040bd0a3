//! The progress of a long command, on standard error: a bar on a terminal, a line every few seconds otherwise.
//!
//! Not indicatif: it prints nothing without a terminal, so most of this would stay.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// Reports progress until it is dropped.
pub(super) struct Progress {
    pub(super) counters: Arc<ProgressCounters>,
    reporter: JoinHandle<()>,
}

/// What the progress is computed from.
pub(super) struct ProgressCounters {
    /// What is counted, in the singular.
    unit: &'static str,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// The size of the input in bytes, if it is known.
    size: Option<u64>,
    started: Instant,
}

impl Progress {
    /// Starts to report the rows that are done, each called `unit`, and the share of the input that was read.
    pub(super) fn start(unit: &'static str, size: Option<u64>) -> Self {
        let (rows, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let counters = Arc::new(ProgressCounters { unit, rows, bytes, size, started: Instant::now() });
        let (current, terminal) = (counters.clone(), io::stderr().is_terminal());
        let interval = if terminal { Duration::from_millis(200) } else { Duration::from_secs(5) };
        let reporter = tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                let line = current.line(current.started.elapsed());
                // Nothing can be done if standard error is closed.
                let _ = if terminal {
                    write!(io::stderr(), "\r\x1b[K{} {line}", current.bar())
                } else {
                    writeln!(io::stderr(), "{line}")
                };
            }
        });
        Self { counters, reporter }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.reporter.abort();
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl ProgressCounters {
    /// Adds rows that are done.
    pub(super) fn add(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// The number of rows that are done.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// The rows, the rate and, if the size is known, the percentage and the remaining time.
    fn line(&self, elapsed: Duration) -> String {
        let (rows, seconds) = (self.rows(), elapsed.as_secs_f64());
        let mut line = format!("{}, {}/s", counted(rows, self.unit), grouped(per_second(rows, seconds)));
        if let Some(share) = self.share() {
            let _ = write!(line, ", {:.0} %", share * 100.0);
            if share > 0.0 {
                let _ = write!(line, ", {:.0} s left", seconds * (1.0 - share) / share);
            }
        }
        line
    }

    fn bar(&self) -> String {
        const WIDTH: usize = 20;
        let Some(share) = self.share() else { return String::new() };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the width")]
        let full = (share * 20.0) as usize;
        format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH.saturating_sub(full)))
    }

    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    fn share(&self) -> Option<f64> {
        let size = self.size.filter(|size| *size > 0)?;
        Some((self.bytes.load(Ordering::Relaxed) as f64 / size as f64).min(1.0))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a rate for people"
)]
pub(super) fn per_second(rows: u64, seconds: f64) -> u64 {
    (rows as f64 / seconds.max(0.001)) as u64
}

/// Formats a number with thousands separators: `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things, whose name has a regular plural: `1 row`, `2,000 rows`.
pub(super) fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A reader that counts its bytes.
pub(super) struct CountingReader<R> {
    pub(super) input: R,
    pub(super) counters: Arc<ProgressCounters>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(bytes)?;
        self.counters.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_rows_the_rate_the_percentage_and_the_time_left() {
        let started = Instant::now();
        let counters =
            |size| ProgressCounters { unit: "row", rows: 25_000.into(), bytes: 50.into(), size, started };
        let line = |size| counters(size).line(Duration::from_secs(10));
        assert_eq!(line(None), "25,000 rows, 2,500/s");
        assert_eq!(line(Some(200)), "25,000 rows, 2,500/s, 25 %, 30 s left");
        assert_eq!(counters(Some(200)).bar(), "[#####...............]");
        assert_eq!(counters(None).bar(), "");
    }

    #[test]
    fn one_thing_is_singular() {
        for (number, text) in [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_001, "1,001 rows")] {
            assert_eq!(counted(number, "row"), text);
        }
    }

    #[test]
    fn a_number_is_grouped_by_thousands() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}
