//! Logs and metrics: where they go, and in which form.

use std::error::Error;
use std::io::{IsTerminal, stderr};
use std::panic;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::LogSettings;

/// Starts logging to standard error: coloured text if that is a terminal, JSON lines otherwise. A panic
/// becomes a line of the log like any other error.
pub fn start_logging(settings: &LogSettings) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(&settings.log)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    if stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().flatten_event(true).init();
    }
    panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a bug: the program panicked")));
    Ok(())
}

/// An error and what caused it, in one line.
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

/// The metrics of this process, to be rendered in Prometheus' text format. Recording starts at the first call.
pub fn metrics() -> &'static PrometheusHandle {
    static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();
    METRICS.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::error!("a bug: metrics are recorded by somebody else, so /metrics stays empty");
        }
        handle
    })
}
