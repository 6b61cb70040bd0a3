//! SQL of imports: inserts many pets, and records the keys that the source has for them.
//!
//! Rows are copied into a temporary table, and inserted from there into `pets` one chunk at a time. The chunks are encoded
//! here rather than by the driver's `BinaryCopyInWriter`, which needs the connection: so a reading thread encodes a chunk
//! while the server inserts the previous one.
//!
//! **Invariants:**
//! - one transaction inserts the pets of a chunk and records their keys: both or neither;
//! - each key of a source is recorded once, because one import of a source runs at a time, and checks every key that could
//!   have been recorded before.

use std::mem;
use std::pin::pin;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use petstore_config::DatabaseUrl;
use petstore_domain::import_key::{AscendingCheck, ImportKey, ImportSource};
use petstore_domain::pet::NewPet;
use petstore_postgres::{Parameters, StatementError, not_committed, unexpected};
use tokio::time::timeout;
use tokio_postgres::{Client, Row, Statement};

use super::StorageError;
use super::migrations::open_migrated;
use super::partitions::CREATE_FOR_EVENTS;

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
      (position integer, name text, category_id bigint, status pet_status, reference text, key text COLLATE "C")
      ON COMMIT DELETE ROWS"#;

const COPY: &str =
    "COPY staged (position, name, category_id, status, reference, key) FROM STDIN (FORMAT binary)";

/// Waits for other imports of the source, including one whose client is gone and whose last commit is in progress.
const LOCK_SOURCE: &str = "SELECT pg_advisory_lock(hashtextextended('petstore import ' || $1, 0))";
/// How long to wait for the lock before saying so.
const SILENT_WAIT: Duration = Duration::from_secs(2);

const HAS_RECORDED_KEYS: &str = "\
    SELECT EXISTS (SELECT FROM imported_chunks WHERE source = $1) AS has_keys";

const CREATE_KNOWN_KEYS: &str =
    r#"CREATE TEMPORARY TABLE known_keys (key text COLLATE "C" NOT NULL, position integer)"#;
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
      ORDER BY position
      -- Skips known keys, and of equal keys within the chunk all but the first.
      ON CONFLICT DO NOTHING
      RETURNING position)
    DELETE FROM staged
    WHERE position NOT IN (SELECT position FROM fresh)";

const RECORD_KEYS: &str = "\
    INSERT INTO imported_chunks (source, keys)
    SELECT $1, array_agg(key ORDER BY position)
    FROM staged
    -- An aggregate has one row even if nothing is staged.
    HAVING count(*) > 0";

const INSERT_STAGED: &str = "\
    INSERT INTO pets (name, category_id, status)
    SELECT name, category_id, status
    FROM staged
    -- Ids are assigned in the order of the source.
    ORDER BY position";

/// The same for rows with references. Those whose reference another pet has, or an earlier row, are not inserted: they are
/// removed and returned.
const INSERT_STAGED_WITH_REFERENCES: &str = "\
    WITH inserted AS (
      INSERT INTO pets (name, category_id, status, reference)
      SELECT name, category_id, status, reference
      FROM staged
      ORDER BY position
      ON CONFLICT (reference) WHERE reference IS NOT NULL DO NOTHING
      RETURNING reference)
    DELETE FROM staged
    WHERE reference IS NOT NULL
      AND position NOT IN (SELECT min(position) FROM staged JOIN inserted USING (reference) GROUP BY reference)
    RETURNING position, reference";

/// What the statement above would not insert.
const DELETE_TAKEN: &str = "\
    DELETE FROM staged
    WHERE reference IS NOT NULL
      AND (position NOT IN (SELECT min(position) FROM staged WHERE reference IS NOT NULL GROUP BY reference)
        OR EXISTS (SELECT FROM pets WHERE pets.reference = staged.reference))
    RETURNING position, reference";

/// If all rows were there already, nothing else makes a commit wait for a standby.
const AWAIT_REPLICATION: &str = "SELECT pg_logical_emit_message(true, 'petstore', '')";

/// Rows in the format of PostgreSQL's binary COPY.
#[derive(Debug)]
pub struct CopyChunk {
    copy: Bytes,
    /// The line of each row.
    lines: Vec<u64>,
    has_references: bool,
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

/// What became of a chunk. The other rows were added before.
#[derive(Debug)]
pub struct AddedChunk {
    /// The number of rows that were added; in a dry run, of those that would be.
    pub added: u64,
    /// The rows that were not.
    pub taken: Vec<TakenReference>,
}

impl CopyChunk {
    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.lines.len() as u64
    }
}

/// Encodes rows into chunks.
#[derive(Default)]
pub struct CopyBuffer {
    copy: BytesMut,
    lines: Vec<u64>,
    has_references: bool,
    key_order: AscendingCheck,
}

/// The header of a binary COPY: a signature, no flags, no extension.
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// The end of a binary COPY, in place of the number of fields.
const COPY_TRAILER: i16 = -1;
const NULL: i32 = -1;

impl CopyBuffer {
    /// Adds the row of a line, and returns the chunk if it is full.
    pub fn push(&mut self, line: u64, pet: &NewPet, key: Option<&ImportKey>) -> Option<CopyChunk> {
        if self.lines.is_empty() {
            self.copy.reserve(64 * 1024);
            self.copy.put_slice(COPY_HEADER);
        }
        self.lines.push(line);
        let position = i32::try_from(self.lines.len()).unwrap_or(i32::MAX);
        let NewPet { name, category_id, status, reference } = pet;
        self.has_references |= reference.is_some();
        // In the order of the columns in COPY.
        put_row(
            &mut self.copy,
            [
                Some(&position.to_be_bytes()),
                Some(name.as_str().as_bytes()),
                Some(&category_id.0.to_be_bytes()),
                status.map(|status| status.as_str().as_bytes()),
                reference.as_ref().map(|reference| reference.as_str().as_bytes()),
                key.map(|key| key.as_str().as_bytes()),
            ],
        );
        if let Some(key) = key {
            self.key_order.push(key);
        }
        if self.lines.len() == CHUNK_ROWS || self.copy.len() >= CHUNK_BYTES { self.take() } else { None }
    }

    /// Returns the remaining rows at the end.
    pub fn take(&mut self) -> Option<CopyChunk> {
        if self.lines.is_empty() {
            return None;
        }
        self.copy.put_i16(COPY_TRAILER);
        Some(CopyChunk {
            copy: self.copy.split().freeze(),
            lines: mem::take(&mut self.lines),
            has_references: mem::take(&mut self.has_references),
            ascending: self.key_order.is_ascending(),
        })
    }
}

fn put_row<const FIELDS: usize>(copy: &mut BytesMut, row: [Option<&[u8]>; FIELDS]) {
    copy.put_i16(i16::try_from(FIELDS).unwrap_or(i16::MAX));
    for field in row {
        // The domain types limit the length of every field.
        copy.put_i32(field.map_or(NULL, |field| i32::try_from(field.len()).unwrap_or(i32::MAX)));
        copy.put_slice(field.unwrap_or_default());
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
    copy: Statement,
    source: Option<ImportSource>,
    mode: ImportMode,
    /// Whether the table `known_keys` is filled.
    keys_loaded: bool,
    /// Whether the one transaction of the mode `Atomic` has begun.
    has_begun: bool,
}

impl ImportSession {
    /// Starts an import, from a named source if its rows have keys. Waits for other imports of the source, except in a dry
    /// run, which counts what is recorded now.
    pub async fn start(
        url: &DatabaseUrl,
        source: Option<ImportSource>,
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
        let copy = client.prepare(COPY).await.map_err(not_committed)?;
        let mut import = Self { client, copy, source, mode, keys_loaded: false, has_begun: false };
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
    pub async fn add(&mut self, chunk: CopyChunk) -> Result<AddedChunk, StorageError> {
        let begin = match self.mode {
            ImportMode::Chunks => Some("BEGIN"),
            ImportMode::Atomic => (!mem::replace(&mut self.has_begun, true)).then_some("BEGIN"),
            // It allows writes to temporary tables only.
            ImportMode::DryRun => Some("BEGIN READ ONLY"),
        };
        if let Some(begin) = begin {
            self.client.batch_execute(begin).await.map_err(not_committed)?;
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
        self.client.batch_execute(AWAIT_REPLICATION).await.map_err(not_committed)?;
        if self.has_begun { self.commit().await } else { Ok(()) }
    }

    async fn commit(&self) -> Result<(), StorageError> {
        self.client
            .batch_execute("COMMIT")
            .await
            .map_err(|error| StatementError::Sent(error).into_write_error())
    }

    async fn insert_chunk(&mut self, chunk: CopyChunk) -> Result<AddedChunk, StorageError> {
        let rows = chunk.rows();
        let CopyChunk { copy, lines, has_references, ascending } = chunk;
        let known = self.stage(copy, ascending).await.map_err(not_committed)?;
        let taken = match (has_references, self.mode) {
            (true, ImportMode::DryRun) => self.client.query(DELETE_TAKEN, &[]).await,
            (true, _) => self.client.query(INSERT_STAGED_WITH_REFERENCES, &[]).await,
            (false, ImportMode::DryRun) => Ok(Vec::new()),
            (false, _) => self.client.execute(INSERT_STAGED, &[]).await.map(|_| Vec::new()),
        };
        let taken = taken.map_err(not_committed)?;
        if let Some(source) = &self.source
            && self.mode != ImportMode::DryRun
        {
            self.client.execute(RECORD_KEYS, &[&source.as_str()]).await.map_err(not_committed)?;
        }
        let taken = taken.iter().map(|row| taken_reference(row, &lines)).collect::<Result<Vec<_>, _>>()?;
        Ok(AddedChunk { added: rows - known - taken.len() as u64, taken })
    }

    /// Sends the rows to the table `staged`, less those whose keys are known, and returns the number of these.
    async fn stage(&mut self, rows: Bytes, ascending: bool) -> Result<u64, tokio_postgres::Error> {
        if let Some(source) = self.source.clone()
            && !self.keys_loaded
            && !ascending
        {
            self.load_known_keys(&source).await?;
        }
        let mut sink = pin!(self.client.copy_in(&self.copy).await?);
        sink.send(rows).await?;
        sink.finish().await?;
        if self.keys_loaded { self.client.execute(DELETE_KNOWN, &[]).await } else { Ok(0) }
    }

    /// Loads the recorded keys of the source, including those of this import. From then on every key is checked. Takes time
    /// in proportion to their number, so it is done only if keys were recorded before, or are not in ascending order.
    async fn load_known_keys(&mut self, source: &ImportSource) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(CREATE_KNOWN_KEYS).await?;
        self.client.execute(FILL_KNOWN_KEYS, &[&source.as_str()]).await?;
        self.client.batch_execute(INDEX_KNOWN_KEYS).await?;
        self.keys_loaded = true;
        Ok(())
    }
}

fn taken_reference(row: &Row, lines: &[u64]) -> Result<TakenReference, StorageError> {
    let position: i32 = row.try_get("position").map_err(unexpected)?;
    let line = usize::try_from(position - 1).ok().and_then(|index| lines.get(index));
    let line = *line.ok_or_else(|| unexpected("a row that was not sent"))?;
    Ok(TakenReference { line, reference: row.try_get("reference").map_err(unexpected)? })
}

async fn lock_source(client: &Client, source: &ImportSource) -> Result<(), tokio_postgres::Error> {
    let name = source.as_str();
    let parameters: Parameters<'_> = &[&name];
    let mut locked = pin!(client.execute(LOCK_SOURCE, parameters));
    if let Ok(locked) = timeout(SILENT_WAIT, &mut locked).await {
        return locked.map(drop);
    }
    tracing::info!("waiting for another import of the same source to finish");
    locked.await.map(drop)
}
