//! Clients that are hostile, slow or careless, which others must not notice.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use petstore_config::{PoolSettings, ReadFrom};
use petstore_domain::api_key::ApiKey;
use petstore_domain::pet::{Pet, PetId};
use petstore_domain::version::Versioned;
use petstore_storage::Storage;
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::memory::{KILOBYTES_PER_CONNECTION, resident_kilobytes};
use crate::support::metrics::wait_for_requests_in_flight;
use crate::support::postgres::{key, wait_for_blocked_statement};
use crate::support::program::{ServeProcess, new_key};
use crate::support::raw_http::{
    exchange, head, is_hypers, json_head, parse, post_incomplete_body, read_to_end,
};
use crate::support::wait::{PROMPTLY, eventually};
use crate::support::{TestDatabase, TestService};

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
    let service = ServeProcess::start(&database.url(), &["--body-timeout", "1s", "--drain-timeout", "60s"]);
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
    let stopping = Instant::now();
    assert!(service.terminate().0);
    assert!(stopping.elapsed() < PROMPTLY, "nothing goes on writing to it");
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
    let rename = |pet: &Versioned<Pet>, _: bool| {
        Ok::<_, ()>(Pet { name: "Bello".to_owned().try_into().unwrap(), ..pet.content.clone() })
    };
    for _ in 0..2 {
        let changing = timeout(Duration::from_millis(300), storage.change_pet(held, None, rename)).await;
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
        timeout(Duration::from_millis(300), storage.change_pet(held, None, rename)).await.is_ok()
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
