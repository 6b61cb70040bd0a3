//! Whole connections whose bytes need not be HTTP: shapes that have misled other servers, and requests with any of their
//! bytes changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use super::Run;
use super::dice::Dice;
use super::findings::Exchange;
use super::mutate;
use super::rules::{Case, Shape};
use super::shapes::{self, Wanted};
use super::wire::{Trouble, Wire};

/// How the client goes on after its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// A good request that asks to close: whether it is answered shows where the service saw the end of the bytes.
    Sentinel,
    /// It closes its side, and reads on.
    HalfClose,
    /// It waits until the service closes.
    Wait,
    /// It closes without reading.
    Leave,
    /// It resets the connection.
    Reset,
}

/// What `X-Request-Id` the good request has.
const SENTINEL: &str = "sentinel";

struct Attempt {
    label: &'static str,
    /// Sent one after the other, with a moment in between.
    parts: Vec<Vec<u8>>,
    wanted: Wanted,
    then: Then,
}

/// Works until the end of the run.
pub(super) async fn work(run: Arc<Run>, mut dice: Dice) {
    while run.goes_on() {
        let attempt = attempt(&run, &mut dice);
        connection(&run, attempt).await;
    }
}

fn attempt(run: &Run, dice: &mut Dice) -> Attempt {
    let key = run.world.keys[0].text.as_deref().unwrap_or_default();
    if dice.chance(50) {
        let (label, bytes, wanted) = shapes::shape(dice, key);
        let then = match wanted {
            Wanted::Any => {
                *dice.pick(&[Then::Sentinel, Then::HalfClose, Then::HalfClose, Then::Wait, Then::Leave])
            }
            Wanted::One if dice.chance(30) => Then::HalfClose,
            _ => Then::Sentinel,
        };
        return Attempt { label, parts: split(dice, bytes), wanted, then };
    }
    let mut bytes: Vec<u8> = (0..=dice.below(2)).flat_map(|_| run.world.request(dice).0.render()).collect();
    let then = match dice.below(40) {
        0..=19 => Then::Sentinel,
        20..=35 => Then::HalfClose,
        36 => Then::Wait,
        37 | 38 => Then::Leave,
        _ => Then::Reset,
    };
    mutate::bytes(dice, &mut bytes);
    Attempt { label: "changed bytes", parts: split(dice, bytes), wanted: Wanted::Any, then }
}

/// Most often whole, else in two or three parts.
fn split(dice: &mut Dice, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if dice.chance(85) {
        return vec![bytes];
    }
    let (one, other) = (dice.below(bytes.len()), dice.below(bytes.len()));
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
            let sentinel = shapes::good(run.world.keys[0].text.as_deref().unwrap_or_default(), SENTINEL);
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

/// Reads answers to the end of the connection: each must keep the rules, and all of them what is wanted.
async fn answers(
    run: &Run,
    wire: &mut Wire,
    sent: &[u8],
    wanted: Wanted,
    then: Then,
    answered: &mut Vec<u8>,
) -> Result<(), String> {
    // Where an answer to HEAD ends cannot be known if it is not known which of the bytes are a method.
    let to_head = sent.windows(4).any(|word| word == b"HEAD");
    let (mut seen, mut kept) = (Vec::new(), true);
    loop {
        let answer = match wire.answer(to_head).await {
            Ok(answer) if answer.is_interim() => continue,
            Ok(answer) => answer,
            Err(Trouble::Closed) => return wanted.check(&seen, kept, then == Then::Sentinel),
            Err(trouble) => {
                answered.extend(&wire.buffer);
                return Err(trouble.problem());
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
        // Changed bytes before it may have made another request of it.
        if is_sentinel && !matches!(wanted, Wanted::Any) {
            case.shape = Shape::Pets;
        }
        run.rules.check(&case, &answer)?;
        seen.push((answer.status, is_sentinel));
    }
}
