//! Buffers log lines and writes them in batches from a separate thread.
//!
//! **Invariants:**
//! - lines are written whole and in order, within about [`FLUSH_INTERVAL`]; dropping the [`LogGuard`] writes the last;
//! - logging never blocks on the reader of the log. If it is stuck, lines beyond [`MAX_BUFFERED_BYTES`] are dropped,
//!   and a later line reports how many.
//!
//! Not tracing-appender's `non_blocking`: it wakes its thread for nearly every line, limits lines instead of bytes, and
//! does not log how many it dropped.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How long lines are buffered: on a busy service, one system call per line would cost more than formatting it.
const FLUSH_INTERVAL: Duration = Duration::from_millis(10);
/// The size of the buffer.
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;
/// How long the program waits at its end for a reader that is stuck.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A writer of log lines that never blocks. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct LogWriter(Arc<SharedLogBuffer>);

#[derive(Default)]
struct SharedLogBuffer {
    buffer: Mutex<LogBuffer>,
    changed: Condvar,
}

#[derive(Default)]
struct LogBuffer {
    lines: Vec<u8>,
    dropped: u64,
    state: LogWriterState,
}

#[derive(Default, PartialEq, Eq)]
enum LogWriterState {
    #[default]
    Open,
    Closing,
    Closed,
}

/// Writes the buffered lines when it is dropped.
#[must_use = "buffered lines are lost if this is not kept until the end of the program"]
pub struct LogGuard(Option<LogWriter>);

impl LogGuard {
    /// For a log that is not buffered.
    pub(super) fn none() -> Self {
        Self(None)
    }
}

impl LogWriter {
    /// Starts the thread that writes.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<(Self, LogGuard)> {
        let writer = Self::default();
        let shared = writer.0.clone();
        thread::Builder::new().name("log".into()).spawn(move || shared.run(output))?;
        Ok((writer.clone(), LogGuard(Some(writer))))
    }
}

impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut buffer = self.0.lock();
        if buffer.lines.len() + line.len() > MAX_BUFFERED_BYTES {
            buffer.dropped += 1;
        } else {
            let first = buffer.lines.is_empty();
            buffer.lines.extend_from_slice(line);
            drop(buffer);
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

impl SharedLogBuffer {
    fn lock(&self) -> MutexGuard<'_, LogBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines until the log is closed and the buffer is empty.
    fn run(&self, mut output: impl Write) {
        let mut lines = Vec::new();
        let mut buffer = self.lock();
        while buffer.state == LogWriterState::Open || !buffer.lines.is_empty() {
            if buffer.lines.is_empty() {
                buffer = self.changed.wait(buffer).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            buffer = self
                .changed
                .wait_timeout_while(buffer, FLUSH_INTERVAL, |buffer| buffer.state == LogWriterState::Open)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            std::mem::swap(&mut lines, &mut buffer.lines);
            let dropped = std::mem::take(&mut buffer.dropped);
            drop(buffer);
            // Nothing can be done where standard error is closed.
            let _ = output.write_all(&lines);
            lines.clear();
            if dropped > 0 {
                // Buffered like any other line.
                tracing::warn!(dropped, "log lines dropped: standard error was not read in time");
            }
            buffer = self.lock();
        }
        buffer.state = LogWriterState::Closed;
        drop(buffer);
        self.changed.notify_all();
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let Some(LogWriter(shared)) = &self.0 else { return };
        let mut buffer = shared.lock();
        buffer.state = LogWriterState::Closing;
        shared.changed.notify_all();
        // A stuck reader must not keep the program from ending.
        let _ = shared
            .changed
            .wait_timeout_while(buffer, CLOSE_TIMEOUT, |buffer| buffer.state != LogWriterState::Closed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A pipe without a buffer: a write blocks until the test receives it.
    struct Pipe(mpsc::SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.send(lines.to_vec()).map_err(io::Error::other)?;
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (LogWriter, LogGuard, mpsc::Receiver<Vec<u8>>) {
        let (sender, output) = mpsc::sync_channel(0);
        let (writer, guard) = LogWriter::start(Pipe(sender)).unwrap();
        (writer, guard, output)
    }

    #[test]
    fn lines_that_arrive_together_are_written_together_and_in_order() {
        let (writer, _guard, output) = start();
        for number in 0..100 {
            writeln!(&writer, "{number}").unwrap();
        }
        let mut lines = Vec::new();
        let mut batches = 0;
        while !lines.ends_with(b"99\n") {
            lines.extend(output.recv().unwrap());
            batches += 1;
        }
        let expected: String = (0..100).map(|number| number.to_string() + "\n").collect();
        assert_eq!(String::from_utf8(lines).unwrap(), expected);
        assert!(batches <= 50, "{batches} writes for 100 lines");
    }

    #[test]
    fn buffered_lines_are_written_when_the_guard_is_dropped() {
        let (writer, guard, output) = start();
        let reader = thread::spawn(move || output.into_iter().flatten().collect::<Vec<u8>>());
        writeln!(&writer, "the last line").unwrap();
        drop(guard);
        // The thread has ended and closed its output.
        assert_eq!(reader.join().unwrap(), b"the last line\n");
    }

    #[test]
    fn a_stuck_reader_blocks_neither_logging_nor_the_end_of_the_program() {
        let (writer, guard, _output) = start();
        let line = "x".repeat(1_023) + "\n";
        (&writer).write_all(line.as_bytes()).unwrap();
        // The thread takes the first line and blocks in writing it.
        while !writer.0.lock().lines.is_empty() {
            thread::yield_now();
        }
        for _ in 0..20_000 {
            (&writer).write_all(line.as_bytes()).unwrap();
        }
        {
            let buffer = writer.0.lock();
            assert_eq!(buffer.lines.len(), MAX_BUFFERED_BYTES);
            assert_eq!(buffer.dropped, 20_000 - MAX_BUFFERED_BYTES as u64 / 1_024);
        }
        // Would block for as long as the reader does.
        drop(guard);
    }
}
