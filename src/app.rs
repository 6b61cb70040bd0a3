//! The composition root: from settings to a running service.

use std::io;
use std::net::{self, SocketAddr};
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio::{join, select};

use crate::config::ServeSettings;
use crate::http::{AppState, Clock, ConnectionLimiter, admin_routes, public_routes, serve};
use crate::storage::{DatabaseUrlError, Storage, StorageError};
use crate::systemd::{self, Listeners};
use crate::telemetry;

/// Why the service did not start.
#[derive(Debug, Error)]
pub enum AppError {
    /// The database's address cannot be used.
    #[error(transparent)]
    DatabaseUrl(#[from] DatabaseUrlError),
    /// The database is there, but not fit.
    #[error(transparent)]
    Database(StorageError),
    /// An address to listen on is taken, or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A socket that was passed cannot be used.
    #[error("cannot listen on a socket that was passed")]
    Inherited(#[source] io::Error),
}

/// A service that listens, and serves once it runs.
pub struct App {
    settings: ServeSettings,
    storage: Storage,
    state: AppState,
    public: TcpListener,
    admin: TcpListener,
}

impl App {
    /// Listens, on sockets that were passed or else as the settings say, and looks at the database. A database that is
    /// away is no reason not to start: requests get 503 until it is back. One with too old a schema is.
    pub async fn start(
        settings: ServeSettings,
        listeners: Listeners,
        clock: Clock,
    ) -> Result<Self, AppError> {
        if !settings.without_metrics {
            telemetry::metrics::metrics();
        }
        let storage = Storage::new(&settings.database.database_url, &settings.pool)?;
        match storage.check().await {
            Ok(()) => {}
            Err(away @ StorageError::Unavailable(_)) => {
                let cause = telemetry::with_causes(&away);
                tracing::warn!(cause, "answering 503 until the database is available");
            }
            Err(unfit) => return Err(AppError::Database(unfit)),
        }
        let public = listen(listeners.public, settings.listen).await?;
        let admin = listen(listeners.admin, settings.admin_listen).await?;
        let state =
            AppState::new(storage.clone(), clock, &settings.interface, &settings.timeouts, &settings.limits);
        Ok(Self { settings, storage, state, public, admin })
    }

    /// Where the service listens: the port is the system's choice if 0 was asked for.
    pub fn public_address(&self) -> io::Result<SocketAddr> {
        self.public.local_addr()
    }

    /// Where health and metrics are.
    pub fn admin_address(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until `shutdown` resolves; then says that it is not ready, goes on until balancers can have heard of it,
    /// takes no more connections and answers the requests under way.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        if let (Ok(public), Ok(admin)) = (self.public_address(), self.admin_address()) {
            tracing::info!(%public, %admin, "listening");
        }
        systemd::ready();
        let timeouts = &self.settings.timeouts;
        let limits = &self.settings.limits;
        let pipeline = public_routes(self.state.clone(), &self.settings.interface);
        let (stop, stopped) = watch::channel(false);
        let until_stopped = |mut stopped: watch::Receiver<bool>| async move {
            // An error means that the sender is gone, which is as good a reason to stop.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let admin = admin_routes(self.state.clone());
        let serving = async {
            join!(
                async {
                    shutdown.await;
                    tracing::info!("stopping: requests under way are finished first");
                    systemd::stopping();
                    self.state.prepare_to_stop();
                    sleep(timeouts.drain_delay).await;
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
        select! {
            () = serving => {}
            () = self.state.maintain_keys() => {}
            () = create_idempotency_partitions(&self.storage) => {}
            () = drop_idempotency_partitions(&self.storage) => {}
            () = systemd::notify_watchdog() => {}
            () = self.storage.poll_database_metrics() => {}
            () = telemetry::metrics::look_after() => {}
        }
        self.state.flush_last_used().await;
        tracing::info!("stopped");
    }
}

/// How often partitions are created and dropped.
const PARTITION_INTERVAL: Duration = Duration::from_hours(1);
/// The pause after creating them failed, and after dropping them did: requests may have to wait for an attempt to drop.
const CREATE_PAUSE: Duration = Duration::from_secs(10);
const DROP_PAUSE: Duration = Duration::from_mins(1);
/// The shortest time between two attempts to create them, however many requests are refused for want of one.
const CREATE_GAP: Duration = Duration::from_secs(1);

/// Creates the partitions that requests are remembered in: every hour, and at once when a request finds none.
async fn create_idempotency_partitions(storage: &Storage) {
    loop {
        let pause = match storage.create_idempotency_partitions().await {
            Ok(()) => PARTITION_INTERVAL,
            Err(error) => {
                let cause = telemetry::with_causes(&error);
                tracing::warn!(cause, "could not create idempotency partitions: trying again in 10 s");
                CREATE_PAUSE
            }
        };
        sleep(CREATE_GAP).await;
        // Whether it was woken or the time has passed: the next attempt is due.
        let _ = timeout(pause, storage.idempotency_partition_missing()).await;
    }
}

/// Drops the partitions of days that are not needed any more.
async fn drop_idempotency_partitions(storage: &Storage) {
    loop {
        let pause = match storage.drop_idempotency_partitions().await {
            Ok(()) => PARTITION_INTERVAL,
            Err(error) => {
                let cause = telemetry::with_causes(&error);
                tracing::warn!(cause, "could not drop old idempotency partitions: trying again in 60 s");
                DROP_PAUSE
            }
        };
        sleep(pause).await;
    }
}

async fn listen(passed: Option<net::TcpListener>, address: SocketAddr) -> Result<TcpListener, AppError> {
    if let Some(socket) = passed {
        let socket = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return socket.map_err(AppError::Inherited);
    }
    TcpListener::bind(address).await.map_err(|source| AppError::Listen { address, source })
}
