//! Thousands of idle and slow connections: what each costs in memory, and what they do to the latency of a normal client.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::http::{Connection, probe, slow_reader};
use crate::measure::{Samples, verdict};
use crate::topology::{Server, database_url, prepare};

/// The most memory per idle connection, in kilobytes.
const BAR: f64 = 25.0;
/// The slow clients connect evenly within this time.
const SETTLING: Duration = Duration::from_secs(5);
/// The pause of a slow client between two bytes.
const STEP: Duration = Duration::from_millis(500);

/// Idle connections, slow senders and slow readers.
#[derive(Args)]
pub(crate) struct Connections {
    /// Connections that send one request and then nothing.
    #[arg(long, default_value_t = 10_000)]
    idle: u32,
    /// Clients that send one byte at a time, and as many that read one byte at a time.
    #[arg(long, default_value_t = 1_000)]
    slow: u32,
    /// Rounds, each with the normal client alone, beside idle connections and beside slow clients.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// The highest p99 of the normal client, as a multiple of its p99 alone.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

impl Connections {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 10_000)?;
        let service = Server::with_many_connections(&url)?;
        let (mut idle_ratio, mut slow_ratio) = (Samples::default(), Samples::default());
        let mut each = 0.0;
        for round in 1..=self.rounds {
            let alone = self.p99(service.address, &key).await?;

            let before = service.kilobytes()?;
            let mut idle = Vec::new();
            for _ in 0..self.idle {
                let mut connection = Connection::open(service.address, &key).await?;
                connection.send("GET", "/v1/pets?limit=1", "").await?;
                idle.push(connection);
            }
            // Later rounds reuse memory that the process kept from the first.
            if round == 1 {
                each = (service.kilobytes()? - before) / f64::from(self.idle);
            }
            let beside_idle = self.p99(service.address, &key).await?;
            drop(idle);

            let mut slow = JoinSet::new();
            for number in 0..self.slow {
                let delay = SETTLING * number / self.slow;
                slow.spawn(send_slowly(service.address, delay));
                slow.spawn(read_slowly(service.address, key.clone(), delay));
            }
            sleep(SETTLING).await;
            let beside_slow = self.p99(service.address, &key).await?;
            slow.shutdown().await;

            println!(
                "round {round}: p99 of a normal client {alone:.1} ms alone, {beside_idle:.1} ms beside idle connections, \
                 {beside_slow:.1} ms beside slow clients"
            );
            idle_ratio.push(beside_idle / alone);
            slow_ratio.push(beside_slow / alone);
        }
        println!("{} idle connections: {each:.1} KB of memory each; the bar is {BAR} KB", self.idle);
        let mut failures = Vec::new();
        if each > BAR {
            failures.push(format!("a connection costs {each:.1} KB"));
        }
        for (name, ratio) in [("idle connections", &idle_ratio), ("slow senders and readers", &slow_ratio)] {
            println!("p99 of a normal client beside {name}: {} times that alone", ratio.spread());
            if ratio.median() > self.bar {
                failures.push(format!("p99 beside {name} is {:.2} times that alone", ratio.median()));
            }
        }
        verdict(&failures)
    }

    /// The p99 in milliseconds of a client that sends 100 requests per second.
    async fn p99(&self, address: SocketAddr, key: &str) -> Outcome<f64> {
        let request = |number| ("GET", format!("/v1/pets?id={}", 1 + number), "");
        Ok(probe(address, key, 100, self.seconds * 100, request).await?.at(0.99))
    }
}

/// Sends the head of a request one byte at a time until the service closes the connection; then again.
async fn send_slowly(address: SocketAddr, delay: Duration) {
    sleep(delay).await;
    while let Ok(mut socket) = TcpStream::connect(address).await {
        for byte in b"GET /v1/pets HTTP/1.1\r\nHost: slow\r\n".iter().cycle() {
            if socket.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(STEP).await;
        }
    }
}

/// Reads one byte at a time until the service closes the connection; then again.
async fn read_slowly(address: SocketAddr, key: String, delay: Duration) {
    sleep(delay).await;
    while let Ok(mut socket) = slow_reader(address, &key).await {
        let mut byte = [0];
        while matches!(socket.read(&mut byte).await, Ok(1)) {
            sleep(STEP).await;
        }
    }
}
