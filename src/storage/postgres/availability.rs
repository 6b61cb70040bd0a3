//! Whether the database can be used, for the log: one line when it is lost and one when it is back, however many requests
//! fail in between.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// Cheap to clone.
#[derive(Clone)]
pub(in crate::storage) struct Availability(Arc<watch::Sender<State>>);

#[derive(Clone)]
enum State {
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
    pub(in crate::storage) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::Available { server: None })))
    }

    /// The database cannot be used. The first cause is kept.
    pub(super) fn lost(&self, server: &str, cause: impl FnOnce() -> String) {
        self.0.send_if_modified(|state| {
            let is_news = matches!(state, State::Available { .. });
            if is_news {
                *state = State::Lost { server: server.to_owned(), cause: cause(), since: Instant::now() };
            }
            is_news
        });
    }

    /// The database can be used.
    pub(super) fn found(&self, server: &str) {
        self.0.send_if_modified(|state| {
            let is_news = matches!(state, State::Lost { .. });
            if is_news {
                *state = State::Available { server: Some(server.to_owned()) };
            }
            is_news
        });
    }

    /// Logs each change, indefinitely.
    pub(in crate::storage) async fn log(&self) {
        let mut changes = self.0.subscribe();
        let mut lost_since = None;
        loop {
            match (&*changes.borrow_and_update(), lost_since) {
                (State::Lost { server, cause, since }, None) => {
                    tracing::error!(server, cause, "database unavailable: answering 503 until it is back");
                    lost_since = Some(*since);
                }
                (State::Available { server }, Some(since)) => {
                    let seconds = (since.elapsed().as_secs_f64() * 10.0).round() / 10.0;
                    tracing::info!(server, seconds, "database back");
                    lost_since = None;
                }
                (State::Lost { .. }, Some(_)) | (State::Available { .. }, None) => {}
            }
            // The sender lives as long as this future.
            let _ = changes.changed().await;
        }
    }
}
