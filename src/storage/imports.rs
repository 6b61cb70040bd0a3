//! SQL of imports: many animals at once, from a source that may have keys for them, and what is remembered of it.
//!
//! Rows are copied into a table of the connection's own, and moved from there into `pets` a chunk at a time.
//!
//! **Invariants:**
//! - the animals of a chunk and the memory of their keys are one transaction: both are kept or neither;
//! - the keys of a source are remembered once each, because one import of a source runs at a time, and looks for every
//!   key that could be there already.

use std::pin::pin;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use tokio::time::timeout;
use tokio_postgres::{Client, Statement};

use super::StorageError;
use super::postgres::connect::Connector;
use super::postgres::database::Parameters;
use super::postgres::error::{Failure, unexpected};
use super::postgres::migrations::{SCHEMA_NEEDED, check_version, schema_version};
use crate::config::DatabaseUrl;
use crate::domain::import_source::{AscendingCheck, SourceKey, SourceName};
use crate::domain::pet::NewPet;

/// How many rows are moved at once: few enough that requests hardly wait behind them, and enough that what a transaction
/// costs does not count.
const CHUNK_ROWS: i32 = 5_000;
/// Or how many bytes, if the rows are long.
const CHUNK_BYTES: usize = 4 << 20;

/// In memory on the server, never in its log of writes.
const STAGE: &str = "\
    SET temp_buffers = '64MB'; SET jit = off; \
    CREATE TEMPORARY TABLE staged (place integer, name text, category_id bigint, status pet_status, \
      key text COLLATE \"C\") ON COMMIT DELETE ROWS";

const COPY: &str = "COPY staged (place, name, category_id, status, key) FROM STDIN (FORMAT binary)";

/// Waits until no other import of the source runs, also one whose client is gone and whose last commit is under way.
const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended('petstore import ' || $1, 0))";
/// How long to wait for that in silence.
const SILENCE: Duration = Duration::from_secs(2);

const IS_KNOWN: &str = "SELECT EXISTS (SELECT FROM imported_chunks WHERE source = $1)";

const MAKE_KNOWN: &str = "CREATE TEMPORARY TABLE known (key text COLLATE \"C\" NOT NULL, place integer)";
const FILL_KNOWN: &str = "INSERT INTO known (key) SELECT unnest(keys) FROM imported_chunks WHERE source = $1";
const INDEX_KNOWN: &str = "ALTER TABLE known ADD CONSTRAINT known_pkey PRIMARY KEY (key)";

/// Leaves of the staged rows the first of each key, and that only if its key was not known.
const LEAVE_UNKNOWN: &str = "\
    WITH fresh AS ( \
      INSERT INTO known (key, place) SELECT key, place FROM staged ORDER BY place \
      ON CONFLICT DO NOTHING RETURNING place) \
    DELETE FROM staged WHERE place NOT IN (SELECT place FROM fresh)";

const REMEMBER: &str = "\
    INSERT INTO imported_chunks (source, keys) \
    SELECT $1, array_agg(key ORDER BY place) FROM staged HAVING count(*) > 0";

/// In the order of the source, so that ids are in it too.
const MOVE: &str = "\
    INSERT INTO pets (name, category_id, status) SELECT name, category_id, status FROM staged ORDER BY place";

/// Rows on their way, as PostgreSQL's binary COPY has them.
#[derive(Debug)]
pub struct CopyChunk {
    copy: Bytes,
    rows: i32,
    ascending: bool,
}

impl CopyChunk {
    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows.unsigned_abs().into()
    }
}

/// Gathers rows to chunks.
#[derive(Default)]
pub struct CopyBuffer {
    copy: BytesMut,
    rows: i32,
    key_order: AscendingCheck,
}

/// What a binary COPY begins with: a signature, no flags, no extension.
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// And ends with, in place of a number of fields.
const COPY_TRAILER: i16 = -1;
const NULL: i32 = -1;

impl CopyBuffer {
    /// Adds a row, and returns a chunk if that was enough for one.
    pub fn push(&mut self, pet: &NewPet, key: Option<&SourceKey>) -> Option<CopyChunk> {
        if self.rows == 0 {
            self.copy.reserve(64 * 1024);
            self.copy.put_slice(COPY_HEADER);
        }
        self.rows += 1;
        self.copy.put_i16(5);
        put(&mut self.copy, &self.rows.to_be_bytes());
        put(&mut self.copy, pet.name.as_str().as_bytes());
        put(&mut self.copy, &pet.category_id.0.to_be_bytes());
        match pet.status {
            Some(status) => put(&mut self.copy, status.as_str().as_bytes()),
            None => self.copy.put_i32(NULL),
        }
        match key {
            Some(key) => {
                put(&mut self.copy, key.as_str().as_bytes());
                self.key_order.push(key);
            }
            None => self.copy.put_i32(NULL),
        }
        if self.rows == CHUNK_ROWS || self.copy.len() >= CHUNK_BYTES { self.take() } else { None }
    }

    /// The rows that are left at the end.
    pub fn take(&mut self) -> Option<CopyChunk> {
        if self.rows == 0 {
            return None;
        }
        self.copy.put_i16(COPY_TRAILER);
        let copy = self.copy.split().freeze();
        Some(CopyChunk {
            copy,
            rows: std::mem::take(&mut self.rows),
            ascending: self.key_order.is_ascending(),
        })
    }
}

fn put(copy: &mut BytesMut, field: &[u8]) {
    // Every field is bounded by the domain.
    copy.put_i32(i32::try_from(field.len()).unwrap_or(i32::MAX));
    copy.put_slice(field);
}

/// An import under way, on a connection of its own without a deadline. Dropped before its end, it adds nothing that it
/// has not added yet: with `atomic` nothing at all.
pub struct Import {
    client: Client,
    copy: Statement,
    source: Option<SourceName>,
    atomic: bool,
    /// Whether the source's keys are at hand in the table `known`.
    known: bool,
}

impl Import {
    /// Prepares for chunks of a source, if it has keys; with `atomic`, all of them in one transaction.
    pub async fn start(
        url: &DatabaseUrl,
        source: Option<SourceName>,
        atomic: bool,
    ) -> Result<Self, StorageError> {
        let client = Connector::new(url).map_err(unexpected)?.open().await?;
        let found = schema_version(&client).await.map_err(not_sent)?;
        check_version(found, SCHEMA_NEEDED).map_err(StorageError::SchemaTooOld)?;
        if let Some(source) = &source {
            lock(&client, source).await.map_err(not_sent)?;
        }
        if atomic {
            client.batch_execute("BEGIN").await.map_err(not_sent)?;
        }
        client.batch_execute(STAGE).await.map_err(not_sent)?;
        let copy = client.prepare(COPY).await.map_err(not_sent)?;
        let mut import = Self { client, copy, source, atomic, known: false };
        if let Some(source) = import.source.clone() {
            let is_known = import.client.query_one(IS_KNOWN, &[&source.as_str()]).await.map_err(not_sent)?;
            if is_known.try_get(0).map_err(unexpected)? {
                import.get_to_know(&source).await.map_err(not_sent)?;
            }
        }
        Ok(import)
    }

    /// Adds what is not there yet, and returns how many rows that was. Without `atomic`, they are there for good.
    pub async fn add(&mut self, chunk: CopyChunk) -> Result<u64, StorageError> {
        if !self.atomic {
            self.client.batch_execute("BEGIN").await.map_err(not_sent)?;
        }
        let added = self.stage_and_move(chunk).await.map_err(not_sent)?;
        if self.atomic {
            self.client.batch_execute("TRUNCATE staged").await.map_err(not_sent)?;
        } else {
            self.commit().await?;
        }
        Ok(added)
    }

    /// Ends the import: with `atomic`, everything is there from now on.
    pub async fn finish(self) -> Result<(), StorageError> {
        if self.atomic { self.commit().await } else { Ok(()) }
    }

    async fn commit(&self) -> Result<(), StorageError> {
        self.client.batch_execute("COMMIT").await.map_err(|error| Failure::Sent(error).of_write())
    }

    async fn stage_and_move(&mut self, chunk: CopyChunk) -> Result<u64, tokio_postgres::Error> {
        let source = self.source.clone();
        if let Some(source) = &source
            && !self.known
            && !chunk.ascending
        {
            self.get_to_know(source).await?;
        }
        let mut sink = pin!(self.client.copy_in(&self.copy).await?);
        sink.send(chunk.copy).await?;
        sink.finish().await?;
        if let Some(source) = &source {
            if self.known {
                self.client.execute(LEAVE_UNKNOWN, &[]).await?;
            }
            self.client.execute(REMEMBER, &[&source.as_str()]).await?;
        }
        self.client.execute(MOVE, &[]).await
    }

    /// From here on every key is looked for among those of this source that are remembered: also those of this import, so
    /// that it need not begin here. Takes time in proportion to their number.
    async fn get_to_know(&mut self, source: &SourceName) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(MAKE_KNOWN).await?;
        self.client.execute(FILL_KNOWN, &[&source.as_str()]).await?;
        self.client.batch_execute(INDEX_KNOWN).await?;
        self.known = true;
        Ok(())
    }
}

async fn lock(client: &Client, source: &SourceName) -> Result<(), tokio_postgres::Error> {
    let name = source.as_str();
    let parameters: Parameters<'_> = &[&name];
    let mut locked = pin!(client.execute(LOCK, parameters));
    if let Ok(locked) = timeout(SILENCE, &mut locked).await {
        return locked.map(drop);
    }
    tracing::info!("another import of this source is running: waiting for its end");
    locked.await.map(drop)
}

/// Nothing is committed yet, so nothing is in doubt.
fn not_sent(error: tokio_postgres::Error) -> StorageError {
    Failure::NotSent(error).of_read()
}
