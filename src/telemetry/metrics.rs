//! What is counted and measured, for Prometheus: the only place where metrics are named.
//!
//! **Invariant:** labels have few values: no ids of animals, no paths as sent, no addresses. The id of a key is one only
//! where an operator must find the clients of an operation that is going away.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tokio::time::sleep;

/// Names metrics, and says of each what it is: to whoever reads this, and to whoever reads `/metrics`.
macro_rules! named {
    ($($kind:ident $constant:ident = $name:literal: $says:literal;)*) => {
        $(#[doc = $says] pub const $constant: &str = $name;)*

        fn describe() {
            $(named!($kind $constant $says);)*
        }
    };
    (counter $constant:ident $says:literal) => { metrics::describe_counter!($constant, $says) };
    (gauge $constant:ident $says:literal) => { metrics::describe_gauge!($constant, $says) };
    (histogram $constant:ident $says:literal) => { metrics::describe_histogram!($constant, $says) };
}

named! {
    histogram REQUEST_DURATION = "http_server_request_duration_seconds":
        "Time from a request's head to its answer's head. A request without a route has the route \"-\".";
    gauge ACTIVE_REQUESTS = "http_server_active_requests": "Requests under way.";
    gauge CONNECTIONS = "petstore_connections": "Connections of clients.";
    counter CONNECTIONS_REFUSED = "petstore_connections_refused_total": "Connections of clients that found no place.";
    counter REQUESTS_SHED = "petstore_requests_shed_total":
        "Requests answered with 503 because too much was under way (reason \"requests\"), waited for the database \
        (\"queue\"), or waited too long for it (\"late\").";
    counter REQUESTS_RATE_LIMITED = "petstore_requests_rate_limited_total": "Requests answered with 429.";
    counter KEY_LOOKUPS = "petstore_key_lookups_total":
        "Keys of requests that were remembered (\"hit\"), looked up (\"miss\"), or remembered as not valid \
        (\"refused\").";
    gauge KEYS_REMEMBERED = "petstore_keys_remembered": "Keys that are remembered.";
    counter DEPRECATED_CALLS = "petstore_deprecated_calls_total":
        "Calls of operations that will be removed, by the key's id.";
    gauge POOL_CONNECTIONS = "db_client_connection_count": "Connections to the database, by state.";
    gauge POOL_MAX = "db_client_connection_max": "The most connections to the database.";
    gauge POOL_WAITING = "db_client_connection_pending_requests": "Work that waits for a connection to the database.";
    histogram STATEMENT_DURATION = "db_client_operation_duration_seconds":
        "Time that a statement took, without the wait for a connection.";
    counter DATABASE_ERRORS = "petstore_database_errors_total":
        "Statements that failed: there was no connection (\"no_connection\"), it broke (\"connection_lost\"), the \
        deadline passed (\"deadline\"), or the database said no (\"refused\").";
    gauge DATABASE_UP = "petstore_database_up": "1 if the database answered the last look, a few seconds ago, else 0.";
    gauge STANDBYS = "petstore_database_standbys": "Standbys that receive the database's changes.";
    gauge IDEMPOTENCY_DAYS = "petstore_idempotency_days_prepared":
        "Days from today on for which requests with an Idempotency-Key can be remembered.";
    histogram BATCH_SIZE = "petstore_batch_size": "Requests that shared one statement.";
    histogram BATCH_WAIT = "petstore_batch_wait_seconds":
        "Time that the first request of a batch waited for its turn.";
    gauge PETS = "petstore_pets_estimated": "Animals by status, as PostgreSQL's statistics estimate them.";
    gauge BUILD_INFO = "petstore_build_info": "1, with the version that runs.";
}

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
pub fn count(things: impl TryInto<u64>) -> f64 {
    things.try_into().unwrap_or_default() as f64
}
