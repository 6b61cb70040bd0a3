//! What is counted and measured, for Prometheus: the only place where metrics are named.
//!
//! **Invariant:** labels have few values: no ids of animals, no paths as sent, no addresses. The id of a key is one only
//! where an operator must find the clients of an operation that is going away.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tokio::time::sleep;

/// Requests by route, method and status, each with the time from its head to its answer's head.
pub const REQUEST_DURATION: &str = "http_server_request_duration_seconds";
/// Requests under way.
pub const ACTIVE_REQUESTS: &str = "http_server_active_requests";
/// Clients' connections.
pub const CONNECTIONS: &str = "petstore_connections";
/// Connections that found no place.
pub const CONNECTIONS_REFUSED: &str = "petstore_connections_refused_total";
/// Requests answered with 503 because there was too much to do, by where they waited.
pub const REQUESTS_SHED: &str = "petstore_requests_shed_total";
/// Requests answered with 429.
pub const REQUESTS_RATE_LIMITED: &str = "petstore_requests_rate_limited_total";
/// Keys of requests, by what was known of them.
pub const KEY_LOOKUPS: &str = "petstore_key_lookups_total";
/// Keys remembered.
pub const KEYS_REMEMBERED: &str = "petstore_keys_remembered";
/// Calls of operations that are going away, by key.
pub const DEPRECATED_CALLS: &str = "petstore_deprecated_calls_total";
/// Connections of the pool, by state.
pub const POOL_CONNECTIONS: &str = "db_client_connection_count";
/// The most of them.
pub const POOL_MAX: &str = "db_client_connection_max";
/// Work that waits for one of them.
pub const POOL_WAITING: &str = "db_client_connection_pending_requests";
/// How long statements take.
pub const STATEMENT_DURATION: &str = "db_client_operation_duration_seconds";
/// Statements that failed, by how.
pub const DATABASE_ERRORS: &str = "petstore_database_errors_total";
/// Whether the database answered the last look.
pub const DATABASE_UP: &str = "petstore_database_up";
/// Standbys that follow the database.
pub const STANDBYS: &str = "petstore_database_standbys";
/// Requests that shared a statement.
pub const BATCH_SIZE: &str = "petstore_batch_size";
/// How long the first of them waited.
pub const BATCH_WAIT: &str = "petstore_batch_wait_seconds";
/// Animals by status, as PostgreSQL estimates them.
pub const PETS: &str = "petstore_pets_estimated";
/// What runs.
pub const BUILD_INFO: &str = "petstore_build_info";

/// From half a millisecond, which a request takes on an idle machine, to the longest deadline.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Up to the most that a statement takes at once.
const SIZES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// How often what was measured is sorted into its buckets: a busy node measures tens of thousands a second.
const UPKEEP: Duration = Duration::from_secs(2);

/// The metrics of this process. Recording starts at the first call of [`metrics`].
pub struct Metrics {
    rendered: PrometheusHandle,
    process: Collector,
}

static METRICS: OnceLock<Metrics> = OnceLock::new();

/// Starts recording, or finds what was started.
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
        // An error means no buckets, and there are some.
        let recorder = builder.unwrap_or_default().build_recorder();
        let rendered = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::error!("a bug: metrics are recorded by somebody else, so /metrics stays empty");
        }
        let process = Collector::default();
        process.describe();
        describe();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Metrics { rendered, process }
    })
}

impl Metrics {
    /// Everything, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.process.collect();
        self.rendered.render()
    }
}

/// Keeps what was measured small, for ever.
pub async fn look_after() {
    loop {
        sleep(UPKEEP).await;
        if let Some(metrics) = METRICS.get() {
            metrics.rendered.run_upkeep();
        }
    }
}

/// A number of things, as a gauge has it.
#[expect(clippy::cast_precision_loss, reason = "nobody has so many that it matters")]
#[must_use]
pub fn count(things: usize) -> f64 {
    things as f64
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};

    describe_histogram!(
        REQUEST_DURATION,
        Unit::Seconds,
        "Time from a request's head to its answer's head. A request without a route has the route \"-\"."
    );
    describe_gauge!(ACTIVE_REQUESTS, "Requests under way.");
    describe_gauge!(CONNECTIONS, "Connections of clients.");
    describe_counter!(CONNECTIONS_REFUSED, "Connections of clients that found no place.");
    describe_counter!(
        REQUESTS_SHED,
        "Requests answered with 503 because too much was under way (reason \"requests\"), waited for the database \
         (\"queue\"), or waited too long for it (\"late\")."
    );
    describe_counter!(REQUESTS_RATE_LIMITED, "Requests answered with 429.");
    describe_counter!(
        KEY_LOOKUPS,
        "Keys of requests that were remembered (\"hit\"), looked up (\"miss\"), or remembered as not valid \
         (\"refused\")."
    );
    describe_gauge!(KEYS_REMEMBERED, "Keys that are remembered.");
    describe_counter!(DEPRECATED_CALLS, "Calls of operations that will be removed, by the key's id.");
    describe_gauge!(POOL_CONNECTIONS, "Connections to the database, by state.");
    describe_gauge!(POOL_MAX, "The most connections to the database.");
    describe_gauge!(POOL_WAITING, "Work that waits for a connection to the database.");
    describe_histogram!(
        STATEMENT_DURATION,
        Unit::Seconds,
        "Time that a statement took, without the wait for a connection."
    );
    describe_counter!(
        DATABASE_ERRORS,
        "Statements that failed: there was no connection (\"no_connection\"), it broke (\"connection_lost\"), the \
         deadline passed (\"deadline\"), or the database said no (\"refused\")."
    );
    describe_gauge!(DATABASE_UP, "1 if the database answered the last look, a few seconds ago, else 0.");
    describe_gauge!(STANDBYS, "Standbys that receive the database's changes.");
    describe_histogram!(BATCH_SIZE, "Requests that shared one statement.");
    describe_histogram!(
        BATCH_WAIT,
        Unit::Seconds,
        "Time that the first request of a batch waited for its turn."
    );
    describe_gauge!(PETS, "Animals by status, as PostgreSQL's statistics estimate them.");
    describe_gauge!(BUILD_INFO, "1, with the version that runs.");
}
