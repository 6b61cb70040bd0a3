//! Whether the database can be used, for the log: one line when it is lost and one when it is back, however many requests
//! fail in between.

use std::convert::Infallible;
use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

const PATIENCE: Duration = Duration::from_millis(200);

/// Cheap to clone.
#[derive(Clone)]
pub struct AvailabilityLog(Arc<watch::Sender<Availability>>);

#[derive(Clone)]
enum Availability {
    Available {
        /// The server that was found.
        server: Option<String>,
    },
    Lost {
        server: String,
        cause: String,
        since: Instant,
    },
}

impl Availability {
    fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    fn is_available(&self) -> bool {
        !self.is_lost()
    }
}

impl Default for AvailabilityLog {
    /// Nothing is known yet.
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Availability::Available { server: None })))
    }
}

impl AvailabilityLog {
    /// The database cannot be used. The first cause is kept.
    pub(super) fn lost(&self, server: &str, cause: impl FnOnce() -> String) {
        self.0.send_if_modified(|state| {
            let is_news = matches!(state, Availability::Available { .. });
            if is_news {
                *state =
                    Availability::Lost { server: server.to_owned(), cause: cause(), since: Instant::now() };
            }
            is_news
        });
    }

    /// The database can be used.
    pub(super) fn found(&self, server: &str) {
        self.0.send_if_modified(|state| {
            let is_news = matches!(state, Availability::Lost { .. });
            if is_news {
                *state = Availability::Available { server: Some(server.to_owned()) };
            }
            is_news
        });
    }

    /// A connection that was open already can be used: the database was not lost, although no other could be opened.
    pub(super) fn answered(&self) {
        // First without the lock for changes: this is called after each statement.
        let is_lost = self.0.borrow().is_lost();
        if is_lost {
            self.0.send_if_modified(|state| {
                let Availability::Lost { server, .. } = state else { return false };
                *state = Availability::Available { server: Some(mem::take(server)) };
                true
            });
        }
    }

    /// Logs each change, indefinitely. A database that answers again within [`PATIENCE`] was not lost: it had no room for
    /// one more connection, perhaps.
    pub async fn log(&self) -> Infallible {
        let mut changes = self.0.subscribe();
        // A receiver fails only without its sender, which lives as long as this future.
        loop {
            let Ok(lost) = changes.wait_for(Availability::is_lost).await.map(|state| state.clone()) else {
                return pending().await;
            };
            if timeout(PATIENCE, changes.wait_for(Availability::is_available)).await.is_ok() {
                continue;
            }
            let Availability::Lost { server, cause, since } = lost else { continue };
            tracing::error!(server, cause, "database unavailable: answering 503 until it is back");
            let Ok(state) = changes.wait_for(Availability::is_available).await.map(|state| state.clone())
            else {
                return pending().await;
            };
            if let Availability::Available { server } = state {
                let seconds = (since.elapsed().as_secs_f64() * 10.0).round() / 10.0;
                tracing::info!(server, seconds, "database back");
            }
        }
    }
}
