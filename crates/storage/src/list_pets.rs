//! SQL that lists the `pets` table, in pages. Requests that arrive at the same time share a statement: see
//! [`Queue`](super::queue::Queue).
//!
//! Each list has a statement for each direction, which read the same index. One for both, of which PostgreSQL runs only one half,
//! would still have to set up the other one: a first page would take a tenth more of the database's time.
//!
//! A pet whose id was set in SQL to a number below 1 is left out, so that it does not hide a page.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use petstore_batcher::BatchHandler;
use petstore_domain::page::{HasId, Page, PageLimit, SortOrder};
use petstore_domain::pet::{Pet, PetFilter, PetPage, PetPageRequest, PetStatus};
use petstore_domain::reference::Reference;
use petstore_domain::version::Versioned;
use petstore_postgres::{Database, StorageError, unexpected};
use tokio_postgres::Row;

use super::pets::{decode_pet, decode_version, find, index};
use super::pg_enum::PgEnum;
use super::storage::Storage;

/// The pages of many requests: `$1` has the id that each page starts after, `$2` its number of rows.
const LIST: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[])
      -- The ordinality says which request a row is for.
      WITH ORDINALITY AS requested (after_id, row_limit, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status, reference, metadata
        FROM pets
        WHERE id > requested.after_id
        ORDER BY id
        -- The longest page and one more. Without a constant limit, the planner expects a tenth of the table.
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

/// [`LIST`] in descending order.
const LIST_DESCENDING: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[])
      WITH ORDINALITY AS requested (after_id, row_limit, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status, reference, metadata
        FROM pets
        WHERE id < requested.after_id AND id >= 1
        ORDER BY id DESC
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

/// [`LIST`], each page of one status.
const LIST_BY_STATUS: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[], $3::pet_status[])
      WITH ORDINALITY AS requested (after_id, row_limit, status, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status, reference, metadata
        FROM pets
        -- A range of the index on (status, id) instead of an equal status: otherwise the planner may scan by id alone, and
        -- filter nearly all pets for a rare status.
        WHERE (status, id) > (requested.status, requested.after_id) AND status <= requested.status
        ORDER BY status, id
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

/// [`LIST_BY_STATUS`] in descending order.
const LIST_BY_STATUS_DESCENDING: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[], $3::pet_status[])
      WITH ORDINALITY AS requested (after_id, row_limit, status, ordinality)
    CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT id, name, category_id, status, reference, metadata
        FROM pets
        WHERE (status, id) < (requested.status, requested.after_id) AND status >= requested.status AND id >= 1
        ORDER BY status DESC, id DESC
        LIMIT 101) AS longest
      LIMIT requested.row_limit) AS page";

/// [`LIST`], each page of one category, and of one status unless that is null.
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
          SELECT id, name, category_id, status, reference, metadata
          FROM pets
          -- ANY: with an equal category, the planner may scan by status and id alone, and filter nearly all pets.
          WHERE category_id = ANY (ARRAY[requested.category_id])
            AND (status, id) > (wanted.status, requested.after_id) AND status <= wanted.status
          ORDER BY category_id, status, id
          LIMIT 101) AS longest
        LIMIT requested.row_limit) AS beginning
      UNION ALL (
        SELECT * FROM (
          SELECT id, name, category_id, status, reference, metadata
          FROM pets
          WHERE category_id = ANY (ARRAY[requested.category_id]) AND status IS NULL AND id > requested.after_id
          ORDER BY category_id, status, id
          LIMIT 101) AS longest
        WHERE requested.status IS NULL
        LIMIT requested.row_limit)
      ORDER BY id
      LIMIT requested.row_limit) AS page";

/// [`LIST_BY_CATEGORY`] in descending order.
const LIST_BY_CATEGORY_DESCENDING: &str = "\
    SELECT page.*, requested.ordinality
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::pet_status[])
      WITH ORDINALITY AS requested (after_id, row_limit, category_id, status, ordinality)
    CROSS JOIN LATERAL (
      SELECT beginning.*
      FROM unnest(CASE WHEN requested.status IS NULL THEN enum_range(NULL::pet_status) ELSE ARRAY[requested.status] END)
        AS wanted (status)
      CROSS JOIN LATERAL (
        SELECT * FROM (
          SELECT id, name, category_id, status, reference, metadata
          FROM pets
          WHERE category_id = ANY (ARRAY[requested.category_id])
            AND (status, id) < (wanted.status, requested.after_id) AND status >= wanted.status AND id >= 1
          ORDER BY category_id DESC, status DESC, id DESC
          LIMIT 101) AS longest
        LIMIT requested.row_limit) AS beginning
      UNION ALL (
        SELECT * FROM (
          SELECT id, name, category_id, status, reference, metadata
          FROM pets
          WHERE category_id = ANY (ARRAY[requested.category_id]) AND status IS NULL AND id < requested.after_id AND id >= 1
          ORDER BY category_id DESC, status DESC, id DESC
          LIMIT 101) AS longest
        WHERE requested.status IS NULL
        LIMIT requested.row_limit)
      ORDER BY id DESC
      LIMIT requested.row_limit) AS page";

const FIND_BY_REFERENCE: &str = "\
    SELECT id, name, category_id, status, reference, metadata, xmin
    FROM pets
    WHERE reference = ANY ($1) AND id >= 1";

pub(super) const STATEMENTS: &[&str] = &[
    LIST,
    LIST_DESCENDING,
    LIST_BY_STATUS,
    LIST_BY_STATUS_DESCENDING,
    LIST_BY_CATEGORY,
    LIST_BY_CATEGORY_DESCENDING,
    FIND_BY_REFERENCE,
];

const _: () = assert!(PageLimit::MAX + 1 == 101, "the lists have the longest page and one more");

impl Storage {
    /// One page of pets. Concurrent requests for the same page share it.
    pub async fn list_pets(&self, request: PetPageRequest) -> Result<Arc<PetPage>, StorageError> {
        self.list_pets.read(request).await?
    }
}

/// Handles batches of list requests: one statement for each kind of filter and each direction.
pub(super) struct ListPetsBatch(pub(super) Database);

/// The condition by which the pets of a list are found, and the direction in which an index is read. Other conditions are checked
/// afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FoundBy {
    Id,
    Reference,
    Category(SortOrder),
    Status(SortOrder),
    Nothing(SortOrder),
}

impl FoundBy {
    fn of(request: &PetPageRequest) -> Self {
        let PetFilter { status, category_id, ids, references } = &request.filter;
        match (ids, references, category_id, status) {
            (Some(_), ..) => Self::Id,
            (_, Some(_), ..) => Self::Reference,
            (_, _, Some(_), _) => Self::Category(request.sort),
            (.., Some(_)) => Self::Status(request.sort),
            _ => Self::Nothing(request.sort),
        }
    }
}

type PageResult = Result<Arc<PetPage>, StorageError>;

impl BatchHandler for ListPetsBatch {
    type Request = PetPageRequest;
    type Response = PageResult;

    async fn handle(&self, requests: Vec<PetPageRequest>) -> Vec<Self::Response> {
        // Equal requests share a page.
        let distinct: HashSet<&PetPageRequest> = requests.iter().collect();
        let mut groups: HashMap<FoundBy, Vec<&PetPageRequest>> = HashMap::new();
        for request in distinct {
            groups.entry(FoundBy::of(request)).or_default().push(request);
        }
        let groups = groups.into_iter().map(|(found_by, requests)| self.pages(found_by, requests));
        let pages: HashMap<&PetPageRequest, Self::Response> =
            join_all(groups).await.into_iter().flatten().collect();
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
        let pages = match found_by {
            FoundBy::Id => self.find_by_id(&requests).await,
            FoundBy::Reference => self.find_by_reference(&requests).await,
            FoundBy::Category(_) | FoundBy::Status(_) | FoundBy::Nothing(_) => {
                self.list(found_by, &requests).await
            }
        };
        match pages {
            Ok(pages) => requests.into_iter().zip(pages.into_iter().map(|page| Ok(Arc::new(page)))).collect(),
            Err(error) => requests.into_iter().map(|request| (request, Err(error.clone()))).collect(),
        }
    }

    async fn list(
        &self,
        found_by: FoundBy,
        requests: &[&PetPageRequest],
    ) -> Result<Vec<PetPage>, StorageError> {
        let after: Vec<i64> = requests.iter().map(|request| request.starts_after()).collect();
        let limits: Vec<i64> = requests.iter().map(|request| i64::from(request.limit.get()) + 1).collect();
        let statuses: Vec<Option<PgEnum<PetStatus>>> =
            requests.iter().map(|request| request.filter.status.map(PgEnum)).collect();
        let rows = match found_by {
            FoundBy::Category(sort) => {
                let list = sort.choose(LIST_BY_CATEGORY, LIST_BY_CATEGORY_DESCENDING);
                let categories: Vec<Option<i64>> =
                    requests.iter().map(|request| request.filter.category_id.map(|id| id.0)).collect();
                self.0.read(list, &[&after, &limits, &categories, &statuses]).await?
            }
            FoundBy::Status(sort) => {
                let list = sort.choose(LIST_BY_STATUS, LIST_BY_STATUS_DESCENDING);
                self.0.read(list, &[&after, &limits, &statuses]).await?
            }
            FoundBy::Nothing(sort) => {
                self.0.read(sort.choose(LIST, LIST_DESCENDING), &[&after, &limits]).await?
            }
            FoundBy::Id | FoundBy::Reference => return Err(unexpected("named pets are not listed")),
        };
        split_into_pages(&rows, requests)
    }

    /// Finds the pets of all requests, and gives each request its own.
    async fn find_by_id(&self, requests: &[&PetPageRequest]) -> Result<Vec<PetPage>, StorageError> {
        let named = |request: &PetPageRequest| request.filter.ids.clone().unwrap_or_default();
        let found = find(&self.0, requests.iter().flat_map(|request| named(request))).await?;
        let page = |request| page_of_named(request, named(request).iter().filter_map(|id| found.get(id)));
        Ok(requests.iter().copied().map(page).collect())
    }

    /// The same for pets that are named by their references.
    async fn find_by_reference(&self, requests: &[&PetPageRequest]) -> Result<Vec<PetPage>, StorageError> {
        fn named(request: &PetPageRequest) -> impl Iterator<Item = &str> {
            request.filter.references.iter().flatten().map(Reference::as_str)
        }
        let references: HashSet<&str> = requests.iter().copied().flat_map(named).collect();
        let references: Vec<&str> = references.into_iter().collect();
        let rows = self.0.read(FIND_BY_REFERENCE, &[&references]).await?;
        let found: Vec<Versioned<Pet>> = rows.iter().map(decode_version).collect::<Result<_, _>>()?;
        let found: HashMap<&str, &Versioned<Pet>> =
            found.iter().filter_map(|pet| Some((pet.content.reference.as_ref()?.as_str(), pet))).collect();
        let page =
            |request| page_of_named(request, named(request).filter_map(|name| found.get(name).copied()));
        Ok(requests.iter().copied().map(page).collect())
    }
}

/// The page of a request, from the pets that it names. A pet may be named several times.
fn page_of_named<'a>(request: &PetPageRequest, pets: impl Iterator<Item = &'a Versioned<Pet>>) -> PetPage {
    let mut pets: Vec<&Versioned<Pet>> = pets.filter(|pet| request.asks_for(&pet.content)).collect();
    pets.sort_unstable_by_key(|pet| pet.id());
    pets.dedup_by_key(|pet| pet.id());
    Page::from_limit_plus_one(pets.into_iter().cloned().collect(), request.sort, request.limit).into()
}

fn split_into_pages(rows: &[Row], requests: &[&PetPageRequest]) -> Result<Vec<PetPage>, StorageError> {
    let mut pages: Vec<Vec<Pet>> = requests.iter().map(|_| Vec::new()).collect();
    for row in rows {
        // After the columns of the pet.
        let page = pages.get_mut(index(row, row.len() - 1)?);
        page.ok_or_else(|| unexpected("a row for an unknown request"))?.push(decode_pet(row)?);
    }
    let page = |(pets, request): (Vec<Pet>, &&PetPageRequest)| {
        Page::from_limit_plus_one(pets, request.sort, request.limit).into()
    };
    Ok(pages.into_iter().zip(requests).map(page).collect())
}
