//! The model of the interface: what each request does and how it is answered, without a database, a network or a clock.
//!
//! To add an operation, add it to [`Operation`] and, in [`Model::perform`], say what it does. The compiler names both places;
//! `generator.rs` then sends it.

use std::collections::{BTreeMap, HashMap};
use std::mem::{Discriminant, discriminant};

use serde_json::{Map, Value, json};

use super::operation::{CLIENTS, Number, Operation, Request, Sql};

pub(super) type Members = Map<String, Value>;

/// The hold of an order that asks for none, in seconds.
pub(super) const DEFAULT_HOLD: i64 = 168 * 60 * 60;

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) pets: BTreeMap<Number, Pet>,
    pub(super) orders: BTreeMap<Number, Order>,
    /// The tag that the answer of a step had.
    pub(super) tags: BTreeMap<Number, Tag>,
    /// What was done with an `Idempotency-Key`, by the lineage of the API key, the operation and the key.
    remembered: HashMap<(usize, Discriminant<Operation>, usize), (Operation, Done)>,
    /// The type of each event and the pet or order that it is about.
    pub(super) events: Vec<(String, Number)>,
}

#[derive(Debug, Clone)]
pub(super) struct Pet {
    members: Members,
    /// Counts the committed changes.
    version: u64,
    pub(super) is_deleted: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) pet: Number,
    members: Members,
    version: u64,
    /// The seconds until it expires.
    remaining: i64,
    /// The version with which the hold began.
    held_since: u64,
}

/// A pet or an order as an answer shows it, with the numbers of the model instead of ids.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snapshot {
    pub(super) number: Number,
    pub(super) version: u64,
    pub(super) members: Members,
    /// Of an order whose hold has just begun: the seconds until it expires.
    pub(super) hold: Option<i64>,
}

/// What an `ETag` stands for: two are equal if and only if they were given for the same versions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Tag {
    pub(super) versions: Vec<(Number, u64)>,
    is_list: bool,
}

/// What the answer to a request shows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    Nothing,
    One(Snapshot),
    List(Vec<Snapshot>),
}

/// A request that succeeded.
#[derive(Debug, Clone, PartialEq)]
struct Done {
    status: u16,
    shown: Shown,
    has_tag: bool,
}

/// The status and the code of an error.
type Refusal = (u16, &'static str);

/// How a request must be answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expected {
    pub(super) status: u16,
    /// Of an error.
    pub(super) code: &'static str,
    pub(super) is_replayed: bool,
    pub(super) shown: Shown,
    pub(super) tag: Option<Tag>,
}

impl Expected {
    fn new(outcome: Result<Done, Refusal>, is_replayed: bool) -> Self {
        match outcome {
            Ok(Done { status, shown, has_tag }) => {
                let tag = shown.tag().filter(|_| has_tag);
                Self { status, code: "", is_replayed, shown, tag }
            }
            Err((status, code)) => Self { status, code, is_replayed, shown: Shown::Nothing, tag: None },
        }
    }
}

impl Shown {
    fn tag(&self) -> Option<Tag> {
        let versions = |snapshots: &[Snapshot]| {
            snapshots.iter().map(|snapshot| (snapshot.number, snapshot.version)).collect()
        };
        match self {
            Self::Nothing => None,
            Self::One(one) => Some(Tag { versions: versions(std::slice::from_ref(one)), is_list: false }),
            Self::List(list) => Some(Tag { versions: versions(list), is_list: true }),
        }
    }
}

impl Snapshot {
    fn has_status(&self, status: &str) -> bool {
        self.members.get("status").is_some_and(|own| own == status)
    }
}

impl Done {
    /// A read, and an update: the answer has a tag.
    fn read(shown: Shown) -> Self {
        Self { status: 200, shown, has_tag: true }
    }
}

impl Model {
    /// What a request does when it is sent in this step, and how it is answered.
    pub(super) fn apply(&mut self, step: Number, request: &Request) -> Expected {
        let Request { client, operation, key, tag } = request;
        let client = &CLIENTS[*client];
        if !client.scopes.contains(&operation.scope()) {
            return Expected::new(Err((403, "insufficient_scope")), false);
        }
        let name =
            key.filter(|_| !operation.is_safe()).map(|key| (client.lineage, discriminant(operation), key));
        let expected = match name.and_then(|name| self.remembered.get(&name)) {
            Some((other, _)) if other != operation => {
                Expected::new(Err((422, "idempotency_key_reused")), false)
            }
            Some((_, done)) => Expected::new(self.replay(operation, done), true),
            None => {
                let tag = tag.and_then(|step| self.tags.get(&step).cloned());
                let outcome = self.perform(step, operation, tag.as_ref());
                if let (Some(name), Ok(done)) = (name, &outcome) {
                    self.remembered.insert(name, (operation.clone(), done.clone()));
                }
                Expected::new(outcome, false)
            }
        };
        if let Some(tag) = &expected.tag {
            self.tags.insert(step, tag.clone());
        }
        expected
    }

    /// A replay of createPet returns the first answer. That of another operation shows the pet or the order as it is now.
    fn replay(&self, operation: &Operation, done: &Done) -> Result<Done, Refusal> {
        let shown = match (&done.shown, operation) {
            (Shown::One(first), Operation::UpdatePet(..)) => Shown::One(self.pet(first.number)?),
            (Shown::One(first), Operation::CreatePet(_)) => Shown::One(first.clone()),
            (Shown::One(first), _) => Shown::One(self.order(first.number)?),
            (shown, _) => shown.clone(),
        };
        Ok(Done { shown, ..done.clone() })
    }

    fn perform(&mut self, step: Number, operation: &Operation, tag: Option<&Tag>) -> Result<Done, Refusal> {
        match operation {
            Operation::CreatePet(new) => {
                let members = merged(&Members::new(), new);
                self.check_reference(step, &members)?;
                self.pets.insert(step, Pet { members, version: 0, is_deleted: false });
                self.happened("pet.created", step);
                Ok(Done { status: 201, shown: Shown::One(self.pet(step)?), has_tag: true })
            }
            Operation::UpdatePet(of, patch) => {
                let old = self.pet(*of)?;
                check_tag(tag, &old)?;
                if let Some(to) = patch.get("status") {
                    if self.open_order(*of).is_some() {
                        return Err((409, "pet_has_open_order"));
                    }
                    if old.has_status("sold") && to == "pending" {
                        return Err((409, "invalid_transition"));
                    }
                }
                let new = merged(&old.members, patch);
                self.check_reference(*of, &new)?;
                self.change_pet(*of, |members| *members = new);
                Ok(Done::read(Shown::One(self.pet(*of)?)))
            }
            Operation::DeletePet(of) => {
                check_tag(tag, &self.pet(*of)?)?;
                if self.orders.values().any(|order| order.pet == *of) {
                    return Err((409, "pet_has_order"));
                }
                self.pets.entry(*of).and_modify(|pet| pet.is_deleted = true);
                self.happened("pet.deleted", *of);
                Ok(Done { status: 204, shown: Shown::Nothing, has_tag: false })
            }
            Operation::GetPet(of) => Ok(unless_known(tag, Shown::One(self.pet(*of)?))),
            Operation::FindPets(of, status) => {
                let found = of.iter().filter_map(|number| self.pet(*number).ok());
                let has_status = |pet: &Snapshot| status.is_none_or(|status| pet.has_status(status));
                Ok(unless_known(tag, Shown::List(found.filter(has_status).collect())))
            }
            Operation::PlaceOrder(of, new) => {
                if !self.pet(*of)?.has_status("available") {
                    return Err((409, "pet_not_available"));
                }
                if self.open_order(*of).is_some() {
                    return Err((409, "pet_has_open_order"));
                }
                let mut members = merged(&Members::new(), new);
                let hold =
                    members.remove("holdSeconds").and_then(|hold| hold.as_i64()).unwrap_or(DEFAULT_HOLD);
                members.insert("status".into(), "placed".into());
                let order = Order { pet: *of, members, version: 0, remaining: hold, held_since: 0 };
                self.orders.insert(step, order);
                self.happened("order.placed", step);
                self.write_status(*of, "pending");
                Ok(Done { status: 201, shown: Shown::One(self.order(step)?), has_tag: false })
            }
            Operation::CompleteOrder(of) => self.end_order(*of, "completed"),
            Operation::CancelOrder(of) => self.end_order(*of, "cancelled"),
            Operation::UpdateOrder(of, patch) => {
                let old = self.order(*of)?;
                check_tag(tag, &old)?;
                let mut patch = patch.clone();
                let hold = patch.as_object_mut().and_then(|patch| patch.remove("holdSeconds"));
                if hold.is_some() && !old.has_status("placed") {
                    return Err((409, "invalid_transition"));
                }
                self.change_order(*of, "order.updated", hold.and_then(|hold| hold.as_i64()), |members| {
                    *members = merged(members, &patch);
                });
                Ok(Done::read(Shown::One(self.order(*of)?)))
            }
            Operation::ListNewEvents => Ok(Done { status: 200, shown: Shown::Nothing, has_tag: false }),
            Operation::GetOrder(of) => Ok(unless_known(tag, Shown::One(self.order(*of)?))),
            Operation::ListOrders(of, status) => {
                let found = self.orders_of(*of).filter_map(|number| self.order(number).ok());
                let has_status = |order: &Snapshot| status.is_none_or(|status| order.has_status(status));
                // One page: in a history, a pet has fewer orders than a page holds.
                Ok(unless_known(tag, Shown::List(found.filter(has_status).collect())))
            }
        }
    }

    /// What a statement in psql does.
    pub(super) fn apply_sql(&mut self, sql: &Sql) {
        match sql {
            Sql::TouchPet(of) => self.new_version_of_pet(*of),
            Sql::ChangePet(of) => self.change_pet(*of, |members| {
                let category = members["categoryId"].as_i64().unwrap_or_default();
                members.insert("categoryId".into(), (category + 1).into());
            }),
            Sql::SetStatus(of, status) => self.write_status(*of, status),
            Sql::AnnotateOrder(of) => {
                let before = self.orders[of].version;
                self.change_order(*of, "order.updated", None, |members| {
                    members.insert("metadata".into(), json!({"note": "psql"}));
                });
                // PostgreSQL writes the row even if nothing changes.
                if let Some(order) = self.orders.get_mut(of) {
                    order.version = before + 1;
                }
            }
            Sql::AgeOrder(of) => {
                let Some(order) = self.orders.get_mut(of) else { return };
                order.version += 1;
                order.remaining -= 60 * 60;
                let is_due = order.is_open() && order.remaining <= 0;
                self.happened("order.updated", *of);
                if is_due {
                    let _ = self.end_order(*of, "expired");
                }
            }
            Sql::ForgetKeys => self.remembered.clear(),
            Sql::LockPet(_) | Sql::Freeze => {}
        }
    }

    /// Refuses a reference that another pet has.
    fn check_reference(&self, of: Number, members: &Members) -> Result<(), Refusal> {
        let has_it = |(number, pet): (&Number, &Pet)| {
            *number != of && !pet.is_deleted && pet.members.get("reference") == members.get("reference")
        };
        let is_taken = members.contains_key("reference") && self.pets.iter().any(has_it);
        if is_taken { Err((409, "reference_taken")) } else { Ok(()) }
    }

    /// An order that ends without a sale releases its pet, unless the status was changed in SQL.
    fn end_order(&mut self, of: Number, status: &str) -> Result<Done, Refusal> {
        let old = self.order(of)?;
        if old.has_status("placed") {
            self.change_order(of, &format!("order.{status}"), None, |members| {
                members.insert("status".into(), status.into());
            });
            let pet = self.orders[&of].pet;
            let is_reserved = self.pet(pet)?.has_status("pending");
            match status {
                "completed" => self.write_status(pet, "sold"),
                _ if is_reserved => self.write_status(pet, "available"),
                "cancelled" => self.new_version_of_pet(pet),
                _ => {}
            }
        } else if !old.has_status(status) {
            return Err((409, "invalid_transition"));
        }
        Ok(Done { status: 200, shown: Shown::One(self.order(of)?), has_tag: false })
    }

    /// PostgreSQL writes another version of the row even if nothing changes.
    fn write_status(&mut self, pet: Number, status: &str) {
        let before = self.pets.get(&pet).map(|pet| pet.version);
        self.change_pet(pet, |members| {
            members.insert("status".into(), status.into());
        });
        if self.pets.get(&pet).map(|pet| pet.version) == before {
            self.new_version_of_pet(pet);
        }
    }

    fn new_version_of_pet(&mut self, of: Number) {
        if let Some(pet) = self.pets.get_mut(&of).filter(|pet| !pet.is_deleted) {
            pet.version += 1;
        }
    }

    fn change_pet(&mut self, of: Number, change: impl FnOnce(&mut Members)) {
        let Some(pet) = self.pets.get_mut(&of).filter(|pet| !pet.is_deleted) else { return };
        let before = pet.members.clone();
        change(&mut pet.members);
        if pet.members != before {
            self.new_version_of_pet(of);
            self.happened("pet.updated", of);
        }
    }

    fn change_order(
        &mut self,
        of: Number,
        event: &str,
        hold: Option<i64>,
        change: impl FnOnce(&mut Members),
    ) {
        let Some(order) = self.orders.get_mut(&of) else { return };
        let before = order.members.clone();
        change(&mut order.members);
        if order.members != before || hold.is_some() {
            order.version += 1;
            if let Some(hold) = hold {
                (order.remaining, order.held_since) = (hold, order.version);
            }
            self.happened(event, of);
        }
    }

    fn happened(&mut self, event: &str, of: Number) {
        self.events.push((event.to_owned(), of));
    }

    /// All orders of a pet, in the order of a list. None if the pet does not exist.
    pub(super) fn orders_of(&self, pet: Number) -> impl Iterator<Item = Number> {
        self.orders.iter().filter(move |(_, order)| order.pet == pet).map(|(number, _)| *number)
    }

    /// The open order of a pet.
    pub(super) fn open_order(&self, pet: Number) -> Option<Number> {
        self.orders.iter().find(|(_, order)| order.pet == pet && order.is_open()).map(|(number, _)| *number)
    }

    /// A pet as it is now.
    pub(super) fn pet(&self, number: Number) -> Result<Snapshot, Refusal> {
        let pet = self.pets.get(&number).filter(|pet| !pet.is_deleted).ok_or((404, "pet_not_found"))?;
        Ok(Snapshot { number, version: pet.version, members: pet.members.clone(), hold: None })
    }

    /// An order as it is now.
    pub(super) fn order(&self, number: Number) -> Result<Snapshot, Refusal> {
        let order = self.orders.get(&number).ok_or((404, "order_not_found"))?;
        let mut members = order.members.clone();
        members.insert("petId".into(), order.pet.into());
        let hold = (order.held_since == order.version).then_some(order.remaining);
        Ok(Snapshot { number, version: order.version, members, hold })
    }
}

impl Order {
    pub(super) fn is_open(&self) -> bool {
        self.members["status"] == "placed"
    }
}

/// `If-Match`: the tag must be that of the current version, alone or as a list of one.
fn check_tag(tag: Option<&Tag>, now: &Snapshot) -> Result<(), Refusal> {
    let is_current = tag.is_none_or(|tag| tag.versions == [(now.number, now.version)]);
    if is_current { Ok(()) } else { Err((412, "precondition_failed")) }
}

/// `If-None-Match`: what the client knows is not sent again.
fn unless_known(tag: Option<&Tag>, shown: Shown) -> Done {
    let is_known = tag.is_some() && tag == shown.tag().as_ref();
    Done { status: if is_known { 304 } else { 200 }, ..Done::read(shown) }
}

/// A JSON merge patch (RFC 7396). Metadata without members is absent.
fn merged(members: &Members, patch: &Value) -> Members {
    let mut merged = members.clone();
    for (name, change) in patch.as_object().into_iter().flatten() {
        let new = match (merged.get(name), change) {
            (_, Value::Null) => Value::Null,
            (old, Value::Object(_)) => {
                let old = old.and_then(Value::as_object).cloned().unwrap_or_default();
                Value::Object(self::merged(&old, change))
            }
            (_, change) => change.clone(),
        };
        if new.is_null() || new == json!({}) {
            merged.remove(name);
        } else {
            merged.insert(name.clone(), new);
        }
    }
    merged
}
