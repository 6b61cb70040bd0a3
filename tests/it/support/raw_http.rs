//! HTTP as bytes on a socket, for what no HTTP client sends.

use std::net::SocketAddr;

use reqwest::header::HeaderName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::Answer;
use super::postgres::key;

/// Sends bytes and returns everything that comes back until the connection is closed.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // The service may refuse before it has read everything.
    let _ = socket.write_all(request).await;
    read_to_end(socket).await
}

/// Returns everything that comes back until the connection is closed.
pub(crate) async fn read_to_end(mut socket: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request with an incomplete body.
pub(crate) fn incomplete_post() -> String {
    format!(
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{\"name\": ",
        key().reveal()
    )
}

/// Sends a request with an incomplete body, and returns the answer.
pub(crate) async fn post_incomplete_body(address: SocketAddr) -> String {
    exchange(address, incomplete_post().as_bytes()).await
}

/// Whether this is hyper's answer to what is not HTTP, or is too large: a status without a body, which closes the connection.
pub(crate) fn is_hypers(answer: &Answer) -> bool {
    let is_expected = |name: &HeaderName| ["connection", "content-length", "date"].contains(&name.as_str());
    [400, 431].contains(&answer.status)
        && answer.headers.keys().all(is_expected)
        // HTTP/1.0 closes without saying so.
        && ["close", ""].contains(&answer.header("connection"))
        && answer.body.is_empty()
}

/// Parses the first answer; others may follow.
pub(crate) fn parse(text: &str) -> Answer {
    let (head, rest) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let mut answer = Answer { status, headers, body: String::new() };
    rest[..answer.header("content-length").parse().unwrap_or(0)].clone_into(&mut answer.body);
    answer
}

/// The head of a request, as sent.
pub(crate) fn head(first_line: &str, key: &str, more: &str) -> String {
    format!("{first_line} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n{more}\r\n")
}

/// The same with a JSON body of this length.
pub(crate) fn json_head(first_line: &str, length: usize) -> String {
    head(
        first_line,
        key().reveal(),
        &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    )
}
