//! SQL that finds and changes single rows of the `pets` table. [`list_pets`](super::list_pets) lists them,
//! [`insert_pets`](super::insert_pets) adds to them, and [`delete_pet`](super::delete_pet) deletes from them. Requests that arrive at
//! the same time share a statement: see [`Queue`](super::queue::Queue).
//!
//! **Invariant:** rows leave as domain values. Only these four files, those of orders, imports and exports, and the write that
//! `petstore doctor` tries name this table.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::ControlFlow;

use petstore_batcher::BatchHandler;
use petstore_domain::event::EventType;
use petstore_domain::idempotency::IdempotentRequest;
use petstore_domain::pet::{CategoryId, Pet, PetId, PetName, PetStatus};
use petstore_domain::reference::Reference;
use petstore_domain::version::Versioned;
use petstore_postgres::{Database, LockTimeout, Parameters, StorageError, unexpected};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use super::events::count_events;
use super::idempotency_keys::{self, DigestAsUuid, Outcome, commit_with_result, end_if_repeated};
use super::pg_enum::PgEnum;
use super::row_version::VersionColumn;
use super::storage::Storage;
use super::stored_metadata::{MetadataParameter, StoredMetadata};

const FIND: &str = "\
    SELECT id, name, category_id, status, reference, metadata, xmin
    FROM pets
    WHERE id = ANY ($1)";

/// Waits until no other transaction of the service changes the pet; 1885697139 is 'pets' in ASCII. It comes before everything else:
/// PostgreSQL assigns the transaction id with the first row lock or write, and the event feed shows the changes of a pet in the
/// order of these ids. Two pets whose hashes are equal wait for each other, which is harmless.
pub(super) const ADVISORY_LOCK: &str = "\
    SELECT pg_advisory_xact_lock(1885697139, hashint8($1))";

/// Conflicts with every change of the pet, also in psql and by nodes of release 1.0.0, which do not take [`ADVISORY_LOCK`]. An order's
/// foreign key takes only KEY SHARE, which does not conflict.
pub(super) const ROW_LOCK: &str = "\
    SELECT FROM pets
    WHERE id = $1
    FOR NO KEY UPDATE";

/// Not part of [`ROW_LOCK`], whose snapshot is older than its wait: it would not see an order that was placed meanwhile.
pub(super) const FIND_WITH_OPEN_ORDER: &str = "\
    SELECT id, name, category_id, status, reference, metadata, xmin,
      EXISTS (SELECT FROM orders WHERE pet_id = $1 AND orders.status = 'placed') AS has_open_order
    FROM pets
    WHERE id = $1";

/// `$7` is whether the metadata has changed: what nobody can read in it, because it was stored in SQL, is kept otherwise.
const UPDATE: &str = "\
    UPDATE pets
    SET name = $2, category_id = $3, status = $4, reference = $5,
      metadata = CASE WHEN $7 THEN $6 ELSE metadata END
    WHERE id = $1
    RETURNING xmin";

pub(super) const STATEMENTS: &[&str] = &[FIND, ADVISORY_LOCK, ROW_LOCK, FIND_WITH_OPEN_ORDER, UPDATE];

impl Storage {
    /// The pet with this id, if it exists.
    pub async fn find_pet(&self, id: PetId) -> Result<Option<Versioned<Pet>>, StorageError> {
        self.find_pet.read(id).await?
    }
}

/// Why a pet is not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdatePetRefusal<E> {
    /// No pet has this id.
    PetNotFound,
    /// Another pet has the reference.
    ReferenceTaken,
    /// The caller's function returned an error.
    Rule(E),
}

/// The outcome of a change to a pet.
type UpdateOutcome<E> = Outcome<Versioned<Pet>, UpdatePetRefusal<E>>;

impl Storage {
    /// Replaces a pet with the result of `change`, whose arguments are the pet and whether an order is open for it; with an
    /// idempotency key, once. The pet is locked meanwhile.
    pub async fn change_pet<E>(
        &self,
        id: PetId,
        key: Option<IdempotentRequest>,
        change: impl Fn(&Versioned<Pet>, bool) -> Result<Pet, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let run = |lock_timeout| self.try_to_change(lock_timeout, id, key, &change);
        let outcome = self.database.transact(&self.waits.update_pet, (&self.waits.pets, id.get()), run).await;
        Outcome::or_in_progress(outcome, key)
    }

    async fn try_to_change<E>(
        &self,
        lock_timeout: LockTimeout<'_>,
        id: PetId,
        key: Option<IdempotentRequest>,
        change: impl Fn(&Versioned<Pet>, bool) -> Result<Pet, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let (pet, digest): (Parameters<'_>, _) = (&[&id.get()], key.map(|key| DigestAsUuid(key.digest)));
        let steps = [
            (ADVISORY_LOCK, pet),
            (ROW_LOCK, pet),
            (FIND_WITH_OPEN_ORDER, pet),
            (idempotency_keys::FIND, &[&digest]),
        ];
        let (transaction, [_, _, found, earlier]) = self.database.begin(lock_timeout, steps).await?;
        let found = locked_pet(&found)?;
        let transaction =
            match end_if_repeated(transaction, &earlier, key, || found.as_ref().map(|(pet, _)| pet.clone()))
                .await?
            {
                ControlFlow::Continue(transaction) => transaction,
                ControlFlow::Break(outcome) => return Ok(outcome),
            };
        let new = match &found {
            None => Err(UpdatePetRefusal::PetNotFound),
            Some((old, has_open_order)) => {
                change(old, *has_open_order).map_err(UpdatePetRefusal::Rule).map(|new| (old, new))
            }
        };
        let (old, new) = match new {
            Ok(new) => new,
            Err(refusal) => return transaction.roll_back().await.map(|()| Outcome::Refused(refusal)),
        };
        if new == old.content {
            let unchanged = Outcome::Done(old.clone());
            return commit_with_result(transaction, key, id.get()).await.map(|()| unchanged);
        }
        let Pet { id, name, category_id, status, reference, metadata } = &new;
        let parameters: Parameters<'_> = &[
            &id.get(),
            &name.as_str(),
            &category_id.0,
            &status.map(PgEnum),
            &reference.as_ref().map(Reference::as_str),
            &MetadataParameter(metadata),
            &(*metadata != old.content.metadata),
        ];
        let (transaction, [updated]) = match transaction.write(1, [(UPDATE, parameters)]).await {
            Ok(updated) => updated,
            // Only a reference can be the same as another pet's.
            Err(StorageError::Raced(_)) => return Ok(Outcome::Refused(UpdatePetRefusal::ReferenceTaken)),
            Err(error) => return Err(error),
        };
        let VersionColumn(version) = updated[0].try_get("xmin").map_err(unexpected)?;
        commit_with_result(transaction, key, id.get()).await?;
        count_events(EventType::PetUpdated, 1);
        Ok(Outcome::Done(Versioned { content: new, version }))
    }
}

/// Decodes the row of [`FIND_WITH_OPEN_ORDER`]: the pet, and whether an order is open for it.
pub(super) fn locked_pet(rows: &[Row]) -> Result<Option<(Versioned<Pet>, bool)>, StorageError> {
    let decode = |row: &Row| Ok((decode_version(row)?, row.try_get("has_open_order").map_err(unexpected)?));
    rows.first().map(decode).transpose()
}

/// Handles batches of lookups of single pets with one statement.
pub(super) struct FindPetsBatch(pub(super) Database);

impl BatchHandler for FindPetsBatch {
    type Request = PetId;
    type Response = Result<Option<Versioned<Pet>>, StorageError>;

    async fn handle(&self, ids: Vec<PetId>) -> Vec<Self::Response> {
        match find(&self.0, ids.iter().copied()).await {
            Ok(found) => ids.iter().map(|id| Ok(found.get(id).cloned())).collect(),
            Err(error) => vec![Err(error); ids.len()],
        }
    }
}

/// The pets with these ids that exist. An id may occur several times.
pub(super) async fn find(
    database: &Database,
    ids: impl Iterator<Item = PetId>,
) -> Result<HashMap<PetId, Versioned<Pet>>, StorageError> {
    let mut ids: Vec<i64> = ids.map(PetId::get).collect();
    ids.sort_unstable();
    ids.dedup();
    let rows = database.read(FIND, &[&ids]).await?;
    rows.iter().map(|row| decode_version(row).map(|pet| (pet.content.id, pet))).collect()
}

/// Decodes the id of a pet.
pub(super) fn id(row: &Row, column: impl RowIndex + Display) -> Result<PetId, StorageError> {
    let id: i64 = row.try_get(column).map_err(unexpected)?;
    id.try_into().map_err(unexpected)
}

/// Decodes the reference of a pet or an order.
pub(super) fn reference(text: Option<String>) -> Result<Option<Reference>, StorageError> {
    text.map(Reference::try_from).transpose().map_err(unexpected)
}

/// The index into the arrays that were sent; ordinality counts from 1.
pub(super) fn index(row: &Row, column: impl RowIndex + Display) -> Result<usize, StorageError> {
    let ordinality: i64 = row.try_get(column).map_err(unexpected)?;
    usize::try_from(ordinality - 1).map_err(unexpected)
}

/// Decodes `id, name, category_id, status, reference, metadata`, the first columns of every statement that returns pets. By position: a
/// batch of pages has thousands of rows, and a lookup by name compares strings for each value.
pub(super) fn decode_pet(row: &Row) -> Result<Pet, StorageError> {
    let status: Option<PgEnum<PetStatus>> = row.try_get(3).map_err(unexpected)?;
    let StoredMetadata(metadata) = row.try_get(5).map_err(unexpected)?;
    Ok(Pet {
        id: id(row, 0)?,
        name: PetName::try_from(row.try_get::<_, String>(1).map_err(unexpected)?).map_err(unexpected)?,
        category_id: CategoryId(row.try_get(2).map_err(unexpected)?),
        status: status.map(|PgEnum(status)| status),
        reference: reference(row.try_get(4).map_err(unexpected)?)?,
        metadata,
    })
}

/// Decodes a pet and, in the next column, its version: `xmin`.
pub(super) fn decode_version(row: &Row) -> Result<Versioned<Pet>, StorageError> {
    let VersionColumn(version) = row.try_get(6).map_err(unexpected)?;
    Ok(Versioned { content: decode_pet(row)?, version })
}
