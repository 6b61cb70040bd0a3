//! Histories written by hand: a good one, and one for each rule that breaks it.

use std::time::SystemTime;

use super::database_journal::{Change, Journal, State, Step};
use super::feed::{Event, Reading};
use super::{Answer, End, Found, History, Request};

fn create(name: &str) -> Request {
    Request::Create { name: name.into(), status: "available" }
}

fn rename(pet: i64, name: &str) -> Request {
    Request::Patch { pet, name: name.into(), status: None }
}

fn place(pet: i64, reference: &str) -> Request {
    Request::Place { pet, reference: reference.into(), expires: false }
}

fn end(order: i64, end: End) -> Request {
    Request::End { order, end }
}

fn shown(pets: &[(i64, &str, &str)]) -> Answer {
    let found = |(id, name, status): &(i64, &str, &str)| Found {
        id: *id,
        name: (*name).to_owned(),
        status: (*status).to_owned(),
    };
    Answer::Pets(pets.iter().map(found).collect())
}

/// Requests that ended one after another.
fn history(requests: Vec<(Request, Answer)>) -> History {
    let mut history = History::default();
    for (request, answer) in requests {
        let ticket = history.begin(request);
        history.end(ticket, answer);
    }
    history
}

fn step(old: &str, new: &str, name: &str) -> Step {
    Step { old: old.into(), new: new.into(), name: name.into() }
}

fn pet(id: i64, old: &str, new: &str, name: &str) -> Change {
    Change { pet: id, of_pet: Some(step(old, new, name)), of_order: None }
}

fn order(id: i64, (old, new): (&str, &str), pet_step: (&str, &str), reference: &str) -> Change {
    Change {
        pet: 1,
        of_pet: Some(step(pet_step.0, pet_step.1, "client-b")),
        of_order: Some((id, step(old, new, reference))),
    }
}

/// A pet that is created, renamed, ordered and sold.
fn good_requests() -> Vec<(Request, Answer)> {
    vec![
        (create("client-a"), Answer::Done(1)),
        (Request::Get { pet: 1 }, shown(&[(1, "client-a", "available")])),
        (rename(1, "client-b"), Answer::Done(1)),
        (Request::Page { after: 0 }, shown(&[(1, "client-b", "available")])),
        (place(1, "client-c"), Answer::Done(7)),
        (place(1, "client-d"), Answer::Refused),
        (end(7, End::Completed), Answer::Done(7)),
        (Request::Find { pet: 1 }, shown(&[(1, "client-b", "sold")])),
    ]
}

fn good_changes() -> Vec<Change> {
    vec![
        pet(1, "-", "available", "client-a"),
        pet(1, "available", "available", "client-b"),
        order(7, ("-", "placed"), ("available", "pending"), "client-c"),
        order(7, ("placed", "completed"), ("pending", "sold"), "client-c"),
    ]
}

fn good_state() -> State {
    State {
        pets: [(1, ("client-b".to_owned(), "sold".to_owned()))].into(),
        orders: [(7, (1, "completed".to_owned()))].into(),
    }
}

const GOOD_EVENTS: [(&str, i64); 6] = [
    ("pet.created", 0),
    ("pet.updated", 0),
    ("pet.updated", 0),
    ("order.placed", 7),
    ("pet.updated", 0),
    ("order.completed", 7),
];

fn reading(events: &[(&str, i64)]) -> Reading {
    let event = |(place, (kind, order)): (usize, &(&str, i64))| Event {
        id: place.to_string(),
        kind: (*kind).to_owned(),
        pet_id: 1,
        last_pet_id: None,
        order_id: (*order != 0).then_some(*order),
        at: String::new(),
    };
    let events = events.iter().enumerate().map(event).map(|event| (event, SystemTime::UNIX_EPOCH));
    Reading { events: events.collect(), ..Reading::default() }
}

fn rows(events: &[(&str, i64)]) -> Vec<String> {
    events.iter().map(|(kind, order)| format!("{kind}|1|{order}")).collect()
}

/// All problems of a history, its journal and the state at the end.
fn problems(requests: Vec<(Request, Answer)>, changes: Vec<Change>, state: &State) -> Vec<String> {
    let mut history = history(requests);
    let journal = Journal::new(State::default(), changes);
    let mut problems = history.take_problems();
    problems.extend(history.missing(&journal, 0..history.effects.len()));
    problems.extend(journal.problems(state));
    problems
}

fn assert_problem(problems: &[String], part: &str) {
    assert!(problems.iter().any(|problem| problem.contains(part)), "no {part:?} in {problems:#?}");
}

#[test]
fn a_good_history_has_no_problem() {
    assert_eq!(problems(good_requests(), good_changes(), &good_state()), Vec::<String>::new());
    let journal = Journal::new(State::default(), good_changes());
    assert_eq!(reading(&GOOD_EVENTS).problems(&rows(&GOOD_EVENTS), true), Vec::<String>::new());
    assert_eq!(reading(&GOOD_EVENTS).differences(&journal, 0), Vec::<String>::new());
}

#[test]
fn an_acknowledged_write_that_is_lost_is_a_problem() {
    for (lost, part) in [
        (0, "client-a was acknowledged as pet 1, and created as []"),
        (1, "pet 1 was acknowledged as client-b, None, but was []"),
        (2, "order 7 of pet 1 was acknowledged, and placed as []"),
        (3, "order 7 was acknowledged as completed, but ended as None"),
    ] {
        let mut changes = good_changes();
        changes.remove(lost);
        assert_problem(&problems(good_requests(), changes, &good_state()), part);
    }
}

#[test]
fn a_write_that_took_effect_twice_is_a_problem() {
    let mut changes = good_changes();
    changes.push(pet(2, "-", "available", "client-a"));
    assert_problem(&problems(good_requests(), changes, &good_state()), "client-a was created 2 times");
    // Its client never learned of it.
    let requests = vec![(create("client-a"), Answer::Unknown)];
    let twice = vec![pet(1, "-", "available", "client-a"), pet(2, "-", "available", "client-a")];
    assert_problem(&problems(requests.clone(), twice, &State::default()), "client-a was created 2 times");
    let once = vec![pet(1, "-", "available", "client-a")];
    let state = State { pets: [(1, ("client-a".into(), "available".into()))].into(), ..State::default() };
    assert_eq!(problems(requests.clone(), once, &state), Vec::<String>::new());
    assert_eq!(problems(requests, Vec::new(), &State::default()), Vec::<String>::new());
}

#[test]
fn a_write_with_another_effect_is_a_problem() {
    let mut changes = good_changes();
    changes[0] = pet(9, "-", "available", "client-a");
    assert_problem(&problems(good_requests(), changes, &good_state()), "created as [9]");
}

#[test]
fn a_repeated_request_with_another_answer_is_a_problem() {
    let mut history = History::default();
    history.repeated(&create("client-a"), 1, 1);
    assert_eq!(history.take_problems(), Vec::<String>::new());
    history.repeated(&create("client-a"), 1, 2);
    assert_problem(&history.take_problems(), "and when repeated with 2");
}

#[test]
fn a_pet_in_two_open_orders_is_a_problem() {
    let requests = vec![
        (create("client-a"), Answer::Done(1)),
        (place(1, "client-c"), Answer::Done(7)),
        (place(1, "client-d"), Answer::Done(8)),
    ];
    assert_problem(&history(requests).take_problems(), "pet 1 was in orders 7 and 8 at once");
    let mut changes = good_changes();
    changes.insert(3, order(8, ("-", "placed"), ("available", "pending"), "client-d"));
    assert_problem(&problems(good_requests(), changes, &good_state()), "the pet had another status before");
}

#[test]
fn a_pet_that_is_sold_twice_is_a_problem() {
    let mut requests = good_requests();
    requests.push((place(1, "client-d"), Answer::Done(8)));
    assert_problem(&history(requests).take_problems(), "pet 1 was ordered as 8, and was not available then");
    let mut changes = good_changes();
    changes.push(order(8, ("-", "placed"), ("sold", "pending"), "client-d"));
    assert_problem(&problems(good_requests(), changes, &good_state()), "an illegal change");
}

#[test]
fn a_pet_that_was_returned_can_be_sold_again() {
    let mut requests = good_requests();
    let back = Request::Patch { pet: 1, name: "client-e".into(), status: Some("available") };
    requests.extend([(back, Answer::Done(1)), (place(1, "client-d"), Answer::Done(8))]);
    assert_eq!(history(requests).take_problems(), Vec::<String>::new());
}

#[test]
fn an_order_that_ends_in_two_ways_is_a_problem() {
    let mut requests = good_requests();
    requests.push((end(7, End::Cancelled), Answer::Done(7)));
    assert_problem(&history(requests).take_problems(), "order 7 ended twice");
}

#[test]
fn an_illegal_change_is_a_problem() {
    for illegal in [("sold", "pending"), ("available", "sold")] {
        let mut changes = good_changes();
        changes.push(pet(1, illegal.0, illegal.1, "client-x"));
        let found = problems(good_requests(), changes, &good_state());
        assert!(
            found.iter().any(|it| it.contains("an illegal") || it.contains("another status")),
            "{found:?}"
        );
    }
}

#[test]
fn a_state_that_its_changes_do_not_explain_is_a_problem() {
    for state in [
        State { pets: [].into(), ..good_state() },
        State { pets: [(1, ("client-b".to_owned(), "available".to_owned()))].into(), ..good_state() },
        State { orders: [].into(), ..good_state() },
    ] {
        assert_problem(&problems(good_requests(), good_changes(), &state), "its changes add up to");
    }
}

#[test]
fn a_stale_read_is_a_problem() {
    for (read, answer, part) in [
        (Request::Get { pet: 1 }, shown(&[]), "pet 1 is missing"),
        (Request::Page { after: 0 }, shown(&[]), "pet 1 is missing"),
        (Request::Find { pet: 1 }, shown(&[(1, "client-a", "sold")]), "pet 1 is still client-a"),
        (Request::Find { pet: 1 }, shown(&[(1, "client-b", "pending")]), "pet 1 is still pending"),
        (Request::Find { pet: 1 }, shown(&[(1, "Rex", "sold")]), "which nobody wrote"),
    ] {
        let mut requests = good_requests();
        requests.push((read, answer));
        let mut history = history(requests);
        assert_eq!(history.counts.stale, 1);
        assert_problem(&history.take_problems(), part);
    }
}

#[test]
fn a_read_may_miss_what_was_not_acknowledged_when_it_began() {
    let mut history = history(vec![(create("client-a"), Answer::Done(1))]);
    let read = history.begin(Request::Get { pet: 1 });
    let write = history.begin(rename(1, "client-b"));
    history.end(write, Answer::Done(1));
    history.end(read, shown(&[(1, "client-a", "available")]));
    // A write whose outcome is unknown may take effect at any later time, and not at all.
    let unknown = history.begin(rename(1, "client-c"));
    history.end(unknown, Answer::Unknown);
    for name in ["client-b", "client-c", "client-b"] {
        let read = history.begin(Request::Get { pet: 1 });
        history.end(read, shown(&[(1, name, "available")]));
    }
    assert_eq!(history.take_problems(), Vec::<String>::new());
    assert_eq!(history.counts.backwards, 1);
}

#[test]
fn an_event_that_is_skipped_repeated_or_out_of_order_is_a_problem() {
    let journal = Journal::new(State::default(), good_changes());
    let stored = rows(&GOOD_EVENTS);
    for (place, event) in GOOD_EVENTS.into_iter().enumerate() {
        let (mut skipped, mut repeated) = (GOOD_EVENTS.to_vec(), GOOD_EVENTS.to_vec());
        skipped.remove(place);
        repeated.insert(place, event);
        for wrong in [&skipped, &repeated] {
            assert_eq!(reading(wrong).differences(&journal, 0).len(), 1, "{wrong:?}");
            assert_eq!(reading(wrong).problems(&stored, true).len(), 1, "{wrong:?}");
        }
    }
    let mut swapped = GOOD_EVENTS.to_vec();
    swapped.swap(3, 5);
    assert_eq!(reading(&swapped).differences(&journal, 0).len(), 1);
    let mut twice = reading(&GOOD_EVENTS);
    twice.events[3].0.id = twice.events[2].0.id.clone();
    assert_problem(&twice.problems(&stored, true), "shown twice");
}
