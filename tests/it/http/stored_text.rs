//! Stored text that looks like something else, such as HTTP, SQL, HTML or a log line: it comes back byte for byte, whoever reads
//! it, and appears nowhere else.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::folder::Folder;
use crate::support::metrics::scrape;
use crate::support::postgres::key;
use crate::support::program::{ServeProcess, free_address, run};
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase, TestService};

/// The beginnings of messages that a server or a proxy writes itself.
const MESSAGES: [&str; 4] = ["HTTP/1.1 400 ", "HTTP/1.1 431 ", "HTTP/1.0 414 ", "\u{1f415}HTTP/1.1 "];

/// Connects with a small receive buffer and small segments, so that the service's writes are short.
async fn connect_slowly(address: SocketAddr, segment_bytes: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    SockRef::from(&socket).set_tcp_mss(segment_bytes).unwrap();
    socket.connect(address).await.unwrap()
}

/// Sends requests at once, and reads the bodies of all answers slowly.
async fn read_slowly(mut socket: TcpStream, path: &str, count: usize) -> Vec<String> {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", key().reveal());
    socket.write_all(request.repeat(count).as_bytes()).await.unwrap();
    let (mut received, mut buffer, mut bodies) = (Vec::new(), vec![0; 8 * 1024], Vec::new());
    while bodies.len() < count {
        while let Some((body, rest)) = split_answer(&received) {
            bodies.push(body);
            received.drain(..rest);
        }
        if bodies.len() < count {
            let read = socket.read(&mut buffer).await.unwrap();
            assert!(
                read > 0,
                "closed after {} answers: {}",
                bodies.len(),
                String::from_utf8_lossy(&received)
            );
            received.extend_from_slice(&buffer[..read]);
            sleep(Duration::from_millis(2)).await;
        }
    }
    bodies
}

/// The body of the first answer, if it is complete, and where the next answer begins.
fn split_answer(received: &[u8]) -> Option<(String, usize)> {
    let end = received.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&received[..end]).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let next = end + length.parse::<usize>().unwrap();
    let body = received.get(end..next)?;
    Some((String::from_utf8_lossy(body).into_owned(), next))
}

/// Adds 100 pets whose names repeat a text, and returns their page.
async fn add_pets_named(service: &TestService, text: &str) -> String {
    let name: String = text.chars().cycle().take(255).collect();
    let database = service.database.connect().await;
    let insert = "INSERT INTO pets (name, category_id) SELECT $1, 1 FROM generate_series(1, 100)";
    database.execute(insert, &[&name]).await.unwrap();
    let page = service.client.get(PAGE).await.body;
    assert_eq!(page.matches(&*json!(name).to_string()).count(), 100);
    page
}

const PAGE: &str = "/v1/pets?limit=100";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_looks_like_a_response_corrupts_no_answer_of_a_slow_reader() {
    for message in MESSAGES {
        let service = TestService::start().await;
        let page = add_pets_named(&service, message).await;
        // The segments decide where in a name a write ends.
        let readers = [450, 536, 700, 1000].map(async |segment_bytes| {
            read_slowly(connect_slowly(service.address, segment_bytes).await, PAGE, 30).await
        });
        let bodies = join_all(readers).await.concat();
        let corrupted = bodies.iter().filter(|body| **body != page).count();
        assert_eq!(corrupted, 0, "of {} answers with {message:?}", bodies.len());
    }
}

/// HAProxy in front of a service, whose clients share a few connections to it.
struct Balancer {
    process: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Balancer {
    async fn start(service: &TestService) -> Self {
        let (folder, address) = (Folder::new(), free_address());
        let settings = format!(
            "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n http-reuse always\n\
             listen clients\n bind {address}\n server one {} maxconn 2\n",
            service.address
        );
        folder.write("haproxy.cfg", &settings);
        let process = Command::new("haproxy")
            .args(["-db", "-f", &folder.path("haproxy.cfg")])
            .stdout(Stdio::null())
            .stderr(File::create(folder.path("haproxy.log")).unwrap())
            .spawn()
            .unwrap();
        let balancer = Self { process, address, _folder: folder };
        eventually("HAProxy listens", async || TcpStream::connect(address).await.is_ok()).await;
        balancer
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_share_connections_through_a_proxy_get_their_own_answers() {
    let service = TestService::start().await;
    let page = add_pets_named(&service, MESSAGES[0]).await;
    let balancer = Balancer::start(&service).await;
    let mut clients = JoinSet::new();
    for number in 1..=6 {
        let address = balancer.address;
        // Half of the clients read a page slowly, the others one pet.
        clients.spawn(async move {
            if number % 2 == 0 {
                (number, read_slowly(connect_slowly(address, 536).await, PAGE, 20).await)
            } else {
                let path = format!("/v1/pets?id={number}");
                (number, read_slowly(TcpStream::connect(address).await.unwrap(), &path, 200).await)
            }
        });
    }
    let pets: Vec<Value> = serde_json::from_str(&page).unwrap();
    for (number, bodies) in clients.join_all().await {
        let expected = if number % 2 == 0 { page.clone() } else { json!([pets[number - 1]]).to_string() };
        let wrong = bodies.iter().filter(|body| **body != expected).count();
        assert_eq!(wrong, 0, "of {} answers to client {number}", bodies.len());
    }
}

/// Valid names that look like something else, at the limits of their length.
fn hostile_texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "HTTP/1.1 200 OK",
        "'; DROP TABLE pets; --",
        "$1 $$ \\x00 %s %00%0d%0a",
        "=1+1",
        "@SUM(A1:A9)",
        "+1",
        "-1",
        "\"a\",\"b\";c",
        "</script><script>alert(1)</script>&amp;<!--",
        "{\"id\":1,\"status\":\"sold\"}]",
        "\\u0000\\n\\",
        "\",\"level\":\"ERROR\",\"message\":\"request",
        "petstore_up{a=\"b\"} 1",
        "null",
        "\\N",
        "\\.",
        "\u{feff}bom \u{202e}bidi \u{2028}line \u{200b}zero",
        "e\u{301} \u{e9} ﷽ \u{10ffff}",
        " leading and trailing ",
    ]
    .map(str::to_owned)
    .into();
    texts.extend(["x", "\u{7ff}", "\u{ffff}", "\u{1f415}"].map(|character| character.repeat(255)));
    texts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_text_comes_back_from_every_operation_and_file_and_is_in_no_log_and_no_metric() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let client = &service.client;
    let texts = hostile_texts();
    for (index, text) in texts.iter().enumerate() {
        let id = index + 1;
        let pet = json!({"name": text, "categoryId": 1, "status": "available", "reference": text});
        let rendered =
            json!({"id": id, "name": text, "categoryId": 1, "status": "available", "reference": text});
        let created = client.post("/v1/pets", &pet).await;
        assert_eq!((created.status, created.json()), (201, rendered.clone()), "{text:?}");
        let encoded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
        for path in [format!("/v1/pets?id={id}"), format!("/v1/pets?reference={encoded}")] {
            assert_eq!(client.get(&path).await.body, format!("[{}]", created.body), "{text:?}");
        }
        assert_eq!(client.get(&format!("/v1/pets/{id}")).await.body, created.body, "{text:?}");
        let order = json!({"petId": id, "reference": text});
        let order = client.post_with_key("/v1/store/orders", &format!("order-{id}"), &order).await;
        assert_eq!((order.status, &order.json()["reference"]), (201, &json!(text)), "{text:?}");
    }
    let page = client.get(PAGE).await.json();
    let names: Vec<&str> = page.as_array().unwrap().iter().map(|pet| pet["name"].as_str().unwrap()).collect();
    assert_eq!(names, texts);

    let folder = Folder::new();
    let in_database = |database: &TestDatabase, arguments: &[&str]| {
        let output = run(arguments, &[("DATABASE_URL", &database.url())]);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let exported = in_database(&database, &["export"]);
    for file in ["pets.csv", "pets.ndjson"] {
        in_database(&database, &["export", &folder.path(file)]);
        let copy = TestDatabase::new().await;
        in_database(&copy, &["import", &folder.path(file), "--key-column", "id"]);
        assert_eq!(in_database(&copy, &["export"]), exported, "{file}");
    }

    let (log, metrics) = (service.log(), scrape(service.admin_address).await);
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    // Short texts may occur anywhere.
    for text in texts.iter().filter(|text| text.len() > 9) {
        let escaped = json!(text).to_string();
        for form in [text.as_str(), escaped.trim_matches('"')] {
            assert!(!log.contains(form) && !metrics.contains(form), "{text:?}");
        }
    }
}

#[tokio::test]
async fn the_name_of_a_key_comes_back_from_every_command_and_is_in_no_log() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let url = database.url();
    let environment = [("DATABASE_URL", &*url)];
    let texts: Vec<String> = hostile_texts().into_iter().filter(|text| text.chars().count() <= 100).collect();
    for text in &texts {
        let output = run(&["keys", "create", &format!("--name={text}")], &environment);
        assert!(output.status.success(), "{text:?}: {}", String::from_utf8_lossy(&output.stderr));
        let key = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let client = Client::new(service.address, Some(&key));
        assert_eq!(client.get("/v1/pets").await.status, 200, "{text:?}");
    }
    let listed: Value =
        serde_json::from_slice(&run(&["keys", "list", "--json"], &environment).stdout).unwrap();
    let mut names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|record| record["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    let mut expected: Vec<&str> = texts.iter().map(String::as_str).chain(["test"]).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let table = String::from_utf8(run(&["keys", "list"], &environment).stdout).unwrap();
    assert_eq!(table.lines().count(), texts.len() + 2, "{table}");
    let log = service.log();
    for text in texts.iter().filter(|text| text.len() > 9) {
        assert!(!log.contains(text.as_str()), "{text:?}");
    }
}
