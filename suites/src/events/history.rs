//! Compares what a reader has read with what happened.

use std::collections::{HashMap, HashSet};

use super::follower::Event;
use crate::Outcome;
use crate::tools::psql;

/// What the events say about each pet and each order.
#[derive(Default)]
pub(crate) struct History {
    pets: HashMap<i64, &'static str>,
    /// The pet of each order, and its status.
    orders: HashMap<i64, (i64, &'static str)>,
    open: HashMap<i64, i64>,
    pub(crate) expired: u64,
    pub(crate) ended: u64,
}

impl History {
    /// Replays the events. Each must be a legal step from those before it.
    pub(crate) fn replay<'a>(events: impl Iterator<Item = &'a Event>) -> Outcome<Self> {
        let (mut history, mut ids) = (Self::default(), HashSet::new());
        for event in events {
            if !ids.insert(&event.id) {
                return Err(format!("shown twice: {event:?}").into());
            }
            history.apply(event)?;
        }
        Ok(history)
    }

    fn apply(&mut self, event: &Event) -> Outcome {
        let Event { kind, pet_id: pet, order_id: order, .. } = event;
        let illegal =
            || format!("out of order: {event:?}, of {:?}, {:?}", self.pets.get(pet), self.open.get(pet));
        let is_legal = match (kind.as_str(), order) {
            // The pets that were there before the clients came. They leave them alone.
            ("pets.imported", None) => return Ok(()),
            ("pet.created", None) => !self.pets.contains_key(pet),
            ("pet.updated", None) => self.pets.contains_key(pet),
            ("order.placed", Some(order)) => {
                self.pets.get(pet) == Some(&"available") && !self.orders.contains_key(order)
            }
            ("order.completed" | "order.cancelled" | "order.expired", Some(order)) => {
                self.open.get(pet) == Some(order)
            }
            _ => false,
        };
        if !is_legal {
            return Err(illegal().into());
        }
        let Some(order) = *order else {
            self.pets.entry(*pet).or_insert("available");
            return Ok(());
        };
        let (order_status, pet_status) = match kind.as_str() {
            "order.placed" => ("placed", "pending"),
            "order.completed" => ("completed", "sold"),
            "order.cancelled" => ("cancelled", "available"),
            _ => ("expired", "available"),
        };
        if order_status == "placed" {
            self.open.insert(*pet, order);
        } else {
            self.open.remove(pet);
            self.ended += 1;
            self.expired += u64::from(order_status == "expired");
        }
        self.pets.insert(*pet, pet_status);
        self.orders.insert(order, (*pet, order_status));
        Ok(())
    }

    /// Checks that every pet and every order in the database is as the events say, and that there are no others.
    pub(crate) fn explains(&self, url: &str) -> Outcome {
        let rows = psql(url, "SELECT id, status FROM pets")?;
        let mut pets = 0;
        for row in rows.lines() {
            let (id, status) = row.split_once('|').ok_or("not a pet")?;
            if self.pets.get(&id.parse()?) != Some(&status) {
                return Err(format!(
                    "pet {id} is {status}, and the feed says {:?}",
                    self.pets.get(&id.parse()?)
                )
                .into());
            }
            pets += 1;
        }
        let rows = psql(url, "SELECT id, pet_id, status FROM orders")?;
        let mut orders = 0;
        for row in rows.lines() {
            let fields: Vec<&str> = row.split('|').collect();
            let [id, pet, status] = fields[..] else { return Err("not an order".into()) };
            if self.orders.get(&id.parse()?) != Some(&(pet.parse()?, status)) {
                return Err(
                    format!("order {id} of pet {pet} is {status}, and the feed says otherwise").into()
                );
            }
            orders += 1;
        }
        if (pets, orders) != (self.pets.len(), self.orders.len()) {
            let (shown_pets, shown_orders) = (self.pets.len(), self.orders.len());
            return Err(format!(
                "{pets} pets and {orders} orders, but {shown_pets} and {shown_orders} in the feed"
            )
            .into());
        }
        Ok(())
    }

    /// How many pets and orders there are.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.pets.len(), self.orders.len())
    }
}
