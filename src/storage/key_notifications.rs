//! Receives PostgreSQL's notifications of changed keys, and detects when they no longer arrive.
//!
//! A trigger notifies a channel of every changed key. Notifications arrive in commit order. So a node regularly sends a
//! heartbeat notification to itself on another connection: when it arrives, no earlier notification was missed, neither
//! because of a broken connection nor because a connection pooler in between does not support notifications.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::AsyncMessage;

use super::postgres::connect::CONNECT_TIMEOUT;
use super::{Storage, StorageError};
use crate::domain::api_key::KeyDigest;

/// The channel that the trigger notifies.
const CHANGES: &str = "petstore_api_keys";
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a heartbeat may take to arrive.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

const SEND_HEARTBEAT: &str = "SELECT pg_notify($1, '')";
/// The node's own channel, named after the backend of its listening connection.
const OWN_CHANNEL: &str = "SELECT 'petstore_node_' || pg_backend_pid() AS channel";

/// An event of the subscription to key changes.
#[derive(Debug)]
pub enum KeyNotification {
    /// From now on, changes are received.
    Subscribed,
    /// This key was changed, and must be looked up again.
    Changed(KeyDigest),
    /// All changes before this moment have been received.
    NotifiedUpTo(Instant),
    /// Changes are no longer received.
    Lost(ListenError),
}

/// Why changes are not received.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A statement on the listening connection failed.
    #[error("listening connection failed")]
    Connection(#[from] tokio_postgres::Error),
    /// The connection was closed.
    #[error("listening connection closed")]
    Closed,
    /// The connection could not be opened, or the heartbeat could not be sent.
    #[error("cannot listen")]
    Storage(#[from] StorageError),
    /// The server of the listening connection is not confirmed to be the primary.
    #[error("server of the listening connection is not the primary any more")]
    NotPrimary,
    /// The connection, or the heartbeat, took too long.
    #[error("listening connection timed out")]
    Timeout,
}

impl Storage {
    /// Subscribes to key changes, and subscribes again whenever the connection is lost. `notify` must not block.
    pub async fn listen_for_key_changes(&self, notify: impl Fn(KeyNotification) + Send + Sync + 'static) {
        let notify = Arc::new(notify);
        loop {
            let Err(error) = self.listen_until_lost(notify.clone()).await;
            notify(KeyNotification::Lost(error));
            sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    async fn listen_until_lost<F>(&self, notify: Arc<F>) -> Result<Infallible, ListenError>
    where
        F: Fn(KeyNotification) + Send + Sync + 'static,
    {
        let connecting = timeout(CONNECT_TIMEOUT, Box::pin(self.database.listen()));
        let (server, client, messages) = connecting.await.map_err(|_| ListenError::Timeout)??;
        let (heartbeat, mut heartbeats) = mpsc::channel(1);
        // Ends when the client is dropped. It also passes on the changes, so that the heartbeat does not delay them.
        let on_change = notify.clone();
        tokio::spawn(async move {
            let mut messages = pin!(messages);
            while let Some(Ok(message)) = messages.next().await {
                match message {
                    AsyncMessage::Notification(change) if change.channel() == CHANGES => {
                        if let Some(digest) = KeyDigest::from_hex(change.payload()) {
                            on_change(KeyNotification::Changed(digest));
                        } else {
                            tracing::warn!("notification of a key change has no valid digest");
                        }
                    }
                    // Dropped if the last heartbeat is still unread: one is enough.
                    AsyncMessage::Notification(_) => drop(heartbeat.try_send(())),
                    _ => {}
                }
            }
        });
        let listening = timeout(HEARTBEAT_TIMEOUT, async {
            let channel: String = client.query_one(OWN_CHANNEL, &[]).await?.try_get("channel")?;
            client.batch_execute(&format!("LISTEN {CHANGES}; LISTEN {channel}")).await?;
            Ok::<_, tokio_postgres::Error>(channel)
        });
        let channel = listening.await.map_err(|_| ListenError::Timeout)??;
        notify(KeyNotification::Subscribed);
        loop {
            let sent = Instant::now();
            let received = timeout(HEARTBEAT_TIMEOUT, async {
                self.database.write(SEND_HEARTBEAT, &[&channel], |_| Ok(())).await?;
                heartbeats.recv().await.ok_or(ListenError::Closed)
            });
            received.await.map_err(|_| ListenError::Timeout)??;
            // A former primary that lives on still delivers heartbeats, but no longer the changes.
            if !self.database.is_still_primary(server).await {
                return Err(ListenError::NotPrimary);
            }
            notify(KeyNotification::NotifiedUpTo(sent));
            // Until the next heartbeat, only the end of the connection matters.
            if let Ok(None) = timeout_at(sent + HEARTBEAT_INTERVAL, heartbeats.recv()).await {
                return Err(ListenError::Closed);
            }
        }
    }
}
