//! A small HTTP client: one connection, one request at a time, and only what is measured.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Outcome;

/// A connection that is kept.
pub(crate) struct Connection {
    socket: TcpStream,
    /// The key that requests are sent with.
    pub(crate) key: String,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, key: &str) -> Outcome<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { key: key.to_owned(), ..Self::over(socket) })
    }

    /// Over a socket that is connected already, without a key.
    pub(crate) fn over(socket: TcpStream) -> Self {
        Self { socket, key: String::new(), buffer: Vec::with_capacity(16 * 1024) }
    }

    /// Sends a request and returns the status and the body of its answer.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &str) -> Outcome<(u16, String)> {
        let (status, body, _) = self.exchange(method, path, body, "").await?;
        Ok((status, body))
    }

    /// Sends a request with an `Idempotency-Key`, and returns whether its answer was given before, too.
    pub(crate) async fn send_once(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        name: &str,
    ) -> Outcome<(u16, String, bool)> {
        self.exchange(method, path, body, &format!("Idempotency-Key: {name}\r\n")).await
    }

    async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        header: &str,
    ) -> Outcome<(u16, String, bool)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n{header}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        self.socket.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Err("the service closed the connection".into());
            }
            if let Some(answer) = parse(&self.buffer) {
                return Ok(answer);
            }
        }
    }
}

/// The answer, if all of it has arrived: status, body, and whether it was given before.
fn parse(bytes: &[u8]) -> Option<(u16, String, bool)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    let status = head.get(9..12)?.parse().ok()?;
    let replayed = head.contains("\r\nidempotent-replayed: true");
    (body.len() >= length).then(|| (status, body.to_owned(), replayed))
}
