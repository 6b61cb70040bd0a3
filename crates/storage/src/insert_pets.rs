//! SQL that inserts pets, in batches; those with an `Idempotency-Key` once, those with a reference if no pet has it.
//!
//! **Invariants:**
//! - a request with a key takes effect once: one statement stores both the pet and the key;
//! - a request without a key is never retried by the service;
//! - one failing request never fails the others of its batch.

use std::collections::{HashMap, HashSet};

use petstore_batcher::BatchHandler;
use petstore_domain::event::EventType;
use petstore_domain::idempotency::{Digest128, IdempotentRequest};
use petstore_domain::pet::{NewPet, Pet, PetId, PetStatus};
use petstore_domain::reference::Reference;
use petstore_postgres::{Database, Parameters, unexpected};
use tokio_postgres::Row;

use super::events::count_events;
use super::idempotency_keys::{StoredDigest, digest};
use super::pets::{id, index};
use super::pg_enum::PgEnum;
use super::{Storage, StorageError};

const INSERT: &str = "\
    INSERT INTO pets (name, category_id, status, reference)
    SELECT name, category_id, status, reference
    FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::text[])
      WITH ORDINALITY AS new (name, category_id, status, reference, ordinality)
    -- Ids are assigned and returned in the order of the arrays.
    ORDER BY ordinality
    RETURNING id";

/// The same, but a pet with an idempotency key is inserted only if the key has no stored result (otherwise that is returned),
/// and a pet with a reference only if no other pet has it.
const INSERT_ONCE: &str = "\
    WITH requested AS (
      -- The id is assigned here because the key and the pet both need it. (Evaluated once: it is volatile.)
      SELECT ordinality, name, category_id, status, reference, digest, fingerprint, nextval('pets_id_seq') AS id
      FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::text[], $5::uuid[], $6::uuid[])
        WITH ORDINALITY AS requested (name, category_id, status, reference, digest, fingerprint, ordinality)),
    stored AS (
      SELECT requested.digest, result.fingerprint, result.subject_id
      FROM requested
      -- LATERAL: one index search per digest, where a join might read whole partitions.
      CROSS JOIN LATERAL (
        SELECT fingerprint, subject_id
        FROM idempotency_keys
        WHERE digest = requested.digest
          -- A minute more than a day: a digest that was stored for the next day must be found until that day ends.
          AND used_at > now() - interval '24 hours 1 minute'
          -- Prunes all partitions but two.
          AND kept_on BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date
        LIMIT 1) AS result),
    days AS (
      -- Today and, in its last minute, tomorrow.
      SELECT (now() AT TIME ZONE 'UTC')::date AS day
      UNION
      SELECT ((now() + interval '1 minute') AT TIME ZONE 'UTC')::date),
    wait_limit AS MATERIALIZED (
      -- Limits each wait for a lock to a second. What may wait reads this first.
      SELECT set_config('lock_timeout', '1s', true)),
    taken AS (
      SELECT requested.reference
      FROM requested
      CROSS JOIN LATERAL (SELECT FROM pets WHERE reference = requested.reference LIMIT 1) AS other_pet),
    fresh AS (
      SELECT ordinality, name, category_id, status, reference, digest, fingerprint, id
      FROM requested
      WHERE (digest IS NULL OR digest NOT IN (SELECT digest FROM stored))
        AND (reference IS NULL OR reference NOT IN (SELECT reference FROM taken))),
    inserted_keys AS (
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id)
      SELECT digest, day, now(), fingerprint, id
      FROM fresh, days, wait_limit
      WHERE digest IS NOT NULL
      -- In the same order in every statement, so that two of them cannot deadlock.
      ORDER BY day, digest),
    inserted_pets AS (
      INSERT INTO pets (id, name, category_id, status, reference) OVERRIDING SYSTEM VALUE
      SELECT id, name, category_id, status, reference
      FROM fresh, wait_limit
      -- The references in the same order in every statement, too.
      ORDER BY reference, ordinality),
    replication_wait AS MATERIALIZED (
      -- A message in the WAL makes the commit wait for a standby, which may not have the stored result or the other pet yet.
      SELECT pg_logical_emit_message(true, 'petstore', '') AS lsn
      WHERE EXISTS (SELECT FROM stored) OR EXISTS (SELECT FROM taken))
    SELECT ordinality, id AS new_id, stored.fingerprint AS stored_fingerprint, subject_id AS stored_id,
      reference IN (SELECT reference FROM taken) AS is_taken, (SELECT lsn FROM replication_wait)
    FROM requested
    LEFT JOIN stored USING (digest)";

pub(super) const STATEMENTS: &[&str] = &[INSERT, INSERT_ONCE];

/// A pet to insert; with an idempotency key, once.
#[derive(Debug, Clone)]
pub(super) struct InsertRequest {
    pet: NewPet,
    idempotency: Option<IdempotentRequest>,
}

/// The outcome of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertOutcome {
    /// The pet was inserted.
    Inserted(Pet),
    /// An earlier request with the same key and content inserted the pet.
    Replayed(Pet),
    /// The key was used for a different request. Nothing was inserted.
    KeyReused,
    /// A request with the same key is in progress on another node. This one inserted nothing.
    InProgress,
    /// Another pet has the reference. Nothing was inserted.
    ReferenceTaken,
}

type InsertResult = Result<InsertOutcome, StorageError>;

/// Handles batches of inserts with one statement.
pub(super) struct InsertPetsBatch(pub(super) Database);

impl Storage {
    /// Inserts a pet; with an idempotency key, once.
    pub async fn insert_pet(
        &self,
        pet: NewPet,
        idempotency: Option<IdempotentRequest>,
    ) -> Result<InsertOutcome, StorageError> {
        self.insert_pet.write(InsertRequest { pet, idempotency }).await?
    }

    /// Inserts an operator's pets in one statement: all or none.
    pub async fn insert_pets(&self, pets: &[NewPet]) -> Result<(), StorageError> {
        insert(&self.database, &pets.iter().collect::<Vec<_>>()).await.map(drop)
    }
}

impl BatchHandler for InsertPetsBatch {
    type Request = InsertRequest;
    type Response = InsertResult;

    /// One statement, one commit, one flush to disk for all. Of several requests with the same key, the first is inserted.
    /// Those with the same content share its outcome, and the others are handled after it; likewise all but the first with the
    /// same reference.
    async fn handle(&self, requests: Vec<InsertRequest>) -> Vec<InsertResult> {
        let (firsts, repeats) = split_repeats(&requests);
        let mut results: HashMap<usize, InsertResult> = self.insert_all(&requests, firsts).await;
        for index in repeats {
            let idempotency = requests[index].idempotency;
            let same = |other: &usize| idempotency.is_some() && requests[*other].idempotency == idempotency;
            let result = match results.keys().copied().find(same).and_then(|same| results.get(&same)) {
                Some(Ok(InsertOutcome::Inserted(pet))) => Ok(InsertOutcome::Replayed(pet.clone())),
                Some(result) => result.clone(),
                None => self.insert_one(&requests[index]).await,
            };
            results.insert(index, result);
        }
        (0..requests.len())
            .map(|index| results.remove(&index).unwrap_or_else(|| Err(unexpected("a pet has no outcome"))))
            .collect()
    }
}

/// The indexes of the requests that can share a statement (each the first with its key and with its reference), and of the
/// others.
fn split_repeats(requests: &[InsertRequest]) -> (Vec<usize>, Vec<usize>) {
    let (mut keys, mut references) = (HashSet::new(), HashSet::new());
    (0..requests.len()).partition(|index| {
        let InsertRequest { pet, idempotency } = &requests[*index];
        idempotency.is_none_or(|key| keys.insert(key.digest))
            && pet.reference.as_ref().is_none_or(|reference| references.insert(reference))
    })
}

impl InsertRequest {
    /// Whether nothing that is stored can prevent the insert.
    fn is_plain(&self) -> bool {
        self.idempotency.is_none() && self.pet.reference.is_none()
    }
}

impl InsertPetsBatch {
    async fn insert_all(
        &self,
        requests: &[InsertRequest],
        indexes: Vec<usize>,
    ) -> HashMap<usize, InsertResult> {
        let batch: Vec<&InsertRequest> = indexes.iter().map(|index| &requests[*index]).collect();
        let results = match self.insert(&batch).await {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            // Nothing was inserted. One of the requests may be the cause, so each is tried alone.
            Err(
                StorageError::Unexpected(_)
                | StorageError::Locked(_)
                | StorageError::Raced(_)
                | StorageError::NoPartition(_),
            ) => {
                let mut results = Vec::with_capacity(batch.len());
                for request in batch {
                    results.push(self.insert_one(request).await);
                }
                results
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        indexes.into_iter().zip(results).collect()
    }

    async fn insert_one(&self, request: &InsertRequest) -> InsertResult {
        match self.insert(&[request]).await {
            Ok(mut outcomes) => outcomes.pop().ok_or_else(|| unexpected("a pet has no outcome")),
            Err(StorageError::Locked(_) | StorageError::Raced(_)) if request.idempotency.is_some() => {
                Ok(InsertOutcome::InProgress)
            }
            Err(error) => Err(error),
        }
    }

    async fn insert(&self, requests: &[&InsertRequest]) -> Result<Vec<InsertOutcome>, StorageError> {
        let pets: Vec<&NewPet> = requests.iter().map(|request| &request.pet).collect();
        if requests.iter().all(|request| request.is_plain()) {
            let ids = insert(&self.0, &pets).await?;
            let inserted =
                pets.into_iter().zip(ids).map(|(pet, id)| InsertOutcome::Inserted(pet.with_id(id)));
            return Ok(inserted.collect());
        }
        let keys: Vec<Option<IdempotentRequest>> =
            requests.iter().map(|request| request.idempotency).collect();
        let rows = match insert_once(&self.0, &pets, &keys).await {
            // Nothing was inserted, and the concurrent request has finished: the retry finds its key or its pet.
            Err(StorageError::Raced(_)) => insert_once(&self.0, &pets, &keys).await?,
            rows => rows?,
        };
        let outcomes = requests.iter().zip(rows).map(|(request, row)| match row {
            InsertedOnce::New(id) => InsertOutcome::Inserted(request.pet.with_id(id)),
            // The same request gets the same response, even if the pet has changed since.
            InsertedOnce::Stored { id, fingerprint }
                if request.idempotency.is_some_and(|key| key.fingerprint == fingerprint) =>
            {
                InsertOutcome::Replayed(request.pet.with_id(id))
            }
            InsertedOnce::Stored { .. } => InsertOutcome::KeyReused,
            InsertedOnce::ReferenceTaken => InsertOutcome::ReferenceTaken,
        });
        Ok(outcomes.collect())
    }
}

/// Inserts pets, and returns their ids in the same order.
async fn insert(database: &Database, pets: &[&NewPet]) -> Result<Vec<PetId>, StorageError> {
    let (names, categories, statuses, references) = columns(pets);
    let ids = |rows: &[Row]| {
        let ids = rows.iter().map(|row| id(row, "id")).collect::<Result<Vec<_>, _>>()?;
        let complete = ids.len() == pets.len();
        complete.then_some(ids).ok_or_else(|| unexpected("not every pet has an id"))
    };
    let ids = database.write(INSERT, &[&names, &categories, &statuses, &references], ids).await?;
    count_events(EventType::PetCreated, ids.len());
    Ok(ids)
}

/// The outcome of one row of [`insert_once`].
enum InsertedOnce {
    New(PetId),
    /// An earlier request with the same key inserted this pet, and had this fingerprint.
    Stored {
        id: PetId,
        fingerprint: Digest128,
    },
    ReferenceTaken,
}

/// Inserts pets, those with an idempotency key once, those with a reference if no pet has it. No two have the same key or the
/// same reference. The outcomes are in the same order. [`StorageError::Raced`] if a concurrent statement inserted one of the keys
/// or references.
async fn insert_once(
    database: &Database,
    pets: &[&NewPet],
    idempotency: &[Option<IdempotentRequest>],
) -> Result<Vec<InsertedOnce>, StorageError> {
    let (names, categories, statuses, references) = columns(pets);
    let stored = |key: &Option<IdempotentRequest>| {
        (key.map(|key| StoredDigest(key.digest)), key.map(|key| StoredDigest(key.fingerprint)))
    };
    let (digests, fingerprints): (Vec<_>, Vec<_>) = idempotency.iter().map(stored).unzip();
    let parameters: Parameters<'_> = &[&names, &categories, &statuses, &references, &digests, &fingerprints];
    let outcomes = |rows: &[Row]| {
        let mut outcomes: Vec<Option<InsertedOnce>> = pets.iter().map(|_| None).collect();
        for row in rows {
            let outcome = outcomes.get_mut(index(row, "ordinality")?);
            *outcome.ok_or_else(|| unexpected("a row for an unknown pet"))? = Some(inserted_once(row)?);
        }
        let complete: Option<Vec<_>> = outcomes.into_iter().collect();
        complete.ok_or_else(|| unexpected("not every pet has an outcome"))
    };
    let outcomes = database.write(INSERT_ONCE, parameters, outcomes).await?;
    let inserted = outcomes.iter().filter(|outcome| matches!(outcome, InsertedOnce::New(_)));
    count_events(EventType::PetCreated, inserted.count());
    Ok(outcomes)
}

fn inserted_once(row: &Row) -> Result<InsertedOnce, StorageError> {
    let stored = digest(row, "stored_fingerprint")?;
    let is_taken: Option<bool> = row.try_get("is_taken").map_err(unexpected)?;
    Ok(match (stored, is_taken) {
        // The pet that an earlier attempt inserted has the reference.
        (Some(fingerprint), _) => InsertedOnce::Stored { id: id(row, "stored_id")?, fingerprint },
        (None, Some(true)) => InsertedOnce::ReferenceTaken,
        (None, _) => InsertedOnce::New(id(row, "new_id")?),
    })
}

/// The columns of the pets, each as one array.
fn columns<'a>(pets: &[&'a NewPet]) -> PetColumns<'a> {
    let row = |NewPet { name, category_id, status, reference }: &'a NewPet| {
        (name.as_str(), category_id.0, status.map(PgEnum), reference.as_ref().map(Reference::as_str))
    };
    pets.iter().map(|pet| row(pet)).collect()
}

type PetColumns<'a> = (Vec<&'a str>, Vec<i64>, Vec<Option<PgEnum<PetStatus>>>, Vec<Option<&'a str>>);

#[cfg(test)]
mod tests {
    use super::*;
    use petstore_domain::pet::CategoryId;

    fn request(key: Option<u8>, fingerprint: u8, reference: Option<&str>) -> InsertRequest {
        InsertRequest {
            pet: NewPet {
                name: "Rex".to_owned().try_into().unwrap(),
                category_id: CategoryId(1),
                status: None,
                reference: reference.map(|text| text.to_owned().try_into().unwrap()),
            },
            idempotency: key.map(|key| IdempotentRequest {
                digest: Digest128([key; 16]),
                fingerprint: Digest128([fingerprint; 16]),
            }),
        }
    }

    #[test]
    fn only_the_first_with_each_key_and_reference_shares_the_statement() {
        let requests = [
            request(None, 0, None),
            request(Some(1), 1, None),
            request(Some(2), 1, Some("a")),
            request(None, 0, None),
            request(Some(1), 1, None),
            request(Some(1), 2, Some("b")),
            request(Some(3), 1, Some("a")),
            request(None, 0, Some("a")),
            request(None, 0, Some("c")),
        ];
        assert_eq!(split_repeats(&requests), (vec![0, 1, 2, 3, 8], vec![4, 5, 6, 7]));
    }
}
