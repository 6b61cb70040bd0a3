//! Every attempt at a request: when it ended, how long it took and what came of it. For gaps, latencies and timelines.

use std::collections::BTreeMap;

use crate::measure::Samples;

/// One attempt at a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// When it ended, in seconds since the start.
    pub(crate) at: f64,
    pub(crate) seconds: f64,
    pub(crate) node: usize,
    pub(crate) is_write: bool,
    /// 0 for a broken connection or no answer in time.
    pub(crate) status: u16,
}

impl Attempt {
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.status, 200 | 201)
    }

    /// Not a conflict: somebody else was first.
    pub(crate) fn failed(&self) -> bool {
        !self.succeeded() && self.status != 409
    }

    pub(crate) fn began(&self) -> f64 {
        self.at - self.seconds
    }
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) attempts: Vec<Attempt>,
    /// Answers by method, status and error code.
    pub(crate) answers: BTreeMap<String, u64>,
    /// The first failure in words.
    pub(crate) first_failure: Option<String>,
}

impl Log {
    /// Adds an attempt, with the body of its answer or why there is none.
    pub(super) fn add(&mut self, attempt: Attempt, method: &str, path: &str, body: &str) {
        let status = attempt.status;
        let code = body.split_once("\"code\":\"").and_then(|(_, rest)| rest.split('"').next());
        let code = code.filter(|_| status >= 400).unwrap_or_default();
        *self.answers.entry(format!("{method} {status} {code}")).or_default() += 1;
        if attempt.failed() {
            self.first_failure.get_or_insert_with(|| format!("{method} {path}: {status} {body}"));
        }
        self.attempts.push(attempt);
    }

    /// The attempts that ended in this period.
    pub(crate) fn between(&self, from: f64, to: f64) -> impl Iterator<Item = &Attempt> {
        let first = self.attempts.partition_point(|attempt| attempt.at < from);
        self.attempts[first..].iter().take_while(move |attempt| attempt.at <= to)
    }

    /// The longest time in this period without a success, in seconds: of writes or of reads, on one node or on all together.
    pub(crate) fn longest_gap(&self, is_write: bool, node: Option<usize>, from: f64, to: f64) -> f64 {
        let counts = |attempt: &&Attempt| {
            attempt.is_write == is_write
                && attempt.succeeded()
                && node.is_none_or(|node| attempt.node == node)
        };
        let moments = self.between(from, to).filter(counts).map(|attempt| attempt.at).chain([to]);
        let mut last = from;
        moments.fold(0.0, |longest: f64, at| longest.max(at - std::mem::replace(&mut last, at)))
    }

    /// When each of these nodes had a success of a request that was sent after this time.
    pub(crate) fn all_succeeded(&self, is_write: bool, nodes: usize, after: f64) -> Option<f64> {
        let first = |node| {
            let since = self.between(after, f64::INFINITY);
            let mut wanted = since.filter(|attempt| {
                attempt.is_write == is_write
                    && attempt.node == node
                    && attempt.succeeded()
                    && attempt.began() > after
            });
            wanted.next().map(|attempt| attempt.at)
        };
        (0..nodes).map(first).try_fold(after, |latest, at| Some(latest.max(at?)))
    }

    /// When a write succeeded for the first time after this time.
    pub(crate) fn first_write(&self, after: f64) -> Option<f64> {
        let mut since = self.between(after, f64::INFINITY);
        since.find(|attempt| attempt.is_write && attempt.succeeded()).map(|attempt| attempt.at)
    }

    /// The number of attempts in this period with this status, and the p99 of their seconds.
    pub(crate) fn with_status(&self, status: u16, from: f64, to: f64) -> (usize, f64) {
        let ended = self.between(from, to).filter(|attempt| attempt.status == status);
        let times = Samples(ended.map(|attempt| attempt.seconds).collect());
        (times.0.len(), if times.0.is_empty() { 0.0 } else { times.at(0.99) })
    }

    /// All latencies in milliseconds.
    pub(crate) fn milliseconds(&self) -> Samples {
        Samples(self.attempts.iter().map(|attempt| attempt.seconds * 1_000.0).collect())
    }

    pub(crate) fn failures(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.failed()).count()
    }

    /// CSV with a line for each second: reads and writes that succeeded and that failed, and the slowest of each.
    pub(crate) fn timeline(&self) -> String {
        let mut seconds: BTreeMap<u64, [f64; 6]> = BTreeMap::new();
        for attempt in &self.attempts {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "seconds since the start"
            )]
            let row = seconds.entry(attempt.at as u64).or_default();
            let first = if attempt.is_write { 3 } else { 0 };
            row[first + usize::from(attempt.failed())] += 1.0;
            row[first + 2] = row[first + 2].max(attempt.seconds);
        }
        let rows = seconds.iter().map(|(at, [reads, no_reads, slow_read, writes, no_writes, slow_write])| {
            format!("{at},{reads},{no_reads},{slow_read:.3},{writes},{no_writes},{slow_write:.3}\n")
        });
        let head = "second,reads,failed_reads,slowest_read,writes,failed_writes,slowest_write\n";
        rows.fold(head.to_owned(), |text, row| text + &row)
    }
}
