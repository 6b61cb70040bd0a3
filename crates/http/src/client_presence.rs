//! Notices when a client closes its side of a connection. hyper does not look while it waits for a handler, because a client
//! that has closed its sending side may still want the response.

use std::future::pending;
use std::sync::Arc;

use tokio::net::TcpStream;

/// Whether a client is still there.
pub(crate) struct ClientPresence(Arc<TcpStream>);

impl ClientPresence {
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self(socket)
    }

    /// Waits until the client has closed its side: it may be gone, or only have nothing more to send. Waits indefinitely if
    /// the client has already sent another request.
    pub(crate) async fn closed(&self) {
        if let Ok(1..) = self.0.peek(&mut [0]).await {
            pending::<()>().await;
        }
    }
}
