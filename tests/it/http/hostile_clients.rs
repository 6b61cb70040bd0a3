//! Clients that send too slowly, too little, or nonsense.

use std::time::{Duration, Instant};

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::TestDatabase;
use crate::support::postgres::key;
use crate::support::program::ServeProcess;
use crate::support::raw_http::{exchange, is_hypers, parse, post_incomplete_body, read_to_end};
use crate::support::wait::PROMPTLY;

#[tokio::test]
async fn five_thousand_incomplete_requests_time_out_while_a_well_behaved_client_is_served() {
    const INCOMPLETE: usize = 2_500;
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(
        &database.url(),
        &["--header-timeout", "3s", "--body-timeout", "3s", "--max-requests", "10000"],
    );
    let address = service.address;

    let mut slow = JoinSet::new();
    for _ in 0..INCOMPLETE {
        slow.spawn(async move {
            let started = Instant::now();
            (exchange(address, b"GET /v1/pets HTTP/1.1\r\nHost: a\r\nX-Half: ").await, started.elapsed())
        });
        slow.spawn(async move {
            let started = Instant::now();
            (post_incomplete_body(address).await, started.elapsed())
        });
    }
    let good_client = service.client.clone();
    let good = tokio::spawn(async move {
        for served in 0.. {
            let answer = timeout(PROMPTLY, good_client.get("/v1/pets")).await;
            assert_eq!(answer.map(|answer| answer.status), Ok(200), "answer number {served}");
        }
    });
    for (answer, elapsed) in slow.join_all().await {
        // Nothing for an incomplete head, 408 for an incomplete body.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(elapsed > Duration::from_millis(2_900), "closed after {elapsed:?}: {answer}");
    }
    good.abort();
    assert!(good.await.unwrap_err().is_cancelled(), "the well-behaved client was served all the time");
    let (exited_well, log) = service.terminate();
    assert!(exited_well);
    assert!(!log.contains("panic"), "{log}");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let database = TestDatabase::new().await;
    database.add_pets(100).await;
    let service = ServeProcess::start(&database.url(), &["--body-timeout", "1s"]);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(service.address).await.unwrap();
    let request = format!(
        "GET /v1/pets?limit=100 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n",
        key().reveal()
    );
    // Sends requests until the buffers of both sides are full and the service has to disconnect.
    let sending = async { while socket.write_all(request.as_bytes()).await.is_ok() {} };
    timeout(Duration::from_mins(1), sending).await.expect("the client is disconnected");
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
}

/// Requests that are malformed or not HTTP.
fn malformed() -> Vec<Vec<u8>> {
    let head = |lines: &str| format!("{lines}\r\n\r\n").into_bytes();
    let mut requests: Vec<Vec<u8>> = [
        "",
        " ",
        "\r\n",
        "GET",
        "GET /v1/pets",
        "GET  /v1/pets HTTP/1.1",
        "GET /v1/pets HTTP/1.1 ",
        "GET /v1/pets HTTP/0.9",
        "GET /v1/pets HTTP/1.2",
        "GET /v1/pets HTTP/2.0",
        "GET /v1/pets HTTP/11",
        "GET /v1/pets http/1.1",
        "GET v1/pets HTTP/1.1\r\nHost: a",
        "GET /v1/p ets HTTP/1.1\r\nHost: a",
        "GET /v1/pets#x HTTP/1.1\r\nHost: a",
        "GET /v1/\u{e9} HTTP/1.1\r\nHost: a",
        "GET http://[::1 HTTP/1.1\r\nHost: a",
        "GET * HTTP/1.1\r\nHost: a",
        "OPTIONS * HTTP/1.1\r\nHost: a",
        "CONNECT a:80 HTTP/1.1\r\nHost: a",
        "G\u{0}T /v1/pets HTTP/1.1\r\nHost: a",
        "GET /v1/\u{0} HTTP/1.1\r\nHost: a",
        "GET /v1/pets HTTP/1.1\r\nHost",
        "GET /v1/pets HTTP/1.1\r\nHost : a",
        "GET /v1/pets HTTP/1.1\r\n: a",
        "GET /v1/pets HTTP/1.1\r\nHost: a\r\n folded: b",
        "GET /v1/pets HTTP/1.1\r\nHost: a\r\nX: \u{0}",
        "GET /v1/pets HTTP/1.1\r\nHost: a\r\nX\u{e9}: b",
        "GET /v1/pets HTTP/1.1\nHost: a",
        "GET /v1/pets HTTP/1.1\rHost: a",
        "GET /v1/pets HTTP/1.1\r\nHost: a\r\nHost: b",
        "GET /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Length: x",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Length: -1",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff",
        "PRI * HTTP/2.0\r\n\r\nSM",
        "SSH-2.0-OpenSSH_9.2",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}",
    ]
    .map(head)
    .into();
    requests.push(head(&format!("GET /{} HTTP/1.1\r\nHost: a", "x".repeat(70_000))));
    requests.push(head(&format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(300_000))));
    requests.push(head(&format!("GET /v1/pets HTTP/1.1\r\nHost: a{}", "\r\nX: y".repeat(150))));
    requests.push(vec![0; 10_000]);
    requests.push(vec![0xff; 10_000]);
    // A valid request with one byte changed, in two ways, at every third position in turn.
    let good =
        b"POST /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    for position in (0..good.len() * 2).step_by(3) {
        let mut request = good.to_vec();
        request[position / 2] ^= if position % 2 == 0 { 0b1010_0101 } else { 0b0001_0000 };
        requests.push(request);
    }
    requests
}

#[tokio::test]
async fn a_hundred_malformed_requests_cause_no_panic_and_no_hang_and_are_answered_by_us_or_by_hyper() {
    let requests = malformed();
    assert!(requests.len() >= 95, "{}", requests.len());
    let database = TestDatabase::new().await;
    let service =
        ServeProcess::start(&database.url(), &["--header-timeout", "600ms", "--body-timeout", "600ms"]);
    let mut answered = 0;
    // With a key, so that the body is parsed, and without.
    let key = format!("\r\nAuthorization: Bearer {}\r\n\r\n", key().reveal());
    for request in requests.iter().flat_map(|request| [request.clone(), with_key(request, &key)]) {
        let shown = String::from_utf8_lossy(&request[..request.len().min(200)]).into_owned();
        let answer = timeout(PROMPTLY, exchange(service.address, &request)).await;
        let answer = answer.unwrap_or_else(|_| panic!("a hang: {shown:?}"));
        if !answer.is_empty() {
            let answer = parse(&answer);
            answered += 1;
            if is_hypers(&answer) {
                continue;
            }
            answer.check(&Method::GET);
            // A few are served, because the parser is lenient.
            let fine = answer.status == 200 || (400..500).contains(&answer.status);
            assert!(fine, "{shown:?} was answered {answer:?}");
        }
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
    }
    assert!(answered > requests.len(), "most are answered: {answered}");
    let (exited_well, log) = service.terminate();
    assert!(exited_well);
    assert!(!log.contains("panic"), "{log}");
}

#[tokio::test]
async fn a_connection_in_use_outlives_the_header_timeout_and_an_idle_or_slow_one_does_not() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--header-timeout", "3s"]);
    let mut socket = TcpStream::connect(service.address).await.unwrap();
    let mut last = Instant::now();
    for _ in 0..8 {
        sleep(TIMEOUT / 6).await;
        last = Instant::now();
        socket.write_all(b"OPTIONS /v1/pets HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = [0; 1_024];
        let length = socket.read(&mut answer).await.unwrap();
        assert!(
            answer[..length].starts_with(b"HTTP/1.1 204"),
            "{}",
            String::from_utf8_lossy(&answer[..length])
        );
    }
    assert_eq!(read_to_end(socket).await, "", "the service closes an idle connection");
    assert!(last.elapsed() >= TIMEOUT, "{:?}", last.elapsed());

    // Each part arrives in time; the whole head does not.
    let mut socket = TcpStream::connect(service.address).await.unwrap();
    while timeout(TIMEOUT / 6, socket.read(&mut [0])).await.is_err() {
        let _ = socket.write_all(b"GET ").await;
    }
}

fn with_key(request: &[u8], key: &str) -> Vec<u8> {
    String::from_utf8_lossy(request).replacen("\r\n\r\n", key, 1).into_bytes()
}
