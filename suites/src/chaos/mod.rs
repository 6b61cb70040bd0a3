//! The program that breaks things: it starts what a scenario runs on, lets clients work, injects faults, and checks the whole
//! history.
//!
//! [`scenarios`] is the table of what is combined. The checks are the same for all: every answer is a documented one and fresh,
//! every acknowledged write took effect once, every change of every pet is legal, and a reader of the feed gets each event once.

mod faults;
mod scenarios;
mod system_under_test;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::history::feed::Reader;
use crate::measure::{Samples, grouped, verdict};
use crate::random::{Random, printed_seed};
use crate::workload::{Clients, Kind};
use faults::Fault;
use scenarios::SCENARIOS;
pub(crate) use scenarios::{GIVING_UP, SHOP};
use system_under_test::{SystemUnderTest, Topology};

/// No request may take longer: the queue, the connection and the statement each have a deadline. Half a second more for the
/// round trip.
const DEADLINE: f64 = 10.5;

/// What is started, who works on it, what is broken, and for how long.
struct Scenario {
    name: &'static str,
    topology: Topology,
    clients: &'static [(Pace, Clients)],
    /// The pets at first, and how many pets and orders clients choose from.
    pets: (u64, usize),
    /// Each is injected as often as it is listed, in random order; then all again.
    faults: &'static [Fault],
    /// The pause before each fault, in milliseconds.
    pause: Range<u64>,
    length: Length,
    /// The same for the short form.
    short: Length,
    tolerates: Failures,
}

/// How fast clients send.
enum Pace {
    /// So many clients, each of which sends its next request when the last is answered.
    Clients(u64),
    /// So many operations per second, whether earlier ones are answered or not.
    PerSecond(u32),
}

/// The scenario ends when at least so much has happened.
#[derive(Clone, Copy)]
struct Length {
    faults: usize,
    requests: usize,
}

/// What clients may see.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failures {
    /// Connections may break, and answers may be 503.
    Any,
    /// Answers may be 503.
    Errors,
    None,
}

/// Breaks the service, its database or the network under load, and checks the whole history.
#[derive(Args)]
pub(crate) struct Chaos {
    /// The scenario; without it, all are listed.
    scenario: Option<String>,
    /// Run the short form.
    #[arg(long)]
    short: bool,
    /// Inject only these faults of the scenario.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// End after so many faults, however few requests were sent.
    #[arg(long)]
    faults: Option<usize>,
    /// Repeats the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// A factor on all time limits; above 1 on a machine with other load.
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
    /// The service's setting of the same name.
    #[arg(long)]
    reads: Option<String>,
}

impl Chaos {
    pub(crate) async fn run(self) -> Outcome {
        let Some(name) = &self.scenario else {
            SCENARIOS.iter().for_each(Scenario::print);
            return Ok(());
        };
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
        let scenario = scenario.ok_or_else(|| format!("no scenario {name}"))?;
        let faults: Vec<Fault> =
            scenario.faults.iter().filter(|fault| self.injects(fault)).copied().collect();
        if let Some(unknown) = self.only.iter().find(|name| faults.iter().all(|fault| fault.name != **name)) {
            return Err(format!("{} has no fault {unknown}", scenario.name).into());
        }
        let length = if self.short { scenario.short } else { scenario.length };
        let length = self.faults.map_or(length, |faults| Length { faults, requests: 0 });
        let seed = printed_seed(self.seed);
        let system = SystemUnderTest::start(scenario, seed, self.slack, self.reads.as_deref()).await?;
        scenario.run(system, &faults, length, Random(seed)).await
    }

    fn injects(&self, fault: &Fault) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == fault.name)
    }
}

impl Scenario {
    fn print(&self) {
        let mut faults: Vec<&str> = self.faults.iter().map(|fault| fault.name).collect();
        faults.dedup();
        println!("{:<14} {:<22} {}", self.name, format!("{:?}", self.topology), faults.join(", "));
    }

    fn lets_orders_expire(&self) -> bool {
        self.clients.iter().flat_map(|(_, clients)| clients.mix).any(|(_, kind)| *kind == Kind::PlaceBriefly)
    }

    async fn run(
        &self,
        mut system: SystemUnderTest,
        faults: &[Fault],
        length: Length,
        mut random: Random,
    ) -> Outcome {
        let reader = Reader::start(&system.addresses, &system.key, 100, None);
        let mut tasks = JoinSet::new();
        for (pace, clients) in self.clients {
            match pace {
                Pace::Clients(count) => system.load.spawn(&mut tasks, *count, clients),
                Pace::PerSecond(rate) => system.load.spawn_at_rate(&mut tasks, *rate, clients),
            }
        }
        let (started, mut injected, mut queue) = (Instant::now(), 0, Vec::new());
        let mut pauses: BTreeMap<&str, (Samples, Samples)> = BTreeMap::new();
        while injected < length.faults || system.load.log().attempts.len() < length.requests {
            let pause = self.pause.start + random.below(self.pause.end - self.pause.start);
            sleep(Duration::from_millis(pause)).await;
            if queue.is_empty() {
                queue = shuffled(faults, &mut random);
            }
            if let Some(fault) = queue.pop() {
                let (writes, reads) = system.inject(&fault).await?;
                let of_fault = pauses.entry(fault.name).or_default();
                of_fault.0.push(writes);
                of_fault.1.push(reads);
                injected += 1;
            }
        }
        system.load.stop();
        tasks.join_all().await;

        fs::create_dir_all("target/chaos")?;
        fs::write("target/chaos/timeline.csv", system.load.log().timeline())?;
        for (name, (writes, reads)) in &pauses {
            let (times, writes, reads) = (writes.0.len(), writes.spread(), reads.spread());
            println!("{name:<34} {times:>3} times: no write for {writes} s, no read for {reads} s");
        }
        let (journal, reading, problems) = system.load.check_with_feed(system.database_url(), reader).await?;
        system.problems.extend(problems);
        let (log, counts) = (system.load.log(), system.load.history().counts.clone());
        if self.tolerates == Failures::None {
            system
                .problems
                .extend(log.first_failure.iter().map(|failure| format!("a request failed: {failure}")));
        }
        let unanswered = log.with_status(0, 0.0, f64::INFINITY).0;
        if self.tolerates == Failures::Errors && unanswered > 0 {
            system.problems.push(format!("{unanswered} requests got no answer"));
        }
        let expired = reading.events.iter().filter(|(event, _)| event.kind == "order.expired").count();
        println!("answers: {:?}", log.answers);
        println!(
            "{injected} faults in {} s: {} reads, {} stale, {} backwards; {} writes acknowledged, {} unknown; {} changes of pets \
             and orders; {} events read in {} pages with {} failures; {} shown, \
             then lost; {expired} orders expired",
            started.elapsed().as_secs(),
            grouped(counts.reads),
            counts.stale,
            counts.backwards,
            grouped(counts.writes),
            counts.unknown,
            journal.changes.len(),
            reading.events.len(),
            reading.pages,
            reading.failures,
            system.load.history().shown_and_lost(&journal)
        );
        // A run in which little happened proves little.
        if journal.changes.len() < length.requests / 50 {
            system.problems.push(format!("only {} changes", journal.changes.len()));
        }
        if self.lets_orders_expire() && expired < length.requests / 200 {
            system.problems.push(format!("only {expired} orders expired"));
        }
        verdict(&system.problems)?;
        println!("{}: passed", self.name);
        Ok(())
    }
}

fn shuffled<T: Copy>(items: &[T], random: &mut Random) -> Vec<T> {
    let mut items = items.to_vec();
    for place in (1..items.len()).rev() {
        items.swap(place, random.index(place + 1));
    }
    items
}
