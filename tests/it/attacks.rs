//! What a hostile, unlucky or careless client must not do to the others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use petstore::config::PoolSettings;
use petstore::domain::api_key::ApiKey;
use petstore::domain::pet::{Pet, PetId};
use petstore::storage::Storage;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::hostile_clients::{exchange, parse};
use crate::support::postgres::{key, locked_out};
use crate::support::program::{ServeProcess, new_key};
use crate::support::{Client, TestDatabase, TestService};

/// A request as it stands on the wire, up to its body.
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
async fn a_key_whose_bodies_never_arrive_keeps_no_other_key_from_being_served() {
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
    // Those beyond the key's share are refused and told that they are disconnected.
    let mut refused = String::new();
    let mut last = sockets.pop().unwrap();
    timeout(Duration::from_secs(5), last.read_to_string(&mut refused)).await.unwrap().unwrap();
    let refused = parse(&refused);
    assert_eq!(refused.error(), (503, "unavailable".into()));
    assert_eq!(refused.header("connection"), "close");
    // While they all begin at once, each is in progress for a moment.
    let deadline = Instant::now() + Duration::from_secs(5);
    while service.client.get("/v1/pets").await.status != 200 {
        assert!(Instant::now() < deadline, "nobody else is served");
    }
    for _ in 0..40 {
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
        service.client.add("Rex", None).await;
    }
    drop(sockets);
}

/// The time within which nine of ten ended: a busy machine may hold up one of them.
fn most(mut times: Vec<Duration>) -> Duration {
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
async fn a_pet_that_somebody_holds_does_not_delay_unrelated_reads() {
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
    sleep(Duration::from_millis(300)).await;
    // Half of the clients give up, half of them go on waiting.
    sockets.truncate(16);
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(2) {
        for path in [&format!("/v1/pets/{other}"), "/v1/pets?limit=1"] {
            let asked = Instant::now();
            assert_eq!(service.client.get(path).await.status, 200);
            times.push(asked.elapsed());
        }
    }
    assert!(most(times.clone()) < Duration::from_millis(500), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_statement_was_abandoned_is_not_used_before_that_has_finished() {
    let database = TestDatabase::new().await;
    database.add_pets(2).await;
    let lock = lock_pet(&database, 1).await;
    let settings = PoolSettings { database_connections: 2, database_timeout: Duration::from_secs(5) };
    let storage = Storage::new(&database.url().into(), &settings).unwrap();
    let (held, other): (PetId, PetId) = (1.try_into().unwrap(), 2.try_into().unwrap());
    let rename =
        |pet: &Pet, _: bool| Ok::<_, ()>(Pet { name: "Bello".to_owned().try_into().unwrap(), ..pet.clone() });
    for _ in 0..2 {
        let changing = timeout(Duration::from_millis(300), storage.change_pet(held, rename)).await;
        assert!(changing.is_err(), "the pet is held");
    }
    locked_out(&database.connect().await).await;
    let mut times = Vec::new();
    for _ in 0..20 {
        let asked = Instant::now();
        assert!(storage.find_pet(other).await.unwrap().is_some());
        times.push(asked.elapsed());
    }
    assert!(most(times.clone()) < Duration::from_millis(500), "{times:?}");
    lock.batch_execute("COMMIT").await.unwrap();
    // What was abandoned before it was committed has changed nothing, and holds nothing.
    let deadline = Instant::now() + Duration::from_secs(5);
    while timeout(Duration::from_millis(300), storage.change_pet(held, rename)).await.is_err() {
        assert!(Instant::now() < deadline, "the pet is still held");
    }
}

/// Its memory, in kilobytes.
fn resident_kilobytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The most memory that one connection may take before its client has shown a key.
pub(crate) const KILOBYTES_PER_CONNECTION: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_half_sent_heads_take_less_than_60_megabytes() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--header-timeout", "60s"]);
    let before = resident_kilobytes(service.id());
    // As much as is read before the client is refused, and much more than that.
    for bytes in [31_000, 126_000] {
        let request = format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(bytes));
        let mut sockets = Vec::new();
        for _ in 0..1_000 {
            let mut socket = TcpStream::connect(service.address).await.unwrap();
            let _ = socket.write_all(request.as_bytes()).await;
            sockets.push(socket);
        }
        sleep(Duration::from_millis(500)).await;
        let added = resident_kilobytes(service.id()).saturating_sub(before);
        eprintln!("1000 heads of {bytes} bytes take {added} kB");
        assert!(added < 1_000 * KILOBYTES_PER_CONNECTION, "{bytes} bytes: {added} kB");
    }
}

#[tokio::test]
async fn a_client_that_has_nothing_more_to_send_is_answered() {
    let service = TestService::start().await;
    for number in 0..5 {
        let body = json!({"name": format!("Rex {number}"), "categoryId": 1}).to_string();
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        let request = json_head("POST /v1/pets", body.len()) + &body;
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = String::new();
        timeout(Duration::from_secs(5), socket.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert_eq!(parse(&answer).status, 201, "{answer}");
    }
    assert_eq!(service.client.get("/v1/pets").await.ids().len(), 5);
}

/// Sends a request in two parts, and another one behind it on the same connection; returns all that comes back.
async fn send_slowly(address: SocketAddr, first: &str, rest: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(first.as_bytes()).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let _ = socket.write_all(rest.as_bytes()).await;
    let _ = socket.write_all(head("GET /v1/pets", key().reveal(), "Connection: close\r\n").as_bytes()).await;
    let mut answers = String::new();
    let _ = timeout(Duration::from_secs(5), socket.read_to_string(&mut answers)).await.unwrap();
    answers
}

#[tokio::test]
async fn an_answer_after_which_the_connection_is_closed_says_so() {
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
        let answers = send_slowly(service.address, &first, &rest).await;
        let answer = parse(&answers);
        assert_eq!((answer.status, answer.header("connection")), (status, "close"), "{what}: {answers}");
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{what}: {answers}");
    }
    // A body that is there already is dropped, and the connection stays.
    let first = json_head("POST /v1/nowhere", 1_000) + &"x".repeat(1_000);
    let answers = send_slowly(service.address, &first, "").await;
    assert_eq!(parse(&answers).header("connection"), "", "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 1, "{answers}");
}

#[tokio::test]
async fn a_client_that_expects_to_be_asked_for_its_body_is_not_asked_where_it_is_refused() {
    let service = TestService::start().await;
    let expecting =
        json_head("POST /v1/nowhere", 10).replace("Content-Type", "Expect: 100-continue\r\nContent-Type");
    let answer = exchange(service.address, expecting.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert_eq!(parse(&answer).header("connection"), "close");
}

#[tokio::test]
async fn pipelined_bodies_arrive_as_they_were_sent_however_they_are_framed() {
    let service = TestService::start().await;
    // White space with line feeds, which in a head would be spoilt.
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
async fn answers_before_a_refused_request_arrive_whole_also_after_an_upgrade_that_was_not_granted() {
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
                sleep(Duration::from_millis(2)).await;
            }
            let answers = String::from_utf8(answers).unwrap();
            assert!(answers.contains(&document), "{header}{refused:.20}: {} bytes", answers.len());
            assert_eq!(answers.matches("HTTP/1.1 4").count(), 1, "{header}{refused:.20}");
        }
    }
}

#[tokio::test]
async fn a_refused_connection_is_told_so_also_if_it_is_still_sending() {
    let flags = ["--max-connections-per-address", "1", "--trusted-proxy", "192.0.2.1"];
    let service = TestService::start_with(&flags).await;
    let _first = TcpStream::connect(service.address).await.unwrap();
    for _ in 0..10 {
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        // In parts: the answer is there before the last of them.
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

#[tokio::test]
async fn heads_that_a_proxy_may_read_otherwise_are_refused() {
    let service = TestService::start().await;
    let get = |more: &str| head("GET /v1/pets", key().reveal(), more);
    let post = |more: &str| head("POST /v1/pets", key().reveal(), more);
    for (request, expected) in [
        (get("X: y\r\n").replace("X: y\r\n", "X: y\n"), (400, "invalid_header")),
        (get("").replace("HTTP/1.1\r\n", "HTTP/1.1\n"), (400, "invalid_header")),
        (get("") + &get("").replace("Host: a\r\n", "Host: a\n"), (400, "invalid_header")),
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
        (
            get("Connection: keep-alive\r\n").replace("HTTP/1.1", "HTTP/1.0") + "(\r\n\r\n",
            (400, "invalid_header"),
        ),
        (post("Content-Length: 18446744073709551615\r\n"), (413, "body_too_large")),
        (post("Content-Length: 99999999999999999999999\r\n"), (413, "body_too_large")),
        (post("Content-Length: \r\n"), (400, "invalid_header")),
        (post("Content-Length: 2, 2\r\n"), (400, "invalid_header")),
        (get("").replace("/v1/pets", &format!("/{}", "x".repeat(70_000))), (414, "uri_too_long")),
        (get("").replace("/v1/pets", &format!("/{}", "x".repeat(20_000))), (414, "uri_too_long")),
        (get(&format!("X: {}\r\n", "x".repeat(70_000))), (431, "headers_too_large")),
        (get(&format!("X: {}\r\n", "x".repeat(20_000))), (431, "headers_too_large")),
    ] {
        let request = request.replace("Connection: close\r\n", "");
        let mut socket = TcpStream::connect(service.address).await.unwrap();
        let _ = socket.write_all(request.as_bytes()).await;
        let _ = socket.shutdown().await;
        let mut answers = String::new();
        let _ = timeout(Duration::from_secs(5), socket.read_to_string(&mut answers)).await.unwrap();
        // The last answer: a good request may have come before.
        let last = answers.rfind("HTTP/1.1 ").unwrap_or_else(|| panic!("no answer to {request:.200}"));
        let answer = parse(&answers[last..]);
        answer.check(&reqwest::Method::GET);
        assert_eq!(answer.error(), (expected.0, expected.1.into()), "{request:.200}");
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

/// Asks with keys that were never issued for a while, over one connection from another address, and counts the answers.
async fn ask_with_made_up_keys(service: SocketAddr, number: u64, time: Duration) -> u64 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
    let mut socket = socket.connect(service).await.unwrap();
    let (began, mut answers) = (Instant::now(), 0);
    let mut buffer = [0; 4096];
    while began.elapsed() < time {
        let mut digits = format!("{number:08}{answers:024}").into_bytes().into_iter().rev();
        let made_up = ApiKey::generate(|| digits.next().map_or(0, |digit| digit - b'0'));
        socket.write_all(head("GET /v1/pets", made_up.reveal(), "").as_bytes()).await.unwrap();
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(buffer[..read].starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&buffer[..read]));
        answers += 1;
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_that_were_never_issued_are_looked_up_at_a_bounded_rate() {
    let service = TestService::start_with(&["--trusted-proxy", "192.0.2.1"]).await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    let time = Duration::from_secs(3);
    let mut floods = JoinSet::new();
    for number in 1..=8 {
        floods.spawn(ask_with_made_up_keys(service.address, number, time));
    }
    let began = Instant::now();
    while began.elapsed() < time {
        assert_eq!(service.client.get("/v1/pets").await.status, 200, "a known key is served");
        sleep(Duration::from_millis(20)).await;
    }
    let answers: u64 = floods.join_all().await.into_iter().sum();
    eprintln!("{answers} answers to made-up keys in {time:?}");
    // Twenty at once, then one a second over each connection, and some more when a second begins.
    assert!((20..200).contains(&answers), "{answers}");
    // Somebody else whose key is not known yet does not wait: of three, on a busy machine, one at least.
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let other = new_key(&service.database.url(), &[]);
        let asked = Instant::now();
        assert_eq!(Client::new(service.address, Some(&other)).get("/v1/pets").await.status, 200);
        least = least.min(asked.elapsed());
    }
    assert!(least < Duration::from_millis(900), "{least:?}");
}
