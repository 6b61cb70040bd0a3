//! Logs, metrics and traces: their formats and destinations.
//!
//! **Guarantees:** a log or a collector that is slow or gone delays no request; what is dropped is counted. Every metric is named
//! in [`metrics`].
//!
//! **Must not know** what is being logged or counted: pets, requests and statements are just fields and labels here.

mod log_writer;
pub mod metrics;
pub mod traces;

use std::cell::RefCell;
use std::error::Error;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, IsTerminal, stderr};
use std::panic;

use jiff::Timestamp;
use petstore_config::LogSettings;
use thiserror::Error;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

pub use log_writer::LogGuard;
use log_writer::LogWriter;

/// Why logging did not start.
#[derive(Debug, Error)]
pub enum LogError {
    /// The filter is not valid.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// The writer's thread did not start.
    #[error("could not start the log writer's thread")]
    Thread(#[from] io::Error),
}

/// Starts logging to standard error: coloured text on a terminal, JSON lines otherwise. A panic is logged like any
/// other error.
pub fn start_logging(settings: &LogSettings) -> Result<LogGuard, LogError> {
    let filter = EnvFilter::try_new(&settings.log)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let guard = if stderr().is_terminal() {
        builder.with_writer(stderr).init();
        LogGuard::none()
    } else {
        let (writer, guard) = LogWriter::start(stderr())?;
        builder.event_format(JsonLogFormat).fmt_fields(JsonLogFormat).with_writer(writer).init();
        guard
    };
    panic::set_hook(Box::new(|panic| tracing::error!(%panic, "panicked: this is a bug")));
    Ok(guard)
}

/// Whether errors are logged, and as JSON.
#[must_use]
pub fn is_logging_json() -> bool {
    !stderr().is_terminal() && tracing::enabled!(tracing::Level::ERROR)
}

/// Formats an event as one line of JSON: time, level, message, fields, the fields of its spans, and module.
///
/// tracing-subscriber's own JSON format costs several times as much, and a busy service writes a line per request.
struct JsonLogFormat;

impl<S, N> FormatEvent<S, N> for JsonLogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        thread_local! {
            /// Kept from line to line, to allocate nothing.
            static LINE: RefCell<String> = const { RefCell::new(String::new()) };
        }
        let metadata = event.metadata();
        // Taken, not borrowed: formatting a field may log an event itself.
        let mut line = LINE.take();
        line.clear();
        line.push_str("{\"timestamp\":\"");
        push_time(&mut line, Timestamp::now());
        line.push_str("\",\"level\":\"");
        line.push_str(metadata.level().as_str());
        line.push('"');
        event.record(&mut JsonFieldVisitor(&mut line));
        for span in context.event_scope().into_iter().flatten() {
            line.extend(span.extensions().get::<FormattedFields<N>>().map(|fields| fields.as_str()));
        }
        line.push_str(",\"target\":\"");
        line.push_str(metadata.target());
        line.push_str("\"}\n");
        let written = writer.write_str(&line);
        LINE.set(line);
        written
    }
}

impl<'writer> FormatFields<'writer> for JsonLogFormat {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut members = String::new();
        fields.record(&mut JsonFieldVisitor(&mut members));
        writer.write_str(&members)
    }
}

/// Appends a time in RFC 3339 format, with microseconds.
fn push_time(line: &mut String, now: Timestamp) {
    thread_local! {
        /// The last second and its text, which many lines share.
        static SECOND: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    SECOND.with_borrow_mut(|(second, written)| {
        if *second != now.as_second() {
            (*second, *written) = (now.as_second(), now.strftime("%Y-%m-%dT%H:%M:%S.").to_string());
        }
        line.push_str(written);
    });
    let microseconds = 1_000_000 + now.subsec_microsecond();
    line.push_str(&itoa::Buffer::new().format(microseconds)[1..]);
    line.push('Z');
}

/// Appends the fields of an event as members of a JSON object that is not empty.
struct JsonFieldVisitor<'a>(&'a mut String);

impl JsonFieldVisitor<'_> {
    fn raw(&mut self, field: &Field, value: &str) {
        self.0.push_str(",\"");
        self.0.push_str(field.name());
        self.0.push_str("\":");
        self.0.push_str(value);
    }
}

impl Visit for JsonFieldVisitor<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.raw(field, itoa::Buffer::new().format(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.raw(field, itoa::Buffer::new().format(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinity.
        self.raw(field, &if value.is_finite() { value.to_string() } else { "null".to_owned() });
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.raw(field, if value { "true" } else { "false" });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.raw(field, "\"");
        push_escaped(self.0, value);
        self.0.push('"');
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.raw(field, "\"");
        // Writing to memory fails only if the value's own formatting does: then the line has what there is of it.
        let _ = write!(EscapingWriter(self.0), "{value:?}");
        self.0.push('"');
    }
}

/// Appends text to a JSON string.
fn push_escaped(json: &mut String, text: &str) {
    let needs_escape = |byte: u8| !matches!(byte, b' '..=b'~') || byte == b'"' || byte == b'\\';
    // Without an early exit, which would keep the compiler from comparing many bytes at once.
    if !text.bytes().fold(false, |found, byte| found | needs_escape(byte)) {
        return json.push_str(text);
    }
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            control if control.is_control() => {
                json.extend(format!("\\u{:04x}", u32::from(control)).chars());
            }
            other => json.push(other),
        }
    }
}

/// Escapes what is formatted into a JSON string.
struct EscapingWriter<'a>(&'a mut String);

impl fmt::Write for EscapingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(self.0, text);
        Ok(())
    }
}

/// Formats an error and its causes on one line.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_time_has_microseconds() {
        for text in
            ["2026-11-15T03:15:32.000042Z", "2026-11-15T03:15:32.999999Z", "1970-01-01T00:00:00.000000Z"]
        {
            let mut line = String::new();
            push_time(&mut line, text.parse().unwrap());
            assert_eq!(line, text);
        }
    }

    #[test]
    fn an_event_is_one_line_of_json_whatever_it_contains() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .event_format(JsonLogFormat)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let absent: Option<i64> = None;
            tracing::warn!(
                text = "a \"quote\", a \\ and a\nline \u{1f415}",
                number = -7,
                yes = true,
                "it {}",
                "happened"
            );
            tracing::info!(absent, error = %io::Error::other("of \"another\""), "second");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["level"], "WARN");
        assert_eq!(lines[0]["message"], "it happened");
        assert_eq!(lines[0]["text"], "a \"quote\", a \\ and a\nline \u{1f415}");
        assert_eq!((&lines[0]["number"], &lines[0]["yes"]), (&(-7).into(), &true.into()));
        assert_eq!(lines[0]["target"], "petstore_telemetry::tests");
        assert_eq!(lines[1]["error"], "of \"another\"");
        assert_eq!(lines[1].get("absent"), None);
    }
}
