//! How far a long command has come: a line that is drawn over and over on a terminal, a line every few seconds elsewhere.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// Tells on standard error, until it is dropped.
pub(super) struct Progress {
    pub(super) counts: Arc<Counts>,
    telling: JoinHandle<()>,
}

/// What there is to tell.
pub(super) struct Counts {
    what: &'static str,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// The size of the input, if it is known.
    size: Option<u64>,
    began: Instant,
}

impl Progress {
    /// Begins to tell of so many of `what`, and of what share of an input of this size was read.
    pub(super) fn start(what: &'static str, size: Option<u64>) -> Self {
        let (rows, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let counts = Arc::new(Counts { what, rows, bytes, size, began: Instant::now() });
        let (told, terminal) = (counts.clone(), io::stderr().is_terminal());
        let every = if terminal { Duration::from_millis(200) } else { Duration::from_secs(5) };
        let telling = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let line = told.line();
                // Nothing can be done where standard error is closed.
                let _ = if terminal {
                    write!(io::stderr(), "\r\x1b[K{} {line}", told.bar())
                } else {
                    writeln!(io::stderr(), "{line}")
                };
            }
        });
        Self { counts, telling }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.telling.abort();
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Counts {
    /// So many more rows are done.
    pub(super) fn done(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// So many were done so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// So many rows, so many a second, and, if the size is known, how much of it and how much longer.
    fn line(&self) -> String {
        let (rows, seconds) = (self.rows(), self.began.elapsed().as_secs_f64());
        let mut line =
            format!("{} {}, {} a second", grouped(rows), self.what, grouped(per_second(rows, seconds)));
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

/// A number as people read it: `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An input that tells how much of it was read.
pub(super) struct Counted<R> {
    pub(super) input: R,
    pub(super) counts: Arc<Counts>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(bytes)?;
        self.counts.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_rows_the_rate_the_share_and_the_time_left() {
        let began = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let counts = |size| Counts { what: "rows", rows: 25_000.into(), bytes: 50.into(), size, began };
        assert!(counts(None).line().starts_with("25,000 rows, 2,"), "{}", counts(None).line());
        assert!(
            counts(Some(200)).line().ends_with(" a second, 25 %, 30 s left"),
            "{}",
            counts(Some(200)).line()
        );
        assert_eq!(counts(Some(200)).bar(), "[#####...............]");
        assert_eq!(counts(None).bar(), "");
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
