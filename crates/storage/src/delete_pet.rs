//! Deletes a pet that is in no order.
//!
//! **Invariants:**
//! - every order keeps its pet: an order of any status prevents the deletion, whoever has placed it;
//! - the pet is locked against new orders before its orders are looked up, so the answer stays true until the commit.

use std::ops::ControlFlow;

use petstore_domain::event::EventType;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::pet::{Pet, PetId};
use petstore_domain::version::Versioned;
use petstore_postgres::{LockTimeout, Parameters, StorageError, unexpected};
use tokio_postgres::Row;

use super::events::count_events;
use super::idempotency_keys::{self, DigestAsUuid, Outcome, commit_with_result, end_if_repeated};
use super::pets::{self, decode_version};
use super::storage::Storage;

/// Conflicts also with an order's foreign key, which takes KEY SHARE: psql and nodes of release 1.0.0 can place an order without
/// the advisory lock.
const ROW_LOCK: &str = "\
    SELECT FROM pets
    WHERE id = $1
    FOR UPDATE";

/// Not part of [`ROW_LOCK`], whose snapshot is older than its wait: it would not see an order that was placed meanwhile.
const FIND_WITH_ORDER: &str = "\
    SELECT id, name, category_id, status, reference, metadata, xmin,
      EXISTS (SELECT FROM orders WHERE pet_id = $1) AS has_order
    FROM pets
    WHERE id = $1";

const DELETE: &str = "\
    DELETE FROM pets
    WHERE id = $1
    RETURNING id";

pub(super) const STATEMENTS: &[&str] = &[ROW_LOCK, FIND_WITH_ORDER, DELETE];

/// Why a pet is not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletePetRefusal<E> {
    /// No pet has this id.
    PetNotFound,
    /// The pet is or was in an order.
    HasOrder,
    /// The caller's function returned an error.
    Rule(E),
}

/// The outcome of a deletion.
type DeleteOutcome<E> = Outcome<(), DeletePetRefusal<E>>;

impl Storage {
    /// Deletes a pet, unless `check` refuses that or an order names it; with an idempotency key, once. The pet is locked meanwhile.
    pub async fn delete_pet<E>(
        &self,
        id: PetId,
        key: Option<IdempotentRequest>,
        check: impl Fn(&Versioned<Pet>) -> Result<(), E>,
    ) -> Result<DeleteOutcome<E>, StorageError> {
        let run = |lock_timeout| self.try_to_delete(lock_timeout, id, key, &check);
        let outcome = self.database.transact(&self.waits.delete_pet, (&self.waits.pets, id.get()), run).await;
        Outcome::or_in_progress(outcome, key)
    }

    async fn try_to_delete<E>(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: PetId,
        key: Option<IdempotentRequest>,
        check: impl Fn(&Versioned<Pet>) -> Result<(), E>,
    ) -> Result<DeleteOutcome<E>, StorageError> {
        let (of_pet, digest): (Parameters<'_>, _) = (&[&id.get()], key.map(|key| DigestAsUuid(key.digest)));
        let steps = [
            (pets::ADVISORY_LOCK, of_pet),
            (ROW_LOCK, of_pet),
            (FIND_WITH_ORDER, of_pet),
            (idempotency_keys::FIND, &[&digest]),
        ];
        let (transaction, [_, _, found, earlier]) = self.database.begin(lock_timeout, steps).await?;
        let transaction = match end_if_repeated(transaction, &earlier, key, || Some(())).await? {
            ControlFlow::Continue(transaction) => transaction,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        if let Err(refusal) = decide(found.first(), check)? {
            return transaction.roll_back().await.map(|()| Outcome::Refused(refusal));
        }
        let (transaction, _) = transaction.write(1, [(DELETE, of_pet)]).await?;
        commit_with_result(transaction, key, id.get()).await?;
        count_events(EventType::PetDeleted, 1);
        Ok(Outcome::Done(()))
    }
}

/// Decides with the row of [`FIND_WITH_ORDER`] whether the pet is deleted.
fn decide<E>(
    row: Option<&Row>,
    check: impl Fn(&Versioned<Pet>) -> Result<(), E>,
) -> Result<Result<(), DeletePetRefusal<E>>, StorageError> {
    let Some(row) = row else { return Ok(Err(DeletePetRefusal::PetNotFound)) };
    let has_order: bool = row.try_get("has_order").map_err(unexpected)?;
    let checked = check(&decode_version(row)?).map_err(DeletePetRefusal::Rule);
    Ok(checked.and(if has_order { Err(DeletePetRefusal::HasOrder) } else { Ok(()) }))
}
