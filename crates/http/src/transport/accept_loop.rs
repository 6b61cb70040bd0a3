//! The accept loop, with a timeout on each step that a client controls.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use petstore_config::TimeoutSettings;
use petstore_telemetry::with_causes;
use petstore_wire::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::client_socket::{ClientSocket, close};
use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use crate::client_presence::ClientPresence;
use crate::error::ApiError;
use crate::pipeline::{Connection, Pipeline};
use crate::request_id::{REQUEST_ID, new_request_id};

/// The read buffer for a request head. Larger than the largest allowed head, so that our own checks report heads that are
/// somewhat too large. An incomplete head costs no more memory than this.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// How long to wait after a failed accept, most likely because of too few file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` resolves; then accepts no more connections and lets requests in progress finish. Without a
/// limiter, the number of connections is not limited.
pub async fn serve(
    listener: TcpListener,
    pipeline: impl Pipeline,
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
    let (pipeline, connections) = (Arc::new(pipeline), GracefulShutdown::new());
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok((socket, peer)) => (socket, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match limiter.as_ref().map(|limiter| limiter.acquire(peer).ok_or(limiter)).transpose() {
            Ok(permit) => serve_connection(&http, &connections, &pipeline, socket, peer, permit, timeouts),
            Err(limiter) => refuse_connection(limiter, socket, timeouts),
        }
    }
    drop(listener);
    if timeout(timeouts.drain_timeout, connections.shutdown()).await.is_err() {
        tracing::warn!("requests were still in flight when the drain timeout elapsed");
    }
}

/// Starts a task that serves a connection and closes it. It holds the permit until the connection is closed.
fn serve_connection(
    http: &http1::Builder,
    connections: &GracefulShutdown,
    pipeline: &Arc<impl Pipeline>,
    socket: TcpStream,
    peer: IpAddr,
    permit: Option<ConnectionPermit>,
    timeouts: &TimeoutSettings,
) {
    let socket = Arc::new(socket);
    let client = permit.as_ref().and_then(ConnectionPermit::client_address);
    let connection = Arc::new(Connection::new(peer, client, ClientPresence::new(socket.clone())));
    let pipeline = pipeline.clone();
    let service = service_fn(move |request| {
        let (pipeline, connection) = (pipeline.clone(), connection.clone());
        // Boxed, because hyper reserves memory for an unboxed future as long as the connection lasts.
        Box::pin(async move { pipeline.handle(&connection, request).await })
    });
    // It fails only if the client is gone.
    let Ok(client_socket) = ClientSocket::new(socket.clone(), timeouts.body_timeout) else { return };
    let connection = connections.watch(http.serve_connection(TokioIo::new(client_socket), service));
    // A shutdown waits for this, too: the client may still be reading its last response.
    let closing = connections.watcher();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            let cause = with_causes(&error);
            if error.is_parse() {
                // hyper has answered it: 400 or 431, without a body.
                tracing::info!(cause, "request rejected before it was parsed");
            } else {
                tracing::debug!(cause, "client connection failed");
            }
        }
        close(&socket).await;
        drop((closing, permit));
    });
}

/// Answers 503 without reading a request, and closes the connection; without an answer if too many others are being refused.
fn refuse_connection(limiter: &ConnectionLimiter, mut socket: TcpStream, timeouts: &TimeoutSettings) {
    let Some(permit) = limiter.acquire_refusal() else { return };
    let write_timeout = timeouts.body_timeout;
    tokio::spawn(async move {
        let response = refusal();
        // A failure concerns only the client.
        if let Ok(Ok(())) = timeout(write_timeout, socket.write_all(&response)).await {
            close(&socket).await;
        }
        drop(permit);
    });
}

/// The response to a connection above the limit.
fn refusal() -> Vec<u8> {
    let error = ApiError::Unavailable { cause: String::new() };
    let (status, body, request_id) = (error.code().status(), json::render(&error.body()), new_request_id());
    let request_id = request_id.to_str().unwrap_or_default();
    tracing::info!(request_id, "connection refused: too many are open");
    let mut response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         cache-control: no-store\r\nretry-after: 1\r\n{REQUEST_ID}: {request_id}\r\nconnection: close\r\n\r\n",
        length = body.len(),
    )
    .into_bytes();
    response.extend(body);
    response
}
