//! The composition root: from settings to a running service.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{self, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use metrics::counter;
use petstore_config::ServeSettings;
use petstore_http::{
    AppState, Clock, ConnectionLimiter, Pipeline, admin_pipeline, interface_document, serve,
};
use petstore_storage::{DatabaseUrlError, Storage, StorageError};
use petstore_telemetry::metrics::BACKGROUND_PANICS;
use petstore_telemetry::with_causes;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio::{join, select};

use crate::systemd::{self, Listeners};

/// Why the service did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The database URL is not valid.
    #[error(transparent)]
    DatabaseUrl(#[from] DatabaseUrlError),
    /// The database is reachable, but unusable: its schema is too old, for example.
    #[error(transparent)]
    Database(StorageError),
    /// An address to listen on is in use or not available.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A socket passed by systemd cannot be used.
    #[error("cannot listen on the socket that was passed")]
    Inherited(#[source] io::Error),
}

/// A service that listens. [`run`](Self::run) serves requests.
pub struct App {
    settings: ServeSettings,
    storage: Storage,
    state: Arc<AppState>,
    public: TcpListener,
    admin: TcpListener,
}

impl App {
    /// Checks the database, creates missing partitions and listens, on the sockets that were passed or else on the configured
    /// addresses. An unavailable database does not prevent the start: requests get 503 until it is back. An outdated schema
    /// does.
    pub async fn start(
        settings: ServeSettings,
        listeners: Listeners,
        clock: Clock,
    ) -> Result<Self, StartError> {
        if !settings.without_metrics {
            petstore_telemetry::metrics::metrics();
        }
        let storage = Storage::new(&settings.database.url(), &settings.pool)?;
        let document = interface_document(&settings.interface);
        let state = AppState::new(storage.clone(), clock, document, &settings);
        match state.check_database().await {
            Ok(()) => {}
            Err(error @ StorageError::Unavailable(_)) => systemd::waiting(&with_causes(&error)),
            Err(error) => return Err(StartError::Database(error)),
        }
        let public = listen(listeners.public, settings.listen).await?;
        let admin = listen(listeners.admin, settings.admin_listen).await?;
        Ok(Self { settings, storage, state: Arc::new(state), public, admin })
    }

    /// The address of the public listener, with the port that the system chose if it was set to 0.
    pub fn public_address(&self) -> io::Result<SocketAddr> {
        self.public.local_addr()
    }

    /// The address of the private listener, for health and metrics.
    pub fn admin_address(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until `shutdown` resolves. Then it fails its readiness check, serves on for the drain delay so that load
    /// balancers notice, accepts no more connections, and finishes the requests in flight.
    pub async fn run<P: Pipeline>(
        self,
        pipeline: impl FnOnce(Arc<AppState>, &ServeSettings) -> P,
        shutdown: impl Future<Output = ()>,
    ) {
        if let (Ok(public), Ok(admin)) = (self.public_address(), self.admin_address()) {
            tracing::info!(%public, %admin, "listening");
        }
        let timeouts = &self.settings.timeouts;
        let limits = &self.settings.limits;
        let pipeline = pipeline(self.state.clone(), &self.settings);
        let (stop, stopped) = watch::channel(false);
        let until_stopped = |mut stopped: watch::Receiver<bool>| async move {
            // An error means that the sender is gone: stop as well.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let admin = admin_pipeline(self.state.clone());
        let event_retention = Duration::from_hours(24) * self.settings.shop.event_retention;
        let serving = async {
            join!(
                async {
                    shutdown.await;
                    tracing::info!("stopping: draining requests in flight");
                    systemd::stopping();
                    self.state.prepare_to_stop();
                    sleep(timeouts.drain_delay).await;
                    self.state.end_waits();
                    stop.send_replace(true);
                },
                serve(
                    self.public,
                    pipeline,
                    timeouts,
                    Some(ConnectionLimiter::new(limits)),
                    until_stopped(stopped.clone())
                ),
                serve(self.admin, admin, timeouts, None, until_stopped(stopped)),
            );
        };
        let background = async {
            join!(
                restarted("report_startup", || report_when_started(&self.state)),
                restarted("maintain_keys", || self.state.maintain_keys()),
                restarted("create_partitions", || create_partitions(&self.storage)),
                restarted("drop_partitions", || drop_partitions(&self.storage, event_retention)),
                restarted("expire_orders", || expire_orders(&self.storage)),
                restarted("watch_events", || self.storage.watch_events()),
                restarted("notify_watchdog", systemd::notify_watchdog),
                restarted("watch_servers", || self.storage.watch_servers()),
                restarted("log_availability", || self.storage.log_availability()),
                restarted("log_failures", || self.state.log_failures()),
                restarted("poll_database_metrics", || self.storage.poll_database_metrics()),
                restarted("metrics_upkeep", petstore_telemetry::metrics::run_upkeep),
            )
        };
        select! {
            () = serving => {}
            (never, ..) = background => match never {},
        }
        self.state.flush_last_used().await;
        tracing::info!("stopped");
    }
}

/// How long a background task that panicked pauses.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs a background task, which never ends. If it panics, which is a bug, it is started again: the service keeps answering
/// requests.
async fn restarted<F: Future<Output = Infallible>>(task: &'static str, start: impl Fn() -> F) -> Infallible {
    // A counter that first appears with value 1 hides its first panic from `rate()`.
    let panics = counter!(BACKGROUND_PANICS, "task" => task);
    panics.increment(0);
    loop {
        let Err(_) = AssertUnwindSafe(start()).catch_unwind().await;
        panics.increment(1);
        tracing::error!(task, "a background task panicked, which is a bug: restarting it");
        sleep(RESTART_PAUSE).await;
    }
}

/// Reports readiness to systemd, once.
async fn report_when_started(state: &AppState) -> Infallible {
    state.started().await;
    systemd::ready();
    pending().await
}

/// How often orders that are due are looked for, and the back-off after a failed attempt.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
const EXPIRY_BACKOFF: Duration = Duration::from_secs(10);

/// Ends orders that were not completed in time.
async fn expire_orders(storage: &Storage) -> Infallible {
    loop {
        let pause = match storage.expire_orders().await {
            // Without a partition, one is being created.
            Ok(()) | Err(StorageError::NoPartition(_)) => EXPIRY_INTERVAL,
            Err(error) => {
                let cause = with_causes(&error);
                tracing::warn!(cause, "could not expire overdue orders: retrying in 10 s");
                EXPIRY_BACKOFF
            }
        };
        sleep(pause).await;
    }
}

/// How often partitions are created, and how often they are dropped.
const PARTITION_INTERVAL: Duration = Duration::from_hours(1);
/// The back-off after a failed attempt to create them, and to drop them: requests may have to wait for an attempt to drop.
const CREATE_BACKOFF: Duration = Duration::from_secs(10);
const DROP_BACKOFF: Duration = Duration::from_mins(1);
/// The minimum time between two attempts to create them, however many requests find none.
const MIN_CREATE_INTERVAL: Duration = Duration::from_secs(1);

/// Creates the partitions for idempotency keys and events: every hour, and immediately when a request finds none.
async fn create_partitions(storage: &Storage) -> Infallible {
    loop {
        let pause = match storage.create_partitions().await {
            Ok(()) => PARTITION_INTERVAL,
            Err(error) => {
                let cause = with_causes(&error);
                tracing::warn!(cause, "could not create partitions: retrying in 10 s");
                CREATE_BACKOFF
            }
        };
        sleep(MIN_CREATE_INTERVAL).await;
        // Woken or timed out: the next attempt is due.
        let _ = timeout(pause, storage.partition_missing()).await;
    }
}

/// Drops the partitions of expired idempotency keys and events.
async fn drop_partitions(storage: &Storage, event_retention: Duration) -> Infallible {
    loop {
        let pause = match storage.drop_partitions(event_retention).await {
            Ok(()) => PARTITION_INTERVAL,
            Err(error) => {
                let cause = with_causes(&error);
                tracing::warn!(cause, "could not drop old partitions: retrying in 60 s");
                DROP_BACKOFF
            }
        };
        sleep(pause).await;
    }
}

async fn listen(passed: Option<net::TcpListener>, address: SocketAddr) -> Result<TcpListener, StartError> {
    if let Some(socket) = passed {
        let socket = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return socket.map_err(StartError::Inherited);
    }
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_background_task_that_panics_is_started_again() {
        let starts = AtomicU32::new(0);
        let task = restarted("test", async || {
            let start = starts.fetch_add(1, Ordering::Relaxed);
            assert!(start == 2, "panic number {start}");
            pending().await
        });
        timeout(3 * RESTART_PAUSE, task).await.unwrap_err();
        assert_eq!(starts.into_inner(), 3);
    }
}
