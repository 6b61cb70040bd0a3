//! The findings and counts of all workers.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Outcome;

/// The most findings to print.
const MOST_PRINTED: usize = 20;
/// The directory for the bytes of each finding, to send them again.
const DIRECTORY: &str = "target/fuzz";

/// The record of a run.
#[derive(Default)]
pub(super) struct Record {
    /// The number of answers by status.
    answers: Mutex<BTreeMap<u16, u64>>,
    /// By problem.
    findings: Mutex<BTreeMap<String, Finding>>,
}

struct Finding {
    /// How many times each kind of request had this problem.
    times: BTreeMap<String, u64>,
    /// The bytes that led to it first, and the answers.
    sent: Vec<u8>,
    answered: Vec<u8>,
}

impl Record {
    pub(super) fn answered(&self, status: u16) {
        *lock(&self.answers).entry(status).or_default() += 1;
    }

    /// Keeps the first bytes with this problem, and counts the others by their labels.
    pub(super) fn find(&self, label: &str, problem: &str, sent: &[u8], answered: &[u8]) {
        let mut findings = lock(&self.findings);
        let first = || Finding { times: BTreeMap::new(), sent: sent.into(), answered: answered.into() };
        let finding = findings.entry(problem.to_owned()).or_insert_with(first);
        *finding.times.entry(label.to_owned()).or_default() += 1;
    }

    /// Prints the findings and the counts, and writes the bytes of each finding to a file. Fails if there are findings.
    pub(super) fn report(&self, seed: u64) -> Outcome {
        let findings = lock(&self.findings);
        fs::create_dir_all(DIRECTORY)?;
        for (index, (problem, Finding { times, sent, answered })) in findings.iter().enumerate() {
            let file = format!("{DIRECTORY}/{}", index + 1);
            fs::write(&file, sent)?;
            if index < MOST_PRINTED {
                println!("\nfinding {}, seed {seed}, {file}: {problem}\n  times    {times:?}", index + 1);
                println!("  sent     {}\n  answered {}", shown(sent), shown(answered));
            }
        }
        println!("seed {seed}, answers {:?}, {} findings", *lock(&self.answers), findings.len());
        if findings.is_empty() { Ok(()) } else { Err(format!("{} findings", findings.len()).into()) }
    }
}

/// The first bytes, in the syntax of `printf`.
fn shown(bytes: &[u8]) -> String {
    format!("{} ({} bytes)", bytes[..bytes.len().min(1_000)].escape_ascii(), bytes.len())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
