//! Shutdown, and the interface to systemd: socket activation, readiness, the watchdog.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::Method;

use crate::support::postgres::{key, wait_for_blocked_statement};
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{ServeProcess, free_address, petstore};
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};

async fn wait_until_not_ready(service: &ServeProcess) {
    let admin = Client::new(service.admin_address, None);
    eventually("the service is not ready", async || admin.get("/readyz").await.status == 503).await;
}

#[tokio::test]
async fn after_sigterm_readyz_answers_503_at_once_while_requests_are_still_served() {
    let database = TestDatabase::new().await;
    for signal in ["TERM", "INT"] {
        let service = ServeProcess::start(&database.url(), &["--drain-delay", "1h"]);
        let admin = Client::new(service.admin_address, None);
        assert_eq!(admin.get("/readyz").await.status, 200);
        assert_eq!(service.client.get("/v1/pets").await.header("connection"), "");
        service.signal(signal);
        wait_until_not_ready(&service).await;

        assert_eq!(admin.get("/livez").await.status, 200);
        service.client.add("Rex", None).await;
        let fresh = Client::new(service.address, Some(&key()));
        let answer = fresh.get("/v1/pets").await;
        assert_eq!(answer.status, 200, "new connections are accepted, too");
        assert_eq!(answer.header("connection"), "close", "and are closed after the answer");
    }
}

#[tokio::test]
async fn after_the_drain_delay_new_connections_are_refused_and_requests_in_flight_finish_before_exit_0() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--drain-delay", "2s"]);
    let locked = database.connect().await;
    locked.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let signalled = Instant::now();
    service.signal("TERM");
    wait_until_not_ready(&service).await;
    let client = service.client.clone();
    let adding = tokio::spawn(async move { client.add("Rex", None).await });
    wait_for_blocked_statement(&database.connect().await).await;
    let refused = async || tokio::net::TcpStream::connect(service.address).await.is_err();
    eventually("new connections are refused", refused).await;
    assert!(signalled.elapsed() >= Duration::from_secs(2), "{:?}", signalled.elapsed());
    locked.batch_execute("COMMIT").await.unwrap();
    assert_eq!(adding.await.unwrap(), 1, "it was sent during the delay");
    let (code, log) = service.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("\"message\":\"stopped\""), "{log}");
}

#[tokio::test]
async fn a_request_that_outlives_the_drain_timeout_is_cut_off_and_the_exit_code_is_0() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--drain-timeout", "200ms"]);
    let locked = database.connect().await;
    locked.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let client = service.client.clone();
    let path = "/v1/pets/1";
    let asking = tokio::spawn(async move { client.try_send(Method::GET, path, |request| request).await });
    wait_for_blocked_statement(&database.connect().await).await;
    let (exited_well, log) = service.terminate();
    assert!(exited_well, "{log}");
    assert!(log.contains("requests were still in flight"), "{log}");
    assert!(asking.await.unwrap().is_err());
}

#[tokio::test]
async fn a_second_signal_stops_the_service_at_once_with_exit_code_1() {
    let database = TestDatabase::new().await;
    for second in ["TERM", "INT"] {
        let service = ServeProcess::start(&database.url(), &["--drain-delay", "1h"]);
        service.signal("TERM");
        wait_until_not_ready(&service).await;
        service.signal(second);
        let (code, log) = service.wait();
        assert_eq!(code, Some(1), "{log}");
        assert!(
            log.lines()
                .last()
                .unwrap()
                .contains("stopped by a second signal before requests in flight had finished"),
            "{log}"
        );
    }
}

#[tokio::test]
async fn sighup_is_logged_and_changes_nothing() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    service.signal("HUP");
    service.wait_for_log("SIGHUP ignored").await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    assert!(service.terminate().0);
}

/// A command that runs `petstore serve` with socket activation: with open sockets from descriptor 3 on, and the
/// variables of systemd.
fn with_socket_activation(sockets: &[&TcpListener], names: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    let pass = ["exec 0</dev/null", "exec 3<&0 0</dev/null", "exec 3<&0 4<&1 0</dev/null 1>/dev/null"];
    let script = format!("{}; LISTEN_PID=$$ exec \"$0\" serve", pass[sockets.len()]);
    command.env_clear().args(["-c", &script, env!("CARGO_BIN_EXE_petstore")]);
    command.env("LISTEN_FDS", sockets.len().to_string()).env("LISTEN_FDNAMES", names);
    let mut descriptors = sockets.iter().map(|socket| OwnedFd::from(socket.try_clone().unwrap()));
    command.stdin(descriptors.next().map_or(Stdio::null(), Stdio::from));
    command.stdout(descriptors.next().map_or(Stdio::null(), Stdio::from));
    command
}

fn listener() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[tokio::test]
async fn socket_activation_answers_clients_that_connected_before_the_service_started() {
    let database = TestDatabase::new().await;
    let (socket, address) = listener();
    for round in 0..2 {
        let mut early = TcpStream::connect(address).unwrap();
        let request = format!(
            "GET /v1/pets HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            key().reveal()
        );
        early.write_all(request.as_bytes()).unwrap();
        let command = with_socket_activation(&[&socket], "petstore.socket");
        let service = ServeProcess::start_as(command, &database.url(), address, free_address());
        let mut answer = String::new();
        early.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "round {round}: {answer}");
        assert!(service.terminate().0);
    }
}

#[tokio::test]
async fn the_socket_named_admin_is_the_admin_listener_in_any_position() {
    let database = TestDatabase::new().await;
    let ((public, address), (admin, admin_address)) = (listener(), listener());
    for (sockets, names) in [([&public, &admin], "public:admin"), ([&admin, &public], "admin:public")] {
        // The addresses in the settings are already in use, which does not matter with socket activation.
        let command = with_socket_activation(&sockets, names);
        let service = ServeProcess::start_as(command, &database.url(), address, admin_address);
        assert_eq!(Client::new(admin_address, None).get("/readyz").await.status, 200, "{names}");
        assert_eq!(service.client.get("/v1/pets").await.status, 200, "{names}");
        assert!(service.terminate().0);
    }
}

#[test]
fn an_unexpected_second_socket_is_refused() {
    let ((first, _), (second, _)) = (listener(), listener());
    let mut command = with_socket_activation(&[&first, &second], "one:other");
    let output = command.env("DATABASE_URL", "postgresql://127.0.0.1:1/none").stderr(Stdio::piped()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = "too many sockets were passed: expected at most one public and one named `admin`";
    assert!(error.contains(expected), "{error}");
}

/// Receives the notifications that the program sends to systemd.
struct NotifySocket {
    path: PathBuf,
    socket: UnixDatagram,
}

impl NotifySocket {
    fn start(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("petstore-notify-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { path, socket }
    }

    fn receive(&self) -> String {
        let mut bytes = [0; 1024];
        let length = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap().trim_end().to_owned()
    }

    fn is_empty(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        self.socket.recv(&mut [0; 256]).is_err()
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[tokio::test]
async fn systemd_is_notified_when_the_service_is_ready_and_when_it_stops() {
    let database = TestDatabase::new().await;
    let systemd = NotifySocket::start("ready");
    let mut command = petstore(&["serve"]);
    command.env("NOTIFY_SOCKET", &systemd.path);
    let service = ServeProcess::start_as(command, &database.url(), free_address(), free_address());
    assert_eq!(systemd.receive(), "READY=1\nSTATUS=serving");
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    service.signal("TERM");
    assert_eq!(systemd.receive(), "STOPPING=1\nSTATUS=draining");
    assert_eq!(service.wait().0, Some(0));
}

#[tokio::test]
async fn systemd_is_told_what_a_service_waits_for_and_notified_when_it_has_it() {
    let (postgres, _) = PrivatePostgres::start_with_key();
    postgres.stop("fast");
    let systemd = NotifySocket::start("waiting");
    let mut command = petstore(&["serve"]);
    command.env("NOTIFY_SOCKET", &systemd.path);
    let _service = ServeProcess::start_as(command, &postgres.url, free_address(), free_address());
    let status = systemd.receive();
    assert!(status.starts_with("STATUS=waiting for the database: database unavailable: "), "{status}");
    postgres.start_again();
    assert_eq!(systemd.receive(), "READY=1\nSTATUS=serving");
}

#[tokio::test]
async fn systemd_is_not_notified_by_a_service_that_refuses_an_old_schema() {
    let database = TestDatabase::empty().await;
    let systemd = NotifySocket::start("old");
    let output = petstore(&["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .env("DATABASE_URL", database.url())
        .env("NOTIFY_SOCKET", &systemd.path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(systemd.is_empty());
}

#[tokio::test]
async fn the_watchdog_is_notified_twice_per_interval_even_while_draining() {
    let database = TestDatabase::new().await;
    let systemd = NotifySocket::start("watchdog");
    let mut command = petstore(&["serve", "--drain-delay", "1h"]);
    command.env("NOTIFY_SOCKET", &systemd.path).env("WATCHDOG_USEC", "200000");
    // From the start of the process: a test that is held up finds several notifications at once.
    let started = Instant::now();
    let service = ServeProcess::start_as(command, &database.url(), free_address(), free_address());
    let mut notified = 0;
    while notified < 20 {
        match systemd.receive().as_str() {
            "WATCHDOG=1" => notified += 1,
            other => assert_eq!(other, "READY=1\nSTATUS=serving"),
        }
    }
    assert!(started.elapsed() >= Duration::from_millis(1900), "{:?}", started.elapsed());
    service.signal("TERM");
    while systemd.receive() != "STOPPING=1\nSTATUS=draining" {}
    assert_eq!(systemd.receive(), "WATCHDOG=1");
}
