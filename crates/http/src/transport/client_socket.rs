//! A client's socket: [`ClientSocket`] is what hyper reads and writes, and [`close`] closes it.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BufMut;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The most that one read returns. hyper doubles its buffer whenever a read fills it.
const READ_BYTES: usize = 4096;
/// How long, and for how many bytes, to keep reading from a client after the last response.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// A socket that hyper shares with [`ClientPresence`](crate::client_presence::ClientPresence) and [`close`].
pub(super) struct ClientSocket(Arc<TcpStream>);

impl ClientSocket {
    /// The kernel disconnects a client that has read nothing of what was sent for `write_timeout`, where hyper would wait
    /// indefinitely.
    pub(super) fn new(socket: Arc<TcpStream>, write_timeout: Duration) -> io::Result<Self> {
        // A response is written at once; waiting to fill a packet would only delay it.
        socket.set_nodelay(true)?;
        SockRef::from(&*socket).set_tcp_user_timeout(Some(write_timeout))?;
        Ok(Self(socket))
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = || self.0.try_read_buf(&mut (&mut *buf).limit(READ_BYTES));
        retry_if_blocked(|| self.0.poll_read_ready(cx), read).map_ok(drop)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        retry_if_blocked(|| self.0.poll_write_ready(cx), || self.0.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        retry_if_blocked(|| self.0.poll_write_ready(cx), || self.0.try_write_vectored(buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The kernel has everything that was written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

/// Tries an operation as often as the socket is said to be ready for it.
fn retry_if_blocked(
    mut poll_ready: impl FnMut() -> Poll<io::Result<()>>,
    mut attempt: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(poll_ready())?;
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

/// Closes a connection so that the client can read its last response: stops sending, and discards what still arrives for a
/// while. Closing at once, while the client is sending, would reset the connection, and the client might never read why it was
/// refused.
pub(super) async fn close(socket: &TcpStream) {
    // It fails if the client is gone. After a declined upgrade, hyper has not done it.
    if SockRef::from(socket).shutdown(Shutdown::Write).is_ok() {
        let _ = timeout(LINGER, discard(socket)).await;
    }
}

async fn discard(socket: &TcpStream) -> io::Result<()> {
    let mut bytes_left = LINGER_BYTES;
    while bytes_left > 0 {
        socket.readable().await?;
        // Not across the await, where it would be part of every connection's memory.
        match socket.try_read(&mut [0; READ_BYTES]) {
            Ok(0) => break,
            Ok(read) => bytes_left = bytes_left.saturating_sub(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
