//! A model of PostgreSQL servers with streaming replication, and of what a cluster manager does with them.
//!
//! A write-ahead log is a list of records, each with a number that no other has, and a position is a length of that list.
//! A server that stops loses nothing of its log: only what is flushed counts here.

use std::fmt;

use petstore_read_quorum::{Lsn, Role, ServerReport};

use super::Assumption;
use super::random::Random;

/// The records in a segment. A server asks for a log from the start of a segment.
const SEGMENT: usize = 8;

/// A record that was acknowledged, and where it is.
#[derive(Clone, Copy)]
struct Acknowledged {
    record: u32,
    index: usize,
}

/// A report of a standby to its upstream, on its way.
struct Flushed {
    from: usize,
    to: usize,
    start_of_to: u64,
    position: usize,
}

#[derive(Clone)]
struct Timeline {
    number: u32,
    begins: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Running,
    Frozen,
    Stopped,
}

#[derive(Clone)]
struct Server {
    process: Process,
    receiver_frozen: bool,
    replay_frozen: bool,
    /// Counts its starts: sessions do not outlive one.
    start: u64,
    log: Vec<u32>,
    history: Vec<Timeline>,
    is_primary: bool,
    /// Of a primary: what its sessions can see.
    visible: usize,
    /// Of a primary: which servers are synchronous standbys, one bit for each.
    synchronous: u8,
    /// Of a primary: what each standby has reported as flushed.
    flushed_by: Vec<usize>,
    replayed: usize,
    /// A standby accepts no sessions before it has replayed this.
    opens_at: usize,
    upstream: usize,
    /// The start of the upstream to which its receiver is connected.
    connected_to: Option<u64>,
    streamed: usize,
    received: Option<usize>,
    received_timeline: u32,
}

impl Server {
    fn timeline(&self) -> u32 {
        self.history.last().map_or(0, |timeline| timeline.number)
    }

    fn accepts_sessions(&self) -> bool {
        self.process == Process::Running && (self.is_primary || self.replayed >= self.opens_at)
    }

    fn is_running_standby(&self) -> bool {
        self.process == Process::Running && !self.is_primary
    }

    /// What its sessions see.
    fn visible(&self) -> &[u32] {
        &self.log[..if self.is_primary { self.visible } else { self.replayed }]
    }

    fn starts_as_standby_of(&mut self, upstream: usize) {
        (self.is_primary, self.upstream, self.connected_to, self.received) = (false, upstream, None, None);
    }
}

/// The servers, and what they have acknowledged.
pub(super) struct Cluster {
    servers: Vec<Server>,
    /// The server that was promoted last.
    leader: usize,
    acknowledged: Vec<Acknowledged>,
    replies: Vec<Flushed>,
    last_record: u32,
    violated: Option<Assumption>,
    /// How many writes a deposed primary has acknowledged: a failover has lost them already.
    pub(super) acknowledged_by_deposed: u64,
}

/// Something that happens to the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Write,
    Stream,
    Reply,
    DeliverReply,
    Release,
    Replay,
    Connect,
    ToggleReceiver,
    ToggleReplay,
    Freeze,
    Thaw,
    Crash,
    Restart,
    Promote,
    Repoint,
    Rebuild,
    ChangeSynchronous,
}

impl Event {
    pub(super) const ALL: [Self; 17] = [
        Self::Write,
        Self::Stream,
        Self::Reply,
        Self::DeliverReply,
        Self::Release,
        Self::Replay,
        Self::Connect,
        Self::ToggleReceiver,
        Self::ToggleReplay,
        Self::Freeze,
        Self::Thaw,
        Self::Crash,
        Self::Restart,
        Self::Promote,
        Self::Repoint,
        Self::Rebuild,
        Self::ChangeSynchronous,
    ];

    /// Whether replication depends on it. The others are faults, and what a cluster manager does.
    pub(super) fn is_replication(self) -> bool {
        matches!(
            self,
            Self::Write
                | Self::Stream
                | Self::Reply
                | Self::DeliverReply
                | Self::Release
                | Self::Replay
                | Self::Connect
        )
    }
}

impl fmt::Display for Cluster {
    /// A line for each server.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, server) in self.servers.iter().enumerate() {
            let history: Vec<_> =
                server.history.iter().map(|it| format!("{}@{}", it.number, it.begins)).collect();
            let log = server.log.iter().rev().take(6).rev().collect::<Vec<_>>();
            let positions = if server.is_primary {
                format!(
                    "primary, visible {}, synchronous {:b}, flushed by {:?}",
                    server.visible, server.synchronous, server.flushed_by
                )
            } else {
                format!(
                    "standby of {} ({:?}), timeline {}, streamed {}, received {:?}, replayed {}, opens at {}",
                    server.upstream,
                    server.connected_to,
                    server.received_timeline,
                    server.streamed,
                    server.received,
                    server.replayed,
                    server.opens_at
                )
            };
            let leader = if id == self.leader { "*" } else { " " };
            writeln!(
                f,
                " {leader}{id} {:?} {} [{}] {}…{log:?} {positions}",
                server.process,
                server.start,
                history.join(" "),
                server.log.len()
            )?;
        }
        write!(f, "  acknowledged {}", self.acknowledged.len())
    }
}

impl Cluster {
    /// A primary and its standbys. The cluster need not keep the assumption that is `violated`.
    pub(super) fn new(servers: usize, violated: Option<Assumption>) -> Self {
        let all = (1_u8 << servers) - 1;
        let server = |id: usize| Server {
            process: Process::Running,
            receiver_frozen: false,
            replay_frozen: false,
            start: 0,
            log: Vec::new(),
            history: vec![Timeline { number: 1, begins: 0 }],
            is_primary: id == 0,
            visible: 0,
            synchronous: all & !1,
            flushed_by: vec![0; servers],
            replayed: 0,
            opens_at: 0,
            upstream: 0,
            connected_to: (id != 0).then_some(0),
            streamed: 0,
            received: (id != 0).then_some(0),
            received_timeline: 1,
        };
        Self {
            servers: (0..servers).map(server).collect(),
            leader: 0,
            acknowledged: Vec::new(),
            replies: Vec::new(),
            last_record: 0,
            violated,
            acknowledged_by_deposed: 0,
        }
    }

    /// How many writes have been acknowledged.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// What a server reports in a session.
    pub(super) fn report(&self, id: usize, with_replayed: bool) -> Option<ServerReport> {
        let server = &self.servers[id];
        if !server.accepts_sessions() {
            return None;
        }
        let position = |length: usize| Lsn(length as u64);
        let start = server.start;
        if server.is_primary {
            let role = Role::Primary { flushed: position(server.log.len()) };
            return Some(ServerReport { start, timeline: server.timeline(), role });
        }
        let at_least = if with_replayed { server.replayed } else { 0 };
        let role = Role::Standby {
            received: server.received.map(|received| position(received.max(at_least))),
            replayed: position(server.replayed),
            upstream: server.connected_to.map(|_| server.upstream),
        };
        let timeline =
            if server.connected_to.is_some() { server.received_timeline } else { server.timeline() };
        Some(ServerReport { start, timeline, role })
    }

    /// Whether a read on this server sees the first `count` acknowledged writes. `None` if it accepts no sessions, or if
    /// the session of that start is gone.
    pub(super) fn sees(&self, id: usize, start: Option<u64>, count: usize) -> Option<bool> {
        let server = &self.servers[id];
        if !server.accepts_sessions() || start.is_some_and(|start| start != server.start) {
            return None;
        }
        let visible = server.visible();
        Some(self.acknowledged[..count].iter().all(|write| visible.get(write.index) == Some(&write.record)))
    }

    /// Lets an event happen to random servers, if it can.
    pub(super) fn happen(&mut self, event: Event, random: &mut Random) {
        let id = random.index(self.servers.len());
        let leader = self.leader;
        match event {
            Event::Write => self.write(if random.chance(80) { leader } else { id }),
            Event::Stream => self.stream(id, 1 + random.index(2 * SEGMENT)),
            Event::Reply => self.reply(id),
            Event::DeliverReply => self.deliver_reply(random),
            Event::Release => self.release(if random.chance(80) { leader } else { id }),
            Event::Replay => {
                let server = &mut self.servers[id];
                if server.is_running_standby() && !server.replay_frozen {
                    server.replayed = (server.replayed + 1 + random.index(SEGMENT)).min(server.log.len());
                }
            }
            Event::Connect => self.connect(id),
            Event::ToggleReceiver => self.servers[id].receiver_frozen ^= true,
            Event::ToggleReplay => self.servers[id].replay_frozen ^= true,
            Event::Freeze => self.replace_process(id, Process::Running, Process::Frozen),
            Event::Thaw => self.replace_process(id, Process::Frozen, Process::Running),
            Event::Crash => {
                let server = &mut self.servers[id];
                (server.process, server.connected_to) = (Process::Stopped, None);
            }
            Event::Restart => self.restart(id, random),
            Event::Promote => self.promote(id),
            Event::Repoint => {
                if id != leader && self.servers[id].is_running_standby() {
                    let upstream = if random.chance(80) { leader } else { random.index(self.servers.len()) };
                    let server = &mut self.servers[id];
                    (server.upstream, server.connected_to) = (upstream, None);
                }
            }
            Event::Rebuild => self.rebuild(id, random),
            Event::ChangeSynchronous => {
                let others = ((1_u8 << self.servers.len()) - 1) & !(1 << id);
                let chosen = random.byte() & others;
                if self.servers[id].is_primary
                    && (chosen != 0 || self.violated == Some(Assumption::NeverAlone))
                {
                    self.servers[id].synchronous = chosen;
                }
            }
        }
    }

    fn replace_process(&mut self, id: usize, before: Process, after: Process) {
        let process = &mut self.servers[id].process;
        if *process == before {
            *process = after;
        }
    }

    fn write(&mut self, id: usize) {
        let server = &mut self.servers[id];
        if server.is_primary && server.accepts_sessions() {
            self.last_record += 1;
            server.log.push(self.last_record);
        }
    }

    /// The receiver of a standby gets up to `count` records.
    fn stream(&mut self, id: usize, count: usize) {
        let Some(start) = self.servers[id].connected_to else { return };
        if !self.servers[id].is_running_standby() || self.servers[id].receiver_frozen {
            return;
        }
        let upstream = &self.servers[self.servers[id].upstream];
        if upstream.process == Process::Frozen {
            return;
        }
        if upstream.process == Process::Stopped
            || upstream.start != start
            || upstream.timeline() != self.servers[id].received_timeline
        {
            self.servers[id].connected_to = None;
            return;
        }
        // A standby sends on what it has received itself.
        let streamed = (self.servers[id].streamed + count).min(upstream.log.len());
        let own = &self.servers[id].log;
        // After a second promotion to the same timeline, the logs can differ: then replay stops.
        if streamed <= self.servers[id].streamed
            || !upstream.log.starts_with(&own[..own.len().min(upstream.log.len())])
        {
            return;
        }
        let (sent, history) = (upstream.log[..streamed].to_vec(), upstream.history.clone());
        let server = &mut self.servers[id];
        if streamed > server.log.len() {
            server.log = sent;
        }
        server.history = history;
        server.streamed = streamed;
        server.received = server.received.max(Some(streamed));
    }

    fn reply(&mut self, id: usize) {
        let server = &self.servers[id];
        if let (Some(start_of_to), true) =
            (server.connected_to, server.is_running_standby() && !server.receiver_frozen)
        {
            let position = server.streamed.max(server.replayed);
            self.replies.push(Flushed { from: id, to: server.upstream, start_of_to, position });
        }
    }

    fn deliver_reply(&mut self, random: &mut Random) {
        if self.replies.is_empty() {
            return;
        }
        let reply = self.replies.swap_remove(random.index(self.replies.len()));
        let upstream = &mut self.servers[reply.to];
        if upstream.process == Process::Running && upstream.start == reply.start_of_to {
            let known = &mut upstream.flushed_by[reply.from];
            *known = (*known).max(reply.position);
        }
    }

    /// A primary acknowledges what a synchronous standby has flushed.
    fn release(&mut self, id: usize) {
        let server = &mut self.servers[id];
        if !server.is_primary || !server.accepts_sessions() {
            return;
        }
        let flushed = (0..server.flushed_by.len())
            .filter(|standby| server.synchronous & (1 << standby) != 0)
            .map(|standby| server.flushed_by[standby])
            .max();
        let alone = self.violated == Some(Assumption::NeverAlone) && server.synchronous == 0;
        let flushed =
            if alone { server.log.len() } else { flushed.unwrap_or_default().min(server.log.len()) };
        for index in server.visible..flushed {
            if id == self.leader {
                self.acknowledged.push(Acknowledged { record: server.log[index], index });
            } else {
                self.acknowledged_by_deposed += 1;
            }
        }
        server.visible = server.visible.max(flushed);
    }

    /// A standby asks its upstream for the log, once it has replayed all that it has.
    fn connect(&mut self, id: usize) {
        let server = &mut self.servers[id];
        if !server.is_running_standby() || server.connected_to.is_some() || server.replayed < server.log.len()
        {
            return;
        }
        let from = server.log.len() / SEGMENT * SEGMENT;
        // It reports a position as soon as it asks, whether or not anybody answers.
        if server.received.is_none() {
            (server.received, server.received_timeline) = (Some(from), server.timeline());
        }
        let server = &self.servers[id];
        let upstream = &self.servers[server.upstream];
        if server.upstream == id || !upstream.accepts_sessions() {
            return;
        }
        let Some(known) = upstream.history.iter().position(|timeline| timeline.number == server.timeline())
        else {
            return;
        };
        let forked_before =
            upstream.history.get(known + 1).is_some_and(|next| server.log.len() > next.begins);
        let has_all = upstream.log.starts_with(&server.log);
        if forked_before
            || from > upstream.log.len()
            || !has_all && self.violated != Some(Assumption::UpstreamHasAll)
        {
            return;
        }
        let (start, timeline) = (upstream.start, upstream.timeline());
        let server = &mut self.servers[id];
        (server.connected_to, server.streamed) = (Some(start), from);
        if server.received_timeline != timeline {
            (server.received, server.received_timeline) = (Some(from), timeline);
        }
    }

    fn restart(&mut self, id: usize, random: &mut Random) {
        let leader = self.leader;
        let server = &mut self.servers[id];
        if server.process != Process::Stopped {
            return;
        }
        (server.process, server.start) = (Process::Running, server.start + 1);
        server.flushed_by.fill(0);
        if server.is_primary && (id == leader || random.chance(50)) {
            server.visible = server.log.len();
        } else if server.is_primary {
            // It recovers all of its own log first.
            server.opens_at = server.log.len();
            server.replayed = random.index(server.log.len() + 1);
            server.starts_as_standby_of(leader);
        } else {
            server.opens_at = random.index(server.replayed + 1);
            server.replayed = random.index(server.opens_at + 1);
            server.starts_as_standby_of(server.upstream);
        }
    }

    /// Promotes a standby that has all acknowledged writes.
    fn promote(&mut self, id: usize) {
        let server = &self.servers[id];
        let has_all =
            self.acknowledged.iter().all(|write| server.log.get(write.index) == Some(&write.record));
        let number = server.timeline() + 1;
        if !server.is_running_standby() || !server.accepts_sessions() || !has_all {
            return;
        }
        let waits = self.violated != Some(Assumption::PromotedWaits);
        let server = &mut self.servers[id];
        let next = Timeline { number, begins: server.log.len() };
        server.history.push(next);
        (server.is_primary, server.connected_to, server.received) = (true, None, None);
        (server.replayed, server.visible) = (server.log.len(), server.log.len());
        // Until its manager has listed standbys, it waits for one that does not exist.
        server.synchronous = 0;
        server.flushed_by.fill(0);
        if !waits {
            self.last_record += 1;
            let (record, index) = (self.last_record, server.log.len());
            server.log.push(record);
            server.visible += 1;
            self.acknowledged.push(Acknowledged { record, index });
        }
        self.leader = id;
    }

    /// Replaces the data of a server by that of the leader.
    fn rebuild(&mut self, id: usize, random: &mut Random) {
        let from = match self.violated {
            Some(Assumption::CopiedFromPrimary) => random.index(self.servers.len()),
            _ => self.leader,
        };
        if id == self.leader || id == from || !self.servers[from].accepts_sessions() {
            return;
        }
        let Server { log, history, replayed, is_primary, .. } = self.servers[from].clone();
        let server = &mut self.servers[id];
        (server.process, server.start) = (Process::Running, server.start + 1);
        server.opens_at = if is_primary { log.len() } else { replayed };
        server.replayed = random.index(server.opens_at + 1);
        (server.log, server.history) = (log, history);
        server.flushed_by.fill(0);
        server.starts_as_standby_of(self.leader);
    }
}
