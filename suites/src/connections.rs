//! Thousands of idle and slow connections: what each costs in memory, and what they do to the latency of a normal client.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::http::{Connection, slow_reader};
use crate::measure::{Bars, Samples, alternate, p99_of_probe};
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
    rounds: usize,
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
        let mut each = None;
        let p99s = alternate(3, (0, self.rounds), async |side, _| match side {
            0 => self.p99(service.address, &key).await,
            1 => {
                let before = service.kilobytes()?;
                let mut idle = Vec::new();
                for _ in 0..self.idle {
                    let mut connection = Connection::open(service.address, &key).await?;
                    connection.send("GET", "/v1/pets?limit=1", "").await?;
                    idle.push(connection);
                }
                // Later rounds reuse memory that the process kept from the first.
                each.get_or_insert((service.kilobytes()? - before) / f64::from(self.idle));
                self.p99(service.address, &key).await
            }
            _ => {
                let mut slow = JoinSet::new();
                for number in 0..self.slow {
                    let delay = SETTLING * number / self.slow;
                    slow.spawn(send_slowly(service.address, delay));
                    slow.spawn(read_slowly(service.address, key.clone(), delay));
                }
                sleep(SETTLING).await;
                let p99 = self.p99(service.address, &key).await;
                slow.shutdown().await;
                p99
            }
        });
        let p99s: Vec<Samples> = p99s.await?.into_iter().map(Samples).collect();
        let mut bars = Bars::default();
        let what = format!("kilobytes of memory for each of {} idle connections", self.idle);
        bars.at_most(&what, &Samples(each.into_iter().collect()), BAR);
        for (name, beside) in [("idle connections", &p99s[1]), ("slow senders and readers", &p99s[2])] {
            let what = format!("p99 of a normal client beside {name}, times that alone");
            bars.at_most(&what, &beside.ratio_to(&p99s[0]), self.bar);
        }
        bars.finish()
    }

    /// The p99 in milliseconds of a client that sends 100 requests per second.
    async fn p99(&self, address: SocketAddr, key: &str) -> Outcome<f64> {
        let request = |number| ("GET", format!("/v1/pets?id={}", 1 + number), "");
        p99_of_probe(address, key, 100, self.seconds * 100, request).await
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
