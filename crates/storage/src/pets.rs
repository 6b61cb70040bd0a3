//! SQL that reads and changes the `pets` table; [`insert_pets`](super::insert_pets) adds to it. Requests that arrive at the same
//! time share a statement: see [`Queue`](super::queue::Queue).
//!
//! **Invariant:** rows leave as domain values. Only these two files, those of orders, imports and exports, and the write that
//! `petstore doctor` tries name this table.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use petstore_batcher::BatchHandler;
use petstore_domain::event::EventType;
use petstore_domain::page::{Page, PageLimit};
use petstore_domain::pet::{CategoryId, Pet, PetFilter, PetId, PetName, PetPageRequest, PetStatus};
use petstore_domain::reference::Reference;
use petstore_postgres::{Database, Parameters, unexpected};
use tokio::join;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use super::events::count_events;
use super::pg_enum::PgEnum;
use super::{Storage, StorageError};

/// The pages of many requests: `$1` has the id that each page starts after, `$2` its number of rows.
const LIST: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[])
      -- The ordinality says which request a row is for.
      WITH ORDINALITY AS requested (after_id, row_limit, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status, reference
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
        SELECT id, name, category_id, status, reference
        FROM pets
        -- A range of the index on (status, id) instead of an equal status: otherwise the planner may scan by id alone, and
        -- filter nearly all pets for a rare status.
        WHERE (status, id) > (requested.status, requested.after_id) AND status <= requested.status
        ORDER BY status, id
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

/// The same, each page of one category, and of one status unless that is null.
const LIST_BY_CATEGORY: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::pet_status[])
      WITH ORDINALITY AS requested (after_id, row_limit, category_id, status, ordinality)
    CROSS JOIN LATERAL (
      -- The pets of one status are a range of the index on (category_id, status, id), and so are those without one. A page
      -- of all of them comes from the beginnings of these ranges.
      SELECT beginning.*
      FROM unnest(CASE WHEN requested.status IS NULL THEN enum_range(NULL::pet_status) ELSE ARRAY[requested.status] END)
        AS wanted (status)
      CROSS JOIN LATERAL (
        SELECT * FROM (
          SELECT id, name, category_id, status, reference
          FROM pets
          -- ANY: with an equal category, the planner may scan by status and id alone, and filter nearly all pets.
          WHERE category_id = ANY (ARRAY[requested.category_id])
            AND (status, id) > (wanted.status, requested.after_id) AND status <= wanted.status
          ORDER BY category_id, status, id
          LIMIT 101) AS longest
        LIMIT requested.row_limit) AS beginning
      UNION ALL (
        SELECT * FROM (
          SELECT id, name, category_id, status, reference
          FROM pets
          WHERE category_id = ANY (ARRAY[requested.category_id]) AND status IS NULL AND id > requested.after_id
          ORDER BY category_id, status, id
          LIMIT 101) AS longest
        WHERE requested.status IS NULL
        LIMIT requested.row_limit)
      ORDER BY id
      LIMIT requested.row_limit) AS page";

const FIND: &str = "\
    SELECT id, name, category_id, status, reference
    FROM pets
    WHERE id = ANY ($1)";

const FIND_BY_REFERENCE: &str = "\
    SELECT id, name, category_id, status, reference
    FROM pets
    WHERE reference = ANY ($1)";

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
    SELECT id, name, category_id, status, reference,
      EXISTS (SELECT FROM orders WHERE pet_id = $1 AND orders.status = 'placed') AS has_open_order
    FROM pets
    WHERE id = $1";

const UPDATE: &str = "\
    UPDATE pets
    SET name = $2, category_id = $3, status = $4, reference = $5
    WHERE id = $1";

pub(super) const STATEMENTS: &[&str] =
    &[LIST, LIST_BY_STATUS, LIST_BY_CATEGORY, FIND, FIND_BY_REFERENCE, LOCK, FIND_LOCKED, UPDATE];

const _: () = assert!(PageLimit::MAX + 1 == 101, "the lists have the longest page and one more");

impl Storage {
    /// One page of pets, by ascending id. Concurrent requests for the same page share it.
    pub async fn list_pets(&self, request: PetPageRequest) -> Result<Arc<Page<Pet>>, StorageError> {
        self.list_pets.read(request).await?
    }

    /// The pet with this id, if it exists.
    pub async fn find_pet(&self, id: PetId) -> Result<Option<Pet>, StorageError> {
        self.find_pet.read(id).await?
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
    /// Another pet has the reference, and this one is unchanged.
    ReferenceTaken,
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
                let Pet { id, name, category_id, status, reference } = new;
                let reference = reference.as_ref().map(Reference::as_str);
                let parameters: Parameters<'_> =
                    &[&id.get(), &name.as_str(), &category_id.0, &status.map(PgEnum), &reference];
                match lock.write_and_commit(UPDATE, parameters).await {
                    // Only a reference can be the same as another pet's.
                    Err(StorageError::Raced(_)) => return Ok(UpdateOutcome::ReferenceTaken),
                    written => written?,
                }
                count_events(EventType::PetUpdated, 1);
            }
            _ => lock.release().await?,
        }
        Ok(change.map_or_else(UpdateOutcome::Refused, UpdateOutcome::Updated))
    }
}

/// Handles batches of list requests: one statement for each kind of filter.
pub(super) struct ListPetsBatch(pub(super) Database);

/// The condition by which the pets of a list are found. Others are checked afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoundBy {
    Id,
    Reference,
    Category,
    Status,
    Nothing,
}

impl FoundBy {
    fn of(PetFilter { status, category_id, ids, references }: &PetFilter) -> Self {
        match (ids, references, category_id, status) {
            (Some(_), ..) => Self::Id,
            (_, Some(_), ..) => Self::Reference,
            (_, _, Some(_), _) => Self::Category,
            (.., Some(_)) => Self::Status,
            _ => Self::Nothing,
        }
    }
}

type PageResult = Result<Page<Pet>, StorageError>;

impl BatchHandler for ListPetsBatch {
    type Request = PetPageRequest;
    type Response = Result<Arc<Page<Pet>>, StorageError>;

    async fn handle(&self, requests: Vec<PetPageRequest>) -> Vec<Self::Response> {
        // Equal requests share a page.
        let distinct: HashSet<&PetPageRequest> = requests.iter().collect();
        let pages = |found_by: FoundBy| {
            let requests = distinct.iter().copied().filter(|it| FoundBy::of(&it.filter) == found_by);
            self.pages(found_by, requests.collect())
        };
        let (by_id, by_reference, by_category, by_status, unfiltered) = join!(
            pages(FoundBy::Id),
            pages(FoundBy::Reference),
            pages(FoundBy::Category),
            pages(FoundBy::Status),
            pages(FoundBy::Nothing),
        );
        let all = [by_id, by_reference, by_category, by_status, unfiltered].into_iter().flatten();
        let pages: HashMap<&PetPageRequest, Self::Response> =
            all.map(|(request, page)| (request, page.map(Arc::new))).collect();
        requests.iter().map(|request| pages[request].clone()).collect()
    }
}

impl ListPetsBatch {
    /// The pages of requests that are found by the same condition, in one statement.
    async fn pages<'a>(
        &self,
        found_by: FoundBy,
        requests: Vec<&'a PetPageRequest>,
    ) -> Vec<(&'a PetPageRequest, PageResult)> {
        if requests.is_empty() {
            return Vec::new();
        }
        let pages = match found_by {
            FoundBy::Id => self.find_by_id(&requests).await,
            FoundBy::Reference => self.find_by_reference(&requests).await,
            FoundBy::Category | FoundBy::Status | FoundBy::Nothing => self.list(found_by, &requests).await,
        };
        match pages {
            Ok(pages) => requests.into_iter().zip(pages.into_iter().map(Ok)).collect(),
            Err(error) => requests.into_iter().map(|request| (request, Err(error.clone()))).collect(),
        }
    }

    async fn list(
        &self,
        found_by: FoundBy,
        requests: &[&PetPageRequest],
    ) -> Result<Vec<Page<Pet>>, StorageError> {
        let after: Vec<i64> = requests.iter().map(|request| request.after.map_or(0, PetId::get)).collect();
        let limits: Vec<i64> = requests.iter().map(|request| i64::from(request.limit.get()) + 1).collect();
        let statuses: Vec<Option<PgEnum<PetStatus>>> =
            requests.iter().map(|request| request.filter.status.map(PgEnum)).collect();
        let rows = match found_by {
            FoundBy::Category => {
                let categories: Vec<Option<i64>> =
                    requests.iter().map(|request| request.filter.category_id.map(|id| id.0)).collect();
                self.0.read(LIST_BY_CATEGORY, &[&after, &limits, &categories, &statuses]).await?
            }
            FoundBy::Status => self.0.read(LIST_BY_STATUS, &[&after, &limits, &statuses]).await?,
            _ => self.0.read(LIST, &[&after, &limits]).await?,
        };
        split_into_pages(&rows, requests)
    }

    /// Finds the pets of all requests, and gives each request its own.
    async fn find_by_id(&self, requests: &[&PetPageRequest]) -> Result<Vec<Page<Pet>>, StorageError> {
        let named = |request: &PetPageRequest| request.filter.ids.clone().unwrap_or_default();
        let found = find(&self.0, requests.iter().flat_map(|request| named(request))).await?;
        let page = |request| page_of_named(request, named(request).iter().filter_map(|id| found.get(id)));
        Ok(requests.iter().copied().map(page).collect())
    }

    /// The same for pets that are named by their references.
    async fn find_by_reference(&self, requests: &[&PetPageRequest]) -> Result<Vec<Page<Pet>>, StorageError> {
        fn named(request: &PetPageRequest) -> impl Iterator<Item = &str> {
            request.filter.references.iter().flatten().map(Reference::as_str)
        }
        let references: HashSet<&str> = requests.iter().copied().flat_map(named).collect();
        let references: Vec<&str> = references.into_iter().collect();
        let rows = self.0.read(FIND_BY_REFERENCE, &[&references]).await?;
        let found: Vec<Pet> = rows.iter().map(pet).collect::<Result<_, _>>()?;
        let found: HashMap<&str, &Pet> =
            found.iter().filter_map(|pet| Some((pet.reference.as_ref()?.as_str(), pet))).collect();
        let page =
            |request| page_of_named(request, named(request).filter_map(|name| found.get(name).copied()));
        Ok(requests.iter().copied().map(page).collect())
    }
}

/// The page of a request, from the pets that it names. A pet may be named several times.
fn page_of_named<'a>(request: &PetPageRequest, pets: impl Iterator<Item = &'a Pet>) -> Page<Pet> {
    let mut pets: Vec<&Pet> = pets.filter(|pet| request.asks_for(pet)).collect();
    pets.sort_unstable_by_key(|pet| pet.id);
    pets.dedup_by_key(|pet| pet.id);
    Page::from_limit_plus_one(pets.into_iter().cloned().collect(), request.limit)
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

/// Decodes the reference of a pet or an order.
pub(super) fn reference(text: Option<String>) -> Result<Option<Reference>, StorageError> {
    text.map(Reference::try_from).transpose().map_err(unexpected)
}

/// The index into the arrays that were sent; ordinality counts from 1.
pub(super) fn index(row: &Row, column: impl RowIndex + Display) -> Result<usize, StorageError> {
    let ordinality: i64 = row.try_get(column).map_err(unexpected)?;
    usize::try_from(ordinality - 1).map_err(unexpected)
}

/// Decodes `id, name, category_id, status, reference`, the first columns of every statement that returns pets. By position: a batch of
/// pages has thousands of rows, and a lookup by name compares strings for each value.
fn pet(row: &Row) -> Result<Pet, StorageError> {
    let status: Option<PgEnum<PetStatus>> = row.try_get(3).map_err(unexpected)?;
    Ok(Pet {
        id: id(row, 0)?,
        name: PetName::try_from(row.try_get::<_, String>(1).map_err(unexpected)?).map_err(unexpected)?,
        category_id: CategoryId(row.try_get(2).map_err(unexpected)?),
        status: status.map(|PgEnum(status)| status),
        reference: reference(row.try_get(4).map_err(unexpected)?)?,
    })
}
