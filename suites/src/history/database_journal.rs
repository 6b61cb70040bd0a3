//! The journal of a database: triggers record every change of every pet and every order, in order, whoever makes it.
//!
//! It is the truth that everything else is compared with. Its own checks: each change is a legal step from the one before,
//! nothing that a client asked for once took effect twice, and the changes explain what is in the tables.

use std::collections::{BTreeMap, HashMap};

use crate::Outcome;
use crate::topology::psql;

/// Names and references that start with this belong to clients, who send each of them once.
pub(crate) const PREFIX: &str = "client-";

const INSTALL: &str = "\
    SET client_min_messages = warning;
    DROP TABLE IF EXISTS journal;
    CREATE TABLE journal (
      place bigint GENERATED ALWAYS AS IDENTITY, transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
      pet_id bigint NOT NULL, order_id bigint NOT NULL, old text, new text, name text);
    CREATE OR REPLACE FUNCTION record_in_journal() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE was CONSTANT jsonb := to_jsonb(OLD); is_now CONSTANT jsonb := to_jsonb(NEW);
    BEGIN
      INSERT INTO journal (pet_id, order_id, old, new, name)
      SELECT CASE TG_TABLE_NAME WHEN 'pets' THEN any_row->>'id' ELSE any_row->>'pet_id' END::bigint,
        CASE TG_TABLE_NAME WHEN 'pets' THEN '0' ELSE any_row->>'id' END::bigint,
        CASE WHEN TG_OP = 'INSERT' THEN '-' ELSE coalesce(was->>'status', '') END,
        CASE WHEN TG_OP = 'DELETE' THEN '-' ELSE coalesce(is_now->>'status', '') END,
        coalesce(any_row->>'name', any_row->>'reference', '')
      FROM (SELECT CASE WHEN TG_OP = 'DELETE' THEN was ELSE is_now END) AS known (any_row);
      RETURN NULL;
    END $$;
    DROP TRIGGER IF EXISTS record_in_journal ON pets;
    DROP TRIGGER IF EXISTS record_change_in_journal ON pets;
    DROP TRIGGER IF EXISTS record_in_journal ON orders;
    DROP TRIGGER IF EXISTS record_change_in_journal ON orders;
    CREATE TRIGGER record_in_journal AFTER INSERT OR DELETE ON pets FOR EACH ROW EXECUTE FUNCTION record_in_journal();
    CREATE TRIGGER record_change_in_journal AFTER UPDATE ON pets
      FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION record_in_journal();
    CREATE TRIGGER record_in_journal AFTER INSERT OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION record_in_journal();
    CREATE TRIGGER record_change_in_journal AFTER UPDATE ON orders
      FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION record_in_journal()";

/// The pets and orders at one time, by id.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// Name and status.
    pub(crate) pets: BTreeMap<i64, (String, String)>,
    /// Pet and status.
    pub(crate) orders: BTreeMap<i64, (i64, String)>,
}

impl State {
    pub(crate) fn read(url: &str) -> Outcome<Self> {
        let mut state = Self::default();
        for row in psql(url, "SELECT id, coalesce(status::text, ''), name FROM pets")?.lines() {
            let [id, status, name] = fields(row)?;
            state.pets.insert(id.parse()?, (name.to_owned(), status.to_owned()));
        }
        for row in psql(url, "SELECT id, pet_id, status FROM orders")?.lines() {
            let [id, pet, status] = fields(row)?;
            state.orders.insert(id.parse()?, (pet.parse()?, status.to_owned()));
        }
        Ok(state)
    }
}

fn fields<const N: usize>(row: &str) -> Outcome<[&str; N]> {
    let fields: Vec<&str> = row.splitn(N, '|').collect();
    fields.try_into().map_err(|_| format!("not a row of {N} fields: {row}").into())
}

/// A change of a status, `-` where there is no row, and the new name or reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) name: String,
}

/// What one transaction did to one pet and to an order of that pet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) pet: i64,
    pub(crate) of_pet: Option<Step>,
    pub(crate) of_order: Option<(i64, Step)>,
}

/// Every change since the journal was installed, in order, and the state before.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    before: State,
    pub(crate) changes: Vec<Change>,
    created: HashMap<String, Vec<i64>>,
    placed: HashMap<String, Vec<(i64, i64)>>,
    /// The statuses with which a pet got a name.
    named: HashMap<(i64, String), Vec<String>>,
    ends: HashMap<i64, String>,
}

impl Journal {
    /// Starts to record. Nobody else may write meanwhile. Returns the state before.
    pub(crate) fn install(url: &str) -> Outcome<State> {
        psql(url, INSTALL)?;
        State::read(url)
    }

    pub(crate) fn read(url: &str, before: &State) -> Outcome<Self> {
        let mut changes: Vec<Change> = Vec::new();
        let mut places: HashMap<(String, i64), usize> = HashMap::new();
        let sql = "SELECT transaction, pet_id, order_id, old, new, name FROM journal ORDER BY place";
        for row in psql(url, sql)?.lines() {
            let [transaction, pet, order, old, new, name] = fields(row)?;
            let (pet, order) = (pet.parse()?, order.parse()?);
            let place = *places.entry((transaction.to_owned(), pet)).or_insert_with(|| {
                changes.push(Change { pet, ..Change::default() });
                changes.len() - 1
            });
            let (old, new, name) = (old.to_owned(), new.to_owned(), name.to_owned());
            let step = Step { old, new, name };
            match order {
                0 => changes[place].of_pet = Some(step),
                _ => changes[place].of_order = Some((order, step)),
            }
        }
        Ok(Self::new(before.clone(), changes))
    }

    pub(crate) fn new(before: State, changes: Vec<Change>) -> Self {
        let mut journal = Self { before, ..Self::default() };
        for change in &changes {
            let of_pet = change.of_pet.as_ref();
            if let Some(step) = of_pet.filter(|step| step.old == "-") {
                journal.created.entry(step.name.clone()).or_default().push(change.pet);
            } else if let Some(step) = of_pet.filter(|step| step.new != "-" && change.of_order.is_none()) {
                let named = journal.named.entry((change.pet, step.name.clone())).or_default();
                named.push(step.new.clone());
            }
            match &change.of_order {
                Some((order, step)) if step.old == "-" => {
                    journal.placed.entry(step.name.clone()).or_default().push((*order, change.pet));
                }
                Some((order, step)) => drop(journal.ends.insert(*order, step.new.clone())),
                None => {}
            }
        }
        journal.changes = changes;
        journal
    }

    /// The pets that were created with this name.
    pub(crate) fn created_as(&self, name: &str) -> &[i64] {
        self.created.get(name).map_or(&[], Vec::as_slice)
    }

    /// The orders that were placed with this reference, with their pets.
    pub(crate) fn placed_as(&self, reference: &str) -> &[(i64, i64)] {
        self.placed.get(reference).map_or(&[], Vec::as_slice)
    }

    /// The statuses that the pet had when it got this name, once for each time.
    pub(crate) fn named(&self, pet: i64, name: &str) -> &[String] {
        self.named.get(&(pet, name.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Whether the pet ever had this name.
    pub(crate) fn has_named(&self, pet: i64, name: &str) -> bool {
        !self.named(pet, name).is_empty() || self.created_as(name).contains(&pet)
    }

    /// The status in which an order ended.
    pub(crate) fn end_of(&self, order: i64) -> Option<&str> {
        self.ends.get(&order).map(String::as_str)
    }

    /// What is wrong with the journal itself, and with the state after it.
    pub(crate) fn problems(&self, after: &State) -> Vec<String> {
        let mut problems = Vec::new();
        let of_clients = |name: &&String| name.starts_with(PREFIX);
        for name in self.created.keys().filter(of_clients).filter(|name| self.created[*name].len() > 1) {
            problems.push(format!("{name} was created {} times", self.created[name].len()));
        }
        for name in self.placed.keys().filter(of_clients).filter(|name| self.placed[*name].len() > 1) {
            problems.push(format!("{name} was placed {} times", self.placed[name].len()));
        }
        let mut state = self.before.clone();
        let mut open: HashMap<i64, i64> = HashMap::new();
        for (order, (pet, status)) in &state.orders {
            if status == "placed" {
                open.insert(*pet, *order);
            }
        }
        for change in &self.changes {
            if let Err(problem) = apply(change, &mut state, &mut open) {
                problems.push(format!("{problem}: {change:?}"));
            }
        }
        problems.extend(difference("pet", &state.pets, &after.pets));
        problems.extend(difference("order", &state.orders, &after.orders));
        problems
    }
}

/// Applies a change, which must be a legal step for its pet and for its order.
fn apply(change: &Change, state: &mut State, open: &mut HashMap<i64, i64>) -> Result<(), &'static str> {
    let pet = change.pet;
    let before = state.pets.get(&pet).map_or("-", |(_, status)| status).to_owned();
    let step = change.of_pet.as_ref().ok_or("an order without its pet")?;
    let is_legal = match &change.of_order {
        Some((order, ended)) => match (&*ended.old, &*ended.new, &*step.old, &*step.new) {
            ("-", "placed", "available", "pending") => open.insert(pet, *order).is_none(),
            ("placed", "completed", "pending", "sold")
            | ("placed", "cancelled" | "expired", "pending", "available") => {
                open.remove(&pet) == Some(*order)
            }
            _ => false,
        },
        None => match (&*step.old, &*step.new) {
            ("-", _) => true,
            (old, new) if old == new => true,
            ("sold", "pending") => false,
            _ => !open.contains_key(&pet),
        },
    };
    if step.new == "-" {
        state.pets.remove(&pet);
    } else {
        state.pets.insert(pet, (step.name.clone(), step.new.clone()));
    }
    if let Some((order, ended)) = &change.of_order {
        state.orders.insert(*order, (pet, ended.new.clone()));
    }
    match is_legal {
        _ if before != step.old => Err("the pet had another status before"),
        true => Ok(()),
        false => Err("an illegal change"),
    }
}

/// The first difference between what the changes add up to and what is stored.
fn difference<T: PartialEq + std::fmt::Debug>(
    what: &str,
    expected: &BTreeMap<i64, T>,
    stored: &BTreeMap<i64, T>,
) -> Option<String> {
    let ids = expected.keys().chain(stored.keys());
    ids.copied().find(|id| expected.get(id) != stored.get(id)).map(|id| {
        format!(
            "{what} {id} is {:?} in the table, and its changes add up to {:?}",
            stored.get(&id),
            expected.get(&id)
        )
    })
}
