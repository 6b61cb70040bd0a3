//! Chooses what happens next. The choice looks at the model, so that most requests are about what exists and few are absurd.

use rand::RngExt;
use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::model::Model;
use super::operation::{Action, CLIENTS, NEVER_CREATED, Number, Operation, Request, Sql, Step};

/// An operation with a weight.
type Choice = (u32, fn(&mut StdRng, &Model) -> Operation);

const OPERATIONS: &[Choice] = &[
    (6, |random, _| Operation::CreatePet(new_pet(random))),
    (14, |random, model| Operation::UpdatePet(pet(random, model), pet_patch(random))),
    (4, |random, model| Operation::DeletePet(pet(random, model))),
    (8, |random, model| Operation::GetPet(pet(random, model))),
    (6, |random, model| Operation::FindPets(pets(random, model), pet_status(random))),
    (12, |random, model| Operation::PlaceOrder(pet(random, model), new_order(random))),
    (10, |random, model| Operation::CompleteOrder(order(random, model))),
    (6, |random, model| Operation::CancelOrder(order(random, model))),
    (8, |random, model| Operation::UpdateOrder(order(random, model), order_patch(random))),
    (6, |random, model| Operation::GetOrder(order(random, model))),
    (6, |random, model| Operation::ListOrders(pet(random, model), order_status(random))),
    (1, |_, _| Operation::ListNewEvents),
];

/// The next step. `sent` are the steps that sent a new request.
pub(super) fn next_step(random: &mut StdRng, model: &Model, sent: &[Number], number: Number) -> Step {
    let action = match random.random_range(0..100) {
        0..25 if !sent.is_empty() => Action::Repeat(sent[random.random_range(0..sent.len())]),
        25..35 if !model.pets.is_empty() => {
            sql(random, model).map_or_else(|| send(random, model), Action::Sql)
        }
        _ => send(random, model),
    };
    Step { number, node: random.random_range(0..2), action }
}

fn send(random: &mut StdRng, model: &Model) -> Action {
    let choose = if model.pets.is_empty() {
        OPERATIONS[0].1
    } else {
        OPERATIONS.choose_weighted(random, |(weight, _)| *weight).unwrap().1
    };
    let operation = choose(random, model);
    // Most requests come from clients that may do everything.
    let client = if random.random_bool(0.8) {
        random.random_range(0..3)
    } else {
        random.random_range(0..CLIENTS.len())
    };
    let key = random.random_bool(0.5).then(|| random.random_range(0..3));
    let tag = if random.random_bool(0.4) { tag(random, model, &operation) } else { None };
    Action::Send(Request { client, operation, key, tag })
}

/// One of the pets, more often a new one. Seldom one that does not exist.
fn pet(random: &mut StdRng, model: &Model) -> Number {
    recent(random, model.pets.keys())
}

/// One or two of the pets, in the order of a list.
fn pets(random: &mut StdRng, model: &Model) -> Vec<Number> {
    let pets: BTreeSet<Number> = (0..random.random_range(1..3)).map(|_| pet(random, model)).collect();
    pets.into_iter().collect()
}

fn pet_status(random: &mut StdRng) -> Option<&'static str> {
    random.random_bool(0.3).then(|| one(random, &["available", "pending", "sold"]))
}

fn order(random: &mut StdRng, model: &Model) -> Number {
    recent(random, model.orders.keys())
}

fn order_status(random: &mut StdRng) -> Option<&'static str> {
    random.random_bool(0.3).then(|| one(random, &["placed", "completed", "cancelled", "expired"]))
}

fn recent<'a>(random: &mut StdRng, numbers: impl DoubleEndedIterator<Item = &'a Number>) -> Number {
    let newest: Vec<Number> =
        numbers.rev().take(if random.random_bool(0.8) { 2 } else { 6 }).copied().collect();
    if random.random_bool(0.02) { NEVER_CREATED } else { *newest.choose(random).unwrap_or(&NEVER_CREATED) }
}

/// A tag that an earlier answer had, most often of what the request is about.
fn tag(random: &mut StdRng, model: &Model, operation: &Operation) -> Option<Number> {
    let mut names = operation.names();
    if let Operation::ListOrders(pet, _) = operation {
        // Its tags are those of orders, which the request does not name.
        names.extend(model.orders_of(*pet));
    }
    let is_related = |versions: &[(Number, u64)]| versions.iter().any(|(number, _)| names.contains(number));
    let any = random.random_bool(0.1);
    let known = model.tags.iter().filter(|(_, tag)| any || is_related(&tag.versions));
    let known: Vec<Number> = known.map(|(step, _)| *step).collect();
    if random.random_bool(0.5) { known.last().copied() } else { known.choose(random).copied() }
}

fn sql(random: &mut StdRng, model: &Model) -> Option<Sql> {
    let pet = match recent(
        random,
        model.pets.iter().filter(|(_, pet)| !pet.is_deleted).map(|(number, _)| number),
    ) {
        NEVER_CREATED => return None,
        pet => pet,
    };
    let order = match order(random, model) {
        NEVER_CREATED => None,
        order => Some(order),
    };
    match random.random_range(0..20) {
        0..2 => Some(Sql::TouchPet(pet)),
        2..5 => Some(Sql::ChangePet(pet)),
        5 => Some(Sql::SetStatus(pet, one(random, &["available", "pending", "sold"]))),
        6..7 => Some(Sql::LockPet(pet)),
        7..10 => order.map(Sql::AnnotateOrder),
        10..17 => order.map(Sql::AgeOrder),
        17..19 => Some(Sql::ForgetKeys),
        _ => Some(Sql::Freeze),
    }
}

fn new_pet(random: &mut StdRng) -> Value {
    let mut new =
        json!({"name": one(random, &["Kim", "Ada", "Max"]), "categoryId": random.random_range(1..4)});
    if random.random_bool(0.9) {
        new["status"] = one(random, &["available", "available", "available", "sold", "pending"]).into();
    }
    if random.random_bool(0.3) {
        new["reference"] = reference(random);
    }
    if random.random_bool(0.3) {
        new["metadata"] = json!({"price": one(random, &["129.00", "99.00"])});
    }
    new
}

fn pet_patch(random: &mut StdRng) -> Value {
    let mut patch = json!({});
    if random.random_bool(0.6) {
        patch["status"] = one(random, &["available", "available", "sold", "pending"]).into();
    }
    if random.random_bool(0.3) {
        patch["name"] = one(random, &["Kim", "Ada", "Max"]).into();
    }
    if random.random_bool(0.1) {
        patch["categoryId"] = random.random_range(1..4).into();
    }
    add_reference_and_metadata(random, &mut patch);
    patch
}

fn new_order(random: &mut StdRng) -> Value {
    let mut new = json!({});
    if random.random_bool(0.6) {
        new["holdSeconds"] = hold(random);
    }
    if random.random_bool(0.2) {
        new["reference"] = reference(random);
    }
    if random.random_bool(0.2) {
        new["metadata"] = json!({"price": one(random, &["129.00", "99.00"])});
    }
    new
}

fn order_patch(random: &mut StdRng) -> Value {
    let mut patch = json!({});
    if random.random_bool(0.5) {
        patch["holdSeconds"] = hold(random);
    }
    add_reference_and_metadata(random, &mut patch);
    patch
}

fn add_reference_and_metadata(random: &mut StdRng, patch: &mut Value) {
    match random.random_range(0..10) {
        0..2 => patch["reference"] = reference(random),
        2 => patch["reference"] = Value::Null,
        _ => {}
    }
    match random.random_range(0..20) {
        0..3 => patch["metadata"] = json!({"price": one(random, &["129.00", "99.00"])}),
        3 => patch["metadata"] = json!({"price": null, "note": "sale"}),
        4 => patch["metadata"] = json!({}),
        5 => patch["metadata"] = Value::Null,
        _ => {}
    }
}

/// A hold that ends within the next hour, within three hours, or not at all in a history.
fn hold(random: &mut StdRng) -> Value {
    (*[900, 10_000, 604_800].choose(random).unwrap()).into()
}

fn reference(random: &mut StdRng) -> Value {
    one(random, &["R1", "R2", "R3"]).into()
}

fn one<'a>(random: &mut StdRng, choices: &[&'a str]) -> &'a str {
    choices.choose(random).unwrap()
}
