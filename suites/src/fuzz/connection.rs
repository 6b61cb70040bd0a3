//! A connection that sends raw bytes and reads answers, each step with a deadline.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::response_parser::Answer;

/// How long the service may take to answer or to close. Its own timeouts are far shorter here.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

pub(super) struct RawConnection {
    pub(super) socket: TcpStream,
    /// Bytes that have arrived and are not parsed yet.
    pub(super) buffer: Vec<u8>,
}

impl RawConnection {
    pub(super) async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(16 * 1024) })
    }

    /// Sends bytes. An error shows when the answer is read.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.socket.write_all(bytes)).await;
    }

    /// The next answer, interim ones included. None if the service has closed the connection, or reset it, between answers.
    pub(super) async fn answer(&mut self, to_head: bool) -> Result<Option<Answer>, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if !self.buffer.is_empty()
                && let Some((answer, length)) = Answer::parse(&self.buffer, to_head)?
            {
                self.buffer.drain(..length);
                return Ok(Some(answer));
            }
            match timeout_at(deadline, self.socket.read_buf(&mut self.buffer)).await {
                Err(_) => {
                    return Err(format!("neither an answer nor a close within {} s", PATIENCE.as_secs()));
                }
                Ok(Ok(0) | Err(_)) if self.buffer.is_empty() => return Ok(None),
                Ok(Ok(0)) => return Err("closed in the middle of an answer".to_owned()),
                Ok(Err(error)) => return Err(format!("in the middle of an answer: {error}")),
                Ok(Ok(_)) => (),
            }
        }
    }
}
