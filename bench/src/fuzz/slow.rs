//! Clients that do everything slowly, throughout the run, and the good client beside them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::Run;
use super::findings::Exchange;
use super::rules::Case;
use super::wire::{PATIENCE, Trouble};
use crate::http::Connection;
use crate::report::Samples;

/// How long a slow client waits between two bytes.
const STEP: Duration = Duration::from_millis(100);
/// How long the good client waits for an answer before it is not served.
const GOOD_LIMIT: Duration = Duration::from_secs(5);

/// Sends a head that never ends, or a body, a byte at a time. The service must put an end to it.
pub(super) async fn send_slowly(run: Arc<Run>, is_body: bool) {
    let key = run.world.keys[0].text.as_deref().unwrap_or_default();
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
            None => Err(Trouble::Hang.problem()),
            Some(Ok(answer)) => {
                run.record.answered(answer.status);
                run.rules.check(&Case::any(label), &answer)
            }
            Some(Err(Trouble::Closed)) if !is_body => Ok(()),
            Some(Err(trouble)) => Err(trouble.problem()),
        };
        if let Err(problem) = problem {
            let sent = if is_body { head.clone().into() } else { Vec::new() };
            run.record.find(label, &problem, || Exchange { sent, ..Exchange::default() });
        }
    }
}

/// Asks for more pages than fit between the two sides and reads a byte at a time.
pub(super) async fn read_slowly(run: Arc<Run>) {
    let key = run.world.keys[0].text.as_deref().unwrap_or_default();
    let request =
        format!("GET /v1/pets?limit=100 HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {key}\r\n\r\n");
    while run.goes_on() {
        let Ok(socket) = TcpSocket::new_v4() else { return };
        let _ = socket.set_recv_buffer_size(4096).and(SockRef::from(&socket).set_tcp_mss(536));
        let Ok(mut socket) = socket.connect(run.address).await else { continue };
        run.record.connections.fetch_add(1, Ordering::Relaxed);
        let _ = timeout(STEP, socket.write_all(request.repeat(20).as_bytes())).await;
        let end = Instant::now() + PATIENCE;
        let mut byte = [0];
        while Instant::now() < end && run.goes_on() && matches!(socket.read(&mut byte).await, Ok(1)) {
            sleep(STEP).await;
        }
    }
}

/// Asks 50 times a second, and must always be answered well. Returns how long each answer took, in milliseconds.
pub(super) async fn good_client(run: Arc<Run>) -> Samples {
    let key = run.world.keys[0].text.clone().unwrap_or_default();
    let mut times = Samples::default();
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = None;
    let mut number = 0;
    while run.goes_on() {
        ticks.tick().await;
        number += 1;
        let began = Instant::now();
        let asked = timeout(GOOD_LIMIT, ask(&run, &key, number, &mut connection)).await;
        let problem = match asked {
            Ok(Ok(())) => {
                times.push(began.elapsed().as_secs_f64() * 1000.0);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not answered within {} s", GOOD_LIMIT.as_secs()),
        };
        connection = None;
        run.record.find("good client", &problem, Exchange::default);
    }
    times
}

async fn ask(run: &Run, key: &str, number: usize, kept: &mut Option<Connection>) -> crate::Outcome {
    let connection = match kept.take() {
        Some(connection) => kept.insert(connection),
        None => kept.insert(Connection::open(run.address, key).await?),
    };
    let pet = 1 + number % run.world.pets;
    let (method, path, body, wanted) = match number % 10 {
        0 => ("POST", "/v1/pets".to_owned(), r#"{"name":"good","categoryId":1}"#, 201),
        1..=4 => ("GET", format!("/v1/pets?id={pet}"), "", 200),
        _ => ("GET", "/v1/pets?limit=20".to_owned(), "", 200),
    };
    match connection.send(method, &path, body).await? {
        (status, _) if status == wanted => Ok(()),
        (status, _) => Err(format!("answered {status} instead of {wanted}").into()),
    }
}
