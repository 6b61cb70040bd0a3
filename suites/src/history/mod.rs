//! The one checker of what clients saw: every suite that kills, breaks or upgrades something under load uses it.
//!
//! Clients report when each request begins and how it ends. Answers are checked at once, against what had been acknowledged
//! when the request began:
//! - no read misses an acknowledged write;
//! - a repeated request with the same `Idempotency-Key` gets the same answer;
//! - a pet is ordered only while it can be available, is never in two open orders, and an order ends in one way.
//!
//! Afterwards [`History::missing`] compares everything that was acknowledged with the [`database_journal`] of what happened in the
//! database: each effect is there exactly once, and an effect whose outcome is unknown at most once. The journal and the
//! [`feed`] of events have checks of their own.

pub(crate) mod database_journal;
pub(crate) mod feed;
mod operation;
mod register;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Bound, Range};

use database_journal::Journal;
pub(crate) use operation::{AcknowledgedWrite, Answer, Counts, End, Found, Request};
use register::{Floor, Moment, Register, Shown};

/// The longest page of a list.
pub(crate) const PAGE: usize = 100;
/// Problems beyond these are only counted.
const MOST_DESCRIBED: usize = 20;

/// A request that has begun.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request: Request,
    began: Moment,
    /// The pets that a read must show, or the one that a write changes, with the floors of name and status.
    expected: Vec<(i64, [Floor; 2])>,
}

#[derive(Debug, Default)]
struct Pet {
    name: Register,
    status: Register,
    /// The order that is certainly open: placed, and nobody has asked to end it.
    open: Option<i64>,
}

#[derive(Debug)]
struct Order {
    pet: i64,
    /// Requests to end it so far.
    ends_asked: u32,
    ended: Option<End>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    now: Moment,
    /// Those that a client knows to exist.
    pets: BTreeMap<i64, Pet>,
    orders: HashMap<i64, Order>,
    /// What was acknowledged, in that order.
    pub(crate) effects: Vec<AcknowledgedWrite>,
    /// Names that a read has shown before they were acknowledged, with their pets.
    shown_early: HashSet<(i64, String)>,
    /// Whether somebody else changes pets, too: then a name that no client wrote is no problem.
    others_write: bool,
    pub(crate) counts: Counts,
    problems: Vec<String>,
}

impl History {
    /// Lets somebody else change pets, too.
    pub(crate) fn let_others_write(&mut self) {
        self.others_write = true;
    }

    /// Adds a pet from before the history began, or one that was written in SQL just now.
    pub(crate) fn add_pet(&mut self, id: i64, name: &str, status: &str) {
        let pet = Pet { name: Register::with(name), status: Register::with(status), open: None };
        self.pets.insert(id, pet);
    }

    /// The newest pets, the newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = i64> {
        self.pets.keys().rev().copied()
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A client is about to send a request.
    pub(crate) fn begin(&mut self, request: Request) -> Ticket {
        let began = self.tick();
        let floors = |(id, pet): (&i64, &Pet)| (*id, [pet.name.floor(), pet.status.floor()]);
        let expected = match &request {
            Request::Create { .. } | Request::Available => Vec::new(),
            Request::Page { after } => {
                let after = (Bound::Excluded(*after), Bound::Unbounded);
                self.pets.range(after).take(PAGE).map(floors).collect()
            }
            Request::Patch { pet, .. }
            | Request::Place { pet, .. }
            | Request::Get { pet }
            | Request::Find { pet } => self.pets.get_key_value(pet).map(floors).into_iter().collect(),
            Request::End { order, .. } => {
                let pet = self.orders.get(order).and_then(|order| self.pets.get_key_value(&order.pet));
                pet.map(floors).into_iter().collect()
            }
        };
        if let Request::End { order, .. } = &request
            && let Some(known) = self.orders.get_mut(order)
        {
            known.ends_asked += 1;
            if let Some(pet) = self.pets.get_mut(&known.pet).filter(|pet| pet.open == Some(*order)) {
                pet.open = None;
            }
        }
        let ticket = Ticket { request, began, expected };
        self.change(&ticket, |register, value| register.begin(value, began));
        ticket
    }

    /// Applies a function to each register that a request writes, and the value that it writes.
    fn change(&mut self, ticket: &Ticket, apply: impl Fn(&mut Register, &str)) {
        let Some(pet) = ticket.expected.first().and_then(|(id, _)| self.pets.get_mut(id)) else { return };
        match &ticket.request {
            Request::Patch { name, status, .. } => {
                apply(&mut pet.name, name);
                if let Some(status) = status {
                    apply(&mut pet.status, status);
                }
            }
            Request::Place { .. } => apply(&mut pet.status, "pending"),
            Request::End { end: End::Completed, .. } => apply(&mut pet.status, "sold"),
            Request::End { end: End::Cancelled, .. } => apply(&mut pet.status, "available"),
            _ => {}
        }
    }

    /// A request has ended.
    pub(crate) fn end(&mut self, ticket: Ticket, answer: Answer) {
        let now = self.tick();
        match answer {
            Answer::Refused => self.change(&ticket, Register::refuse),
            Answer::Unknown => self.counts.unknown += 1,
            Answer::Pets(found) => {
                self.counts.reads += 1;
                self.check_read(&ticket, &found);
            }
            Answer::Done(id) => {
                self.counts.writes += 1;
                self.acknowledge(ticket, id, now);
            }
        }
    }

    fn acknowledge(&mut self, ticket: Ticket, id: i64, now: Moment) {
        let began = ticket.began;
        // A repeated end of an order succeeds and changes nothing, so only the first is certain to be a write just now.
        let is_certain = match &ticket.request {
            Request::End { order, .. } => self.orders.get(order).is_some_and(|order| order.ends_asked == 1),
            _ => true,
        };
        if is_certain {
            self.change(&ticket, |register, value| register.acknowledge(value, began, now));
        }
        match ticket.request {
            Request::Create { name, status } => self.create(id, name, status, (began, now)),
            Request::Patch { pet, name, status } => {
                if id != pet {
                    self.problem(format!("a patch of pet {pet} was answered with pet {id}"));
                }
                self.effects.push(AcknowledgedWrite::Patched { pet, name, status });
            }
            Request::Place { pet, reference, expires } => {
                self.check_was(&ticket.expected, "available", &format!("ordered as {id}"));
                self.place(id, pet, expires);
                self.effects.push(AcknowledgedWrite::Placed { order: id, pet, reference });
            }
            Request::End { order, end } => {
                if is_certain {
                    self.check_was(&ticket.expected, "pending", &format!("in order {order}, which ended"));
                }
                let earlier = self.orders.get_mut(&order).and_then(|known| known.ended.replace(end));
                if earlier.is_some_and(|earlier| earlier != end) {
                    self.problem(format!("order {order} ended twice: {earlier:?}, and then {end:?}"));
                }
                self.effects.push(AcknowledgedWrite::Ended { order, end });
            }
            _ => {}
        }
    }

    fn create(&mut self, id: i64, name: String, status: &str, (began, ended): (Moment, Moment)) {
        let mut pet = Pet::default();
        for (register, value) in [(&mut pet.name, &*name), (&mut pet.status, status)] {
            register.begin(value, began);
            register.acknowledge(value, began, ended);
        }
        if self.pets.insert(id, pet).is_some() {
            self.problem(format!("pet {id} was created twice, the second time as {name}"));
        }
        self.effects.push(AcknowledgedWrite::Created { name, pet: id });
    }

    fn place(&mut self, order: i64, pet: i64, expires: bool) {
        let mut earlier = None;
        if let Some(known) = self.pets.get_mut(&pet) {
            earlier = known.open.filter(|open| *open != order);
            known.open = (!expires).then_some(order);
            if expires {
                // At any time from now on.
                known.status.begin("available", self.now);
            }
        }
        if let Some(earlier) = earlier {
            self.problem(format!("pet {pet} was in orders {earlier} and {order} at once"));
        }
        if self.orders.insert(order, Order { pet, ends_asked: 0, ended: None }).is_some() {
            self.problem(format!("order {order} was placed twice"));
        }
    }

    /// A write that succeeded must have found its pet with this status.
    fn check_was(&mut self, expected: &[(i64, [Floor; 2])], status: &str, what: &str) {
        let Some((id, [_, floor])) = expected.first() else { return };
        if self.pets.get_mut(id).is_some_and(|pet| pet.status.judge(status, *floor) == Shown::Stale) {
            self.problem(format!("pet {id} was {what}, and was not {status} then"));
        }
    }

    fn check_read(&mut self, ticket: &Ticket, found: &[Found]) {
        // What comes after the last pet of a full page is on the next one.
        let is_full = matches!(ticket.request, Request::Page { .. }) && found.len() >= PAGE;
        let last = found.last().map_or(0, |pet| pet.id);
        let by_id: HashMap<i64, &Found> = found.iter().map(|pet| (pet.id, pet)).collect();
        let (mut missed, mut is_backwards) = (None, false);
        for (id, floors) in ticket.expected.iter().filter(|(id, _)| !is_full || *id <= last) {
            let Some(known) = self.pets.get_mut(id) else { continue };
            let Some(shown) = by_id.get(id) else {
                missed = Some(format!("pet {id} is missing"));
                continue;
            };
            for (register, value, floor) in
                [(&mut known.name, &shown.name, floors[0]), (&mut known.status, &shown.status, floors[1])]
            {
                match register.judge(value, floor) {
                    Shown::Fresh => {}
                    Shown::Backwards => is_backwards = true,
                    Shown::Unknown if self.others_write => {}
                    Shown::Stale => missed = Some(format!("pet {id} is still {value}")),
                    Shown::Unknown => missed = Some(format!("pet {id} is {value}, which nobody wrote")),
                }
            }
            if !self.others_write && known.name.is_in_doubt(&shown.name) {
                self.shown_early.insert((*id, shown.name.clone()));
            }
        }
        self.counts.backwards += u64::from(is_backwards);
        if let Some(missed) = missed {
            self.counts.stale += 1;
            self.problem(format!("a stale answer to {:?}: {missed}", ticket.request));
        }
    }

    /// The answers to a request that was sent again with the same `Idempotency-Key` must name the same pet or order.
    pub(crate) fn repeated(&mut self, request: &Request, first: i64, second: i64) {
        if first != second {
            self.problem(format!("{request:?} was answered with {first}, and when repeated with {second}"));
        }
    }

    pub(crate) fn problem(&mut self, problem: String) {
        if self.problems.len() < MOST_DESCRIBED {
            self.problems.push(problem);
        }
    }

    /// The problems since the last call, of which only the first are described.
    pub(crate) fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// The names that a read has shown, that were never acknowledged, and that the journal lacks.
    pub(crate) fn shown_and_lost(&self, journal: &Journal) -> usize {
        self.shown_early.iter().filter(|(pet, name)| !journal.has_named(*pet, name)).count()
    }

    /// What is wrong with the journal's record of these effects: each must be in it exactly once.
    pub(crate) fn missing(&self, journal: &Journal, effects: Range<usize>) -> Vec<String> {
        self.effects[effects].iter().filter_map(|effect| missing(effect, journal)).collect()
    }
}

/// What is wrong with the journal's record of an effect.
fn missing(effect: &AcknowledgedWrite, journal: &Journal) -> Option<String> {
    match effect {
        AcknowledgedWrite::Created { name, pet } => match journal.created_as(name) {
            [id] if id == pet => None,
            ids => Some(format!("{name} was acknowledged as pet {pet}, and created as {ids:?}")),
        },
        AcknowledgedWrite::Patched { pet, name, status } => match journal.named(*pet, name) {
            [now] if status.is_none_or(|status| status == now) => None,
            found => Some(format!("pet {pet} was acknowledged as {name}, {status:?}, but was {found:?}")),
        },
        AcknowledgedWrite::Placed { order, pet, reference } => match journal.placed_as(reference) {
            [placed] if *placed == (*order, *pet) => None,
            found => Some(format!("order {order} of pet {pet} was acknowledged, and placed as {found:?}")),
        },
        AcknowledgedWrite::Ended { order, end } => {
            let end = if *end == End::Completed { "completed" } else { "cancelled" };
            let found = journal.end_of(*order);
            (found != Some(end))
                .then(|| format!("order {order} was acknowledged as {end}, but ended as {found:?}"))
        }
    }
}
