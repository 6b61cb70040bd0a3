//! Metrics for Prometheus. Every metric is named here and nowhere else.
//!
//! **Invariant:** labels have low cardinality: no pet ids, no raw paths, no addresses of clients. Only the metric of deprecated
//! calls has the key's id, so that an operator can find the clients.

use std::convert::Infallible;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use petstore_config::version::{COMMIT, VERSION};
use tokio::time::sleep;

/// Defines each metric's constant, with its help text in the documentation and in `/metrics`.
macro_rules! define_metrics {
    ($($kind:ident $constant:ident = $name:literal: $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: &str = $name;)*

        fn describe() {
            $(define_metrics!($kind $constant $help);)*
        }
    };
    (counter $constant:ident $help:literal) => { metrics::describe_counter!($constant, $help) };
    (gauge $constant:ident $help:literal) => { metrics::describe_gauge!($constant, $help) };
    (histogram $constant:ident $help:literal) => { metrics::describe_histogram!($constant, $help) };
}

define_metrics! {
    histogram REQUEST_DURATION = "http_server_request_duration_seconds":
        "Time from a request's head to its response's head, without the time that it waits for an event. Requests that match no \
        route have the route \"-\".";
    gauge ACTIVE_REQUESTS = "http_server_active_requests": "Requests in flight.";
    gauge WAITING_REQUESTS = "petstore_waiting_requests": "Requests that wait for an event.";
    gauge CONNECTIONS = "petstore_connections": "Open client connections.";
    counter CONNECTIONS_REFUSED = "petstore_connections_refused_total": "Client connections refused by a limit.";
    counter REQUESTS_SHED = "petstore_requests_shed_total":
        "Requests answered with 503 because too many were in flight (reason \"requests\"), were still sending their \
        bodies (\"bodies\"), were waiting for an event (\"waits\") or were queued (\"queue\"), or because they were queued for \
        too long (\"late\").";
    counter REQUESTS_RATE_LIMITED = "petstore_requests_rate_limited_total": "Requests answered with 429.";
    counter KEY_LOOKUPS = "petstore_key_lookups_total":
        "Lookups of API keys: found in the cache (\"hit\"), read from the database (\"miss\"), or cached as invalid \
        (\"refused\").";
    gauge KEYS_REMEMBERED = "petstore_keys_remembered": "API keys in the cache.";
    gauge KEYS_NEXT_EXPIRY = "petstore_keys_next_expiry_timestamp_seconds":
        "When the next API key without a successor expires, in seconds since 1970; 0 if none does.";
    counter DEPRECATED_CALLS = "petstore_deprecated_calls_total":
        "Calls to deprecated operations, by the key's id.";
    gauge POOL_CONNECTIONS = "db_client_connections": "Connections to the database, by state.";
    gauge POOL_MAX = "db_client_connection_max": "Maximum number of connections to the database.";
    gauge POOL_WAITING = "db_client_connection_pending_requests": "Tasks waiting for a connection to the database.";
    histogram STATEMENT_DURATION = "db_client_operation_duration_seconds":
        "Duration of a statement or a transaction, without the wait for a connection.";
    counter DATABASE_ERRORS = "petstore_database_errors_total":
        "Failed statements: no connection (\"no_connection\"), connection lost (\"connection_lost\"), deadline exceeded \
        (\"deadline\"), rejected by the database (\"refused\"), or no server proven to be fresh (\"unproven\").";
    counter DATABASE_READS = "petstore_database_reads_total":
        "Statements that read from a server of a cluster that was proven to be fresh, by its role (\"source\").";
    gauge READS_PROVEN = "petstore_database_reads_proven":
        "1 if reads from the cluster are proven to be fresh, else 0.";
    gauge SERVER_ROLE = "petstore_database_server_role":
        "1 for the role of a server of the cluster a second ago: \"primary\", \"standby\" or \"unreachable\".";
    gauge SERVER_POSITION = "petstore_database_server_position_bytes":
        "Position of a server in the write-ahead log: flushed by a primary, replayed by a standby.";
    gauge DATABASE_UP = "petstore_database_up":
        "1 if the last check, a few seconds ago, reached a server that accepts writes, else 0.";
    gauge STANDBYS = "petstore_database_standbys":
        "Standbys that replicate from the server that accepts writes; 0 if it was not reached.";
    gauge ARCHIVING_FAILING = "petstore_database_wal_archiving_failing":
        "1 if the database's last attempt to archive a WAL file failed, else 0; 0 without archiving.";
    gauge IDEMPOTENCY_DAYS = "petstore_idempotency_partitions_prepared":
        "Days left, including today, for which partitions exist; at 0, changes get 503.";
    counter EVENTS = "petstore_events_total": "Events that this node has written, by type.";
    gauge FEED_LAG = "petstore_event_feed_lag_seconds":
        "Age of the oldest event that a running transaction hides from readers.";
    gauge FEED_STARTED = "petstore_event_feed_started_timestamp_seconds":
        "When the current epoch of the event feed began, in seconds since 1970. Readers from before get 410.";
    gauge ORDERS_OVERDUE = "petstore_orders_overdue_seconds":
        "How long ago the oldest overdue order should have expired; 0 if none is overdue.";
    histogram BATCH_SIZE = "petstore_batch_size": "Requests per batch, which share one statement.";
    histogram BATCH_WAIT = "petstore_batch_wait_seconds":
        "Time that the first request of a batch waited.";
    gauge PETS = "petstore_pets_estimated":
        "Pets by status, estimated from PostgreSQL's statistics and the size of the table.";
    counter BACKGROUND_PANICS = "petstore_background_panics_total":
        "Panics of background tasks, which were restarted. Each is a bug.";
    gauge BUILD_INFO = "petstore_build_info": "1, with the running version and its commit as labels.";
}

/// From half a millisecond, which a request takes on an idle machine, to the longest deadline.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Up to the largest batch.
const SIZES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// How often recorded samples are sorted into their buckets: a busy node records tens of thousands per second.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);

/// The metrics of this process. Recording starts with the first call of [`metrics()`].
pub struct Metrics {
    prometheus: PrometheusHandle,
    process: Collector,
}

static METRICS: OnceLock<Metrics> = OnceLock::new();

/// Starts recording at the first call, and returns the metrics.
pub fn metrics() -> &'static Metrics {
    METRICS.get_or_init(|| {
        let buckets = [
            (REQUEST_DURATION, &SECONDS[..]),
            (STATEMENT_DURATION, &SECONDS),
            (BATCH_WAIT, &SECONDS),
            (BATCH_SIZE, &SIZES),
        ];
        let builder = buckets.into_iter().try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
        });
        // Fails only for an empty list of buckets.
        let recorder = builder.unwrap_or_default().build_recorder();
        let prometheus = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::error!("/metrics stays empty: another recorder is installed, which is a bug");
        }
        let process = Collector::default();
        process.describe();
        describe();
        gauge!(BUILD_INFO, "version" => VERSION, "commit" => COMMIT).set(1.0);
        Metrics { prometheus, process }
    })
}

impl Metrics {
    /// Renders all metrics in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.process.collect();
        self.prometheus.render()
    }
}

/// Sorts recorded samples into their buckets, forever: otherwise they pile up between scrapes.
pub async fn run_upkeep() -> Infallible {
    loop {
        sleep(UPKEEP_INTERVAL).await;
        if let Some(metrics) = METRICS.get() {
            metrics.prometheus.run_upkeep();
        }
    }
}

/// Converts a count for a gauge.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
#[must_use]
pub fn count(things: impl TryInto<u64>) -> f64 {
    things.try_into().unwrap_or_default() as f64
}
