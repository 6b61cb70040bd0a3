//! SQL on the `pets` table. Requests that arrive at the same time share a statement: see
//! [`request_batcher`](super::request_batcher).
//!
//! **Invariant:** rows leave as domain values. Besides this file only those of orders, imports and exports name this table.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::join3;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use super::events::{count_events, lock_pet};
use super::idempotency_keys::idempotency_ctes;
use super::postgres::error::unexpected;
use super::postgres::executor::{Database, Parameters, await_replication};
use super::postgres::pg_enum::impl_pg_enum;
use super::request_batcher::BatchHandler;
use super::{Storage, StorageError};
use crate::domain::event::EventType;
use crate::domain::idempotency::{Digest128, IdempotentRequest};
use crate::domain::page::{Page, PageLimit};
use crate::domain::pet::{CategoryId, NewPet, Pet, PetId, PetName, PetPageRequest, PetStatus};

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

const INSERT: &str = "\
    INSERT INTO pets (name, category_id, status)
    SELECT name, category_id, status
    FROM unnest($1::text[], $2::bigint[], $3::pet_status[])
      WITH ORDINALITY AS new (name, category_id, status, ordinality)
    -- Ids are assigned and returned in the order of the arrays.
    ORDER BY ordinality
    RETURNING id";

/// The same, but a pet with an idempotency key is inserted only if the key has no stored result; else that is returned.
const INSERT_IDEMPOTENT: &str = concat!(
    "WITH requested AS (
      -- The id is assigned here because the key and the pet both need it. (Evaluated once: it is volatile.)
      SELECT ordinality, name, category_id, status, digest, fingerprint, nextval('pets_id_seq') AS id
      FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::uuid[], $5::uuid[])
        WITH ORDINALITY AS requested (name, category_id, status, digest, fingerprint, ordinality)),",
    idempotency_ctes!(),
    "
    fresh AS (
      SELECT * FROM requested
      WHERE digest IS NULL OR digest NOT IN (SELECT digest FROM stored)),
    inserted_keys AS (
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id)
      SELECT digest, day, now(), fingerprint, id
      FROM fresh, days
      WHERE digest IS NOT NULL
      -- In the same order in every statement, so that two of them cannot deadlock.
      ORDER BY day, digest),
    inserted_pets AS (
      INSERT INTO pets (id, name, category_id, status) OVERRIDING SYSTEM VALUE
      SELECT id, name, category_id, status
      FROM fresh
      ORDER BY ordinality)
    SELECT ordinality, id AS new_id, stored.fingerprint AS stored_fingerprint, subject_id AS stored_id,
      CASE WHEN subject_id IS NOT NULL THEN ",
    await_replication!(),
    " END
    FROM requested
    LEFT JOIN stored USING (digest)"
);

const LOCK: &str = concat!(
    "SELECT FROM pets
    WHERE id = (SELECT $1 FROM ",
    lock_pet!("$1"),
    ")
    -- Conflicts with every change of the pet, also by nodes of the previous release. An order's foreign key takes only
    -- KEY SHARE, which does not conflict.
    FOR NO KEY UPDATE"
);

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

pub(super) const STATEMENTS: &[&str] =
    &[LIST, LIST_BY_STATUS, FIND, INSERT, INSERT_IDEMPOTENT, LOCK, FIND_LOCKED, UPDATE];

const _: () =
    assert!(PageLimit::MAX + 1 == 101, "LIST and LIST_BY_STATUS have the longest page and one more");

impl Storage {
    /// One page of pets, by ascending id. Concurrent requests for the same page share it.
    pub async fn list_pets(&self, request: PetPageRequest) -> Result<Arc<SharedPage>, StorageError> {
        self.list_pets.call(request).await?
    }

    /// The pet with this id, if it exists.
    pub async fn find_pet(&self, id: PetId) -> Result<Option<Pet>, StorageError> {
        self.find_pet.call(id).await?
    }

    /// Inserts an operator's pets in one statement: all or none.
    pub async fn insert_pets(&self, pets: &[NewPet]) -> Result<(), StorageError> {
        insert(&self.database, &pets.iter().collect::<Vec<_>>()).await.map(drop)
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

/// A page that equal requests share.
pub struct SharedPage {
    /// The page.
    pub page: Page<Pet>,
    rendered: OnceLock<RenderedPage>,
}

/// A page as clients get it.
#[derive(Debug, Clone)]
pub struct RenderedPage {
    /// The items.
    pub body: Bytes,
    /// Changes with the page.
    pub tag: Bytes,
    /// The link to the next page, if there is one.
    pub next: Option<Bytes>,
}

impl SharedPage {
    /// Renders the page for the first request, and returns the same bytes to the others.
    pub fn rendered(&self, render: impl FnOnce(&Page<Pet>) -> RenderedPage) -> RenderedPage {
        self.rendered.get_or_init(|| render(&self.page)).clone()
    }
}

/// Handles batches of list requests: one statement for those without a filter, one by status, one by id.
pub(super) struct ListPetsBatch(pub(super) Database);

impl BatchHandler for ListPetsBatch {
    type Request = PetPageRequest;
    type Response = Result<Arc<SharedPage>, StorageError>;

    async fn handle(&self, requests: Vec<PetPageRequest>) -> Vec<Self::Response> {
        // Equal requests share a page.
        let distinct: HashSet<&PetPageRequest> = requests.iter().collect();
        let (by_id, others): (Vec<_>, Vec<_>) =
            distinct.into_iter().partition(|request| request.filter.ids.is_some());
        let (by_status, unfiltered): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|request| request.filter.status.is_some());
        let (unfiltered_pages, by_status_pages, by_id_pages) =
            join3(self.list(&unfiltered, false), self.list(&by_status, true), self.find(&by_id)).await;
        let share = |page| Arc::new(SharedPage { page, rendered: OnceLock::new() });
        let pages: HashMap<&PetPageRequest, Self::Response> = (unfiltered.into_iter().zip(unfiltered_pages))
            .chain(by_status.into_iter().zip(by_status_pages))
            .chain(by_id.into_iter().zip(by_id_pages))
            .map(|(request, page)| (request, page.map(share)))
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

/// Inserts pets, and returns their ids in the same order.
pub(super) async fn insert(database: &Database, pets: &[&NewPet]) -> Result<Vec<PetId>, StorageError> {
    let (names, categories, statuses) = columns(pets);
    let ids = |rows: &[Row]| {
        let ids = rows.iter().map(|row| id(row, "id")).collect::<Result<Vec<_>, _>>()?;
        let complete = ids.len() == pets.len();
        complete.then_some(ids).ok_or_else(|| unexpected("not every pet has an id"))
    };
    let ids = database.write(INSERT, &[&names, &categories, &statuses], ids).await?;
    count_events(EventType::PetCreated, ids.len());
    Ok(ids)
}

/// The outcome of one row of [`insert_idempotent`].
pub(super) struct IdempotentInsert {
    /// The new pet, or the one that an earlier request with the same key inserted.
    pub(super) id: PetId,
    /// The fingerprint of the earlier request.
    pub(super) stored_fingerprint: Option<Digest128>,
}

/// Inserts pets, those with an idempotency key once; no two have the same key. The outcomes are in the same order.
/// [`StorageError::Raced`] if a concurrent statement inserted one of the keys.
pub(super) async fn insert_idempotent(
    database: &Database,
    pets: &[&NewPet],
    idempotency: &[Option<IdempotentRequest>],
) -> Result<Vec<IdempotentInsert>, StorageError> {
    let (names, categories, statuses) = columns(pets);
    let (digests, fingerprints): (Vec<Option<Digest128>>, Vec<Option<Digest128>>) =
        idempotency.iter().map(|key| (key.map(|key| key.digest), key.map(|key| key.fingerprint))).unzip();
    let parameters: Parameters<'_> = &[&names, &categories, &statuses, &digests, &fingerprints];
    let outcomes = |rows: &[Row]| {
        let mut outcomes: Vec<Option<IdempotentInsert>> = pets.iter().map(|_| None).collect();
        for row in rows {
            let stored_fingerprint: Option<Digest128> =
                row.try_get("stored_fingerprint").map_err(unexpected)?;
            let id = id(row, if stored_fingerprint.is_some() { "stored_id" } else { "new_id" })?;
            let outcome = outcomes.get_mut(index(row, "ordinality")?);
            *outcome.ok_or_else(|| unexpected("a row for an unknown pet"))? =
                Some(IdempotentInsert { id, stored_fingerprint });
        }
        let complete: Option<Vec<_>> = outcomes.into_iter().collect();
        complete.ok_or_else(|| unexpected("not every pet has an outcome"))
    };
    let outcomes = database.write(INSERT_IDEMPOTENT, parameters, outcomes).await?;
    let inserted = outcomes.iter().filter(|outcome| outcome.stored_fingerprint.is_none());
    count_events(EventType::PetCreated, inserted.count());
    Ok(outcomes)
}

/// The columns of the pets, each as one array.
fn columns<'a>(pets: &[&'a NewPet]) -> (Vec<&'a str>, Vec<i64>, Vec<Option<PetStatus>>) {
    pets.iter().map(|pet| (pet.name.as_str(), pet.category_id.0, pet.status)).collect()
}

fn id(row: &Row, column: impl RowIndex + Display) -> Result<PetId, StorageError> {
    let id: i64 = row.try_get(column).map_err(unexpected)?;
    id.try_into().map_err(unexpected)
}

/// The index into the arrays that were sent; ordinality counts from 1.
fn index(row: &Row, column: impl RowIndex + Display) -> Result<usize, StorageError> {
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
