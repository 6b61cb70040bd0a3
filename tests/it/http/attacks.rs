//! Protection of clients from hostile, slow and careless ones.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use petstore_config::{PoolSettings, ReadFrom};
use petstore_domain::api_key::ApiKey;
use petstore_domain::pet::{Pet, PetId};
use petstore_storage::Storage;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::memory::{KILOBYTES_PER_CONNECTION, resident_kilobytes};
use crate::support::metrics::wait_for_requests_in_flight;
use crate::support::postgres::{key, wait_for_blocked_statement};
use crate::support::program::{ServeProcess, new_key};
use crate::support::raw_http::{exchange, is_hypers, parse};
use crate::support::wait::eventually;
use crate::support::{TestDatabase, TestService};

/// The head of a request, as sent.
fn head(first_line: &str, key: &str, more: &str) -> String {
    format!("{first_line} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n{more}\r\n")
}

fn json_head(first_line: &str, length: usize) -> String {
    head(
        first_line,
        key().reveal(),
        &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_never_sends_its_bodies_does_not_block_other_keys() {
    let service = TestService::start_with(&["--max-requests", "20"]).await;
    let slow = new_key(&service.database.url(), &[]);
    let length = "Content-Type: application/json\r\nContent-Length: 1000\r\n";
    let request = head("POST /v1/pets", slow.reveal(), length) + "{";
    let mut sockets = Vec::new();
    for _ in 0..60 {
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        sockets.push(socket);
    }
    // Those beyond the key's share are refused, whichever they are, and their connections are closed.
    let answers = sockets.iter_mut().map(|socket| {
        Box::pin(async move {
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.unwrap();
            answer
        })
    });
    let (refused, ..) = select_all(answers).await;
    let refused = parse(&refused);
    assert_eq!(refused.error(), (503, "unavailable".into()));
    assert_eq!(refused.header("connection"), "close");
    // At first, all of them are in flight for a moment.
    eventually("another key is served", async || service.client.get("/v1/pets").await.status == 200).await;
    for _ in 0..40 {
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
        service.client.add("Rex", None).await;
    }
    drop(sockets);
}

/// The 90th percentile: a busy machine may delay a few.
fn percentile_90(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 9 / 10]
}

async fn lock_pet(database: &TestDatabase, pet: i64) -> tokio_postgres::Client {
    let connection = database.connect().await;
    connection.batch_execute("BEGIN").await.unwrap();
    connection.query("SELECT FROM pets WHERE id = $1 FOR UPDATE", &[&pet]).await.unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_pet_does_not_delay_unrelated_reads() {
    let service = TestService::start().await;
    let (held, other) = (service.client.add("Rex", None).await, service.client.add("Max", None).await);
    let _lock = lock_pet(&service.database, held).await;
    let body = r#"{"name":"Bello"}"#;
    let request = json_head(&format!("PATCH /v1/pets/{held}"), body.len()) + body;
    let mut sockets = Vec::new();
    for _ in 0..32 {
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        sockets.push(socket);
    }
    wait_for_requests_in_flight(service.admin_address, 32).await;
    wait_for_blocked_statement(&service.database.connect().await).await;
    // Half of the clients disconnect, the others go on waiting.
    sockets.truncate(16);
    // The changes wait for the lock for longer than this.
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < Duration::from_secs(2) {
        for path in [&format!("/v1/pets/{other}"), "/v1/pets?limit=1"] {
            let sent = Instant::now();
            assert_eq!(service.client.get(path).await.status, 200);
            times.push(sent.elapsed());
        }
    }
    assert!(percentile_90(times.clone()) < Duration::from_millis(500), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_with_an_abandoned_statement_is_not_reused_before_the_statement_finishes() {
    let database = TestDatabase::new().await;
    database.add_pets(2).await;
    let lock = lock_pet(&database, 1).await;
    let settings = PoolSettings {
        database_connections: 2,
        database_timeout: Duration::from_secs(5),
        reads: ReadFrom::default(),
    };
    let storage = Storage::new(&database.url().into(), &settings).unwrap();
    let (held, other): (PetId, PetId) = (1.try_into().unwrap(), 2.try_into().unwrap());
    let rename =
        |pet: &Pet, _: bool| Ok::<_, ()>(Pet { name: "Bello".to_owned().try_into().unwrap(), ..pet.clone() });
    for _ in 0..2 {
        let changing = timeout(Duration::from_millis(300), storage.change_pet(held, rename)).await;
        assert!(changing.is_err(), "the pet is locked");
    }
    wait_for_blocked_statement(&database.connect().await).await;
    let mut times = Vec::new();
    for _ in 0..20 {
        let sent = Instant::now();
        assert!(storage.find_pet(other).await.unwrap().is_some());
        times.push(sent.elapsed());
    }
    assert!(percentile_90(times.clone()) < Duration::from_millis(500), "{times:?}");
    lock.batch_execute("COMMIT").await.unwrap();
    // The abandoned changes have released their locks.
    eventually("the pet can be changed", async || {
        timeout(Duration::from_millis(300), storage.change_pet(held, rename)).await.is_ok()
    })
    .await;
}

/// How many bytes, and connections, wait in the kernel for the service at this address.
fn unread_bytes(address: SocketAddr) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", address.port());
    // Columns: number, local address, remote address, state, transmit queue:receive queue.
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let own = rows.filter(|row| row[1].ends_with(&port));
    own.map(|row| u64::from_str_radix(row[4].split_once(':').unwrap().1, 16).unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_incomplete_request_heads_use_less_than_60_megabytes() {
    let database = TestDatabase::new().await;
    // About as much as is read before the client is refused, and much more.
    for bytes in [31_000, 126_000] {
        let service = ServeProcess::start(&database.url(), &["--header-timeout", "60s"]);
        let before = resident_kilobytes(service.id(), "VmRSS:");
        let request = format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(bytes));
        let mut sockets = Vec::new();
        for _ in 0..1_000 {
            let mut socket = TcpStream::connect(service.address).await.unwrap();
            let _ = socket.write_all(request.as_bytes()).await;
            sockets.push(socket);
        }
        eventually("the service has read everything", async || unread_bytes(service.address) == 0).await;
        let added = resident_kilobytes(service.id(), "VmRSS:").saturating_sub(before);
        eprintln!("1000 heads of {bytes} bytes take {added} kB");
        assert!(added < 1_000 * KILOBYTES_PER_CONNECTION, "{bytes} bytes: {added} kB");
    }
}

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

/// Sends requests with keys that were never issued, over one connection from another address, and counts the answers.
async fn flood_with_unknown_keys(service: SocketAddr, number: u64, time: Duration) -> u64 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
    let mut socket = socket.connect(service).await.unwrap();
    let (started, mut answers) = (Instant::now(), 0);
    let mut buffer = [0; 4096];
    while started.elapsed() < time {
        let mut digits = format!("{number:08}{answers:024}").into_bytes().into_iter().rev();
        let unknown = ApiKey::generate(|| digits.next().map_or(0, |digit| digit - b'0'));
        socket.write_all(head("GET /v1/pets", unknown.reveal(), "").as_bytes()).await.unwrap();
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(buffer[..read].starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&buffer[..read]));
        answers += 1;
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lookups_of_keys_that_were_never_issued_are_rate_limited() {
    let service = TestService::start_with(&["--trusted-proxy", "192.0.2.1"]).await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    // The limit is a rate: it shows only over a few seconds.
    let time = Duration::from_secs(3);
    let mut floods = JoinSet::new();
    for number in 1..=8 {
        floods.spawn(flood_with_unknown_keys(service.address, number, time));
    }
    let started = Instant::now();
    while started.elapsed() < time {
        assert_eq!(service.client.get("/v1/pets").await.status, 200, "a known key is served");
        sleep(Duration::from_millis(20)).await;
    }
    let answers: u64 = floods.join_all().await.into_iter().sum();
    eprintln!("{answers} answers to unknown keys in {time:?}");
    // A burst of 20, then one per second and connection, and a few more at the start of a second.
    assert!((20..200).contains(&answers), "{answers}");
    // Another client whose key is not cached yet does not wait. On a busy machine, that holds for at least one of three.
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let other = service.client_with_new_key(&[]);
        let sent = Instant::now();
        assert_eq!(other.get("/v1/pets").await.status, 200);
        fastest = fastest.min(sent.elapsed());
    }
    assert!(fastest < Duration::from_millis(900), "{fastest:?}");
}
