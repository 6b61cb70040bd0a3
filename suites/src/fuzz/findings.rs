//! The findings and counts of all workers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Outcome;

/// The most findings to print.
const MOST_PRINTED: usize = 20;
/// The most kinds of requests to list for each finding.
const MOST_ALIKE: usize = 12;
/// The directory for the bytes of each finding, to send them again.
const DIRECTORY: &str = "target/fuzz";

/// The record of a run.
pub(super) struct Record {
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
    /// By status.
    answers: Mutex<BTreeMap<u16, u64>>,
    /// By problem, and then by the label of the request.
    findings: Mutex<BTreeMap<String, BTreeMap<String, Finding>>>,
}

struct Finding {
    times: u64,
    exchange: Exchange,
}

/// The bytes that led to a finding.
#[derive(Default)]
pub(super) struct Exchange {
    /// The previous request on the same connection, if any.
    pub(super) before: Vec<u8>,
    pub(super) sent: Vec<u8>,
    pub(super) answered: Vec<u8>,
}

impl Record {
    pub(super) fn new() -> Self {
        Self {
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            answers: Mutex::default(),
            findings: Mutex::default(),
        }
    }

    pub(super) fn answered(&self, status: u16) {
        *lock(&self.answers).entry(status).or_default() += 1;
    }

    /// Keeps the first exchange with this problem for each label, and counts the others.
    pub(super) fn find(&self, label: &str, problem: &str, exchange: impl FnOnce() -> Exchange) {
        let mut findings = lock(&self.findings);
        let alike = findings.entry(problem.to_owned()).or_default();
        let finding =
            alike.entry(label.to_owned()).or_insert_with(|| Finding { times: 0, exchange: exchange() });
        finding.times += 1;
    }

    /// Prints the findings and the counts. Fails if there are findings.
    pub(super) fn report(&self, seed: u64) -> Outcome {
        let findings = lock(&self.findings);
        for (number, (problem, alike)) in findings.iter().enumerate().take(MOST_PRINTED) {
            println!("\nfinding {}, seed {seed}: {problem}", number + 1);
            print_alike(number + 1, alike)?;
        }
        let mut statuses = String::new();
        for (status, times) in &*lock(&self.answers) {
            let _ = write!(statuses, " {status}: {times}");
        }
        println!(
            "seed {seed}, {} requests on {} connections, answers{statuses}, {} findings",
            self.requests.load(Ordering::Relaxed),
            self.connections.load(Ordering::Relaxed),
            findings.len()
        );
        if findings.is_empty() { Ok(()) } else { Err(format!("{} findings", findings.len()).into()) }
    }
}

/// Prints the first exchange with a problem, and writes the bytes of all to files.
fn print_alike(number: usize, alike: &BTreeMap<String, Finding>) -> Outcome {
    fs::create_dir_all(DIRECTORY)?;
    for (place, (label, Finding { times, exchange })) in alike.iter().enumerate() {
        let file = format!("{DIRECTORY}/{number}-{}", place + 1);
        fs::write(&file, [&exchange.before[..], &exchange.sent].concat())?;
        if place == MOST_ALIKE {
            println!("  and {} more, see {DIRECTORY}", alike.len() - MOST_ALIKE);
        } else if place < MOST_ALIKE {
            println!("  {label}, {times} times, {file}");
        }
        if place == 0 {
            for (what, bytes) in
                [("before", &exchange.before), ("sent", &exchange.sent), ("answered", &exchange.answered)]
            {
                println!("    {what:8} {}", escaped(bytes));
            }
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in the syntax of `printf`. Shortens long runs of one byte, and stops after 3,000 characters.
fn escaped(bytes: &[u8]) -> String {
    const MOST: usize = 3_000;
    let mut text = String::new();
    for run in bytes.chunk_by(|one, next| one == next) {
        if text.len() > MOST {
            let _ = write!(text, " … ({} bytes in all)", bytes.len());
            break;
        }
        let byte = run[0];
        let one = match byte {
            b'\r' => "\\r".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'\\' => "\\\\".to_owned(),
            b' '..=b'~' => char::from(byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
        if run.len() > 64 {
            let _ = write!(text, "{one}…({} times)…", run.len());
        } else {
            text.push_str(&one.repeat(run.len()));
        }
    }
    text
}
