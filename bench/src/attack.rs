//! What attackers do to a good client: one whose bodies never arrive, and one with made-up keys. The good client's time is
//! measured alone and under attack, in turn, directly and behind HAProxy with the settings that are shipped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until};

use crate::Outcome;
use crate::http::Connection;
use crate::protect::{new_key, stranger};
use crate::report::Samples;
use crate::rolling::{Balancer, Node};
use crate::tools::{Server, database_url, prepare};

/// What the attacker sends a second, which is what its key may send.
const RATE: u32 = 300;
/// How long an attack goes on before the good client is measured: as long as the service waits for a body, nearly.
const SETTLING: Duration = Duration::from_secs(8);
/// Connections that ask with made-up keys, as fast as they are answered.
const FLOODS: u64 = 64;

/// Slow bodies and made-up keys.
#[derive(Args)]
pub(crate) struct Attack {
    /// How often the good client is measured alone and under each attack, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Requests of the good client in each measurement, 40 a second.
    #[arg(long, default_value_t = 400)]
    requests: u32,
    /// How many times as long as alone 99 % of the good client's requests may take.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

impl Attack {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 10_000)?;
        let (limited, _) = new_key(&url, &["--rate-limit", &format!("{RATE}/s")])?;
        let direct = Server::petstore(&url)?;
        let nodes = [Node::start(&url)?, Node::start(&url)?];
        let balancer = Balancer::start(&nodes)?;
        let mut failed = Vec::new();
        for (what, address, slow) in [
            ("bodies that never arrive, directly", direct.address, true),
            ("bodies that never arrive, behind HAProxy", balancer.address, true),
            ("made-up keys, directly", direct.address, false),
            ("made-up keys, behind HAProxy", balancer.address, false),
        ] {
            let mut ratios = Samples::default();
            for _ in 0..self.rounds {
                let alone = self.good_client(address, &key).await?;
                let sent = Arc::new(AtomicU64::new(0));
                let attack = if slow {
                    tokio::spawn(send_slow_bodies(address, limited.clone(), sent.clone()))
                } else {
                    tokio::spawn(ask_with_made_up_keys(address, sent.clone()))
                };
                sleep(SETTLING).await;
                let attacked = self.good_client(address, &key).await?;
                attack.abort();
                let _ = attack.await;
                ratios.push(attacked / alone);
                println!(
                    "{what}: {} requests of the attacker; p99 of the good client {alone:.2} ms alone, {attacked:.2} ms \
                     under attack",
                    sent.load(Ordering::Relaxed)
                );
                // Until what the attacker left is gone.
                sleep(Duration::from_secs(2)).await;
            }
            println!(
                "{what}: all of the good client's requests served; p99 {} times that alone",
                ratios.spread()
            );
            if ratios.median() > self.bar {
                failed.push(format!("{what}: {:.2}", ratios.median()));
            }
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("above the bar of {}: {failed:?}", self.bar).into())
        }
    }

    /// Reads and adds pets at a steady pace; all must be served. Returns the 99th percentile of their times, in
    /// milliseconds.
    async fn good_client(&self, address: SocketAddr, key: &str) -> Outcome<f64> {
        let mut connection = Connection::open(address, key).await?;
        let mut times = Samples::default();
        let mut due = Instant::now();
        for number in 0..self.requests {
            due += Duration::from_millis(25);
            sleep_until(due).await;
            let began = Instant::now();
            let (status, body) = if number % 2 == 0 {
                connection.send("GET", "/v1/pets?status=available&limit=20", "").await?
            } else {
                connection.send("POST", "/v1/pets", r#"{"name":"Rex","categoryId":1}"#).await?
            };
            if !matches!(status, 200 | 201) {
                return Err(format!("the good client was answered {status}: {body}").into());
            }
            times.push(began.elapsed().as_secs_f64() * 1_000.0);
        }
        Ok(times.at(0.99))
    }
}

/// Connects from one of three addresses.
async fn connect(address: SocketAddr, number: u64) -> Outcome<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let from = Ipv4Addr::new(127, 0, 0, 11 + u8::try_from(number % 3)?);
    socket.bind(SocketAddr::from((from, 0)))?;
    Ok(socket.connect(address).await?)
}

/// Announces a body of 1,000 bytes and sends one of them, [`RATE`] times a second.
async fn send_slow_bodies(address: SocketAddr, key: String, sent: Arc<AtomicU64>) -> Outcome {
    let mut connections = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    for number in 0.. {
        ticks.tick().await;
        let (key, sent) = (key.clone(), sent.clone());
        connections.spawn(async move {
            let mut socket = connect(address, number).await?;
            let request = format!(
                "POST /v1/pets HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n\
                 Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
            );
            socket.write_all(request.as_bytes()).await?;
            sent.fetch_add(1, Ordering::Relaxed);
            // Until it is refused, or cut off.
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer).await?;
            Outcome::Ok(())
        });
        while connections.try_join_next().is_some() {}
    }
    Ok(())
}

/// Asks with another key each time, none of which was issued, over [`FLOODS`] connections.
async fn ask_with_made_up_keys(address: SocketAddr, sent: Arc<AtomicU64>) -> Outcome {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    let mut floods = JoinSet::new();
    for flood in 0..FLOODS {
        let sent = sent.clone();
        floods.spawn(async move {
            let mut connection = Connection::over(connect(address, flood).await?);
            for number in 0.. {
                connection.key = stranger(((run << 8 | flood) << 40) + number);
                let (status, body) = connection.send("GET", "/v1/pets/1", "").await?;
                if status != 401 {
                    return Err(format!("a made-up key was answered {status}: {body}").into());
                }
                sent.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Ok(())
        });
    }
    while let Some(outcome) = floods.join_next().await {
        outcome??;
    }
    Ok(())
}
