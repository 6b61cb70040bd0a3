//! The accept loop, with a timeout on each step that a client controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use petstore_config::TimeoutSettings;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::client_io::ClientIo;
use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use crate::client_presence::ClientPresence;
use crate::pipeline::RequestPipeline;

/// The read buffer for a request head. Larger than the largest allowed head, so that our own checks report most heads that
/// are too large. An incomplete head costs no more memory than this.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// How long to wait after a failed accept, most likely because of too few file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` resolves; then accepts no more connections and lets requests in progress finish. Without a
/// limiter, the number of connections is not limited.
pub async fn serve(
    listener: TcpListener,
    pipeline: RequestPipeline,
    timeouts: &TimeoutSettings,
    limiter: Option<Arc<ConnectionLimiter>>,
    shutdown: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        // From when the connection waits for the head, so an idle connection is closed after this time, too.
        .header_read_timeout(timeouts.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        // A client may shut down its sending side and still wait for the response.
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
                        refuse_connection(limiter, socket, timeouts);
                        continue;
                    }
                };
                // A response is written at once; waiting to fill a packet would only delay it.
                let _ = socket.set_nodelay(true);
                let socket = Arc::new(socket);
                let client = permit.as_ref().and_then(ConnectionPermit::client_address);
                let presence = ClientPresence::new(socket.clone());
                let pipeline = Arc::new(pipeline.connection(peer.ip(), client, presence));
                let is_handling = Arc::new(AtomicBool::new(false));
                let socket = ClientIo::new(socket, is_handling.clone(), timeouts.body_timeout, permit);
                let service = service_fn(move |request| {
                    let (pipeline, is_handling) = (pipeline.clone(), is_handling.clone());
                    is_handling.store(true, Ordering::Relaxed);
                    // Boxed, because hyper reserves memory for an unboxed future as long as the connection lasts.
                    Box::pin(async move {
                        let response = pipeline.handle(request).await;
                        is_handling.store(false, Ordering::Relaxed);
                        response
                    })
                });
                let connection = connections.watch(http.serve_connection(socket, service));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "client connection failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if timeout(timeouts.drain_timeout, connections.shutdown()).await.is_err() {
        tracing::warn!("requests were still in flight when the drain timeout elapsed");
    }
}

/// Answers 503 and closes the connection; without an answer if too many others are being refused.
fn refuse_connection(limiter: &ConnectionLimiter, socket: TcpStream, timeouts: &TimeoutSettings) {
    let Some(permit) = limiter.acquire_refusal() else { return };
    let client = ClientIo::new(Arc::new(socket), Arc::default(), timeouts.body_timeout, None);
    tokio::spawn(async move {
        client.refuse().await;
        drop(permit);
    });
}
