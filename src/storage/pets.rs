//! SQL on the `pets` table. Requests that arrive together share a statement: see [`batch`](super::batch).
//!
//! **Invariant:** rows leave as domain values; no other file names this table, but the one of orders, which move pets.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::join3;
use tokio_postgres::Row;

use super::batch::{Batcher, Limits, Work};
use super::idempotency_keys::{days_to_remember, remembered_before};
use super::postgres::database::{Database, Parameters};
use super::postgres::error::{cause, unexpected};
use super::postgres::pg_enum::stored_as_words;
use super::postgres::pool::POOL_WAIT;
use super::{Storage, StorageError};
use crate::domain::idempotency::{Digest128, IdempotentRequest};
use crate::domain::page::{Page, PageLimit};
use crate::domain::pet::{CategoryId, NewPet, Pet, PetId, PetName, PetPageRequest, PetStatus};

/// Pages of many requests: `$1` has where each begins, `$2` how many rows it wants. The longest page, and one
/// more, is a number that the planner can see: otherwise it prepares for a tenth of the table.
const LIST: &str = "\
    SELECT id, name, category_id, status, place \
    FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS wanted (after, size, place) \
    CROSS JOIN LATERAL (SELECT * FROM (SELECT id, name, category_id, status FROM pets \
      WHERE id > wanted.after ORDER BY id LIMIT 101) AS longest LIMIT wanted.size) AS page";

/// The same, each of one status. A range of the index on status and id, rather than an equal status, so that
/// the planner cannot walk by id alone and look for a rare status among all others.
const LIST_BY_STATUS: &str = "\
    SELECT id, name, category_id, status, place \
    FROM unnest($1::bigint[], $2::bigint[], $3::pet_status[]) \
      WITH ORDINALITY AS wanted (after, size, wanted_status, place) \
    CROSS JOIN LATERAL (SELECT * FROM (SELECT id, name, category_id, status FROM pets \
      WHERE (status, id) > (wanted.wanted_status, wanted.after) AND status <= wanted.wanted_status \
      ORDER BY status, id LIMIT 101) AS longest LIMIT wanted.size) AS page";

const FIND: &str = "SELECT id, name, category_id, status FROM pets WHERE id = ANY ($1)";

/// Rows are inserted, and their ids returned, in the order of the arrays.
const INSERT: &str = "\
    INSERT INTO pets (name, category_id, status) \
    SELECT name, category_id, status \
    FROM unnest($1::text[], $2::bigint[], $3::pet_status[]) \
      WITH ORDINALITY AS new (name, category_id, status, place) ORDER BY place \
    RETURNING id";

/// The same, where a row with a digest is added only if its digest is not remembered: then what was remembered comes
/// back. Digests are remembered in their order, so that statements wait for each other in one direction only.
const INSERT_ONCE: &str = concat!(
    "WITH asked AS ( \
      SELECT place, name, category_id, status, digest, fingerprint, nextval('pets_id_seq') AS id \
      FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::uuid[], $5::uuid[]) \
        WITH ORDINALITY AS asked (name, category_id, status, digest, fingerprint, place)), \
    before AS (SELECT digest, kept.fingerprint, subject_id FROM asked CROSS JOIN LATERAL (",
    remembered_before!(),
    ") AS kept), \
    fresh AS (SELECT * FROM asked WHERE digest IS NULL OR digest NOT IN (SELECT digest FROM before)), \
    day AS (",
    days_to_remember!(),
    "), \
    remembered AS ( \
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
      SELECT digest, day, now(), fingerprint, id FROM fresh, day WHERE digest IS NOT NULL ORDER BY day, digest), \
    added AS ( \
      INSERT INTO pets (id, name, category_id, status) OVERRIDING SYSTEM VALUE \
      SELECT id, name, category_id, status FROM fresh ORDER BY place) \
    SELECT place, id, before.fingerprint, subject_id FROM asked LEFT JOIN before USING (digest)"
);

/// Waits until nobody else changes the pet, and keeps others from changing it until the transaction ends. Every order
/// that is placed or ended changes its pet, and so waits too. (An order that refers to the pet does not.)
const LOCK: &str = "SELECT FROM pets WHERE id = $1 FOR NO KEY UPDATE";

/// A pet as it is now, and whether an order is open for it.
const LOOK_AT: &str = "\
    SELECT id, name, category_id, status, \
      EXISTS (SELECT FROM orders WHERE pet_id = $1 AND orders.status = 'placed') AS has_open_order \
    FROM pets WHERE id = $1";

const UPDATE: &str = "UPDATE pets SET name = $2, category_id = $3, status = $4 WHERE id = $1";

pub(super) const STATEMENTS: &[&str] =
    &[LIST, LIST_BY_STATUS, FIND, INSERT, INSERT_ONCE, LOCK, LOOK_AT, UPDATE];

// The statements of lists have this number as text.
const _: () =
    assert!(PageLimit::MAX + 1 == 101, "LIST and LIST_BY_STATUS hold the longest page and one more");

/// How much may wait for each kind of work on pets, and how it is taken.
pub(super) const LIMITS: Limits = Limits { waiting: 4_096, batch: 128, workers: 2, patience: POOL_WAIT };

impl Storage {
    /// One page of the pets asked for, by ascending id. Requests for the same page may share it.
    pub async fn list_pets(&self, request: PetPageRequest) -> Result<Arc<SharedPage>, StorageError> {
        self.list_pets.call(request).await?
    }

    /// The pet with this id, if there is one.
    pub async fn find_pet(&self, id: PetId) -> Result<Option<Pet>, StorageError> {
        self.find_pet.call(id).await?
    }

    /// Adds pets, all of them in one statement or none.
    pub async fn insert_pets(&self, pets: &[NewPet]) -> Result<(), StorageError> {
        insert(&self.database, &pets.iter().collect::<Vec<_>>()).await.map(drop)
    }
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOutcome<E> {
    /// The pet is now like this.
    Done(Pet),
    /// It is as it was.
    Refused(E),
    /// There is no such pet.
    NoSuchPet,
}

impl Storage {
    /// Changes a pet as `change` says, which is told the pet and whether an order is open for it. Changes of one pet wait
    /// for each other in the database.
    pub async fn change_pet<E>(
        &self,
        id: PetId,
        change: impl FnOnce(&Pet, bool) -> Result<Pet, E>,
    ) -> Result<UpdateOutcome<E>, StorageError> {
        let (lock, rows) = self.database.lock_row(LOCK, LOOK_AT, &[&id.get()]).await?;
        let Some(row) = rows.first() else {
            lock.release().await?;
            return Ok(UpdateOutcome::NoSuchPet);
        };
        let (old, has_open_order) = (pet(row)?, row.try_get("has_open_order").map_err(unexpected)?);
        let change = change(&old, has_open_order);
        match &change {
            Ok(new) if *new != old => {
                let Pet { id, name, category_id, status } = new;
                let parameters: Parameters<'_> = &[&id.get(), &name.as_str(), &category_id.0, status];
                lock.write_and_commit(UPDATE, parameters).await?;
            }
            _ => lock.release().await?,
        }
        Ok(change.map_or_else(UpdateOutcome::Refused, UpdateOutcome::Done))
    }
}

/// A page that several requests may have got at once.
pub struct SharedPage {
    /// The page.
    pub page: Page<Pet>,
    rendered: OnceLock<(Bytes, Bytes)>,
}

impl SharedPage {
    /// Whatever the first of the requests makes of the page, kept for the others.
    pub fn rendered(&self, render: impl FnOnce(&Page<Pet>) -> (Bytes, Bytes)) -> (Bytes, Bytes) {
        self.rendered.get_or_init(|| render(&self.page)).clone()
    }
}

/// Lists of pets. Those that are asked for together share a statement.
pub(super) struct List(Database);

impl List {
    pub(super) fn start(database: &Database) -> Batcher<Self> {
        Batcher::start("list_pets", Self(database.clone()), LIMITS)
    }
}

impl Work for List {
    type Request = PetPageRequest;
    type Answer = Result<Arc<SharedPage>, StorageError>;

    async fn run(&self, requests: Vec<PetPageRequest>) -> Vec<Self::Answer> {
        // Equal requests are one: `place` has where each request's page will be.
        let mut distinct: Vec<&PetPageRequest> = Vec::new();
        let mut places = HashMap::new();
        let place: Vec<usize> = requests
            .iter()
            .map(|request| {
                *places.entry(request).or_insert_with(|| {
                    distinct.push(request);
                    distinct.len() - 1
                })
            })
            .collect();
        let pages = self.pages(&distinct).await;
        place.into_iter().map(|place| pages[place].clone()).collect()
    }
}

impl List {
    /// The pages of distinct requests: one statement for all without a filter, one for all by status, and
    /// one for all by id.
    async fn pages(&self, requests: &[&PetPageRequest]) -> Vec<Result<Arc<SharedPage>, StorageError>> {
        let (by_id, others): (Vec<usize>, Vec<usize>) =
            (0..requests.len()).partition(|place| requests[*place].filter.ids.is_some());
        let (by_status, plain): (Vec<usize>, Vec<usize>) =
            others.into_iter().partition(|place| requests[*place].filter.status.is_some());
        let pick = |places: &[usize]| places.iter().map(|place| requests[*place]).collect::<Vec<_>>();
        let (plain_requests, by_status_requests, by_id_requests) =
            (pick(&plain), pick(&by_status), pick(&by_id));
        let (plain_pages, by_status_pages, by_id_pages) = join3(
            self.merged(&plain_requests, false),
            self.merged(&by_status_requests, true),
            self.by_id(&by_id_requests),
        )
        .await;
        let mut pages: Vec<_> = plain
            .into_iter()
            .zip(plain_pages)
            .chain(by_status.into_iter().zip(by_status_pages))
            .chain(by_id.into_iter().zip(by_id_pages))
            .collect();
        pages.sort_unstable_by_key(|(place, _)| *place);
        let share = |page| Arc::new(SharedPage { page, rendered: OnceLock::new() });
        pages.into_iter().map(|(_, page)| page.map(share)).collect()
    }

    async fn merged(
        &self,
        requests: &[&PetPageRequest],
        by_status: bool,
    ) -> Vec<Result<Page<Pet>, StorageError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let after: Vec<i64> = requests.iter().map(|request| begins_after(request)).collect();
        let sizes: Vec<i64> = requests.iter().map(|request| limit_plus_one(request)).collect();
        let rows = if by_status {
            let statuses: Vec<Option<PetStatus>> =
                requests.iter().map(|request| request.filter.status).collect();
            self.0.read(LIST_BY_STATUS, &[&after, &sizes, &statuses]).await
        } else {
            self.0.read(LIST, &[&after, &sizes]).await
        };
        match rows.and_then(|rows| sort_into_pages(&rows, requests)) {
            Ok(pages) => pages.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); requests.len()],
        }
    }

    /// Finds whatever any of the requests names, and gives each what it asks for.
    async fn by_id(&self, requests: &[&PetPageRequest]) -> Vec<Result<Page<Pet>, StorageError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let named = requests.iter().flat_map(|request| request.filter.ids.iter().flatten().copied());
        match find(&self.0, named).await {
            Ok(found) => requests.iter().map(|request| Ok(page_of_found(request, &found))).collect(),
            Err(error) => vec![Err(error); requests.len()],
        }
    }
}

fn page_of_found(request: &PetPageRequest, found: &HashMap<PetId, Pet>) -> Page<Pet> {
    let mut ids = request.filter.ids.clone().unwrap_or_default();
    ids.sort_unstable();
    ids.dedup();
    let pets = ids.iter().filter_map(|id| found.get(id)).filter(|pet| request.asks_for(pet));
    Page::from_limit_plus_one(pets.cloned().collect(), request.limit)
}

fn begins_after(request: &PetPageRequest) -> i64 {
    request.after.map_or(0, PetId::get)
}

fn limit_plus_one(request: &PetPageRequest) -> i64 {
    i64::from(request.limit.get()) + 1
}

fn sort_into_pages(rows: &[Row], requests: &[&PetPageRequest]) -> Result<Vec<Page<Pet>>, StorageError> {
    let mut pages: Vec<Vec<Pet>> = requests.iter().map(|_| Vec::new()).collect();
    for row in rows {
        let place: i64 = row.try_get(4).map_err(unexpected)?;
        let page = usize::try_from(place - 1).ok().and_then(|place| pages.get_mut(place));
        page.ok_or_else(|| StorageError::Unexpected(cause("a page that nobody wanted")))?.push(pet(row)?);
    }
    Ok(pages
        .into_iter()
        .zip(requests)
        .map(|(mut pets, request)| {
            // The statement promises which pets, and not their order.
            pets.sort_unstable_by_key(|pet| pet.id);
            Page::from_limit_plus_one(pets, request.limit)
        })
        .collect())
}

/// Look-ups of single pets, likewise.
pub(super) struct Find(Database);

impl Find {
    pub(super) fn start(database: &Database) -> Batcher<Self> {
        Batcher::start("find_pet", Self(database.clone()), LIMITS)
    }
}

impl Work for Find {
    type Request = PetId;
    type Answer = Result<Option<Pet>, StorageError>;

    async fn run(&self, ids: Vec<PetId>) -> Vec<Self::Answer> {
        match find(&self.0, ids.iter().copied()).await {
            Ok(found) => ids.iter().map(|id| Ok(found.get(id).cloned())).collect(),
            Err(error) => vec![Err(error); ids.len()],
        }
    }
}

/// Those of the pets named that there are. One may be named many times.
async fn find(
    database: &Database,
    ids: impl Iterator<Item = PetId>,
) -> Result<HashMap<PetId, Pet>, StorageError> {
    let mut numbers: Vec<i64> = ids.map(PetId::get).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let rows = database.read(FIND, &[&numbers]).await?;
    rows.iter().map(|row| pet(row).map(|pet| (pet.id, pet))).collect()
}

/// Adds pets, and returns the ids given to all of them, in their order.
pub(super) async fn insert(database: &Database, pets: &[&NewPet]) -> Result<Vec<PetId>, StorageError> {
    let (names, categories, statuses) = columns(pets);
    let ids = |rows: &[Row]| {
        let ids = rows.iter().map(|row| id(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let complete = ids.len() == pets.len();
        complete.then_some(ids).ok_or_else(|| StorageError::Unexpected(cause("not every pet has an id")))
    };
    database.write(INSERT, &[&names, &categories, &statuses], ids).await
}

/// What came of a pet that was to be added once.
pub(super) enum Inserted {
    /// It was added.
    New(PetId),
    /// It was added before.
    Before(Remembered),
}

/// What was remembered of a request: what it asked for, and what came of it.
pub(super) struct Remembered {
    pub(super) fingerprint: Digest128,
    pub(super) id: PetId,
}

/// Adds pets, those with a digest once; no two have the same one. [`StorageError::Raced`] if another statement added
/// one of them at the same time.
pub(super) async fn insert_once(
    database: &Database,
    pets: &[&NewPet],
    once: &[Option<IdempotentRequest>],
) -> Result<Vec<Inserted>, StorageError> {
    let (names, categories, statuses) = columns(pets);
    let digests: Vec<Option<Digest128>> = once.iter().map(|once| once.map(|once| once.digest)).collect();
    let fingerprints: Vec<Option<Digest128>> =
        once.iter().map(|once| once.map(|once| once.fingerprint)).collect();
    let parameters: Parameters<'_> = &[&names, &categories, &statuses, &digests, &fingerprints];
    database.write(INSERT_ONCE, parameters, |rows| sort_outcomes(rows, pets.len())).await
}

/// What the rows of [`INSERT_ONCE`] say, in the order of the pets.
fn sort_outcomes(rows: &[Row], pets: usize) -> Result<Vec<Inserted>, StorageError> {
    let mut inserted: Vec<Option<Inserted>> = (0..pets).map(|_| None).collect();
    for row in rows {
        let place: i64 = row.try_get(0).map_err(unexpected)?;
        let fingerprint: Option<Digest128> = row.try_get(2).map_err(unexpected)?;
        let outcome = match fingerprint {
            None => Inserted::New(id(row, 1)?),
            Some(fingerprint) => Inserted::Before(Remembered { fingerprint, id: id(row, 3)? }),
        };
        if let Some(slot) = usize::try_from(place - 1).ok().and_then(|place| inserted.get_mut(place)) {
            *slot = Some(outcome);
        }
    }
    let all: Option<Vec<Inserted>> = inserted.into_iter().collect();
    all.ok_or_else(|| StorageError::Unexpected(cause("not every pet has an outcome")))
}

type Columns<'a> = (Vec<&'a str>, Vec<i64>, Vec<Option<PetStatus>>);

fn columns<'a>(pets: &[&'a NewPet]) -> Columns<'a> {
    (
        pets.iter().map(|pet| pet.name.as_str()).collect(),
        pets.iter().map(|pet| pet.category_id.0).collect(),
        pets.iter().map(|pet| pet.status).collect(),
    )
}

fn id(row: &Row, column: usize) -> Result<PetId, StorageError> {
    let id: i64 = row.try_get(column).map_err(unexpected)?;
    id.try_into().map_err(unexpected)
}

fn pet(row: &Row) -> Result<Pet, StorageError> {
    Ok(Pet {
        id: id(row, 0)?,
        name: PetName::try_from(row.try_get::<_, String>(1).map_err(unexpected)?).map_err(unexpected)?,
        category_id: CategoryId(row.try_get(2).map_err(unexpected)?),
        status: row.try_get(3).map_err(unexpected)?,
    })
}

stored_as_words!(PetStatus, "pet_status");
