//! A connection that sends raw bytes and reads answers, each step with a deadline.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::answer::{Answer, Parsed};

/// How long the service may take to answer or to close. Its own timeouts are far shorter here.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The service closed the connection, or reset it.
    Closed,
    /// The same in the middle of an answer: how many bytes had arrived, and how it ended.
    CutOff(usize, String),
    /// Neither an answer nor a close before the deadline.
    Hang,
    /// Bytes that are not an answer.
    Broken(String),
}

pub(super) struct Wire {
    pub(super) socket: TcpStream,
    /// Bytes that have arrived and are not parsed yet.
    pub(super) buffer: Vec<u8>,
    /// When the last answer arrived: the service closes idle connections.
    pub(super) used: Instant,
}

impl Wire {
    pub(super) async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(16 * 1024), used: Instant::now() })
    }

    /// Sends bytes. An error shows when the answer is read.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.socket.write_all(bytes)).await;
    }

    /// The next answer, interim ones included.
    pub(super) async fn answer(&mut self, to_head: bool) -> Result<Answer, NoAnswer> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if !self.buffer.is_empty() {
                match Answer::parse(&self.buffer, to_head) {
                    Parsed::Incomplete => (),
                    Parsed::Broken(problem) => return Err(NoAnswer::Broken(problem)),
                    Parsed::Whole(answer, length) => {
                        self.buffer.drain(..length);
                        self.used = Instant::now();
                        return Ok(answer);
                    }
                }
            }
            match tokio::time::timeout_at(deadline, self.socket.read_buf(&mut self.buffer)).await {
                Err(_) => return Err(NoAnswer::Hang),
                Ok(Ok(0) | Err(_)) if self.buffer.is_empty() => return Err(NoAnswer::Closed),
                Ok(Ok(0)) => return Err(NoAnswer::CutOff(self.buffer.len(), "closed".to_owned())),
                Ok(Err(error)) => return Err(NoAnswer::CutOff(self.buffer.len(), error.to_string())),
                Ok(Ok(_)) => (),
            }
        }
    }

    /// Waits for the close of a connection. No more answers may arrive.
    pub(super) async fn end(&mut self) -> Result<(), NoAnswer> {
        match self.answer(false).await {
            Err(NoAnswer::Closed) => Ok(()),
            Ok(_) => Err(NoAnswer::Broken("an answer after the last".to_owned())),
            Err(error) => Err(error),
        }
    }
}

impl NoAnswer {
    pub(super) fn problem(&self) -> String {
        match self {
            Self::Closed => "closed without an answer".to_owned(),
            Self::CutOff(bytes, how) => format!("in the middle of an answer, after {bytes} bytes: {how}"),
            Self::Hang => format!("neither an answer nor a close within {} s", PATIENCE.as_secs()),
            Self::Broken(problem) => problem.clone(),
        }
    }
}
