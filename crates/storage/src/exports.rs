//! SQL of exports: all pets as of one instant.
//!
//! **Invariant:** one statement reads everything, so all rows are of the same snapshot. It is the only statement that reads
//! the whole table, and no request waits for it.

use std::pin::Pin;

use futures_util::StreamExt;
use petstore_config::DatabaseUrl;
use petstore_domain::pet::{CategoryId, Pet, PetName, PetStatus};
use petstore_postgres::{StorageError, not_committed, unexpected};
use tokio_postgres::Client;
use tokio_postgres::binary_copy::{BinaryCopyOutRow, BinaryCopyOutStream};
use tokio_postgres::types::Type;

use super::migrations::open_migrated;
use super::pets::reference;
use super::stored_metadata::StoredMetadata;

/// The types of the columns. The status is cast to text, because the OID of an enum type differs between databases.
const COLUMN_TYPES: [Type; 6] = [Type::INT8, Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT, Type::JSONB];

const COPY: &str = "\
    COPY (
      SELECT id, name, category_id, status::text, reference, metadata
      FROM pets
      ORDER BY id)
    TO STDOUT (FORMAT binary)";

/// The same, of the pets with the status `$1`. COPY accepts no parameters: the status, one of a few fixed labels, replaces it.
const COPY_BY_STATUS: &str = "\
    COPY (
      SELECT id, name, category_id, status::text, reference, metadata
      FROM pets
      WHERE status = $1
      ORDER BY id)
    TO STDOUT (FORMAT binary)";

/// An export in progress, on its own connection without a deadline.
pub struct ExportStream {
    rows: Pin<Box<BinaryCopyOutStream>>,
    /// Keeps the connection open.
    _client: Client,
}

impl ExportStream {
    /// Starts an export of all pets, or of those with a status.
    pub async fn start(url: &DatabaseUrl, status: Option<PetStatus>) -> Result<Self, StorageError> {
        let client = open_migrated(url).await?;
        let copy = status.map_or_else(
            || COPY.to_owned(),
            |status| COPY_BY_STATUS.replace("$1", &format!("'{}'", status.as_str())),
        );
        let stream = client.copy_out(&copy).await.map_err(not_committed)?;
        let rows = Box::pin(BinaryCopyOutStream::new(stream, &COLUMN_TYPES));
        Ok(Self { rows, _client: client })
    }

    /// The next pet, by ascending id.
    pub async fn next(&mut self) -> Result<Option<Pet>, StorageError> {
        // The stream ends with the trailer that PostgreSQL sends after the last row: if it is missing, that is an error.
        let row = self.rows.next().await.transpose().map_err(not_committed)?;
        row.as_ref().map(pet).transpose()
    }
}

fn pet(row: &BinaryCopyOutRow) -> Result<Pet, StorageError> {
    let id: i64 = row.try_get(0).map_err(unexpected)?;
    let name: String = row.try_get(1).map_err(unexpected)?;
    let status: Option<&str> = row.try_get(3).map_err(unexpected)?;
    let StoredMetadata(metadata) = row.try_get(5).map_err(unexpected)?;
    Ok(Pet {
        id: id.try_into().map_err(unexpected)?,
        name: PetName::try_from(name).map_err(unexpected)?,
        category_id: CategoryId(row.try_get(2).map_err(unexpected)?),
        status: status.map(str::parse).transpose().map_err(unexpected)?,
        reference: reference(row.try_get(4).map_err(unexpected)?)?,
        metadata,
    })
}
