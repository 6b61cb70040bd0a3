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
//! - a refused request stores no result for its key, because it may succeed later. A replay acknowledges a change, so it commits: its
//!   row lock is in the WAL, so the commit waits until a standby has everything before it, and a failover cannot undo the change;
//! - no lock covers a key. If two transactions for different pets store the same key, the unique index makes the second one fail. It
//!   is then repeated, and finds the result of the first.
//!
//! Unlike createPet, these requests are not batched: a batch would wait for its slowest lock, and there are few of them.

use petstore_domain::event::EventType;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::order::{
    EndDecision, HoldDuration, NewOrder, Order, OrderEnd, OrderId, OrderStatus, PlaceRefusal,
};
use petstore_domain::reference::Reference;
use petstore_postgres::{LockTimeout, Parameters, Step, StorageError, unexpected};
use tokio_postgres::Row;

use super::events::count_events;
use super::idempotency_keys::{self, DigestAsUuid, EarlierRequest, commit_with_result};
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
    RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference, metadata";

/// The same lock as [`pets::ADVISORY_LOCK`], for the pet of the order `$1`.
pub(super) const PET_ADVISORY_LOCK: &str = "\
    SELECT pg_advisory_xact_lock(1885697139, hashint8(pet_id))
    FROM orders
    WHERE id = $1";

pub(super) const ROW_LOCK: &str = "\
    SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata
    FROM orders
    WHERE id = $1
    FOR NO KEY UPDATE";

const PET_ROW_LOCK: &str = "\
    SELECT FROM pets
    WHERE id = (SELECT pet_id FROM orders WHERE id = $1)
    FOR NO KEY UPDATE";

pub(super) const SET_STATUS: &str = "\
    UPDATE orders
    -- The clock may have been set back.
    SET status = $2, updated_at = greatest(updated_at, date_trunc('milliseconds', now()))
    WHERE id = ANY ($1)
    RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference, metadata";

pub(super) const STATEMENTS: &[&str] =
    &[SET_PET_STATUS, INSERT, PET_ADVISORY_LOCK, ROW_LOCK, PET_ROW_LOCK, SET_STATUS];

/// How many rows each statement of a request changes. Expiry uses the same statements for several orders.
const ONE_ROW_EACH: usize = 1;

/// The outcome of placing an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceOrderOutcome {
    /// The order was placed.
    Placed(Order),
    /// An earlier request with the same key and content placed this order. It is shown as it is now.
    Replayed(Order),
    /// No pet has this id.
    PetNotFound,
    /// The pet cannot be ordered.
    Refused(PlaceRefusal),
    /// The key was used for a different request.
    KeyReused,
    /// Another transaction had a lock for too long. It may be an earlier attempt of this request, which has the same key.
    InProgress,
}

/// The outcome of ending an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndOrderOutcome {
    /// The order was ended.
    Ended(Order),
    /// The order had the requested status before.
    HadEnded(Order),
    /// An earlier request with the same key and content ended the order.
    Replayed(Order),
    /// No order has this id.
    OrderNotFound,
    /// The order has ended with another status.
    EndedOtherwise(OrderStatus),
    /// The key was used for a different request.
    KeyReused,
    /// A request with the same key may be in progress.
    InProgress,
}

impl Storage {
    /// Places an order for a pet if it is available; with an idempotency key, once.
    pub async fn place_order(
        &self,
        new: &NewOrder,
        hold_of_shop: Option<HoldDuration>,
        key: Option<IdempotentRequest>,
    ) -> Result<PlaceOrderOutcome, StorageError> {
        let run = |lock_timeout| self.try_to_place(lock_timeout, new, hold_of_shop, key);
        let outcome =
            self.database.transact(&self.waits.place_order, (&self.waits.pets, new.pet_id.get()), run).await;
        let outcome = outcome.or_else(|error| if_in_progress(error, key, PlaceOrderOutcome::InProgress))?;
        if matches!(outcome, PlaceOrderOutcome::Placed(_)) {
            count_order_events(EventType::OrderPlaced, 1);
        }
        Ok(outcome)
    }

    async fn try_to_place(
        &self,
        lock_timeout: LockTimeout<'_>,
        new: &NewOrder,
        hold_of_shop: Option<HoldDuration>,
        key: Option<IdempotentRequest>,
    ) -> Result<PlaceOrderOutcome, StorageError> {
        let (pet_id, digest) = (new.pet_id.get(), key.map(|key| DigestAsUuid(key.digest)));
        let of_pet: Parameters<'_> = &[&pet_id];
        let steps = [
            (pets::ADVISORY_LOCK, of_pet),
            (pets::ROW_LOCK, of_pet),
            (pets::FIND_WITH_OPEN_ORDER, of_pet),
            (idempotency_keys::FIND, &[&digest]),
        ];
        let (transaction, [_, _, found, earlier]) = self.database.begin(lock_timeout, steps).await?;
        // A pet that was ordered is never deleted, so this hides no replay.
        let Some((pet, has_open_order)) = pets::locked_pet(&found)? else {
            return transaction.roll_back().await.map(|()| PlaceOrderOutcome::PetNotFound);
        };
        match EarlierRequest::decode(&earlier, key)? {
            None => {}
            Some(EarlierRequest::Different) => {
                return transaction.roll_back().await.map(|()| PlaceOrderOutcome::KeyReused);
            }
            Some(EarlierRequest::Same { subject }) => {
                // As it is now, so that a client that retries learns what has become of its order.
                let (transaction, [found]) = transaction.read([(read_orders::FIND, &[&subject])]).await?;
                let order = decode_order(first(&found)?)?;
                return transaction.commit(&[]).await.map(|()| PlaceOrderOutcome::Replayed(order));
            }
        }
        // After the replay: a retry finds its order even if the shop has shortened its hold since.
        let (hold, pet_status) = match new.decide(pet.status, has_open_order, hold_of_shop) {
            Ok(decision) => decision,
            Err(refusal) => {
                return transaction.roll_back().await.map(|()| PlaceOrderOutcome::Refused(refusal));
            }
        };
        let reference = new.reference.as_ref().map(Reference::as_str);
        let hold_seconds = hold.map(|hold| f64::from(hold.seconds()));
        let steps: [Step<'_>; 2] = [
            (SET_PET_STATUS, &[&vec![pet_id], &PgEnum(pet_status)]),
            (INSERT, &[&pet_id, &reference, &hold_seconds, &MetadataParameter(&new.metadata)]),
        ];
        let (transaction, [_, placed]) = transaction.write(ONE_ROW_EACH, steps).await?;
        let order = decode_order(first(&placed)?)?;
        commit_with_result(transaction, key, order.id.get()).await?;
        Ok(PlaceOrderOutcome::Placed(order))
    }

    /// Ends an order if it is open; with an idempotency key, once.
    pub async fn end_order(
        &self,
        id: OrderId,
        end: OrderEnd,
        key: Option<IdempotentRequest>,
    ) -> Result<EndOrderOutcome, StorageError> {
        let run = |lock_timeout| self.try_to_end(lock_timeout, id.get(), end, key);
        let outcome =
            self.database.transact(&self.waits.end_order, (&self.waits.orders, id.get()), run).await;
        let outcome = outcome.or_else(|error| if_in_progress(error, key, EndOrderOutcome::InProgress))?;
        if matches!(outcome, EndOrderOutcome::Ended(_)) {
            count_order_events(end.into(), 1);
        }
        Ok(outcome)
    }

    async fn try_to_end(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: i64,
        end: OrderEnd,
        key: Option<IdempotentRequest>,
    ) -> Result<EndOrderOutcome, StorageError> {
        let digest = key.map(|key| DigestAsUuid(key.digest));
        let of_order: Parameters<'_> = &[&id];
        let steps = [
            (PET_ADVISORY_LOCK, of_order),
            (ROW_LOCK, of_order),
            (PET_ROW_LOCK, of_order),
            (idempotency_keys::FIND, &[&digest]),
        ];
        let (transaction, [_, found, _, earlier]) = self.database.begin(lock_timeout, steps).await?;
        let Some(found) = found.first().map(decode_order).transpose()? else {
            return transaction.roll_back().await.map(|()| EndOrderOutcome::OrderNotFound);
        };
        match EarlierRequest::decode(&earlier, key)? {
            None => {}
            Some(EarlierRequest::Different) => {
                return transaction.roll_back().await.map(|()| EndOrderOutcome::KeyReused);
            }
            Some(EarlierRequest::Same { .. }) => {
                return transaction.commit(&[]).await.map(|()| EndOrderOutcome::Replayed(found));
            }
        }
        match end.decide(found.status) {
            Ok(EndDecision::End) => {}
            // The key is stored although nothing changes: the request has succeeded, too.
            Ok(EndDecision::AlreadyEnded) => {
                return commit_with_result(transaction, key, id)
                    .await
                    .map(|()| EndOrderOutcome::HadEnded(found));
            }
            Err(other) => {
                return transaction.roll_back().await.map(|()| EndOrderOutcome::EndedOtherwise(other));
            }
        }
        let steps: [Step<'_>; 2] = [
            (SET_STATUS, &[&vec![id], &PgEnum(end.status())]),
            (SET_PET_STATUS, &[&vec![found.pet_id.get()], &PgEnum(end.pet_status())]),
        ];
        let (transaction, [ended, _]) = transaction.write(ONE_ROW_EACH, steps).await?;
        let order = decode_order(first(&ended)?)?;
        commit_with_result(transaction, key, id).await?;
        Ok(EndOrderOutcome::Ended(order))
    }
}

/// A request that another transaction kept from its locks, or that lost every race, has changed nothing. If it has a key, that
/// other transaction may be an earlier attempt of the same request, and the client is told so.
fn if_in_progress<T>(
    error: StorageError,
    key: Option<IdempotentRequest>,
    in_progress: T,
) -> Result<T, StorageError> {
    match error {
        StorageError::Locked(_) | StorageError::Raced(_) | StorageError::Deadlock(_) if key.is_some() => {
            Ok(in_progress)
        }
        error => Err(error),
    }
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
