//! Clients that send and read slowly throughout the run, and the normal client beside them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::Run;
use super::findings::Exchange;
use super::rules::Case;
use super::wire::{NoAnswer, PATIENCE};
use crate::http::{Connection, slow_reader};
use crate::measure::Samples;

/// The pause of a slow client between two bytes.
const STEP: Duration = Duration::from_millis(100);
/// How long the normal client waits for an answer.
const NORMAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends an endless head, or a body, one byte at a time. The service must time out.
pub(super) async fn send_slowly(run: Arc<Run>, is_body: bool) {
    let key = run.fixtures.keys[0].text.as_deref().unwrap_or_default();
    let head = format!(
        "POST /v1/pets HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: 9999\r\n\r\n"
    );
    let label = if is_body { "slow body" } else { "slow head" };
    while run.goes_on() {
        let Some(mut wire) = run.connect().await else { continue };
        run.record.requests.fetch_add(1, Ordering::Relaxed);
        if is_body {
            wire.send(head.as_bytes()).await;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut answered = None;
        for byte in b"GET / HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
            if wire.socket.write_all(&[*byte]).await.is_err() || Instant::now() > deadline {
                break;
            }
            if let Ok(answer) = timeout(STEP, wire.answer(false)).await {
                answered = Some(answer);
                break;
            }
        }
        let problem = match answered {
            None => Err(NoAnswer::Hang.problem()),
            Some(Ok(answer)) => {
                run.record.answered(answer.status);
                run.rules.check(&Case::any(label), &answer)
            }
            Some(Err(NoAnswer::Closed)) if !is_body => Ok(()),
            Some(Err(error)) => Err(error.problem()),
        };
        if let Err(problem) = problem {
            let sent = if is_body { head.clone().into() } else { Vec::new() };
            run.record.find(label, &problem, || Exchange { sent, ..Exchange::default() });
        }
    }
}

/// Requests pages and reads them one byte at a time.
pub(super) async fn read_slowly(run: Arc<Run>) {
    let key = run.fixtures.keys[0].text.as_deref().unwrap_or_default();
    while run.goes_on() {
        let Ok(mut socket) = slow_reader(run.address, key).await else { continue };
        run.record.connections.fetch_add(1, Ordering::Relaxed);
        let end = Instant::now() + PATIENCE;
        let mut byte = [0];
        while Instant::now() < end && run.goes_on() && matches!(socket.read(&mut byte).await, Ok(1)) {
            sleep(STEP).await;
        }
    }
}

/// Sends 50 requests per second, each of which must succeed. Returns their latencies in milliseconds.
pub(super) async fn normal_client(run: Arc<Run>) -> Samples {
    let key = run.fixtures.keys[0].text.clone().unwrap_or_default();
    let mut times = Samples::default();
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = None;
    let mut number = 0;
    while run.goes_on() {
        ticks.tick().await;
        number += 1;
        let started = Instant::now();
        let sent = timeout(NORMAL_TIMEOUT, send(&run, &key, number, &mut connection)).await;
        let problem = match sent {
            Ok(Ok(())) => {
                times.push(started.elapsed().as_secs_f64() * 1000.0);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not answered within {} s", NORMAL_TIMEOUT.as_secs()),
        };
        connection = None;
        run.record.find("normal client", &problem, Exchange::default);
    }
    times
}

async fn send(run: &Run, key: &str, number: usize, kept: &mut Option<Connection>) -> crate::Outcome {
    let connection = match kept.take() {
        Some(connection) => kept.insert(connection),
        None => kept.insert(Connection::open(run.address, key).await?),
    };
    let pet = 1 + number % run.fixtures.pets;
    let (method, path, body, wanted) = match number % 10 {
        0 => ("POST", "/v1/pets".to_owned(), r#"{"name":"normal","categoryId":1}"#, 201),
        1..=4 => ("GET", format!("/v1/pets?id={pet}"), "", 200),
        _ => ("GET", "/v1/pets?limit=20".to_owned(), "", 200),
    };
    match connection.send(method, &path, body).await? {
        (status, _) if status == wanted => Ok(()),
        (status, _) => Err(format!("answered {status} instead of {wanted}").into()),
    }
}
