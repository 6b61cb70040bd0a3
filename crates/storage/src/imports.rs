//! SQL of imports: inserts many pets, and records the keys that the source has for them.
//!
//! Rows are sent as arrays into a temporary table, and inserted from there into `pets` one chunk at a time. Not with COPY: a
//! server that waits for the rest of a COPY has an open transaction, which delays the event feed, and no timeout ends it. While
//! the server waits for the rest of an array, the transaction of a chunk has not written anything yet.
//!
//! **Invariants:**
//! - one transaction inserts the pets of a chunk and records their keys: both or neither;
//! - each key of a source is recorded once, because one import of a source runs at a time, and checks every key that could
//!   have been recorded before. A row that is rejected does not use up its key.

use std::collections::HashSet;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use petstore_config::DatabaseUrl;
use petstore_domain::import_key::{AscendingCheck, ImportKey, ImportSourceName};
use petstore_domain::pet::{NewPet, PetStatus};
use petstore_domain::reference::Reference;
use petstore_postgres::{Parameters, StatementError, StorageError, not_committed, unexpected};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Statement};

use super::demo_database_check::{IS_MARKED, UNMARK, query_bool};
use super::idempotency_keys::WAIT_FOR_STANDBY;
use super::migrations::open_migrated;
use super::partitions::CREATE_FOR_EVENTS;
use super::pg_enum::PgEnum;
use super::stored_metadata::MetadataParameter;

/// The most rows in a chunk: few enough that requests hardly wait for it, and enough that the cost of a transaction does
/// not matter.
const CHUNK_ROWS: usize = 5_000;
/// The size at which a chunk of fewer rows is full.
const CHUNK_BYTES: usize = 4 << 20;

/// A temporary table is not written to the WAL.
const CREATE_STAGED: &str = r#"
    SET temp_buffers = '64MB';
    SET jit = off;
    -- An open transaction delays the feed of events. It does not outlive an input that stops, nor a client that is gone.
    SET idle_in_transaction_session_timeout = '1min';
    SET tcp_keepalives_idle = 30;
    SET tcp_keepalives_interval = 10;
    SET tcp_keepalives_count = 3;
    CREATE TEMPORARY TABLE staged
      (position bigint, name text, category_id bigint, status pet_status, reference text, metadata jsonb,
        key text COLLATE "C")
      ON COMMIT DELETE ROWS"#;

const STAGE: &str = "\
    INSERT INTO staged (position, name, category_id, status, reference, metadata, key)
    SELECT position, name, category_id, status, reference, metadata, key
    FROM unnest($1::text[], $2::bigint[], $3::pet_status[], $4::text[], $5::jsonb[], $6::text[])
      WITH ORDINALITY AS sent (name, category_id, status, reference, metadata, key, position)";

/// Not TRUNCATE, which a read-only transaction does not allow.
const CLEAR: &str = "DELETE FROM staged";

/// Waits for other imports of the source, including one whose client is gone and whose last commit is in progress.
const LOCK_SOURCE: &str = "SELECT pg_advisory_lock(hashtextextended('petstore import ' || $1, 0))";
/// How long to wait for the lock before saying so.
const SILENT_WAIT: Duration = Duration::from_secs(2);

const HAS_RECORDED_KEYS: &str = "\
    SELECT EXISTS (SELECT FROM imported_chunks WHERE source = $1) AS has_keys";

const CREATE_KNOWN_KEYS: &str =
    r#"CREATE TEMPORARY TABLE known_keys (key text COLLATE "C" NOT NULL, position bigint)"#;
const FILL_KNOWN_KEYS: &str = "\
    INSERT INTO known_keys (key)
    SELECT unnest(keys)
    FROM imported_chunks
    WHERE source = $1";
/// After the rows: an index is built faster at once than row by row.
const INDEX_KNOWN_KEYS: &str = "ALTER TABLE known_keys ADD CONSTRAINT known_keys_pkey PRIMARY KEY (key)";

const DELETE_KNOWN: &str = "\
    WITH fresh AS (
      INSERT INTO known_keys (key, position)
      SELECT key, position
      FROM staged
      ON CONFLICT DO NOTHING
      RETURNING position)
    DELETE FROM staged
    WHERE position NOT IN (SELECT position FROM fresh)";

/// The keys of rows that were rejected.
const FORGET: &str = "DELETE FROM known_keys WHERE key = ANY ($1)";

const RECORD_KEYS: &str = "\
    INSERT INTO imported_chunks (source, keys)
    SELECT $1, array_agg(key ORDER BY position)
    FROM staged
    -- An aggregate has one row even if nothing is staged.
    HAVING count(*) > 0";

const INSERT_STAGED: &str = "\
    INSERT INTO pets (name, category_id, status, metadata)
    SELECT name, category_id, status, metadata
    FROM staged
    -- Ids are assigned in the order of the source.
    ORDER BY position";

/// The same for rows with references. Those whose reference another pet has, or an earlier row, are not inserted: they are
/// removed and returned.
const INSERT_STAGED_WITH_REFERENCES: &str = "\
    WITH inserted AS (
      INSERT INTO pets (name, category_id, status, reference, metadata)
      SELECT name, category_id, status, reference, metadata
      FROM staged
      ORDER BY position
      ON CONFLICT (reference) WHERE reference IS NOT NULL DO NOTHING
      RETURNING reference)
    DELETE FROM staged
    WHERE reference IS NOT NULL
      AND position NOT IN (SELECT min(position) FROM staged JOIN inserted USING (reference) GROUP BY reference)
    RETURNING position";

/// Held until the transaction ends, so that imports whose rows have the same references in another order do not wait for each other.
const LOCK_REFERENCES: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('petstore import of references', 0))";

/// What the statement above would not insert.
const DELETE_TAKEN: &str = "\
    DELETE FROM staged
    WHERE reference IS NOT NULL
      AND (position NOT IN (SELECT min(position) FROM staged WHERE reference IS NOT NULL GROUP BY reference)
        OR EXISTS (SELECT FROM pets WHERE pets.reference = staged.reference))
    RETURNING position";

/// A row of the source.
#[derive(Debug)]
struct SourceRow {
    line: u64,
    pet: NewPet,
    key: Option<ImportKey>,
}

impl SourceRow {
    fn key(&self) -> Option<&str> {
        self.key.as_ref().map(ImportKey::as_str)
    }

    fn reference(&self) -> Option<&str> {
        self.pet.reference.as_ref().map(Reference::as_str)
    }
}

/// Rows that are inserted together.
#[derive(Debug)]
pub struct ImportChunk {
    rows: Vec<SourceRow>,
    /// Whether all keys so far ascend, so that none of them is there twice.
    ascending: bool,
}

/// A row that was not added, because another pet has its reference.
#[derive(Debug)]
pub struct TakenReference {
    /// The line of the row.
    pub line: u64,
    /// The reference.
    pub reference: String,
}

impl TakenReference {
    fn new(row: &SourceRow) -> Self {
        Self { line: row.line, reference: row.reference().unwrap_or_default().to_owned() }
    }
}

/// What became of a chunk. The other rows were added before.
#[derive(Debug)]
pub struct AddedChunk {
    /// The number of rows that were added; in a dry run, of those that would be.
    pub added: u64,
    /// The rows that were not.
    pub taken: Vec<TakenReference>,
}

impl ImportChunk {
    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows.len() as u64
    }
}

/// Collects rows into chunks.
#[derive(Default)]
pub struct ChunkBuffer {
    rows: Vec<SourceRow>,
    bytes: usize,
    key_order: AscendingCheck,
}

impl ChunkBuffer {
    /// Adds the row of a line, and returns the chunk if it is full.
    pub fn push(&mut self, line: u64, pet: NewPet, key: Option<ImportKey>) -> Option<ImportChunk> {
        if let Some(key) = &key {
            self.key_order.push(key);
        }
        let row = SourceRow { line, pet, key };
        let texts = [Some(row.pet.name.as_str()), row.reference(), row.key()];
        self.bytes += texts.into_iter().flatten().map(str::len).sum::<usize>() + row.pet.metadata.bytes();
        self.rows.push(row);
        if self.rows.len() == CHUNK_ROWS || self.bytes >= CHUNK_BYTES { self.take() } else { None }
    }

    /// Returns the remaining rows at the end.
    pub fn take(&mut self) -> Option<ImportChunk> {
        self.bytes = 0;
        let rows = mem::take(&mut self.rows);
        (!rows.is_empty()).then(|| ImportChunk { rows, ascending: self.key_order.is_ascending() })
    }
}

/// How an import changes the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// Each chunk is a transaction.
    Chunks,
    /// All of it is one transaction.
    Atomic,
    /// Not at all: it only counts the rows whose keys are new.
    DryRun,
}

/// An import in progress, on its own connection without a deadline. If it is dropped before it finishes, it inserts no more
/// rows; in the mode `Atomic`, none at all.
pub struct ImportSession {
    client: Client,
    stage: Statement,
    source: Option<ImportSourceName>,
    mode: ImportMode,
    /// Whether the table `known_keys` is filled.
    keys_loaded: bool,
    /// Whether the one transaction of the mode `Atomic` has begun.
    has_begun: bool,
    /// Whether `petstore demo` may still use the database.
    is_for_demonstrations: bool,
}

impl ImportSession {
    /// Starts an import, from a named source if its rows have keys. Waits for other imports of the source, except in a dry
    /// run, which counts what is recorded now.
    pub async fn start(
        url: &DatabaseUrl,
        source: Option<ImportSourceName>,
        mode: ImportMode,
    ) -> Result<Self, StorageError> {
        let client = open_migrated(url).await?;
        if let Some(source) = &source
            && mode != ImportMode::DryRun
        {
            lock_source(&client, source).await.map_err(not_committed)?;
        }
        if mode != ImportMode::DryRun {
            // No node may have run for days.
            client.batch_execute(CREATE_FOR_EVENTS).await.map_err(not_committed)?;
        }
        client.batch_execute(CREATE_STAGED).await.map_err(not_committed)?;
        let stage = client.prepare(STAGE).await.map_err(not_committed)?;
        let marked = query_bool(&client, IS_MARKED).await.map_err(not_committed)?;
        let is_for_demonstrations = marked && mode != ImportMode::DryRun;
        let mut import =
            Self { client, stage, source, mode, keys_loaded: false, has_begun: false, is_for_demonstrations };
        if let Some(source) = import.source.clone() {
            let row = import.client.query_one(HAS_RECORDED_KEYS, &[&source.as_str()]).await;
            let has_keys = row.map_err(not_committed)?.try_get("has_keys").map_err(unexpected)?;
            // A dry run records no keys, so it could not load those of its own rows later.
            if has_keys || mode == ImportMode::DryRun {
                import.load_known_keys(&source).await.map_err(not_committed)?;
            }
        }
        Ok(import)
    }

    /// Inserts the rows whose keys are new and whose references are free. In the mode `Chunks`, they are committed.
    pub async fn add(&mut self, chunk: ImportChunk) -> Result<AddedChunk, StorageError> {
        let begin = match self.mode {
            ImportMode::Chunks => Some("BEGIN"),
            ImportMode::Atomic => (!mem::replace(&mut self.has_begun, true)).then_some("BEGIN"),
            // It allows writes to temporary tables only.
            ImportMode::DryRun => Some("BEGIN READ ONLY"),
        };
        if let Some(begin) = begin {
            self.client.batch_execute(begin).await.map_err(not_committed)?;
        }
        if mem::take(&mut self.is_for_demonstrations) {
            self.client.batch_execute(UNMARK).await.map_err(mark_kept)?;
        }
        let added = self.insert_chunk(chunk).await?;
        if self.mode == ImportMode::Atomic {
            self.client.batch_execute("TRUNCATE staged").await.map_err(not_committed)?;
        } else {
            self.commit().await?;
        }
        Ok(added)
    }

    /// Ends the import; in the mode `Atomic`, commits it.
    pub async fn finish(self) -> Result<(), StorageError> {
        if self.mode == ImportMode::DryRun {
            return Ok(());
        }
        // If all rows were there already, nothing else makes a commit wait.
        self.client.batch_execute(WAIT_FOR_STANDBY).await.map_err(not_committed)?;
        if self.has_begun { self.commit().await } else { Ok(()) }
    }

    async fn commit(&self) -> Result<(), StorageError> {
        self.client
            .batch_execute("COMMIT")
            .await
            .map_err(|error| StatementError::Sent(error).into_write_error())
    }

    async fn insert_chunk(&mut self, chunk: ImportChunk) -> Result<AddedChunk, StorageError> {
        let ImportChunk { mut rows, ascending } = chunk;
        if let Some(source) = self.source.clone()
            && !self.keys_loaded
            && !ascending
        {
            self.load_known_keys(&source).await.map_err(not_committed)?;
        }
        let mut outcome = AddedChunk { added: 0, taken: Vec::new() };
        while !rows.is_empty() {
            let (first, repeated) = if ascending { (rows, Vec::new()) } else { first_of_each_key(rows) };
            let (added, taken) = self.insert_rows(&first).await?;
            outcome.added += added;
            // A row that is rejected does not count: the next row with its key is tried.
            let open_keys: HashSet<&str> = taken.iter().filter_map(|row| row.key()).collect();
            rows = repeated
                .into_iter()
                .filter(|row| row.key().is_some_and(|key| open_keys.contains(key)))
                .collect();
            outcome.taken.extend(taken.into_iter().map(TakenReference::new));
            if !rows.is_empty() {
                self.client.execute(CLEAR, &[]).await.map_err(not_committed)?;
            }
        }
        outcome.taken.sort_by_key(|taken| taken.line);
        Ok(outcome)
    }

    /// Inserts rows with different keys. Returns the number of rows that were added, and those whose references are taken.
    async fn insert_rows<'a>(
        &self,
        rows: &'a [SourceRow],
    ) -> Result<(u64, Vec<&'a SourceRow>), StorageError> {
        let known = self.stage(rows).await.map_err(not_committed)?;
        let has_references = rows.iter().any(|row| row.pet.reference.is_some());
        if has_references && self.mode != ImportMode::DryRun {
            self.client.execute(LOCK_REFERENCES, &[]).await.map_err(not_committed)?;
        }
        let taken = match (has_references, self.mode) {
            (true, ImportMode::DryRun) => self.client.query(DELETE_TAKEN, &[]).await,
            (true, _) => self.client.query(INSERT_STAGED_WITH_REFERENCES, &[]).await,
            (false, ImportMode::DryRun) => Ok(Vec::new()),
            (false, _) => self.client.execute(INSERT_STAGED, &[]).await.map(|_| Vec::new()),
        };
        let taken = taken.map_err(not_committed)?;
        let taken = taken.iter().map(|row| at_position(row, rows)).collect::<Result<Vec<_>, _>>()?;
        if let Some(source) = &self.source
            && self.mode != ImportMode::DryRun
        {
            self.client.execute(RECORD_KEYS, &[&source.as_str()]).await.map_err(not_committed)?;
        }
        if self.keys_loaded && !taken.is_empty() {
            let keys: Vec<Option<&str>> = taken.iter().map(|row| row.key()).collect();
            self.client.execute(FORGET, &[&keys]).await.map_err(not_committed)?;
        }
        Ok((rows.len() as u64 - known - taken.len() as u64, taken))
    }

    /// Sends the rows to the table `staged`, less those whose keys are known, and returns the number of these.
    async fn stage(&self, rows: &[SourceRow]) -> Result<u64, tokio_postgres::Error> {
        let names: Vec<&str> = rows.iter().map(|row| row.pet.name.as_str()).collect();
        let categories: Vec<i64> = rows.iter().map(|row| row.pet.category_id.0).collect();
        let statuses: Vec<Option<PgEnum<PetStatus>>> =
            rows.iter().map(|row| row.pet.status.map(PgEnum)).collect();
        let references: Vec<Option<&str>> = rows.iter().map(SourceRow::reference).collect();
        let metadata: Vec<MetadataParameter<'_>> =
            rows.iter().map(|row| MetadataParameter(&row.pet.metadata)).collect();
        let keys: Vec<Option<&str>> = rows.iter().map(SourceRow::key).collect();
        let parameters: Parameters<'_> = &[&names, &categories, &statuses, &references, &metadata, &keys];
        self.client.execute(&self.stage, parameters).await?;
        if self.keys_loaded { self.client.execute(DELETE_KNOWN, &[]).await } else { Ok(0) }
    }

    /// Loads the recorded keys of the source, including those of this import. From then on every key is checked. Takes time
    /// in proportion to their number, so it is done only if keys were recorded before, or are not in ascending order.
    async fn load_known_keys(&mut self, source: &ImportSourceName) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(CREATE_KNOWN_KEYS).await?;
        self.client.execute(FILL_KNOWN_KEYS, &[&source.as_str()]).await?;
        self.client.batch_execute(INDEX_KNOWN_KEYS).await?;
        self.keys_loaded = true;
        Ok(())
    }
}

/// Only the owner of the tables can remove the mark. Without that, a demo would use these pets.
fn mark_kept(error: tokio_postgres::Error) -> StorageError {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return not_committed(error);
    }
    let problem = "the database was used by `petstore demo`, and only the owner of its tables can end that: run this command as \
        the owner";
    StorageError::Unusable(problem.into())
}

/// Splits rows into the first of each key and the others, both in their order.
fn first_of_each_key(rows: Vec<SourceRow>) -> (Vec<SourceRow>, Vec<SourceRow>) {
    let mut seen = HashSet::new();
    rows.into_iter().partition(|row| row.key().is_none_or(|key| seen.insert(key.to_owned())))
}

fn at_position<'a>(found: &Row, rows: &'a [SourceRow]) -> Result<&'a SourceRow, StorageError> {
    let position: i64 = found.try_get("position").map_err(unexpected)?;
    let row = usize::try_from(position - 1).ok().and_then(|index| rows.get(index));
    row.ok_or_else(|| unexpected("a row that was not sent"))
}

async fn lock_source(client: &Client, source: &ImportSourceName) -> Result<(), tokio_postgres::Error> {
    let name = source.as_str();
    let parameters: Parameters<'_> = &[&name];
    let mut locked = pin!(client.execute(LOCK_SOURCE, parameters));
    if let Ok(locked) = timeout(SILENT_WAIT, &mut locked).await {
        return locked.map(drop);
    }
    tracing::info!("waiting for another import of the same source to finish");
    locked.await.map(drop)
}
