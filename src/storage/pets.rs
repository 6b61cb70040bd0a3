//! SQL that reads and changes the `pets` table; [`insert_pets`](super::insert_pets) adds to it. Requests that arrive at the same
//! time share a statement: see [`request_batcher`](super::request_batcher).
//!
//! **Invariant:** rows leave as domain values. Only these two files and those of orders, imports and exports name this table.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use futures_util::future::join3;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use super::events::count_events;
use super::postgres::database::{Database, Parameters};
use super::postgres::error::unexpected;
use super::postgres::pg_enum::impl_pg_enum;
use super::request_batcher::BatchHandler;
use super::{Storage, StorageError};
use crate::domain::event::EventType;
use crate::domain::page::{Page, PageLimit};
use crate::domain::pet::{CategoryId, Pet, PetId, PetName, PetPageRequest, PetStatus};

/// The pages of many requests: `$1` has the id that each page starts after, `$2` its number of rows.
const LIST: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[])
      -- The ordinality says which request a row is for.
      WITH ORDINALITY AS requested (after_id, row_limit, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status
        FROM pets
        WHERE id > requested.after_id
        ORDER BY id
        -- The longest page and one more. Without a constant limit, the planner expects a tenth of the table.
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

/// The same, each page of one status.
const LIST_BY_STATUS: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[], $3::pet_status[])
      WITH ORDINALITY AS requested (after_id, row_limit, status, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status
        FROM pets
        -- A range of the index on (status, id) instead of an equal status: otherwise the planner may scan by id alone, and
        -- filter nearly all pets for a rare status.
        WHERE (status, id) > (requested.status, requested.after_id) AND status <= requested.status
        ORDER BY status, id
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

const FIND: &str = "\
    SELECT id, name, category_id, status
    FROM pets
    WHERE id = ANY ($1)";

const LOCK: &str = "\
    WITH pet_lock AS MATERIALIZED (
      -- Waits until no other transaction changes the pet; 1885697139 is 'pets' in ASCII.
      SELECT pg_advisory_xact_lock(1885697139, hashint8($1)))
    SELECT FROM pets
    WHERE id = (SELECT $1 FROM pet_lock)
    -- Conflicts with every change of the pet, also by nodes of the previous release. An order's foreign key takes only
    -- KEY SHARE, which does not conflict.
    FOR NO KEY UPDATE";

/// Not part of [`LOCK`], whose snapshot is older than its wait: it would not see an order that was placed meanwhile.
const FIND_LOCKED: &str = "\
    SELECT id, name, category_id, status,
      EXISTS (SELECT FROM orders WHERE pet_id = $1 AND orders.status = 'placed') AS has_open_order
    FROM pets
    WHERE id = $1";

const UPDATE: &str = "\
    UPDATE pets
    SET name = $2, category_id = $3, status = $4
    WHERE id = $1";

pub(super) const STATEMENTS: &[&str] = &[LIST, LIST_BY_STATUS, FIND, LOCK, FIND_LOCKED, UPDATE];

const _: () =
    assert!(PageLimit::MAX + 1 == 101, "LIST and LIST_BY_STATUS have the longest page and one more");

impl Storage {
    /// One page of pets, by ascending id. Concurrent requests for the same page share it.
    pub async fn list_pets(&self, request: PetPageRequest) -> Result<Arc<Page<Pet>>, StorageError> {
        self.list_pets.call(request).await?
    }

    /// The pet with this id, if it exists.
    pub async fn find_pet(&self, id: PetId) -> Result<Option<Pet>, StorageError> {
        self.find_pet.call(id).await?
    }
}

/// The outcome of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOutcome<E> {
    /// The pet as it is now.
    Updated(Pet),
    /// The caller's function returned an error, and the pet is unchanged.
    Refused(E),
    /// No pet has this id.
    PetNotFound,
}

impl Storage {
    /// Replaces a pet with the result of `change`, whose arguments are the pet and whether an order is open for it. The
    /// pet is locked meanwhile.
    pub async fn change_pet<E>(
        &self,
        id: PetId,
        change: impl FnOnce(&Pet, bool) -> Result<Pet, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let changing = self.change_locked(id, change);
        self.database.write_or_find(changing, |outcome| matches!(outcome, UpdateOutcome::Updated(_))).await
    }

    async fn change_locked<E>(
        &self,
        id: PetId,
        change: impl FnOnce(&Pet, bool) -> Result<Pet, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let (lock, rows) = self.database.lock_row(LOCK, FIND_LOCKED, &[&id.get()]).await?;
        let Some(row) = rows.first() else {
            lock.release().await?;
            return Ok(UpdateOutcome::PetNotFound);
        };
        let (old, has_open_order) = (pet(row)?, row.try_get("has_open_order").map_err(unexpected)?);
        let change = change(&old, has_open_order);
        match &change {
            Ok(new) if *new != old => {
                let Pet { id, name, category_id, status } = new;
                let parameters: Parameters<'_> = &[&id.get(), &name.as_str(), &category_id.0, status];
                lock.write_and_commit(UPDATE, parameters).await?;
                count_events(EventType::PetUpdated, 1);
            }
            _ => lock.release().await?,
        }
        Ok(change.map_or_else(UpdateOutcome::Refused, UpdateOutcome::Updated))
    }
}

/// Handles batches of list requests: one statement for those without a filter, one by status, one by id.
pub(super) struct ListPetsBatch(pub(super) Database);

impl BatchHandler for ListPetsBatch {
    type Request = PetPageRequest;
    type Response = Result<Arc<Page<Pet>>, StorageError>;

    async fn handle(&self, requests: Vec<PetPageRequest>) -> Vec<Self::Response> {
        // Equal requests share a page.
        let distinct: HashSet<&PetPageRequest> = requests.iter().collect();
        let (by_id, others): (Vec<_>, Vec<_>) =
            distinct.into_iter().partition(|request| request.filter.ids.is_some());
        let (by_status, unfiltered): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|request| request.filter.status.is_some());
        let (unfiltered_pages, by_status_pages, by_id_pages) =
            join3(self.list(&unfiltered, false), self.list(&by_status, true), self.find(&by_id)).await;
        let pages: HashMap<&PetPageRequest, Self::Response> = (unfiltered.into_iter().zip(unfiltered_pages))
            .chain(by_status.into_iter().zip(by_status_pages))
            .chain(by_id.into_iter().zip(by_id_pages))
            .map(|(request, page)| (request, page.map(Arc::new)))
            .collect();
        requests.iter().map(|request| pages[request].clone()).collect()
    }
}

impl ListPetsBatch {
    async fn list(
        &self,
        requests: &[&PetPageRequest],
        by_status: bool,
    ) -> Vec<Result<Page<Pet>, StorageError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let after: Vec<i64> = requests.iter().map(|request| request.after.map_or(0, PetId::get)).collect();
        let limits: Vec<i64> = requests.iter().map(|request| i64::from(request.limit.get()) + 1).collect();
        let rows = if by_status {
            let statuses: Vec<Option<PetStatus>> =
                requests.iter().map(|request| request.filter.status).collect();
            self.0.read(LIST_BY_STATUS, &[&after, &limits, &statuses]).await
        } else {
            self.0.read(LIST, &[&after, &limits]).await
        };
        match rows.and_then(|rows| split_into_pages(&rows, requests)) {
            Ok(pages) => pages.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); requests.len()],
        }
    }

    /// Finds the pets of all requests, and gives each request its own.
    async fn find(&self, requests: &[&PetPageRequest]) -> Vec<Result<Page<Pet>, StorageError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let ids = requests.iter().flat_map(|request| request.filter.ids.iter().flatten().copied());
        match find(&self.0, ids).await {
            Ok(found) => requests.iter().map(|request| Ok(page_by_id(request, &found))).collect(),
            Err(error) => vec![Err(error); requests.len()],
        }
    }
}

fn page_by_id(request: &PetPageRequest, found: &HashMap<PetId, Pet>) -> Page<Pet> {
    let mut ids = request.filter.ids.clone().unwrap_or_default();
    ids.sort_unstable();
    ids.dedup();
    let pets = ids.iter().filter_map(|id| found.get(id)).filter(|pet| request.asks_for(pet));
    Page::from_limit_plus_one(pets.cloned().collect(), request.limit)
}

fn split_into_pages(rows: &[Row], requests: &[&PetPageRequest]) -> Result<Vec<Page<Pet>>, StorageError> {
    let mut pages: Vec<Vec<Pet>> = requests.iter().map(|_| Vec::new()).collect();
    for row in rows {
        // After the columns of the pet.
        let page = pages.get_mut(index(row, row.len() - 1)?);
        page.ok_or_else(|| unexpected("a row for an unknown request"))?.push(pet(row)?);
    }
    Ok(pages
        .into_iter()
        .zip(requests)
        .map(|(mut pets, request)| {
            // The statement does not guarantee the order of its rows.
            pets.sort_unstable_by_key(|pet| pet.id);
            Page::from_limit_plus_one(pets, request.limit)
        })
        .collect())
}

/// Handles batches of lookups of single pets with one statement.
pub(super) struct FindPetsBatch(pub(super) Database);

impl BatchHandler for FindPetsBatch {
    type Request = PetId;
    type Response = Result<Option<Pet>, StorageError>;

    async fn handle(&self, ids: Vec<PetId>) -> Vec<Self::Response> {
        match find(&self.0, ids.iter().copied()).await {
            Ok(found) => ids.iter().map(|id| Ok(found.get(id).cloned())).collect(),
            Err(error) => vec![Err(error); ids.len()],
        }
    }
}

/// The pets with these ids that exist. An id may occur several times.
async fn find(
    database: &Database,
    ids: impl Iterator<Item = PetId>,
) -> Result<HashMap<PetId, Pet>, StorageError> {
    let mut ids: Vec<i64> = ids.map(PetId::get).collect();
    ids.sort_unstable();
    ids.dedup();
    let rows = database.read(FIND, &[&ids]).await?;
    rows.iter().map(|row| pet(row).map(|pet| (pet.id, pet))).collect()
}

/// Decodes the id of a pet.
pub(super) fn id(row: &Row, column: impl RowIndex + Display) -> Result<PetId, StorageError> {
    let id: i64 = row.try_get(column).map_err(unexpected)?;
    id.try_into().map_err(unexpected)
}

/// The index into the arrays that were sent; ordinality counts from 1.
pub(super) fn index(row: &Row, column: impl RowIndex + Display) -> Result<usize, StorageError> {
    let ordinality: i64 = row.try_get(column).map_err(unexpected)?;
    usize::try_from(ordinality - 1).map_err(unexpected)
}

/// Decodes `id, name, category_id, status`, the first columns of every statement that returns pets. By position: a batch of
/// pages has thousands of rows, and a lookup by name compares strings for each value.
fn pet(row: &Row) -> Result<Pet, StorageError> {
    Ok(Pet {
        id: id(row, 0)?,
        name: PetName::try_from(row.try_get::<_, String>(1).map_err(unexpected)?).map_err(unexpected)?,
        category_id: CategoryId(row.try_get(2).map_err(unexpected)?),
        status: row.try_get(3).map_err(unexpected)?,
    })
}

impl_pg_enum!(PetStatus, "pet_status");
