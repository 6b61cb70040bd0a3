//! Connections with raw bytes that need not be HTTP: malformed requests, and requests with random bytes changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use super::Run;
use super::findings::Exchange;
use super::grammar::Fixtures;
use super::malformed::{self, Wanted};
use super::mutate;
use super::rules::Case;
use super::wire::{NoAnswer, Wire};
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

/// The `X-Request-Id` of the sentinel.
const SENTINEL: &str = "sentinel";

/// What is sent on one connection.
pub(super) struct Attempt {
    pub(super) label: &'static str,
    /// Sent one after the other, with short pauses.
    pub(super) parts: Vec<Vec<u8>>,
    wanted: Wanted,
    pub(super) then: Then,
}

/// Opens connections until the end of the run.
pub(super) async fn work(run: Arc<Run>, mut random: Random) {
    while run.goes_on() {
        let attempt = attempt(&run.fixtures, &mut random);
        connection(&run, attempt).await;
    }
}

pub(super) fn attempt(fixtures: &Fixtures, random: &mut Random) -> Attempt {
    let key = fixtures.keys[0].text.as_deref().unwrap_or_default();
    if random.chance(50) {
        let (label, bytes, wanted) = malformed::request(random, key);
        let then = match wanted {
            Wanted::Any => {
                *random.pick(&[Then::Sentinel, Then::HalfClose, Then::HalfClose, Then::Wait, Then::Leave])
            }
            Wanted::One if random.chance(30) => Then::HalfClose,
            _ => Then::Sentinel,
        };
        return Attempt { label, parts: split(random, bytes), wanted, then };
    }
    let mut bytes: Vec<u8> =
        (0..=random.index(2)).flat_map(|_| fixtures.request(random).0.render()).collect();
    let then = match random.index(40) {
        0..=19 => Then::Sentinel,
        20..=35 => Then::HalfClose,
        36 => Then::Wait,
        37 | 38 => Then::Leave,
        _ => Then::Reset,
    };
    mutate::bytes(random, &mut bytes);
    Attempt { label: "changed bytes", parts: split(random, bytes), wanted: Wanted::Any, then }
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

async fn connection(run: &Run, attempt: Attempt) {
    let Attempt { label, parts, wanted, then } = attempt;
    let Some(mut wire) = run.connect().await else { return };
    run.record.requests.fetch_add(1, Ordering::Relaxed);
    let mut sent = Vec::new();
    for part in parts {
        if !sent.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        wire.send(&part).await;
        sent.extend(part);
    }
    match then {
        Then::Sentinel => {
            let sentinel =
                malformed::sentinel(run.fixtures.keys[0].text.as_deref().unwrap_or_default(), SENTINEL);
            wire.send(&sentinel).await;
            sent.extend(sentinel);
        }
        Then::HalfClose => drop(wire.socket.shutdown().await),
        Then::Wait => (),
        Then::Leave => return,
        Then::Reset => {
            let _ = SockRef::from(&wire.socket).set_linger(Some(Duration::ZERO));
            return;
        }
    }
    let mut answered = Vec::new();
    if let Err(problem) = answers(run, &mut wire, &sent, wanted, then, &mut answered).await {
        let label = if then == Then::HalfClose { &format!("{label}, then half-closed") } else { label };
        run.record.find(label, &problem, || Exchange { before: Vec::new(), sent, answered });
    }
}

/// Reads answers until the connection closes: each must keep the rules, and all together what is wanted.
async fn answers(
    run: &Run,
    wire: &mut Wire,
    sent: &[u8],
    wanted: Wanted,
    then: Then,
    answered: &mut Vec<u8>,
) -> Result<(), String> {
    // If some bytes may be a HEAD method, the end of its answer is unknown.
    let to_head = sent.windows(4).any(|word| word == b"HEAD");
    let (mut seen, mut kept) = (Vec::new(), true);
    loop {
        let answer = match wire.answer(to_head).await {
            Ok(answer) if answer.is_interim() => continue,
            Ok(answer) => answer,
            Err(NoAnswer::Closed) => return wanted.check(&seen, kept, then == Then::Sentinel),
            Err(error) => {
                answered.extend(&wire.buffer);
                return Err(error.problem());
            }
        };
        run.record.answered(answer.status);
        answered.extend(answer.render());
        if to_head {
            return Ok(());
        }
        if !kept {
            return Err("an answer after Connection: close".to_owned());
        }
        kept = answer.keeps_connection();
        let is_sentinel = answer.header("x-request-id") == Some(SENTINEL);
        let mut case = Case::any("");
        // Changed bytes before it may have turned it into another request.
        if is_sentinel && !matches!(wanted, Wanted::Any) {
            case.is_json = true;
        }
        run.rules.check(&case, &answer)?;
        seen.push((answer.status, is_sentinel));
    }
}
