//! Simulates reads from a cluster in which everything fails, and looks for one that misses an acknowledged write.
//!
//! Nothing has a duration here: in each step, one thing happens that can happen, in a random order. Each run of a few
//! hundred steps starts with a new cluster and makes some kinds of event rare or impossible, others frequent.
//!
//! No read may be stale while all rules are kept. Then each rule is left out, and each assumption about the cluster is
//! violated, alone: this must lead to a stale read, or else the rule would not be needed or the simulation too weak.
//!
//! `SIMULATION_SECONDS` is how long to look for a stale read (2), `SEED` repeats the runs of another simulation, and `RUN` prints
//! what happens in one of them. The suite `read-quorum` runs it for an hour.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test that reports")]

mod cluster;
mod random;

use std::env;
use std::time::{Duration, Instant, UNIX_EPOCH};

use petstore_read_quorum::{LastPrimary, ReadSource, Role, ServerReport, choose};

use cluster::{Cluster, Event};
use random::Random;

const STEPS: usize = 600;
/// The reads in progress at the same time.
const READERS: usize = 3;
/// The runs without a rule, at most, and their seed: always the same, so that what they find does not depend on luck. Its first
/// run finds what is rarest, a stale read without `NewestTimeline`.
const MAX_RUNS: u64 = 2_000_000;
const RULES_SEED: u64 = 2 ^ (228_799 << 32);

/// A number from the environment. `make` sets what it was not given to an empty text.
fn setting(name: &str) -> Option<u64> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().expect("a number"))
}

#[test]
fn no_read_is_stale() {
    let seed = setting("SEED").unwrap_or_else(|| UNIX_EPOCH.elapsed().unwrap().as_secs());
    println!("seed {seed}");
    if let Some(run) = setting("RUN") {
        let mut random = Random::of_run(seed, run);
        let mut simulation = Simulation::new(Omission::default(), &mut random);
        simulation.printed = true;
        simulation.run(&mut random, &mut Counts::default());
        return;
    }
    let seconds = setting("SIMULATION_SECONDS").unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    let counts = search(seed, Omission::default(), |_| Instant::now() < end);
    println!("{counts:?}");
    assert_eq!(counts.stale, 0, "stale reads");
    assert!(counts.from_standbys > 0 && counts.fresh >= 10 * seconds, "too few reads to mean anything");
}

#[test]
fn without_any_of_the_rules_a_read_is_stale() {
    for rule in Rule::ALL {
        finds_a_stale_read(&format!("{rule:?}"), Omission { rule: Some(rule), assumption: None });
    }
}

#[test]
fn without_any_of_the_assumptions_a_read_is_stale() {
    for assumption in Assumption::ALL {
        finds_a_stale_read(&format!("{assumption:?}"), Omission { rule: None, assumption: Some(assumption) });
    }
}

fn finds_a_stale_read(name: &str, omission: Omission) {
    let counts = search(RULES_SEED, omission, |counts| counts.stale == 0 && counts.runs < MAX_RUNS);
    println!("without {name}: {counts:?}");
    assert!(counts.stale > 0, "no stale read without {name}");
}

/// A rule that the simulation can leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// n − 1 servers are asked.
    AllButOne,
    /// Reports are made after the read began.
    AfterBegin,
    /// A read runs in the session of the report.
    SameSession,
    /// A read runs in a later statement than the report.
    LaterStatement,
    /// Only the newest timeline is read.
    NewestTimeline,
    /// Positions of older timelines count.
    OlderPositions,
    /// A standby that has restarted does not count before it has replayed all that is on its disk.
    RestartedDoNotCount,
    /// A standby has received at least what it has replayed.
    AtLeastReplayed,
    /// A standby is read once it has replayed what others have received.
    Replayed,
    /// A standby confirms only the primary that it follows.
    Upstream,
}

impl Rule {
    const ALL: [Self; 10] = [
        Self::AllButOne,
        Self::AfterBegin,
        Self::SameSession,
        Self::LaterStatement,
        Self::NewestTimeline,
        Self::OlderPositions,
        Self::RestartedDoNotCount,
        Self::AtLeastReplayed,
        Self::Replayed,
        Self::Upstream,
    ];
}

/// What the cluster guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assumption {
    /// The list of synchronous standbys is never empty.
    NeverAlone,
    /// A promoted server waits for a standby from its first write on.
    PromotedWaits,
    /// A server is created again from the primary.
    CopiedFromPrimary,
    /// A standby follows only a server that has all that it has itself.
    UpstreamHasAll,
}

impl Assumption {
    const ALL: [Self; 4] =
        [Self::NeverAlone, Self::PromotedWaits, Self::CopiedFromPrimary, Self::UpstreamHasAll];
}

/// What is left out.
#[derive(Debug, Clone, Copy, Default)]
struct Omission {
    rule: Option<Rule>,
    assumption: Option<Assumption>,
}

impl Omission {
    fn keeps(self, rule: Rule) -> bool {
        self.rule != Some(rule)
    }
}

#[derive(Debug, Default)]
struct Counts {
    runs: u64,
    fresh: u64,
    stale: u64,
    from_standbys: u64,
    refused: u64,
    acknowledged: u64,
    acknowledged_by_deposed: u64,
}

/// Simulates run after run while `goes_on`.
fn search(seed: u64, omission: Omission, goes_on: impl Fn(&Counts) -> bool) -> Counts {
    let mut counts = Counts::default();
    while goes_on(&counts) {
        let mut random = Random::of_run(seed, counts.runs);
        Simulation::new(omission, &mut random).run(&mut random, &mut counts);
        counts.runs += 1;
    }
    counts
}

/// A read in progress.
struct Read {
    /// The writes that were acknowledged when it began.
    must_see: usize,
    reports: Vec<Option<ServerReport>>,
    /// Whether a statement before the report of each server saw them, and the start of that server: too early, unless a rule
    /// is left out.
    seen_before: Vec<Option<(bool, u64)>>,
}

struct Simulation {
    cluster: Cluster,
    servers: usize,
    reads: Vec<Read>,
    /// The reports of the last read that has ended.
    last_reports: Vec<Option<ServerReport>>,
    last_primary: Option<LastPrimary>,
    omission: Omission,
    /// Each event as often as it is likely.
    events: Vec<Event>,
    printed: bool,
}

impl Simulation {
    fn new(omission: Omission, random: &mut Random) -> Self {
        let servers = *random.pick(&[2, 3, 3, 3, 4]);
        let mut events = Vec::new();
        for event in Event::ALL {
            let weights: &[usize] =
                if event.is_replication() { &[4, 8, 16, 32] } else { &[0, 0, 1, 1, 2, 4] };
            events.extend(std::iter::repeat_n(event, *random.pick(weights)));
        }
        Self {
            cluster: Cluster::new(servers, omission.assumption),
            servers,
            reads: Vec::new(),
            last_reports: vec![None; servers],
            last_primary: None,
            omission,
            events,
            printed: false,
        }
    }

    fn run(&mut self, random: &mut Random, counts: &mut Counts) {
        for _ in 0..STEPS {
            if random.chance(70) {
                let event = *random.pick(&self.events);
                let before = self.printed.then(|| self.cluster.to_string());
                self.cluster.happen(event, random);
                if let Some(before) = before {
                    let after = self.cluster.to_string();
                    if after != before {
                        println!("{event:?}\n{after}");
                    }
                }
            } else if self.reads.len() < READERS && random.chance(20) {
                self.begin(random);
            } else if !self.reads.is_empty() {
                let read = random.index(self.reads.len());
                if random.chance(60) {
                    self.ask(read, random);
                } else {
                    self.decide(read, random, counts);
                }
            }
        }
        counts.acknowledged += self.cluster.acknowledged() as u64;
        counts.acknowledged_by_deposed += self.cluster.acknowledged_by_deposed;
    }

    fn begin(&mut self, random: &mut Random) {
        let reports = if self.omission.keeps(Rule::AfterBegin) || random.chance(50) {
            vec![None; self.servers]
        } else {
            self.last_reports.clone()
        };
        let must_see = self.cluster.acknowledged();
        self.reads.push(Read { must_see, reports, seen_before: vec![None; self.servers] });
    }

    /// Asks a server.
    fn ask(&mut self, read: usize, random: &mut Random) {
        let (read, server) = (&mut self.reads[read], random.index(self.servers));
        let report = self.cluster.report(server, self.omission.keeps(Rule::AtLeastReplayed));
        // A read and its report are separate: something may happen in between.
        if random.chance(30) {
            let seen = self.cluster.sees(server, None, read.must_see);
            read.seen_before[server] = seen.zip(report).map(|(seen, report)| (seen, report.start));
        } else if report.is_some() {
            read.reports[server] = report;
        }
    }

    /// Reads, if a server is known to be fresh.
    fn decide(&mut self, index: usize, random: &mut Random, counts: &mut Counts) {
        let read = &self.reads[index];
        let Some(source) = self.choose(&read.reports, random.index(self.servers)) else {
            counts.refused += 1;
            // After a while, a read gives up.
            if random.chance(10) {
                self.reads.swap_remove(index);
            }
            return;
        };
        let (ReadSource::Primary(server) | ReadSource::Standby(server)) = source;
        let session = read.reports[server]
            .map(|report| report.start)
            .filter(|_| self.omission.keeps(Rule::SameSession));
        let early =
            read.seen_before[server].filter(|(_, start)| session.is_none_or(|session| session == *start));
        let seen = match early {
            Some((seen, _)) if !self.omission.keeps(Rule::LaterStatement) => Some(seen),
            _ => self.cluster.sees(server, session, read.must_see),
        };
        let read = self.reads.swap_remove(index);
        if let ReadSource::Primary(primary) = source {
            self.last_primary = LastPrimary::confirmed_by(&read.reports, primary, self.last_primary.as_ref());
        }
        match seen {
            None => return,
            Some(true) => counts.fresh += 1,
            Some(false) => {
                counts.stale += 1;
                if self.omission.rule.is_none() && self.omission.assumption.is_none() {
                    println!("stale read in run {}", counts.runs);
                }
            }
        }
        if self.printed {
            println!("read {source:?}, must see {}, reports {:?}: {seen:?}", read.must_see, read.reports);
        }
        counts.from_standbys += u64::from(matches!(source, ReadSource::Standby(_)));
        self.last_reports = read.reports;
    }

    /// Chooses a server; where a rule is left out, from reports that hide what it is about.
    fn choose(&self, reports: &[Option<ServerReport>], turn: usize) -> Option<ReadSource> {
        let mut reports = reports.to_vec();
        let newest = reports.iter().flatten().map(|report| report.timeline).max()?;
        let primary = reports.iter().position(|report| {
            report.is_some_and(|report| {
                report.timeline == newest && matches!(report.role, Role::Primary { .. })
            })
        });
        for report in reports.iter_mut().flatten() {
            match (self.omission.rule, &mut report.role) {
                (Some(Rule::NewestTimeline), _) => report.timeline = 1,
                (
                    Some(Rule::RestartedDoNotCount),
                    Role::Standby { received: received @ None, replayed, .. },
                ) => {
                    *received = Some(*replayed);
                }
                (Some(Rule::Replayed), Role::Standby { replayed, .. }) => replayed.0 = u64::MAX,
                (Some(Rule::Upstream), Role::Standby { upstream, .. }) => *upstream = primary,
                (Some(Rule::OlderPositions), Role::Primary { flushed }) if report.timeline < newest => {
                    flushed.0 = 0;
                }
                (Some(Rule::OlderPositions), Role::Standby { received: Some(received), .. })
                    if report.timeline < newest =>
                {
                    received.0 = 0;
                }
                _ => {}
            }
        }
        if self.omission.keeps(Rule::AllButOne) {
            return choose(&reports, self.last_primary.as_ref(), turn).ok();
        }
        // As if only those servers existed that have reported.
        let ids: Vec<usize> = (0..reports.len()).filter(|id| reports[*id].is_some()).collect();
        let index_of = |id: usize| ids.iter().position(|known| *known == id);
        let mut known: Vec<Option<ServerReport>> = ids.iter().map(|id| reports[*id]).collect();
        for report in known.iter_mut().flatten() {
            if let Role::Standby { upstream, .. } = &mut report.role {
                *upstream = upstream.and_then(index_of);
            }
        }
        choose(&known, None, turn).ok().map(|source| match source {
            ReadSource::Primary(index) => ReadSource::Primary(ids[index]),
            ReadSource::Standby(index) => ReadSource::Standby(ids[index]),
        })
    }
}
