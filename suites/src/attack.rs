//! The latency of a normal client under attack: by requests whose bodies never arrive, and by invalid keys. It is measured
//! alone and under attack, in turn, directly and behind HAProxy with the configuration in deploy/.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::Outcome;
use crate::http::Connection;
use crate::measure::{Bars, Samples, alternate, p99_of_probe};
use crate::topology::{BEHIND_BALANCER, Balancer, Nodes, PETSTORE, Server, database_url, output, prepare};

/// Requests per second of the attacker, which is the rate limit of its key.
const RATE: u32 = 300;
/// How long an attack lasts before the normal client is measured: almost the service's body timeout.
const SETTLING: Duration = Duration::from_secs(8);
/// Connections that send invalid keys, each as fast as it is answered.
const FLOODS: u64 = 64;

/// Slow bodies and invalid keys.
#[derive(Args)]
pub(crate) struct Attack {
    /// Rounds, each with the normal client alone and under attack.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests of the normal client in each measurement, 40 per second.
    #[arg(long, default_value_t = 400)]
    requests: u32,
    /// The highest p99 of the normal client under attack, as a multiple of its p99 alone.
    #[arg(long, default_value_t = 2.0)]
    bar: f64,
}

impl Attack {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, 10_000)?;
        let limit = format!("{RATE}/s");
        let create = ["keys", "create", "--name", "slow", "--rate-limit", &limit, "--database-url", &url];
        let limited = output(PETSTORE, &create)?.trim().to_owned();
        let direct = Server::petstore(&url)?;
        let nodes = Nodes::start_with(&url, BEHIND_BALANCER)?;
        let balancer = Balancer::start(&nodes.nodes)?;
        let mut bars = Bars::default();
        for (what, address, slow) in [
            ("slow bodies, directly", direct.address, true),
            ("slow bodies, behind HAProxy", balancer.address, true),
            ("invalid keys, directly", direct.address, false),
            ("invalid keys, behind HAProxy", balancer.address, false),
        ] {
            let sent = Arc::new(AtomicU64::new(0));
            let p99s = alternate(2, (0, self.rounds), async |side, _| {
                if side == 0 {
                    return self.p99(address, &key).await;
                }
                let attack = if slow {
                    tokio::spawn(send_slow_bodies(address, limited.clone(), sent.clone()))
                } else {
                    tokio::spawn(send_invalid_keys(address, sent.clone()))
                };
                sleep(SETTLING).await;
                let attacked = self.p99(address, &key).await?;
                attack.abort();
                let _ = attack.await;
                // Until the attacker's connections are gone.
                sleep(Duration::from_secs(2)).await;
                Ok(attacked)
            });
            let [alone, attacked] = &p99s.await?[..] else { return Err("two sides".into()) };
            println!("{what}: {} requests of the attacker", sent.load(Ordering::Relaxed));
            let ratio = Samples(attacked.clone()).ratio_to(&Samples(alone.clone()));
            bars.at_most(&format!("{what}: p99 of a normal client, times that alone"), &ratio, self.bar);
        }
        bars.finish()
    }

    /// The p99 in milliseconds of a client that lists and creates pets.
    async fn p99(&self, address: SocketAddr, key: &str) -> Outcome<f64> {
        let request = |number| match number % 2 {
            0 => ("GET", "/v1/pets?status=available&limit=20".to_owned(), ""),
            _ => ("POST", "/v1/pets".to_owned(), r#"{"name":"Rex","categoryId":1}"#),
        };
        p99_of_probe(address, key, 40, self.requests, request).await
    }
}

/// Connects from one of three addresses.
async fn connect(address: SocketAddr, number: u64) -> Outcome<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let from = Ipv4Addr::new(127, 0, 0, 11 + u8::try_from(number % 3)?);
    socket.bind(SocketAddr::from((from, 0)))?;
    Ok(socket.connect(address).await?)
}

/// Announces a body of 1,000 bytes and sends one of them, [`RATE`] times per second.
async fn send_slow_bodies(address: SocketAddr, key: String, sent: Arc<AtomicU64>) -> Outcome {
    let mut connections = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    for number in 0.. {
        ticks.tick().await;
        let (key, sent) = (key.clone(), sent.clone());
        connections.spawn(async move {
            let mut socket = connect(address, number).await?;
            let request = format!(
                "POST /v1/pets HTTP/1.1\r\nHost: suite\r\nAuthorization: Bearer {key}\r\n\
                 Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
            );
            socket.write_all(request.as_bytes()).await?;
            sent.fetch_add(1, Ordering::Relaxed);
            // Until it is refused or closed.
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer).await?;
            Outcome::Ok(())
        });
        while connections.try_join_next().is_some() {}
    }
    Ok(())
}

/// Sends a different unknown key with each request, over [`FLOODS`] connections.
async fn send_invalid_keys(address: SocketAddr, sent: Arc<AtomicU64>) -> Outcome {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    let mut floods = JoinSet::new();
    for flood in 0..FLOODS {
        let sent = sent.clone();
        floods.spawn(async move {
            let mut connection = Connection::over(connect(address, flood).await?);
            for number in 0.. {
                connection.key = unknown_key(((run << 8 | flood) << 40) + number);
                let (status, body) = connection.send("GET", "/v1/pets/1", "").await?;
                if status != 401 {
                    return Err(format!("an unknown key was answered {status}: {body}").into());
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

/// A well-formed key that was never issued.
fn unknown_key(number: u64) -> String {
    const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let start = format!("psk_{number:032}");
    let mut checksum = !start.bytes().fold(!0_u32, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 },
        )
    });
    let mut end = ['0'; 6];
    for character in end.iter_mut().rev() {
        *character = char::from(BASE62[checksum as usize % 62]);
        checksum /= 62;
    }
    start + &end.iter().collect::<String>()
}
