//! Connections with valid requests, several at once, and with bytes that need not be HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use super::Run;
use super::connection::RawConnection;
use super::malformed::{self, SENTINEL, Wanted};
use super::rules::{Expectation, Expected};
use super::valid::Generator;
use crate::random::Random;

/// What the client does after its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Then {
    /// Sends a valid request that asks to close: its answer shows where the service saw the end of the bytes.
    Sentinel,
    /// Closes its sending side and continues to read.
    HalfClose,
    /// Waits until the service closes.
    Wait,
    /// Closes without reading.
    Leave,
    /// Resets the connection.
    Reset,
}

/// What is sent on one connection.
pub(super) struct ConnectionScript {
    pub(super) label: &'static str,
    /// Sent one after the other, with these pauses.
    pub(super) parts: Vec<Vec<u8>>,
    pause: Duration,
    /// What is known about the first requests.
    cases: Vec<Expectation>,
    wanted: Wanted,
    pub(super) then: Then,
}

impl ConnectionScript {
    fn new(label: &'static str, parts: Vec<Vec<u8>>, wanted: Wanted, then: Then) -> Self {
        Self { label, parts, pause: Duration::from_millis(5), cases: Vec::new(), wanted, then }
    }

    /// One request with valid framing.
    pub(super) fn one(label: &'static str, request: Vec<u8>) -> Self {
        Self::new(label, vec![request], Wanted::First(&[]), Then::Sentinel)
    }

    /// Sends the bytes and ends the connection, unless answers are to be read. Returns the bytes.
    pub(super) async fn send(&self, connection: &mut RawConnection, key: &str) -> Vec<u8> {
        let mut sent = Vec::new();
        for part in &self.parts {
            if !sent.is_empty() {
                sleep(self.pause).await;
            }
            connection.send(part).await;
            sent.extend(part);
        }
        match self.then {
            Then::Sentinel => {
                let sentinel = malformed::sentinel(key);
                connection.send(&sentinel).await;
                sent.extend(sentinel);
            }
            Then::HalfClose => drop(connection.socket.shutdown().await),
            Then::Wait | Then::Leave => (),
            Then::Reset => drop(SockRef::from(&connection.socket).set_linger(Some(Duration::ZERO))),
        }
        sent
    }
}

/// Opens connections until the end of the run.
pub(super) async fn work(run: Arc<Run>, mut generator: Generator) {
    while run.goes_on() {
        connection(&run, &exchange(&mut generator)).await;
    }
}

/// Sends an endless head, or a body, one byte at a time until the end of the run. The service must time out after 2 seconds.
pub(super) async fn send_slowly(run: Arc<Run>, is_body: bool) {
    let head = format!(
        "POST /v1/pets HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
        run.fixtures.key
    );
    while run.goes_on() {
        let (label, start, wanted) = if is_body {
            ("slow body", format!("{head}Content-Length: 9999\r\n\r\n"), Wanted::Refused(&[408]))
        } else {
            ("slow head", format!("{head}X: "), Wanted::Served(0))
        };
        let parts = [start.into()].into_iter().chain(vec![b"x".to_vec(); 25]).collect();
        let exchange = ConnectionScript::new(label, parts, wanted, Then::Wait);
        connection(&run, &ConnectionScript { pause: Duration::from_millis(100), ..exchange }).await;
    }
}

pub(super) fn exchange(generator: &mut Generator) -> ConnectionScript {
    match generator.random.index(100) {
        0..30 => {
            let count = 1 + generator.random.index(8);
            let (requests, cases): (Vec<_>, Vec<_>) = (0..count).map(|_| generator.request(true)).unzip();
            // All at once, or one after the other.
            let parts = if generator.random.chance(50) { vec![requests.concat()] } else { requests };
            let exchange =
                ConnectionScript::new("valid requests", parts, Wanted::Served(count), Then::Sentinel);
            ConnectionScript { cases, ..exchange }
        }
        30..55 => {
            let (request, case) = generator.odd_request();
            ConnectionScript { cases: vec![case], ..ConnectionScript::one("odd request", request) }
        }
        55..75 => {
            let step = generator.next_step();
            let (random, key) = (&mut generator.random, &generator.fixtures.key);
            let (label, bytes, wanted) = malformed::request(random, step, key);
            let then = match wanted {
                Wanted::Any => {
                    *random.pick(&[Then::Sentinel, Then::HalfClose, Then::HalfClose, Then::Wait, Then::Leave])
                }
                Wanted::Served(_) if random.chance(30) => Then::HalfClose,
                _ => Then::Sentinel,
            };
            ConnectionScript::new(label, split(random, bytes), wanted, then)
        }
        _ => {
            let count = 1 + generator.random.index(2);
            let mut bytes: Vec<u8> = (0..count).flat_map(|_| generator.request(false).0).collect();
            let random = &mut generator.random;
            let then = match random.index(40) {
                0..=19 => Then::Sentinel,
                20..=35 => Then::HalfClose,
                36 => Then::Wait,
                37 | 38 => Then::Leave,
                _ => Then::Reset,
            };
            change(random, &mut bytes);
            ConnectionScript::new("changed bytes", split(random, bytes), Wanted::Any, then)
        }
    }
}

/// Most often in one part, else in two or three.
fn split(random: &mut Random, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if random.chance(85) {
        return vec![bytes];
    }
    let (one, other) = (random.index(bytes.len()), random.index(bytes.len()));
    let (first, second) = (one.min(other), one.max(other));
    vec![bytes[..first].to_vec(), bytes[first..second].to_vec(), bytes[second..].to_vec()]
}

const DELIMITERS: [&[u8]; 11] =
    [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b"\t", b"0", b",", b"\x80"];

/// Flips, cuts, doubles or inserts bytes anywhere.
fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.index(3) {
        let (one, other) = (random.index(bytes.len() + 1), random.index(bytes.len() + 1));
        let (start, end) = (one.min(other), one.max(other).min(one.min(other) + 200));
        match random.index(6) {
            0 if start < bytes.len() => bytes[start] ^= 1 << random.index(8),
            1 => drop(bytes.drain(start..end)),
            2 => bytes.truncate(start),
            3 => {
                let slice = bytes[start..end].repeat(1 + random.index(3));
                bytes.splice(start..start, slice);
            }
            4 => {
                let inserted: Vec<_> = (0..=random.index(8)).map(|_| random.byte()).collect();
                bytes.splice(start..start, inserted);
            }
            _ => {
                let token = *random.pick(&DELIMITERS);
                bytes.splice(start..start, token.iter().copied());
            }
        }
    }
}

async fn connection(run: &Run, exchange: &ConnectionScript) {
    let Some(mut connection) = run.connect().await else { return };
    let sent = exchange.send(&mut connection, &run.fixtures.key).await;
    if matches!(exchange.then, Then::Leave | Then::Reset) {
        return;
    }
    let mut answered = Vec::new();
    if let Err(problem) = answers(run, &mut connection, &sent, exchange, &mut answered).await {
        let label = format!("{}, then {:?}", exchange.label, exchange.then);
        run.record.find(&label, &problem, &sent, &answered);
    }
}

/// Reads answers until the connection closes: each must keep the rules, and all together what is wanted.
async fn answers(
    run: &Run,
    connection: &mut RawConnection,
    sent: &[u8],
    exchange: &ConnectionScript,
    answered: &mut Vec<u8>,
) -> Result<(), String> {
    let ConnectionScript { cases, wanted, then, .. } = exchange;
    let unknown = Expectation {
        // If some bytes may be a HEAD method, the end of its answer is unknown.
        to_head: cases.is_empty() && sent.windows(4).any(|word| word == b"HEAD"),
        ..Expectation::any(exchange.label)
    };
    let served = Expectation { expected: Expected::Success, echo: json!([]), ..Expectation::any("sentinel") };
    let (mut seen, mut kept) = (Vec::new(), true);
    loop {
        let case = cases.get(seen.len()).unwrap_or(&unknown);
        let answer = match connection.answer(case.to_head).await {
            Ok(Some(answer)) if answer.is_interim() => continue,
            Ok(Some(answer)) => answer,
            Ok(None) => return wanted.check(&seen, kept, *then == Then::Sentinel),
            Err(problem) => {
                answered.extend(&connection.buffer);
                return Err(problem);
            }
        };
        run.record.answered(answer.status);
        answered.extend(format!("{} ", answer.status).bytes().chain(answer.body.iter().copied()));
        if unknown.to_head {
            return Ok(());
        }
        if !kept {
            return Err("an answer after Connection: close".to_owned());
        }
        kept = answer.keeps_connection();
        let is_sentinel = answer.header("x-request-id") == Some(SENTINEL);
        // Changed bytes before the sentinel may have turned it into another request.
        let case = if is_sentinel && !matches!(wanted, Wanted::Any) { &served } else { case };
        run.rules.check(case, &answer).map_err(|problem| format!("{}: {problem}", case.label))?;
        seen.push((answer.status, is_sentinel));
    }
}
