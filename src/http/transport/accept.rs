//! The accept loop: from a listening socket to requests, with a deadline on each step that a client controls.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::client_io::ClientIo;
use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use crate::config::TimeoutSettings;
use crate::http::pipeline::Pipeline;

/// Room for the largest head that is allowed, and some more, so that most heads that are too large are answered as such
/// by our own checks. A half-sent head costs no more memory than this.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// How long to wait when no connection can be accepted, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` resolves; then accepts no more connections and lets requests in progress finish. A limiter
/// bounds the connections; without one, they are not bounded.
pub async fn serve(
    listener: TcpListener,
    pipeline: Pipeline,
    timeouts: &TimeoutSettings,
    limiter: Option<Arc<ConnectionLimiter>>,
    shutdown: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(timeouts.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        // A client may have nothing more to send, and still wait for its answer.
        .half_close(true);
    let connections = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                let permit =
                    limiter.as_ref().map(|limiter| limiter.acquire(peer.ip()).ok_or(limiter)).transpose();
                let permit = match permit {
                    Ok(permit) => permit,
                    Err(limiter) => {
                        refuse_connection(limiter, socket, timeouts.body_timeout);
                        continue;
                    }
                };
                // An answer is written whole; waiting to fill a packet would only delay it.
                let _ = socket.set_nodelay(true);
                let client = permit.as_ref().and_then(ConnectionPermit::client);
                let pipeline = pipeline.clone();
                let service = service_fn(move |request| {
                    let pipeline = pipeline.clone();
                    // In a box of its own, which is gone with the answer: hyper keeps room for it as long as the
                    // connection lasts.
                    Box::pin(async move { Ok::<_, Infallible>(pipeline.answer(request, client).await) })
                });
                let socket = ClientIo::new(socket, timeouts.body_timeout, permit);
                let connection = connections.watch(http.serve_connection(socket, service));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a client's connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if timeout(timeouts.drain_timeout, connections.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way when the time to finish them was over");
    }
}

/// Tells a client that its connection is refused, if not too many are told so already.
fn refuse_connection(limiter: &ConnectionLimiter, socket: TcpStream, patience: Duration) {
    let Some(permit) = limiter.refuse() else { return };
    tokio::spawn(async move {
        ClientIo::new(socket, patience, None).refuse().await;
        drop(permit);
    });
}
