//! A minimal HTTP client: one connection, one request at a time, and no more than the measurements need.

use std::net::SocketAddr;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::Outcome;

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
        let Response { status, body, .. } = self.exchange(method, path, body, None).await?;
        Ok((status, body))
    }

    /// Sends a request, perhaps with an `Idempotency-Key`, and returns its answer.
    pub(crate) async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        idempotency_key: Option<&str>,
    ) -> Outcome<Response> {
        let header = idempotency_key.map_or(String::new(), |key| format!("Idempotency-Key: {key}\r\n"));
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
            if let Some(response) = parse(&self.buffer) {
                return Ok(response);
            }
        }
    }
}

/// An answer.
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Response {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Whether the service closes the connection after it.
    pub(crate) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// The answer, once all of it has arrived.
fn parse(bytes: &[u8]) -> Option<Response> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.get(9..12)?.parse().ok()?;
    let response = Response { status, head: head.to_owned(), body: body.to_owned() };
    let length: usize = match status {
        204 => 0, // has neither a body nor its length
        _ => response.header("content-length")?.parse().ok()?,
    };
    (body.len() >= length).then_some(response)
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
