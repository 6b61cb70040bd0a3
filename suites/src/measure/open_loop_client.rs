//! Latencies: of an open-loop client at a fixed rate, and of a single normal client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};

use super::Samples;
use crate::Outcome;
use crate::http::{Connection, cursor};
use crate::random::Random;
use crate::topology::Server;

/// The p99 in milliseconds of a normal client, which sends requests at a steady rate over one connection. Each must succeed.
pub(crate) async fn p99_of_probe(
    address: SocketAddr,
    key: &str,
    rate: u32,
    requests: u32,
    request: impl Fn(u32) -> (&'static str, String, &'static str),
) -> Outcome<f64> {
    let mut connection = Connection::open(address, key).await?;
    let mut times = Samples::default();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    for number in 0..requests {
        ticks.tick().await;
        let (method, path, body) = request(number);
        let started = Instant::now();
        let (status, answer) = connection.send(method, &path, body).await?;
        if !matches!(status, 200 | 201) {
            return Err(format!("a normal client was answered {status}: {answer}").into());
        }
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(times.at(0.99))
}

/// The latency of each request in milliseconds, when requests are sent at a fixed rate, whether or not earlier ones are
/// answered (open loop), while `goes_on`.
pub(crate) async fn latency(
    service: &Server,
    workload: &str,
    key: &str,
    pets: u64,
    rate: f64,
    goes_on: Arc<dyn Fn() -> bool + Send + Sync>,
) -> Outcome<Samples> {
    const CONNECTIONS: u32 = 64;
    let every = Duration::from_secs_f64(f64::from(CONNECTIONS) / rate);
    let begin = Instant::now() + Duration::from_millis(200);
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let mut connection = Connection::open(service.address, key).await?;
        let (workload, goes_on) = (workload.to_owned(), goes_on.clone());
        let mut due = begin + every * number / CONNECTIONS;
        let mut random = Random(u64::from(number) * 7_919 + 1);
        clients.spawn(async move {
            let mut samples = Vec::new();
            while goes_on() {
                // A request that is late because the one before took long has waited since it was due, or the
                // measurement would omit that wait. One that is late because the timer is coarse has not.
                let late = Instant::now() >= due;
                sleep_until(due).await;
                let started = if late { due } else { Instant::now() };
                let (method, path, body) = request(&workload, random.next(), pets);
                let (status, answer) = connection.send(method, &path, body).await?;
                if status >= 300 {
                    return Err(format!("{status} {answer}").into());
                }
                samples.push(started.elapsed().as_secs_f64() * 1_000.0);
                due += every;
            }
            Outcome::Ok(samples)
        });
    }
    let mut all = Samples::default();
    for samples in clients.join_all().await {
        all.0.extend(samples?);
    }
    Ok(all)
}

fn request(workload: &str, random: u64, pets: u64) -> (&'static str, String, &'static str) {
    let id = random % pets + 1;
    match workload {
        "get" => ("GET", format!("/v1/pets/{id}"), ""),
        "list" => ("GET", "/v1/pets?status=available".to_owned(), ""),
        "cursor" => ("GET", format!("/v1/pets?cursor={}", cursor(id.cast_signed())), ""),
        "status_cursor" => {
            ("GET", format!("/v1/pets?status=available&cursor={}", cursor(id.cast_signed())), "")
        }
        "create" => ("POST", "/v1/pets".to_owned(), r#"{"name":"Rex","categoryId":3,"status":"available"}"#),
        _ => match random % 100 {
            0..80 => request("list", random, pets),
            80..95 => request("get", random, pets),
            _ => request("create", random, pets),
        },
    }
}
