//! Places, completes and cancels orders. Each is one transaction, which changes both the order and its pet, in three round trips:
//! [`begin`](petstore_postgres::Database::begin) takes the locks and reads what the decision needs, `write` makes the changes that
//! the domain has decided on, and `commit` also stores the result of the idempotency key. `transact` decides how long a transaction
//! waits for locks, and when it is repeated. A transaction that is dropped is rolled back.
//!
//! **Invariants:**
//! - locks are taken in the same sequence everywhere, so that no two transactions deadlock: the advisory lock of the pet, the row of
//!   the order, the row of the pet. The row locks are for psql and nodes of 1.0.0, which do not take the advisory lock;
//! - what a decision needs is read by a statement after the lock that protects it, or by the statement that locks its row. The
//!   statement that waits for a lock sees all other rows as they were before the wait;
//! - a refused request stores no result for its key, because it may succeed later. A key is looked up before anything else is decided;
//! - no lock covers a key. If two transactions for different pets store the same key, the unique index makes the second one fail. It
//!   is then repeated, and finds the result of the first.
//!
//! Unlike createPet, these requests are not batched: a batch would wait for its slowest lock, and there are few of them.

use std::ops::ControlFlow;

use petstore_domain::event::EventType;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::order::{
    EndDecision, HoldDuration, NewOrder, Order, OrderEnd, OrderId, OrderStatus, PlaceRefusal,
};
use petstore_domain::pet::PetStatus;
use petstore_domain::reference::Reference;
use petstore_domain::version::Versioned;
use petstore_postgres::{LockTimeout, Parameters, Step, StorageError, unexpected};
use tokio_postgres::Row;

use super::events::count_events;
use super::idempotency_keys::{
    self, DigestAsUuid, EarlierRequest, Outcome, commit_replay, commit_with_result, end_if_repeated,
};
use super::pets;
use super::pg_enum::PgEnum;
use super::read_orders::{self, decode_order};
use super::storage::Storage;
use super::stored_metadata::MetadataParameter;

pub(super) const SET_PET_STATUS: &str = "\
    UPDATE pets
    SET status = $2
    WHERE id = ANY ($1)
    RETURNING id";

/// `$3` is the number of seconds after which the order expires; null if it never does.
const INSERT: &str = "\
    INSERT INTO orders (pet_id, status, created_at, updated_at, expires_at, reference, metadata)
    VALUES ($1, 'placed', date_trunc('milliseconds', now()), date_trunc('milliseconds', now()),
      date_trunc('milliseconds', now()) + $3::double precision * interval '1 second', $2, $4)
    RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin";

/// The same lock as [`pets::ADVISORY_LOCK`], for the pet of the order `$1`.
pub(super) const PET_ADVISORY_LOCK: &str = "\
    SELECT pg_advisory_xact_lock(1885697139, hashint8(pet_id))
    FROM orders
    WHERE id = $1";

pub(super) const ROW_LOCK: &str = "\
    SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin
    FROM orders
    WHERE id = $1
    FOR NO KEY UPDATE";

const PET_ROW_LOCK: &str = "\
    SELECT status
    FROM pets
    WHERE id = (SELECT pet_id FROM orders WHERE id = $1)
    FOR NO KEY UPDATE";

pub(super) const SET_STATUS: &str = "\
    UPDATE orders
    -- The clock may have been set back.
    SET status = $2, updated_at = greatest(updated_at, date_trunc('milliseconds', now()))
    WHERE id = ANY ($1)
    RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin";

pub(super) const STATEMENTS: &[&str] =
    &[SET_PET_STATUS, INSERT, PET_ADVISORY_LOCK, ROW_LOCK, PET_ROW_LOCK, SET_STATUS];

/// How many rows each statement of a request changes. Expiry uses the same statements for several orders.
const ONE_ROW_EACH: usize = 1;

/// Why no order is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceOrderRefusal {
    /// No pet has this id.
    PetNotFound,
    /// The pet cannot be ordered.
    Rule(PlaceRefusal),
}

/// Why an order is not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndOrderRefusal {
    /// No order has this id.
    OrderNotFound,
    /// The order has ended with another status than the requested one.
    EndedOtherwise {
        /// Its status.
        from: OrderStatus,
        /// The requested status.
        to: OrderStatus,
    },
}

impl Storage {
    /// Places an order for a pet if it is available; with an idempotency key, once.
    pub async fn place_order(
        &self,
        new: &NewOrder,
        hold_of_shop: Option<HoldDuration>,
        key: Option<IdempotentRequest>,
    ) -> Result<Outcome<Versioned<Order>, PlaceOrderRefusal>, StorageError> {
        let run = |lock_timeout| self.try_to_place(lock_timeout, new, hold_of_shop, key);
        let outcome =
            self.database.transact(&self.waits.place_order, (&self.waits.pets, new.pet_id.get()), run).await;
        Outcome::or_in_progress(outcome, key)
    }

    async fn try_to_place(
        &self,
        lock_timeout: LockTimeout<'_>,
        new: &NewOrder,
        hold_of_shop: Option<HoldDuration>,
        key: Option<IdempotentRequest>,
    ) -> Result<Outcome<Versioned<Order>, PlaceOrderRefusal>, StorageError> {
        let (pet_id, digest) = (new.pet_id.get(), key.map(|key| DigestAsUuid(key.digest)));
        let of_pet: Parameters<'_> = &[&pet_id];
        let steps = [
            (pets::ADVISORY_LOCK, of_pet),
            (pets::ROW_LOCK, of_pet),
            (pets::FIND_WITH_OPEN_ORDER, of_pet),
            (idempotency_keys::FIND, &[&digest]),
        ];
        let (transaction, [_, _, found, earlier]) = self.database.begin(lock_timeout, steps).await?;
        match EarlierRequest::decode(&earlier, key)? {
            None => {}
            Some(EarlierRequest::Different) => {
                return transaction.roll_back().await.map(|()| Outcome::KeyReused);
            }
            Some(EarlierRequest::Same { subject }) => {
                // As it is now, so that a client that retries learns what has become of its order.
                let (transaction, [found]) = transaction.read([(read_orders::FIND, &[&subject])]).await?;
                let order = found.first().map(decode_order).transpose()?;
                return commit_replay(transaction).await.map(|()| Outcome::Replayed(order));
            }
        }
        // After the replay: a retry finds its order even if the shop has shortened its hold since.
        let decision = match pets::locked_pet(&found)? {
            None => Err(PlaceOrderRefusal::PetNotFound),
            Some((pet, has_open_order)) => {
                new.decide(pet.content.status, has_open_order, hold_of_shop).map_err(PlaceOrderRefusal::Rule)
            }
        };
        let (hold, pet_status) = match decision {
            Ok(decision) => decision,
            Err(refusal) => return transaction.roll_back().await.map(|()| Outcome::Refused(refusal)),
        };
        let reference = new.reference.as_ref().map(Reference::as_str);
        let hold_seconds = hold.map(|hold| f64::from(hold.seconds()));
        let steps: [Step<'_>; 2] = [
            (SET_PET_STATUS, &[&vec![pet_id], &PgEnum(pet_status)]),
            (INSERT, &[&pet_id, &reference, &hold_seconds, &MetadataParameter(&new.metadata)]),
        ];
        let (transaction, [_, placed]) = transaction.write(ONE_ROW_EACH, steps).await?;
        let order = decode_order(first(&placed)?)?;
        commit_with_result(transaction, key, order.content.id.get()).await?;
        count_order_events(EventType::OrderPlaced, 1);
        Ok(Outcome::Done(order))
    }

    /// Ends an order if it is open; with an idempotency key, once. One that has ended in this way before stays as it is.
    pub async fn end_order(
        &self,
        id: OrderId,
        end: OrderEnd,
        key: Option<IdempotentRequest>,
    ) -> Result<Outcome<Versioned<Order>, EndOrderRefusal>, StorageError> {
        let run = |lock_timeout| self.try_to_end(lock_timeout, id.get(), end, key);
        let outcome =
            self.database.transact(&self.waits.end_order, (&self.waits.orders, id.get()), run).await;
        Outcome::or_in_progress(outcome, key)
    }

    async fn try_to_end(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: i64,
        end: OrderEnd,
        key: Option<IdempotentRequest>,
    ) -> Result<Outcome<Versioned<Order>, EndOrderRefusal>, StorageError> {
        let digest = key.map(|key| DigestAsUuid(key.digest));
        let of_order: Parameters<'_> = &[&id];
        let steps = [
            (PET_ADVISORY_LOCK, of_order),
            (ROW_LOCK, of_order),
            (PET_ROW_LOCK, of_order),
            (idempotency_keys::FIND, &[&digest]),
        ];
        let (transaction, [_, found, pet, earlier]) = self.database.begin(lock_timeout, steps).await?;
        let found = found.first().map(decode_order).transpose()?;
        let transaction = match end_if_repeated(transaction, &earlier, key, || found.clone()).await? {
            ControlFlow::Continue(transaction) => transaction,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        let decision = match found {
            None => Err(EndOrderRefusal::OrderNotFound),
            Some(order) => end
                .decide(order.content.status)
                .map_err(|from| EndOrderRefusal::EndedOtherwise { from, to: end.status() })
                .map(|decision| (order, decision)),
        };
        let order = match decision {
            Ok((order, EndDecision::End)) => order,
            // The key is stored although nothing changes: the request has succeeded, too.
            Ok((order, EndDecision::AlreadyEnded)) => {
                return commit_with_result(transaction, key, id).await.map(|()| Outcome::Done(order));
            }
            Err(refusal) => return transaction.roll_back().await.map(|()| Outcome::Refused(refusal)),
        };
        let pet_status = end.pet_status(pet_status(first(&pet)?)?);
        let steps: [Step<'_>; 2] = [
            (SET_STATUS, &[&vec![id], &PgEnum(end.status())]),
            (SET_PET_STATUS, &[&vec![order.content.pet_id.get()], &pet_status.map(PgEnum)]),
        ];
        let (transaction, [ended, _]) = transaction.write(ONE_ROW_EACH, steps).await?;
        let order = decode_order(first(&ended)?)?;
        commit_with_result(transaction, key, id).await?;
        count_order_events(end.into(), 1);
        Ok(Outcome::Done(order))
    }
}

/// Decodes the status of a pet.
fn pet_status(row: &Row) -> Result<Option<PetStatus>, StorageError> {
    let status: Option<PgEnum<PetStatus>> = row.try_get("status").map_err(unexpected)?;
    Ok(status.map(|PgEnum(status)| status))
}

/// The row that a statement returns which changes one.
pub(super) fn first(rows: &[Row]) -> Result<&Row, StorageError> {
    rows.first().ok_or_else(|| unexpected("no order was returned"))
}

/// Counts the events of orders, each of which is also a change of the pet.
pub(super) fn count_order_events(event_type: EventType, count: usize) {
    count_events(event_type, count);
    count_events(EventType::PetUpdated, count);
}
