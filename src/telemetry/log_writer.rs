//! Lines of the log, gathered for a moment and written by a thread of their own.
//!
//! **Invariants:**
//! - lines are written whole and in their order, each within about [`GATHERING`], and the last of them when the
//!   [`LogGuard`] is dropped;
//! - whoever logs never waits for whoever reads the log. If nobody does, lines beyond [`MOST_BYTES`] are
//!   dropped, and a line says how many were.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How long lines are gathered: a system call for each would cost a busy service more than making the line.
const GATHERING: Duration = Duration::from_millis(10);
/// How much may wait to be written.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// How long the end of the program waits for a reader that does not read.
const FAREWELL: Duration = Duration::from_secs(1);

/// Where lines are put. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct LogWriter(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
    stage: Stage,
}

#[derive(Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Going,
    Ending,
    Ended,
}

/// Writes what waits when it is dropped.
#[must_use = "lines that wait are lost if this is not kept until the end of the program"]
pub struct LogGuard(Option<LogWriter>);

impl LogGuard {
    /// For a log that holds nothing back.
    pub(super) fn none() -> Self {
        Self(None)
    }
}

impl LogWriter {
    /// Starts the thread that writes.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<(Self, LogGuard)> {
        let gathered = Self::default();
        let shared = gathered.0.clone();
        thread::Builder::new().name("log".into()).spawn(move || shared.keep_writing(output))?;
        Ok((gathered.clone(), LogGuard(Some(gathered))))
    }
}

impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.lock();
        if waiting.lines.len() + line.len() > MOST_BYTES {
            waiting.dropped += 1;
        } else {
            let first = waiting.lines.is_empty();
            waiting.lines.extend_from_slice(line);
            drop(waiting);
            if first {
                self.0.changed.notify_all();
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_writing(&self, mut output: impl Write) {
        let mut lines = Vec::new();
        let mut waiting = self.lock();
        while waiting.stage == Stage::Going || !waiting.lines.is_empty() {
            if waiting.lines.is_empty() {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            waiting = self
                .changed
                .wait_timeout_while(waiting, GATHERING, |waiting| waiting.stage == Stage::Going)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            std::mem::swap(&mut lines, &mut waiting.lines);
            let dropped = std::mem::take(&mut waiting.dropped);
            drop(waiting);
            // Nothing can be done where standard error is closed.
            let _ = output.write_all(&lines);
            lines.clear();
            if dropped > 0 {
                // Waits like any other line.
                tracing::warn!(dropped, "nobody read the log, so lines of it were dropped");
            }
            waiting = self.lock();
        }
        waiting.stage = Stage::Ended;
        drop(waiting);
        self.changed.notify_all();
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let Some(LogWriter(shared)) = &self.0 else { return };
        let mut waiting = shared.lock();
        waiting.stage = Stage::Ending;
        shared.changed.notify_all();
        // A reader that is stuck must not keep the program from ending.
        let _ = shared.changed.wait_timeout_while(waiting, FAREWELL, |waiting| waiting.stage != Stage::Ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    /// Takes what is written only when the test does.
    struct Reader(mpsc::SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.send(lines.to_vec()).map_err(io::Error::other)?;
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (LogWriter, LogGuard, mpsc::Receiver<Vec<u8>>) {
        let (sender, written) = mpsc::sync_channel(0);
        let (gathered, guard) = LogWriter::start(Reader(sender)).unwrap();
        (gathered, guard, written)
    }

    #[test]
    fn lines_that_arrive_together_are_written_together_and_in_order() {
        let (gathered, _guard, written) = start();
        for number in 0..100 {
            writeln!(&gathered, "{number}").unwrap();
        }
        let mut lines = Vec::new();
        let mut writes = 0;
        while !lines.ends_with(b"99\n") {
            lines.extend(written.recv().unwrap());
            writes += 1;
        }
        let expected: String = (0..100).map(|number| number.to_string() + "\n").collect();
        assert_eq!(String::from_utf8(lines).unwrap(), expected);
        assert!(writes <= 50, "{writes} writes for 100 lines");
    }

    #[test]
    fn the_last_lines_are_written_at_the_end() {
        let (gathered, guard, written) = start();
        let reader = thread::spawn(move || written.into_iter().flatten().collect::<Vec<u8>>());
        writeln!(&gathered, "the last words").unwrap();
        drop(guard);
        // The thread has ended, and its output with it.
        assert_eq!(reader.join().unwrap(), b"the last words\n");
    }

    #[test]
    fn a_reader_that_is_stuck_stops_neither_the_service_nor_its_end() {
        let (gathered, guard, _written) = start();
        let began = Instant::now();
        let line = "x".repeat(1_023) + "\n";
        (&gathered).write_all(line.as_bytes()).unwrap();
        // The thread takes the first line, and from then on is stuck with it.
        while !gathered.0.lock().lines.is_empty() {
            thread::yield_now();
        }
        for _ in 0..20_000 {
            (&gathered).write_all(line.as_bytes()).unwrap();
        }
        {
            let waiting = gathered.0.lock();
            assert_eq!(waiting.lines.len(), MOST_BYTES);
            assert_eq!(waiting.dropped, 20_000 - MOST_BYTES as u64 / 1_024);
        }
        drop(guard);
        assert!(began.elapsed() < 5 * FAREWELL);
    }
}
