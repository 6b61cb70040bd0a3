//! A client's connection: sends any bytes and reads answers, each step with a deadline.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::answer::{Answer, Parsed};

/// How long the service may take to answer or to close. Its own limits are far shorter here.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The service closed the connection, or reset it.
    Closed,
    /// The same in the middle of an answer: how much had arrived, and how it ended.
    CutOff(usize, String),
    /// Neither an answer nor a close in time.
    Hang,
    /// Bytes that are not an answer.
    Broken(String),
}

pub(super) struct Wire {
    pub(super) socket: TcpStream,
    /// What has arrived and is not yet read as an answer.
    pub(super) buffer: Vec<u8>,
    /// When the last answer arrived: an idle connection is closed after a while.
    pub(super) used: Instant,
}

impl Wire {
    pub(super) async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(16 * 1024), used: Instant::now() })
    }

    /// Sends bytes; what comes of it is seen in the answer.
    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.socket.write_all(bytes)).await;
    }

    /// The next answer, interim ones included.
    pub(super) async fn answer(&mut self, to_head: bool) -> Result<Answer, Trouble> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if !self.buffer.is_empty() {
                match Answer::parse(&self.buffer, to_head) {
                    Parsed::Incomplete => (),
                    Parsed::Broken(problem) => return Err(Trouble::Broken(problem)),
                    Parsed::Whole(answer, length) => {
                        self.buffer.drain(..length);
                        self.used = Instant::now();
                        return Ok(answer);
                    }
                }
            }
            match tokio::time::timeout_at(deadline, self.socket.read_buf(&mut self.buffer)).await {
                Err(_) => return Err(Trouble::Hang),
                Ok(Ok(0) | Err(_)) if self.buffer.is_empty() => return Err(Trouble::Closed),
                Ok(Ok(0)) => return Err(Trouble::CutOff(self.buffer.len(), "closed".to_owned())),
                Ok(Err(error)) => return Err(Trouble::CutOff(self.buffer.len(), error.to_string())),
                Ok(Ok(_)) => (),
            }
        }
    }

    /// Waits for the end of a connection on which no more answers may come.
    pub(super) async fn end(&mut self) -> Result<(), Trouble> {
        match self.answer(false).await {
            Err(Trouble::Closed) => Ok(()),
            Ok(_) => Err(Trouble::Broken("an answer after the last".to_owned())),
            Err(trouble) => Err(trouble),
        }
    }
}

impl Trouble {
    pub(super) fn problem(&self) -> String {
        match self {
            Self::Closed => "closed without an answer".to_owned(),
            Self::CutOff(bytes, how) => format!("in the middle of an answer, after {bytes} bytes: {how}"),
            Self::Hang => format!("neither an answer nor a close within {} s", PATIENCE.as_secs()),
            Self::Broken(problem) => problem.clone(),
        }
    }
}
