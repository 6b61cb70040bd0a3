//! HTTP/1.1 itself: half-closed connections, `Connection: close`, `100-continue`, pipelining, and where requests end.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::support::TestService;
use crate::support::postgres::key;
use crate::support::raw_http::{exchange, head, is_hypers, json_head, parse};

#[tokio::test]
async fn a_client_that_half_closes_its_connection_is_answered() {
    let service = TestService::start().await;
    for number in 0..5 {
        let body = json!({"name": format!("Rex {number}"), "categoryId": 1}).to_string();
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        let request = json_head("POST /v1/pets", body.len()) + &body;
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert_eq!(parse(&answer).status, 201, "{answer}");
    }
    assert_eq!(service.client.get("/v1/pets").await.ids().len(), 5);
}

/// Sends the rest of a request after its answer has arrived, then another request on the same connection. Returns
/// everything that comes back.
async fn send_rest_after_answer(address: SocketAddr, first: &str, rest: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(first.as_bytes()).await.unwrap();
    socket.readable().await.unwrap();
    let _ = socket.write_all(rest.as_bytes()).await;
    let _ = socket.write_all(head("GET /v1/pets", key().reveal(), "Connection: close\r\n").as_bytes()).await;
    let mut answers = String::new();
    let _ = socket.read_to_string(&mut answers).await;
    answers
}

#[tokio::test]
async fn an_answer_says_connection_close_when_the_service_closes_the_connection() {
    let service = TestService::start().await;
    let wrong_key = "Authorization: Bearer psk_wrong";
    let key_header = format!("Authorization: Bearer {}", key().reveal());
    let late = |head: String| (head, "x".repeat(1_000));
    for (what, (first, rest), status) in [
        ("no key", late(json_head("POST /v1/pets", 1_000).replace(&key_header, wrong_key)), 401),
        ("no such path", late(json_head("POST /v1/nowhere", 1_000)), 404),
        ("no such method", late(json_head("DELETE /v1/pets", 1_000)), 405),
        ("another media type", late(json_head("POST /v1/pets", 1_000).replace("/json", "/xml")), 415),
        ("too large", late(json_head("POST /v1/pets", 17_000)), 413),
        (
            "chunks without end",
            late(json_head("POST /v1/nowhere", 1).replace("Content-Length: 1", "Transfer-Encoding: chunked")),
            404,
        ),
        (
            "gzip",
            late(
                json_head("POST /v1/pets", 1)
                    .replace("Content-Length: 1", "Transfer-Encoding: gzip, chunked"),
            ),
            400,
        ),
        (
            "bad chunks",
            (
                json_head("POST /v1/pets", 1).replace("Content-Length: 1", "Transfer-Encoding: chunked")
                    + "zz\r\n",
                String::new(),
            ),
            400,
        ),
    ] {
        let answers = send_rest_after_answer(service.address, &first, &rest).await;
        let answer = parse(&answers);
        assert_eq!((answer.status, answer.header("connection")), (status, "close"), "{what}: {answers}");
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{what}: {answers}");
    }
    // A body that has already arrived is dropped, and the connection stays open.
    let first = json_head("POST /v1/nowhere", 1_000) + &"x".repeat(1_000);
    let answers = send_rest_after_answer(service.address, &first, "").await;
    assert_eq!(parse(&answers).header("connection"), "", "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 1, "{answers}");
}

#[tokio::test]
async fn a_refused_request_with_expect_100_continue_gets_no_100() {
    let service = TestService::start().await;
    let expecting =
        json_head("POST /v1/nowhere", 10).replace("Content-Type", "Expect: 100-continue\r\nContent-Type");
    let answer = exchange(service.address, expecting.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert_eq!(parse(&answer).header("connection"), "close");
}

#[tokio::test]
async fn pipelined_bodies_arrive_unchanged_with_content_length_and_with_chunks() {
    let service = TestService::start().await;
    // White space with line feeds, which are not allowed in a request head.
    let body = |number: usize| format!("{{\n\n\"name\":\n\"Rex {number}\",\n\n\"categoryId\": 1\n}}\n\n");
    let mut request = String::new();
    for number in 0..40 {
        let body = body(number) + &"\n".repeat(number * 97);
        if number % 2 == 0 {
            request += &(json_head("POST /v1/pets", body.len()) + &body);
        } else {
            let head =
                json_head("POST /v1/pets", 1).replace("Content-Length: 1", "Transfer-Encoding: chunked");
            let (one, other) = body.split_at(number);
            let chunks = format!("{:x}\r\n{one}\r\n{:X};x=y\r\n{other}\r\n0\r\n\r\n", one.len(), other.len());
            request += &(head + &chunks);
        }
    }
    request += &head("GET /v1/pets?limit=100", key().reveal(), "Connection: close\r\n");
    let answers = exchange(service.address, request.as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 201 ").count(), 40, "{answers}");
    assert_eq!(service.client.get("/v1/pets?limit=100").await.ids().len(), 40);
}

#[tokio::test]
async fn pipelined_answers_before_a_refusal_arrive_whole_even_after_a_declined_upgrade() {
    let service = TestService::start().await;
    let document = service.client.get("/openapi.json").await.body;
    for header in ["", "Upgrade: websocket\r\n", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"] {
        for refused in
            ["G(T / HTTP/1.1\r\n\r\n".to_owned(), format!("GET /{} HTTP/1.1\r\n", "x".repeat(60_000))]
        {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut socket = socket.connect(service.address).await.unwrap();
            let request = head("GET /openapi.json", key().reveal(), header) + &refused + &"x".repeat(30_000);
            socket.write_all(request.as_bytes()).await.unwrap();
            let (mut answers, mut buffer) = (Vec::new(), vec![0; 8_192]);
            while let Ok(read @ 1..) = socket.read(&mut buffer).await {
                answers.extend_from_slice(&buffer[..read]);
                // A slow reader: the service has to wait until its last bytes are read.
                sleep(Duration::from_millis(2)).await;
            }
            let answers = String::from_utf8(answers).unwrap();
            assert!(answers.contains(&document), "{header}{refused:.20}: {} bytes", answers.len());
            assert_eq!(answers.matches("HTTP/1.1 4").count(), 1, "{header}{refused:.20}");
        }
    }
}

#[tokio::test]
async fn a_refused_connection_gets_503_even_while_it_is_still_sending() {
    let flags = ["--max-connections-per-address", "1", "--trusted-proxy", "192.0.2.1"];
    let service = TestService::start_with(&flags).await;
    let _first = TcpStream::connect(service.address).await.unwrap();
    for _ in 0..10 {
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        // A slow sender: the answer is sent before the last part, and a reset would reach the client in between.
        for part in 0..4 {
            socket.write_all(format!("GET /v1/pets?part={part} HTTP/1.1\r\n").as_bytes()).await.unwrap();
            sleep(Duration::from_millis(50)).await;
        }
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        let answer = parse(&answer);
        assert_eq!((answer.status, answer.header("connection")), (503, "close"));
    }
}

/// hyper's own answer, without a body.
const HYPER_400: (u16, &str) = (400, "");

#[tokio::test]
async fn request_heads_that_a_proxy_may_parse_differently_are_refused_or_mean_the_same_to_both() {
    let service = TestService::start().await;
    let get = |more: &str| head("GET /v1/pets", key().reveal(), more);
    let post = |more: &str| head("POST /v1/pets", key().reveal(), more);
    for (request, expected) in [
        // RFC 9112 lets a recipient accept a bare line feed.
        (get("X: y\r\n").replace("X: y\r\n", "X: y\n"), (200, "")),
        (get("").replace("HTTP/1.1\r\n", "HTTP/1.1\n"), (200, "")),
        (get("").replace("Host: a", "Host: a b@c/d"), (400, "invalid_header")),
        (get("").replace("Host: a", "Host: a@b"), (400, "invalid_header")),
        (get("").replace("Host: a", "Host: a/b"), (400, "invalid_header")),
        (post("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n", (400, "invalid_header")),
        (
            post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n",
            (400, "invalid_header"),
        ),
        (post("Transfer-Encoding: chunked, chunked\r\n") + "0\r\n\r\n", (400, "invalid_header")),
        (
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n",
            (400, "invalid_header"),
        ),
        (get("Connection: keep-alive\r\n").replace("HTTP/1.1", "HTTP/1.0") + "(\r\n\r\n", HYPER_400),
        (
            post("Content-Type: application/json\r\nContent-Length: 9223372036854775807\r\n"),
            (413, "body_too_large"),
        ),
        (post("Content-Length: 99999999999999999999999\r\n"), HYPER_400),
        (post("Content-Length: \r\n"), HYPER_400),
        (post("Content-Length: 2, 2\r\n"), HYPER_400),
        (get("").replace("/v1/pets", &format!("/{}", "x".repeat(20_000))), (414, "uri_too_long")),
        (get(&format!("X: {}\r\n", "x".repeat(20_000))), (431, "headers_too_large")),
    ] {
        let request = request.replace("Connection: close\r\n", "");
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        let _ = socket.write_all(request.as_bytes()).await;
        let _ = socket.shutdown().await;
        let mut answers = String::new();
        let _ = timeout(Duration::from_secs(5), socket.read_to_string(&mut answers)).await.unwrap();
        // The last answer: a valid request may have come before.
        let last = answers.rfind("HTTP/1.").unwrap_or_else(|| panic!("no answer to {request:.200}"));
        let answer = parse(&answers[last..]);
        if is_hypers(&answer) {
            assert_eq!((answer.status, ""), expected, "{request:.200}");
        } else {
            answer.check(&reqwest::Method::GET);
            assert_eq!(answer.error(), (expected.0, expected.1.into()), "{request:.200}");
        }
    }
    for host in ["a", "a:80", "[::1]:8080", "pets.example.com", "xn--bcher-kva.example", "a_b"] {
        let answer = exchange(
            service.address,
            get("Connection: close\r\n").replace("Host: a", &format!("Host: {host}")).as_bytes(),
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
}
