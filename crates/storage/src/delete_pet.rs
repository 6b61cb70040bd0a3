//! Deletes a pet that is in no order.
//!
//! **Invariants:**
//! - every order keeps its pet: an order of any status prevents the deletion, whoever has placed it;
//! - the pet is locked against new orders before its orders are looked up, so the answer stays true until the commit.

use petstore_domain::event::EventType;
use petstore_domain::pet::{Pet, PetId};
use petstore_postgres::{LockTimeout, Parameters, StorageError, unexpected};

use super::events::count_events;
use super::pets::{self, decode_pet};
use super::storage::Storage;

/// Conflicts also with an order's foreign key, which takes KEY SHARE: psql and nodes of release 1.0.0 can place an order without
/// the advisory lock.
const ROW_LOCK: &str = "\
    SELECT FROM pets
    WHERE id = $1
    FOR UPDATE";

/// Not part of [`ROW_LOCK`], whose snapshot is older than its wait: it would not see an order that was placed meanwhile.
const FIND_WITH_ORDER: &str = "\
    SELECT id, name, category_id, status, reference, metadata,
      EXISTS (SELECT FROM orders WHERE pet_id = $1) AS has_order
    FROM pets
    WHERE id = $1";

const DELETE: &str = "\
    DELETE FROM pets
    WHERE id = $1
    RETURNING id";

pub(super) const STATEMENTS: &[&str] = &[ROW_LOCK, FIND_WITH_ORDER, DELETE];

/// The outcome of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteOutcome<E> {
    /// The pet is deleted.
    Deleted,
    /// The caller's function returned an error, and the pet still exists.
    Refused(E),
    /// The pet is or was in an order, and still exists.
    HasOrder,
    /// No pet has this id.
    PetNotFound,
}

impl Storage {
    /// Deletes a pet, unless `check` refuses that or an order names it. The pet is locked meanwhile.
    pub async fn delete_pet<E>(
        &self,
        id: PetId,
        check: impl Fn(&Pet) -> Result<(), E>,
    ) -> Result<DeleteOutcome<E>, StorageError> {
        let run = |lock_timeout| self.try_to_delete(lock_timeout, id, &check);
        self.database.transact(&self.waits.delete_pet, (&self.waits.pets, id.get()), run).await
    }

    async fn try_to_delete<E>(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: PetId,
        check: impl Fn(&Pet) -> Result<(), E>,
    ) -> Result<DeleteOutcome<E>, StorageError> {
        let of_pet: Parameters<'_> = &[&id.get()];
        let steps = [(pets::ADVISORY_LOCK, of_pet), (ROW_LOCK, of_pet), (FIND_WITH_ORDER, of_pet)];
        let (transaction, [_, _, found]) = self.database.begin(lock_timeout, steps).await?;
        let Some(row) = found.first() else {
            return transaction.roll_back().await.map(|()| DeleteOutcome::PetNotFound);
        };
        if let Err(refusal) = check(&decode_pet(row)?) {
            return transaction.roll_back().await.map(|()| DeleteOutcome::Refused(refusal));
        }
        if row.try_get("has_order").map_err(unexpected)? {
            return transaction.roll_back().await.map(|()| DeleteOutcome::HasOrder);
        }
        let (transaction, _) = transaction.write(1, [(DELETE, of_pet)]).await?;
        transaction.commit(&[]).await?;
        count_events(EventType::PetDeleted, 1);
        Ok(DeleteOutcome::Deleted)
    }
}
