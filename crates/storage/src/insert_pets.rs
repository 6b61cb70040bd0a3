//! SQL that inserts pets: those with an `Idempotency-Key` once, those with a reference if no pet has it. The requests that share
//! these statements are in [`create_pet_queue`](super::create_pet_queue).
//!
//! **Invariant:** a request with a key takes effect once: one statement stores both the pet and the key.

use std::time::Duration;

use petstore_domain::event::EventType;
use petstore_domain::idempotency::{Digest128, IdempotentRequest};
use petstore_domain::pet::{NewPet, PetId, PetStatus};
use petstore_domain::reference::Reference;
use petstore_domain::version::Version;
use petstore_postgres::{Database, Parameters, StorageError, WaitLimit, unexpected};
use tokio::time::Instant;
use tokio_postgres::Row;

use super::events::count_events;
use super::idempotency_keys::{DigestAsUuid, decode_digest};
use super::pets::{id, index};
use super::pg_enum::PgEnum;
use super::row_version::VersionColumn;
use super::storage::Storage;
use super::stored_metadata::MetadataParameter;

const INSERT: &str = "\
    WITH requested AS (
      -- The id is assigned here, because the order of the rows that an INSERT returns is not defined. (Evaluated once: it is
      -- volatile.)
      SELECT ordinality, name, category_id, status, reference, metadata, nextval('pets_id_seq') AS id
      FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::text[], $5::jsonb[])
        WITH ORDINALITY AS requested (name, category_id, status, reference, metadata, ordinality)),
    inserted AS (
      INSERT INTO pets (id, name, category_id, status, reference, metadata) OVERRIDING SYSTEM VALUE
      SELECT id, name, category_id, status, reference, metadata
      FROM requested)
    -- The version of the rows, since they are not inserted in a subtransaction. (RETURNING xmin, with the join that it needs, takes a
    -- tenth more time.)
    SELECT ordinality, id, pg_current_xact_id()::xid AS version
    FROM requested";

/// The same, but a pet with an idempotency key is inserted only if the key has no stored result (otherwise that is returned),
/// and a pet with a reference only if no other pet has it. `$8` limits each wait for a lock, in milliseconds.
const INSERT_ONCE: &str = "\
    WITH requested AS (
      -- The id is assigned here because the key and the pet both need it. (Evaluated once: it is volatile.)
      SELECT ordinality, name, category_id, status, reference, metadata, digest, fingerprint, nextval('pets_id_seq') AS id
      FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::text[], $5::jsonb[], $6::uuid[], $7::uuid[])
        WITH ORDINALITY
        AS requested (name, category_id, status, reference, metadata, digest, fingerprint, ordinality)),
    stored AS (
      SELECT digest, fingerprint, subject_id, version
      FROM stored_results_with_versions($6::uuid[])),
    wait_limit AS MATERIALIZED (
      -- Limits each wait for a lock. What may wait reads this first.
      SELECT set_config('lock_timeout', $8::bigint::text, true)),
    taken AS (
      SELECT requested.reference
      FROM requested
      CROSS JOIN LATERAL (SELECT FROM pets WHERE reference = requested.reference LIMIT 1) AS other_pet),
    fresh AS (
      SELECT ordinality, name, category_id, status, reference, metadata, digest, fingerprint, id
      FROM requested
      WHERE (digest IS NULL OR digest NOT IN (SELECT digest FROM stored))
        AND (reference IS NULL OR reference NOT IN (SELECT reference FROM taken))),
    inserted_keys AS (
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id)
      SELECT digest, day, now(), fingerprint, id
      FROM fresh, result_days() AS day, wait_limit
      WHERE digest IS NOT NULL
      -- In the same order in every statement, so that two of them cannot deadlock.
      ORDER BY day, digest),
    inserted_pets AS (
      INSERT INTO pets (id, name, category_id, status, reference, metadata) OVERRIDING SYSTEM VALUE
      SELECT id, name, category_id, status, reference, metadata
      FROM fresh, wait_limit
      -- The references in the same order in every statement, too.
      ORDER BY reference, ordinality),
    replication_wait AS MATERIALIZED (
      -- A message in the WAL makes the commit wait for a standby, which may not have the stored result or the other pet yet.
      SELECT pg_logical_emit_message(true, 'petstore', '') AS lsn
      WHERE EXISTS (SELECT FROM stored) OR EXISTS (SELECT FROM taken))
    SELECT ordinality, id AS new_id, stored.fingerprint AS stored_fingerprint, subject_id AS stored_id,
      reference IN (SELECT reference FROM taken) AS is_taken, (SELECT lsn FROM replication_wait),
      coalesce(stored.version, pg_current_xact_id()::xid) AS version
    FROM requested
    LEFT JOIN stored USING (digest)";

pub(super) const STATEMENTS: &[&str] = &[INSERT, INSERT_ONCE];

impl Storage {
    /// Inserts an operator's pets in one statement: all or none.
    pub async fn insert_pets(&self, pets: &[NewPet]) -> Result<(), StorageError> {
        insert(&self.database, &pets.iter().collect::<Vec<_>>()).await.map(drop)
    }
}

/// How long a statement may wait for a lock of another transaction.
#[derive(Clone, Copy)]
pub(super) enum LockWait<'a> {
    /// For this long, on any connection for writes.
    AtMost(Duration),
    /// On one of the few connections that may wait.
    Until(&'a WaitLimit, Instant),
}

/// Inserts pets, and returns their ids and versions in the same order.
pub(super) async fn insert(
    database: &Database,
    pets: &[&NewPet],
) -> Result<Vec<(PetId, Version)>, StorageError> {
    let (names, categories, statuses, references, metadata) = columns(pets);
    let ids = |rows: &[Row]| by_ordinality(rows, pets.len(), |row| Ok((id(row, "id")?, version(row)?)));
    let parameters: Parameters<'_> = &[&names, &categories, &statuses, &references, &metadata];
    let ids = database.write(INSERT, parameters, ids).await?;
    count_events(EventType::PetCreated, ids.len());
    Ok(ids)
}

/// The outcome of one row of [`insert_once`].
pub(super) enum InsertedOnce {
    New(PetId, Version),
    /// An earlier request with the same key inserted this version of this pet, and had this fingerprint.
    Stored {
        id: PetId,
        version: Version,
        fingerprint: Digest128,
    },
    ReferenceTaken,
}

/// Inserts pets, those with an idempotency key once, those with a reference if no pet has it. No two have the same key or the
/// same reference. The outcomes are in the same order. [`StorageError::Raced`] if a concurrent statement inserted one of the keys
/// or references, [`StorageError::Locked`] if one is about to.
pub(super) async fn insert_once(
    database: &Database,
    pets: &[&NewPet],
    idempotency: &[Option<IdempotentRequest>],
    lock_wait: LockWait<'_>,
) -> Result<Vec<InsertedOnce>, StorageError> {
    let (names, categories, statuses, references, metadata) = columns(pets);
    let stored = |key: &Option<IdempotentRequest>| {
        (key.map(|key| DigestAsUuid(key.digest)), key.map(|key| DigestAsUuid(key.fingerprint)))
    };
    let (digests, fingerprints): (Vec<_>, Vec<_>) = idempotency.iter().map(stored).unzip();
    let limit = match lock_wait {
        LockWait::AtMost(limit) => limit,
        LockWait::Until(_, deadline) => deadline.saturating_duration_since(Instant::now()),
    };
    // 0 would be no limit.
    let milliseconds = i64::try_from(limit.as_millis()).map_err(unexpected)?.max(1);
    let parameters: Parameters<'_> =
        &[&names, &categories, &statuses, &references, &metadata, &digests, &fingerprints, &milliseconds];
    let outcomes = |rows: &[Row]| by_ordinality(rows, pets.len(), decode_insert_once);
    let outcomes = match lock_wait {
        LockWait::AtMost(_) => database.write(INSERT_ONCE, parameters, outcomes).await?,
        LockWait::Until(waits, deadline) => {
            database.write_waiting((waits, deadline), INSERT_ONCE, parameters, outcomes).await?
        }
    };
    let inserted = outcomes.iter().filter(|outcome| matches!(outcome, InsertedOnce::New(..)));
    count_events(EventType::PetCreated, inserted.count());
    Ok(outcomes)
}

/// Decodes one row per pet, in the order of the arrays that were sent.
fn by_ordinality<T>(
    rows: &[Row],
    pets: usize,
    decode: impl Fn(&Row) -> Result<T, StorageError>,
) -> Result<Vec<T>, StorageError> {
    let mut decoded: Vec<Option<T>> = (0..pets).map(|_| None).collect();
    for row in rows {
        let place = decoded.get_mut(index(row, "ordinality")?);
        *place.ok_or_else(|| unexpected("a row for an unknown pet"))? = Some(decode(row)?);
    }
    let complete: Option<Vec<T>> = decoded.into_iter().collect();
    complete.ok_or_else(|| unexpected("not every pet has a row"))
}

fn decode_insert_once(row: &Row) -> Result<InsertedOnce, StorageError> {
    let stored = decode_digest(row, "stored_fingerprint")?;
    let is_taken: Option<bool> = row.try_get("is_taken").map_err(unexpected)?;
    Ok(match (stored, is_taken) {
        // The pet that an earlier attempt inserted has the reference.
        (Some(fingerprint), _) => {
            InsertedOnce::Stored { id: id(row, "stored_id")?, version: version(row)?, fingerprint }
        }
        (None, Some(true)) => InsertedOnce::ReferenceTaken,
        (None, _) => InsertedOnce::New(id(row, "new_id")?, version(row)?),
    })
}

fn version(row: &Row) -> Result<Version, StorageError> {
    row.try_get("version").map(|VersionColumn(version)| version).map_err(unexpected)
}

/// The columns of the pets, each as one array.
fn columns<'a>(pets: &[&'a NewPet]) -> PetColumns<'a> {
    let row = |NewPet { name, category_id, status, reference, metadata }: &'a NewPet| {
        let reference = reference.as_ref().map(Reference::as_str);
        (name.as_str(), category_id.0, status.map(PgEnum), reference, MetadataParameter(metadata))
    };
    pets.iter().map(|pet| row(pet)).collect()
}

type PetColumns<'a> = (
    Vec<&'a str>,
    Vec<i64>,
    Vec<Option<PgEnum<PetStatus>>>,
    Vec<Option<&'a str>>,
    Vec<MetadataParameter<'a>>,
);
