//! Sends requests with valid framing over keep-alive connections, some of them pipelined, and checks every answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::Run;
use super::answer::Answer;
use super::findings::Exchange;
use super::malformed::UNANNOUNCED;
use super::request::Request;
use super::rules::Case;
use super::wire::{NoAnswer, Wire};
use crate::random::Random;

/// The service may close a connection that was idle for longer.
const IDLE: Duration = Duration::from_millis(500);

/// A keep-alive connection, and the last exchange on it.
struct Kept {
    wire: Wire,
    before: Vec<u8>,
    /// The last request and the status of its answer.
    last: Option<String>,
}

/// Sends requests until the end of the run.
pub(super) async fn work(run: Arc<Run>, mut random: Random) {
    let mut kept: Option<Kept> = None;
    while run.goes_on() {
        let count = if random.chance(5) { 2 + random.index(7) } else { 1 };
        let (requests, cases): (Vec<_>, Vec<_>) =
            (0..count).map(|_| run.fixtures.request(&mut random)).unzip();
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
    /// Reads and checks the answers to requests. Returns whether the connection can be reused.
    async fn exchange(&mut self, run: &Run, cases: &[Case], sent: &[u8]) -> bool {
        let Self { wire, before, last } = self;
        let find = |label: &str, problem: &str, answered: &[u8]| {
            let (before, sent, answered) = (before.clone(), sent.to_vec(), answered.to_vec());
            run.record.find(label, problem, || Exchange { before, sent, answered });
        };
        for case in cases {
            let answer = match final_answer(wire, case).await {
                Ok(answer) => answer,
                Err(error) => {
                    match (error, &last) {
                        (NoAnswer::Closed, Some(last)) => find(last, UNANNOUNCED, &[]),
                        (error, _) => find(case.label, &error.problem(), &wire.buffer),
                    }
                    return false;
                }
            };
            run.record.answered(answer.status);
            if let Err(problem) = run.rules.check(case, &answer) {
                find(case.label, &problem, &answer.render());
            }
            if !answer.keeps_connection() {
                // The service cannot know whether a malformed head is that of HEAD: its answer may have a body.
                let ended = if case.to_head { Ok(()) } else { wire.end().await };
                if let Err(error) = ended {
                    find(case.label, &format!("after the last answer: {}", error.problem()), &wire.buffer);
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

async fn final_answer(wire: &mut Wire, case: &Case) -> Result<Answer, NoAnswer> {
    loop {
        let answer = wire.answer(case.to_head).await?;
        if !(answer.is_interim() && case.expects_continue) {
            return Ok(answer);
        }
    }
}

impl Run {
    /// Opens a connection. The service must accept it.
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
