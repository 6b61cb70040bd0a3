//! Hearing of changed keys at once, by PostgreSQL's notifications, and knowing when one might not hear.
//!
//! The schema tells a channel which key was changed, whoever did it. Notifications arrive in the order of their
//! commits, so a word that a node sends to itself, from another connection, proves when it comes back that nothing
//! sent before it was missed: not because the connection is broken, and not because a pooler between this node and
//! the database has no notifications.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{AsyncMessage, Notification};

use super::postgres::connect::{CONNECT_TIMEOUT, ConnectError};
use super::{Storage, StorageError};
use crate::domain::api_key::KeyDigest;

/// What the trigger on keys notifies.
const CHANGES: &str = "petstore_api_keys";
/// How often a node makes sure that it hears.
const BEAT: Duration = Duration::from_secs(1);
/// How long its own word may take to come back.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sends a word to a channel.
const TELL: &str = "SELECT pg_notify($1, '')";

/// What there is to know about changes of keys.
#[derive(Debug)]
pub enum KeyNotification {
    /// From now on, changes are heard.
    Subscribed,
    /// This key was changed, and must be looked up again.
    Changed(KeyDigest),
    /// All changes made before this moment have been heard.
    NotifiedUpTo(Instant),
    /// Changes are not heard any more.
    Lost(ListenError),
}

/// Why changes are not heard.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The connection cannot be opened, or broke.
    #[error("the connection that hears of changed keys failed")]
    Connection(#[from] tokio_postgres::Error),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection ended.
    #[error("the connection that hears of changed keys ended")]
    Ended,
    /// The node's own word cannot be sent.
    #[error("a notification could not be sent")]
    Tell(#[from] StorageError),
    /// It did not come back.
    #[error("a notification did not arrive in time")]
    Silence,
}

impl Storage {
    /// Tells of changed keys, for ever. `tell` must not take long.
    pub async fn listen_for_key_changes(&self, tell: impl Fn(KeyNotification) + Send + Sync + 'static) {
        let tell = Arc::new(tell);
        loop {
            let Err(lost) = self.follow(tell.clone()).await;
            tell(KeyNotification::Lost(lost));
            sleep(BEAT).await;
        }
    }

    async fn follow<F>(&self, tell: Arc<F>) -> Result<std::convert::Infallible, ListenError>
    where
        F: Fn(KeyNotification) + Send + Sync + 'static,
    {
        let connecting = timeout(CONNECT_TIMEOUT, Box::pin(self.database.connector.open_listening()));
        let (client, messages) = connecting.await.map_err(|_| ListenError::Silence)??;
        let (echo, mut echoes) = mpsc::channel(1);
        // Ends when the client is dropped. Changes are told from here, so that nothing delays them.
        let hearing = tell.clone();
        tokio::spawn(async move {
            let mut messages = pin!(messages);
            while let Some(Ok(message)) = messages.next().await {
                match message {
                    AsyncMessage::Notification(note) if note.channel() == CHANGES => hear(&note, &*hearing),
                    // A word too many is no news.
                    AsyncMessage::Notification(_) => drop(echo.try_send(())),
                    _ => {}
                }
            }
        });
        let row = timeout(PATIENCE, async {
            let row = client.query_one("SELECT 'petstore_node_' || pg_backend_pid()", &[]).await?;
            let own: String = row.try_get(0)?;
            client.batch_execute(&format!("LISTEN {CHANGES}; LISTEN {own}")).await?;
            Ok::<_, tokio_postgres::Error>(own)
        });
        let own = row.await.map_err(|_| ListenError::Silence)??;
        tell(KeyNotification::Subscribed);
        loop {
            let asked = Instant::now();
            let answered = timeout(PATIENCE, async {
                self.database.write(TELL, &[&own], |_| Ok(())).await?;
                echoes.recv().await.ok_or(ListenError::Ended)
            });
            answered.await.map_err(|_| ListenError::Silence)??;
            tell(KeyNotification::NotifiedUpTo(asked));
            // Until the next beat only the end of the connection is of interest.
            if let Ok(None) = timeout_at(asked + BEAT, echoes.recv()).await {
                return Err(ListenError::Ended);
            }
        }
    }
}

fn hear(note: &Notification, tell: &impl Fn(KeyNotification)) {
    if let Some(digest) = KeyDigest::from_hex(note.payload()) {
        tell(KeyNotification::Changed(digest));
    } else {
        tracing::warn!("a notification about a key names none");
    }
}
