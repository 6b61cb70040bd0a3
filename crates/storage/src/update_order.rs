//! Changes an order without ending it.
//!
//! **Invariant:** an order's time is changed only while it is locked, and expiry looks at the time again once it has the lock: if
//! both try at once, the first of them wins.

use petstore_domain::event::EventType;
use petstore_domain::order::{Order, OrderId, PatchedOrder};
use petstore_domain::reference::Reference;
use petstore_postgres::{LockTimeout, Parameters, StorageError};

use super::events::count_events;
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
    RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference, metadata";

pub(super) const STATEMENTS: &[&str] = &[UPDATE];

/// The outcome of changing an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOrderOutcome<E> {
    /// The order as it is now.
    Updated(Order),
    /// The caller's function returned an error, and the order is unchanged.
    Refused(E),
    /// No order has this id.
    OrderNotFound,
}

impl Storage {
    /// Changes an order as `change` decides, while it is locked.
    pub async fn update_order<E>(
        &self,
        id: OrderId,
        change: impl Fn(&Order) -> Result<PatchedOrder, E>,
    ) -> Result<UpdateOrderOutcome<E>, StorageError> {
        let run = |lock_timeout| self.try_to_update(lock_timeout, id.get(), &change);
        self.database.transact(&self.waits.update_order, (&self.waits.orders, id.get()), run).await
    }

    async fn try_to_update<E>(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: i64,
        change: impl Fn(&Order) -> Result<PatchedOrder, E>,
    ) -> Result<UpdateOrderOutcome<E>, StorageError> {
        let of_order: Parameters<'_> = &[&id];
        let steps = [(PET_ADVISORY_LOCK, of_order), (ROW_LOCK, of_order)];
        let (transaction, [_, found]) = self.database.begin(lock_timeout, steps).await?;
        let Some(old) = found.first().map(decode_order).transpose()? else {
            return transaction.roll_back().await.map(|()| UpdateOrderOutcome::OrderNotFound);
        };
        let PatchedOrder { hold, reference, metadata } = match change(&old) {
            Ok(new) => new,
            Err(refusal) => {
                return transaction.roll_back().await.map(|()| UpdateOrderOutcome::Refused(refusal));
            }
        };
        if hold.is_none() && reference == old.reference && metadata == old.metadata {
            return transaction.commit(&[]).await.map(|()| UpdateOrderOutcome::Updated(old));
        }
        let parameters: Parameters<'_> = &[
            &id,
            &hold.map(|hold| f64::from(hold.seconds())),
            &reference.as_ref().map(Reference::as_str),
            &MetadataParameter(&metadata),
            &(metadata != old.metadata),
        ];
        let (transaction, [updated]) = transaction.write(1, [(UPDATE, parameters)]).await?;
        let order = decode_order(first(&updated)?)?;
        transaction.commit(&[]).await?;
        count_events(EventType::OrderUpdated, 1);
        Ok(UpdateOrderOutcome::Updated(order))
    }
}
