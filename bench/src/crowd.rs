//! Many clients that do nothing, or too slowly: what each costs, and whether a good client notices.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::Outcome;
use crate::http::Connection;
use crate::report::Samples;
use crate::tools::{Server, database_url, prepare};

/// The most memory that a connection may cost, in kilobytes.
const BAR: f64 = 25.0;

/// Idle connections, slow senders and slow readers.
#[derive(Args)]
pub(crate) struct Crowd {
    /// Connections that sent one request and then nothing.
    #[arg(long, default_value_t = 10_000)]
    idle: u32,
    /// Clients that send a byte now and then, and as many that never read.
    #[arg(long, default_value_t = 1_000)]
    slow: u32,
    /// Seconds of each measurement of the good client.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

impl Crowd {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 10_000)?;
        let service = Server::petstore_for_crowds(&url)?;
        let alone = good_client(service.address, &key, self.seconds).await?;

        let before = service.kilobytes()?;
        let mut idle = Vec::new();
        for _ in 0..self.idle {
            let mut connection = Connection::open(service.address, &key).await?;
            connection.send("GET", "/v1/pets?limit=1", "").await?;
            idle.push(connection);
        }
        let each = (service.kilobytes()? - before) / f64::from(self.idle);
        println!("{} idle connections: {each:.1} KB of memory each; the bar is {BAR} KB", self.idle);
        let beside_idle = good_client(service.address, &key, self.seconds).await?;
        drop(idle);

        let mut crowd = JoinSet::new();
        for _ in 0..self.slow {
            crowd.spawn(send_slowly(service.address));
            crowd.spawn(never_read(service.address, key.clone()));
        }
        sleep(Duration::from_secs(2)).await;
        let beside_slow = good_client(service.address, &key, self.seconds).await?;
        drop(crowd);

        // As often as alone, a moment later: noise of the machine, not of the crowd.
        let again = good_client(service.address, &key, self.seconds).await?;
        let quiet = alone.at(0.99).max(again.at(0.99));
        let mut failures = Vec::new();
        for (name, times) in [("idle connections", &beside_idle), ("slow senders and readers", &beside_slow)]
        {
            let ratio = times.at(0.99) / quiet;
            println!(
                "a good client beside {name}: 99 % within {:.1} ms, {ratio:.2} times as long as alone",
                times.at(0.99)
            );
            if ratio > 2.0 {
                failures.push(format!("beside {name} it takes {ratio:.2} times as long"));
            }
        }
        if each > BAR {
            failures.push(format!("a connection costs {each:.1} KB"));
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
    }
}

/// The times in milliseconds of a client that asks 100 times a second and does all that is expected of it.
async fn good_client(address: SocketAddr, key: &str, seconds: u64) -> Outcome<Samples> {
    let mut connection = Connection::open(address, key).await?;
    let mut times = Samples::default();
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0..seconds * 100 {
        ticks.tick().await;
        let began = Instant::now();
        let (status, _) = connection.send("GET", &format!("/v1/pets?id={}", 1 + number), "").await?;
        if status != 200 {
            return Err(format!("a good client was answered with {status}").into());
        }
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(times)
}

/// Sends the head of a request, a byte at a time, until it is thrown out; then again.
async fn send_slowly(address: SocketAddr) {
    while let Ok(mut socket) = TcpStream::connect(address).await {
        for byte in b"GET /v1/pets HTTP/1.1\r\nHost: slow\r\n".iter().cycle() {
            if socket.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Asks for pages and reads none, until it is thrown out; then again.
async fn never_read(address: SocketAddr, key: String) {
    let request =
        format!("GET /v1/pets?limit=100 HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {key}\r\n\r\n");
    while let Ok(mut socket) = TcpStream::connect(address).await {
        while socket.write_all(request.as_bytes()).await.is_ok() {
            sleep(Duration::from_millis(500)).await;
            // Enough to find out that the other side is gone.
            let mut byte = [0];
            if !matches!(socket.read(&mut byte).await, Ok(1)) {
                break;
            }
        }
    }
}
