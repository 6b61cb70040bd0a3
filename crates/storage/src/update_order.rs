//! Changes an order without ending it.
//!
//! **Invariant:** an order's time is changed only while it is locked, and expiry looks at the time again once it has the lock: if
//! both try at once, the first of them wins.

use std::ops::ControlFlow;

use petstore_domain::event::EventType;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::order::{Order, OrderId, PatchedOrder};
use petstore_domain::reference::Reference;
use petstore_domain::version::Versioned;
use petstore_postgres::{LockTimeout, Parameters, StorageError};

use super::events::count_events;
use super::idempotency_keys::{self, DigestAsUuid, Outcome, commit_with_result, end_if_repeated};
use super::place_and_end_orders::{PET_ADVISORY_LOCK, ROW_LOCK, first};
use super::read_orders::decode_order;
use super::storage::Storage;
use super::stored_metadata::MetadataParameter;

/// `$2` is the number of seconds after which the order expires, null if that stays as it is. `$5` is whether the metadata has
/// changed, as for pets.
const UPDATE: &str = "\
    UPDATE orders
    SET expires_at = CASE WHEN $2::double precision IS NULL THEN expires_at
        -- The clock may have been set back.
        ELSE greatest(created_at, date_trunc('milliseconds', now()) + $2::double precision * interval '1 second') END,
      reference = $3,
      metadata = CASE WHEN $5 THEN $4 ELSE metadata END,
      updated_at = greatest(updated_at, date_trunc('milliseconds', now()))
    WHERE id = $1
    RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin";

pub(super) const STATEMENTS: &[&str] = &[UPDATE];

/// Why an order is not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOrderRefusal<E> {
    /// No order has this id.
    OrderNotFound,
    /// The caller's function returned an error.
    Rule(E),
}

/// The outcome of a change to an order.
type UpdateOutcome<E> = Outcome<Versioned<Order>, UpdateOrderRefusal<E>>;

impl Storage {
    /// Changes an order as `change` decides, while it is locked; with an idempotency key, once.
    pub async fn update_order<E>(
        &self,
        id: OrderId,
        key: Option<IdempotentRequest>,
        change: impl Fn(&Versioned<Order>) -> Result<PatchedOrder, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let run = |lock_timeout| self.try_to_update(lock_timeout, id.get(), key, &change);
        let outcome =
            self.database.transact(&self.waits.update_order, (&self.waits.orders, id.get()), run).await;
        Outcome::or_in_progress(outcome, key)
    }

    async fn try_to_update<E>(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: i64,
        key: Option<IdempotentRequest>,
        change: impl Fn(&Versioned<Order>) -> Result<PatchedOrder, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let (of_order, digest): (Parameters<'_>, _) = (&[&id], key.map(|key| DigestAsUuid(key.digest)));
        let steps =
            [(PET_ADVISORY_LOCK, of_order), (ROW_LOCK, of_order), (idempotency_keys::FIND, &[&digest])];
        let (transaction, [_, found, earlier]) = self.database.begin(lock_timeout, steps).await?;
        let found = found.first().map(decode_order).transpose()?;
        let transaction = match end_if_repeated(transaction, &earlier, key, || found.clone()).await? {
            ControlFlow::Continue(transaction) => transaction,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        let decision = match found {
            None => Err(UpdateOrderRefusal::OrderNotFound),
            Some(old) => change(&old).map_err(UpdateOrderRefusal::Rule).map(|new| (old, new)),
        };
        let (old, PatchedOrder { hold, reference, metadata }) = match decision {
            Ok(decision) => decision,
            Err(refusal) => return transaction.roll_back().await.map(|()| Outcome::Refused(refusal)),
        };
        let has_new_metadata = metadata != old.content.metadata;
        if hold.is_none() && reference == old.content.reference && !has_new_metadata {
            return commit_with_result(transaction, key, id).await.map(|()| Outcome::Done(old));
        }
        let parameters: Parameters<'_> = &[
            &id,
            &hold.map(|hold| f64::from(hold.seconds())),
            &reference.as_ref().map(Reference::as_str),
            &MetadataParameter(&metadata),
            &has_new_metadata,
        ];
        let (transaction, [updated]) = transaction.write(1, [(UPDATE, parameters)]).await?;
        let order = decode_order(first(&updated)?)?;
        commit_with_result(transaction, key, id).await?;
        count_events(EventType::OrderUpdated, 1);
        Ok(Outcome::Done(order))
    }
}
