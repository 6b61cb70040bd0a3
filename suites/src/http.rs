//! A minimal HTTP client: one connection, one request at a time, and no more than the measurements need.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, interval};

use crate::Outcome;
use crate::report::Samples;

/// A keep-alive connection.
pub(crate) struct Connection {
    socket: TcpStream,
    /// The API key that requests are sent with.
    pub(crate) key: String,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, key: &str) -> Outcome<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { key: key.to_owned(), ..Self::over(socket) })
    }

    /// Over a connected socket, without a key.
    pub(crate) fn over(socket: TcpStream) -> Self {
        Self { socket, key: String::new(), buffer: Vec::with_capacity(16 * 1024) }
    }

    /// Sends a request and returns the status and the body of its answer.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &str) -> Outcome<(u16, String)> {
        let (status, body, _) = self.exchange(method, path, body, "").await?;
        Ok((status, body))
    }

    /// Sends a request with an `Idempotency-Key`, and also returns whether the answer is a replay.
    pub(crate) async fn send_idempotent(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        key: &str,
    ) -> Outcome<(u16, String, bool)> {
        self.exchange(method, path, body, &format!("Idempotency-Key: {key}\r\n")).await
    }

    /// The head of the last answer.
    pub(crate) fn head(&self) -> String {
        let text = String::from_utf8_lossy(&self.buffer);
        text.split_once("\r\n\r\n").map_or_else(String::new, |(head, _)| format!("{head}\r\n"))
    }

    async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        header: &str,
    ) -> Outcome<(u16, String, bool)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: suite\r\nAuthorization: Bearer {}\r\n{header}\
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

/// The answer, once all of it has arrived: status, body, and whether it is a replay.
fn parse(bytes: &[u8]) -> Option<(u16, String, bool)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    let status = head.get(9..12)?.parse().ok()?;
    let replayed = head.contains("\r\nidempotent-replayed: true");
    (body.len() >= length).then(|| (status, body.to_owned(), replayed))
}

/// The `id` of a pet or an order.
pub(crate) fn id_of(body: &str) -> Option<i64> {
    body.split_once("\"id\":")?.1.split([',', '}']).next()?.parse().ok()
}

/// The cursor of the page after this id.
pub(crate) fn cursor(id: i64) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = [1; 9];
    bytes[1..].copy_from_slice(&id.to_be_bytes());
    let groups =
        bytes.chunks(3).map(|group| group.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)));
    groups.flat_map(|group| [18, 12, 6, 0].map(|shift| char::from(ALPHABET[group >> shift & 63]))).collect()
}

/// A normal client: sends requests at a steady rate over one connection, each of which must succeed. Returns their
/// latencies in milliseconds.
pub(crate) async fn probe(
    address: SocketAddr,
    key: &str,
    rate: u32,
    requests: u32,
    request: impl Fn(u32) -> (&'static str, String, &'static str),
) -> Outcome<Samples> {
    let mut connection = Connection::open(address, key).await?;
    let mut times = Samples::default();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    for number in 0..requests {
        ticks.tick().await;
        let (method, path, body) = request(number);
        let started = Instant::now();
        let (status, answer) = connection.send(method, &path, body).await?;
        if !matches!(status, 200 | 201) {
            return Err(format!("a normal client was answered {status}: {answer}").into());
        }
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(times)
}

/// Asks for 20 pages of 6.6 KB at once, of which the client's side of the connection holds a few: the service blocks at
/// about the 14th. With the segments of the loopback device, the kernel would buffer 2.8 MB for the service.
pub(crate) async fn slow_reader(address: SocketAddr, key: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    SockRef::from(&socket).set_tcp_mss(536)?;
    let mut socket = socket.connect(address).await?;
    let request =
        format!("GET /v1/pets?limit=100 HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {key}\r\n\r\n");
    let _ = socket.write_all(request.repeat(20).as_bytes()).await;
    Ok(socket)
}
