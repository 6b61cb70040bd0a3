//! Many clients that do nothing, or too slowly: what each costs, and whether a good client notices.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::Outcome;
use crate::http::Connection;
use crate::report::Samples;
use crate::tools::{Server, database_url, prepare};

/// The most memory that a connection may cost, in kilobytes.
const BAR: f64 = 25.0;
/// The time in which a slow crowd gathers, evenly.
const SETTLING: Duration = Duration::from_secs(5);
/// How long a slow client waits between two bytes.
const STEP: Duration = Duration::from_millis(500);
/// How many pages a slow reader asks for at once, of 6.6 KB each: the service is stuck at about the 14th.
const PAGES: usize = 20;
/// The segments of a slow reader. With those of the loopback device, the kernel would take 2.8 MB off the service's hands.
const SEGMENT: u32 = 536;

/// Idle connections, slow senders and slow readers.
#[derive(Args)]
pub(crate) struct Crowd {
    /// Connections that sent one request and then nothing.
    #[arg(long, default_value_t = 10_000)]
    idle: u32,
    /// Clients that send a byte now and then, and as many that read so.
    #[arg(long, default_value_t = 1_000)]
    slow: u32,
    /// How often the good client is measured alone and beside each crowd, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each measurement of the good client.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many times as long as alone the good client may be kept waiting.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

impl Crowd {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 10_000)?;
        let service = Server::petstore_for_crowds(&url)?;
        let (mut idle_ratio, mut slow_ratio) = (Samples::default(), Samples::default());
        let mut each = 0.0;
        for round in 1..=self.rounds {
            let alone = good_client(service.address, &key, self.seconds).await?;

            let before = service.kilobytes()?;
            let mut idle = Vec::new();
            for _ in 0..self.idle {
                let mut connection = Connection::open(service.address, &key).await?;
                connection.send("GET", "/v1/pets?limit=1", "").await?;
                idle.push(connection);
            }
            // Later rounds find memory that the first left to the process.
            if round == 1 {
                each = (service.kilobytes()? - before) / f64::from(self.idle);
            }
            let beside_idle = good_client(service.address, &key, self.seconds).await?;
            drop(idle);

            let mut crowd = JoinSet::new();
            for number in 0..self.slow {
                let turn = SETTLING * number / self.slow;
                crowd.spawn(send_slowly(service.address, turn));
                crowd.spawn(read_slowly(service.address, key.clone(), turn));
            }
            sleep(SETTLING).await;
            let beside_slow = good_client(service.address, &key, self.seconds).await?;
            crowd.shutdown().await;

            let [alone, beside_idle, beside_slow] =
                [alone, beside_idle, beside_slow].map(|times| times.at(0.99));
            println!(
                "round {round}: 99 % of a good client's requests within {alone:.1} ms alone, {beside_idle:.1} ms beside \
                 idle connections, {beside_slow:.1} ms beside slow clients"
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
            println!("a good client beside {name} waits {} times as long as alone", ratio.spread());
            if ratio.median() > self.bar {
                failures.push(format!("beside {name} it waits {:.2} times as long", ratio.median()));
            }
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
async fn send_slowly(address: SocketAddr, turn: Duration) {
    sleep(turn).await;
    while let Ok(mut socket) = TcpStream::connect(address).await {
        for byte in b"GET /v1/pets HTTP/1.1\r\nHost: slow\r\n".iter().cycle() {
            if socket.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(STEP).await;
        }
    }
}

/// Asks for more pages than fit between the two sides and reads a byte at a time, until it is thrown out; then again.
async fn read_slowly(address: SocketAddr, key: String, turn: Duration) {
    let request =
        format!("GET /v1/pets?limit=100 HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {key}\r\n\r\n");
    sleep(turn).await;
    loop {
        let Ok(socket) = TcpSocket::new_v4() else { return };
        if socket.set_recv_buffer_size(4096).and(SockRef::from(&socket).set_tcp_mss(SEGMENT)).is_err() {
            return;
        }
        let Ok(mut socket) = socket.connect(address).await else { return };
        let _ = socket.write_all(request.repeat(PAGES).as_bytes()).await;
        let mut byte = [0];
        while matches!(socket.read(&mut byte).await, Ok(1)) {
            sleep(STEP).await;
        }
    }
}
