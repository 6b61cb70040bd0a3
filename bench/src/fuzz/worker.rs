//! Sends requests with the right framing over connections that are kept, some of them pipelined, and checks every
//! answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::Run;
use super::answer::Answer;
use super::dice::Dice;
use super::findings::Exchange;
use super::request::Request;
use super::rules::Case;
use super::shapes::UNANNOUNCED;
use super::wire::{Trouble, Wire};

/// A connection that was idle for longer may be closed by the service at any moment.
const IDLE: Duration = Duration::from_millis(500);

/// A connection that is kept, and the last exchange on it.
struct Kept {
    wire: Wire,
    before: Vec<u8>,
    /// The last request and its answer, in a few words.
    last: Option<String>,
}

/// Works until the end of the run.
pub(super) async fn work(run: Arc<Run>, mut dice: Dice) {
    let mut kept: Option<Kept> = None;
    while run.goes_on() {
        let count = if dice.chance(5) { 2 + dice.below(7) } else { 1 };
        let (requests, cases): (Vec<_>, Vec<_>) = (0..count).map(|_| run.world.request(&mut dice)).unzip();
        let sent: Vec<u8> = requests.iter().flat_map(Request::render).collect();
        let mut client = match kept.take().filter(|kept| kept.wire.used.elapsed() < IDLE) {
            Some(client) => client,
            None => match run.connect().await {
                Some(wire) => Kept { wire, before: Vec::new(), last: None },
                None => continue,
            },
        };
        run.record.requests.fetch_add(count as u64, Ordering::Relaxed);
        client.wire.send(&sent).await;
        if client.exchange(&run, &cases, &sent).await {
            kept = Some(Kept { before: sent, ..client });
        }
    }
}

impl Kept {
    /// Reads and checks the answers to requests that were sent, and returns whether the connection can be used again.
    async fn exchange(&mut self, run: &Run, cases: &[Case], sent: &[u8]) -> bool {
        let Self { wire, before, last } = self;
        let find = |label: &str, problem: &str, answered: &[u8]| {
            let (before, sent, answered) = (before.clone(), sent.to_vec(), answered.to_vec());
            run.record.find(label, problem, || Exchange { before, sent, answered });
        };
        for case in cases {
            let answer = match final_answer(wire, case).await {
                Ok(answer) => answer,
                Err(trouble) => {
                    match (trouble, &last) {
                        (Trouble::Closed, Some(last)) => find(last, UNANNOUNCED, &[]),
                        (trouble, _) => find(case.label, &trouble.problem(), &wire.buffer),
                    }
                    return false;
                }
            };
            run.record.answered(answer.status);
            if let Err(problem) = run.rules.check(case, &answer) {
                find(case.label, &problem, &answer.render());
            }
            if !answer.keeps_connection() {
                // Whether a head that cannot be read is that of HEAD is not known to the service: its answer may have a
                // body.
                let ended = if case.to_head { Ok(()) } else { wire.end().await };
                if let Err(trouble) = ended {
                    find(case.label, &format!("after the last answer: {}", trouble.problem()), &wire.buffer);
                }
                return false;
            }
            if case.asks_to_close {
                return false;
            }
            *last = Some(format!("{} {}", case.label, answer.status));
        }
        if !wire.buffer.is_empty() {
            find(&last.clone().unwrap_or_default(), "bytes after the last answer", &wire.buffer);
        }
        wire.buffer.is_empty()
    }
}

async fn final_answer(wire: &mut Wire, case: &Case) -> Result<Answer, Trouble> {
    loop {
        let answer = wire.answer(case.to_head).await?;
        if !(answer.is_interim() && case.expects_continue) {
            return Ok(answer);
        }
    }
}

impl Run {
    /// A new connection. The service has a place for each of them.
    pub(super) async fn connect(&self) -> Option<Wire> {
        match Wire::open(self.address).await {
            Ok(wire) => {
                self.record.connections.fetch_add(1, Ordering::Relaxed);
                Some(wire)
            }
            Err(error) => {
                self.record.find("connect", &error.to_string(), Exchange::default);
                sleep(Duration::from_millis(100)).await;
                None
            }
        }
    }
}
