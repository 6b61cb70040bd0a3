//! SQL of exports: all animals as they were at one instant, one after another.
//!
//! **Invariant:** one statement in one transaction reads everything, so what is exported was there at one instant. It is
//! the only statement that reads the whole table, and no request waits for it.

use std::pin::Pin;

use bytes::{Buf, BytesMut};
use futures_util::StreamExt;
use tokio_postgres::{Client, CopyOutStream};

use super::StorageError;
use super::postgres::connect::Connector;
use super::postgres::error::{Failure, cause, unexpected};
use super::postgres::migrations::{SCHEMA_NEEDED, check_version, schema_version};
use crate::config::DatabaseUrl;
use crate::domain::pet::{CategoryId, Pet, PetName, PetStatus};

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

const COPY: &str = "\
    COPY (SELECT id, name, category_id, status FROM pets ORDER BY id) TO STDOUT (FORMAT binary)";

/// The same, of one status; COPY takes no parameters.
const COPY_BY_STATUS: [(PetStatus, &str); 3] = [
    (
        PetStatus::Available,
        "COPY (SELECT id, name, category_id, status FROM pets WHERE status = 'available' ORDER BY id) \
         TO STDOUT (FORMAT binary)",
    ),
    (
        PetStatus::Pending,
        "COPY (SELECT id, name, category_id, status FROM pets WHERE status = 'pending' ORDER BY id) \
         TO STDOUT (FORMAT binary)",
    ),
    (
        PetStatus::Sold,
        "COPY (SELECT id, name, category_id, status FROM pets WHERE status = 'sold' ORDER BY id) \
         TO STDOUT (FORMAT binary)",
    ),
];

/// What a binary COPY begins with: a signature, flags, and an extension that nobody uses.
const COPY_HEADER: usize = 11 + 4 + 4;

/// An export under way, on a connection of its own without a deadline.
pub struct Export {
    stream: Pin<Box<CopyOutStream>>,
    buffer: BytesMut,
    /// The connection lasts as long as this.
    _client: Client,
}

impl Export {
    /// Looks at all pets, or at those with a status, as they are now.
    pub async fn start(url: &DatabaseUrl, status: Option<PetStatus>) -> Result<Self, StorageError> {
        let client = Connector::new(url).map_err(unexpected)?.open().await?;
        let found = schema_version(&client).await.map_err(failed)?;
        check_version(found, SCHEMA_NEEDED).map_err(StorageError::SchemaTooOld)?;
        client.batch_execute(BEGIN).await.map_err(failed)?;
        let by_status = COPY_BY_STATUS.into_iter().find(|(of, _)| Some(*of) == status);
        let statement = by_status.map_or(COPY, |(_, statement)| statement);
        let stream = client.copy_out(statement).await.map_err(failed)?;
        let mut export = Self { stream: Box::pin(stream), buffer: BytesMut::new(), _client: client };
        while export.buffer.len() < COPY_HEADER && export.more().await? {}
        export.take(COPY_HEADER)?;
        Ok(export)
    }

    /// The next pet, by ascending id.
    pub async fn next(&mut self) -> Result<Option<Pet>, StorageError> {
        while self.buffer.is_empty() {
            if !self.more().await? {
                return Err(broken());
            }
        }
        if self.take(2)?.get_i16() < 0 {
            // Reading on is how an error that came last would be heard of.
            return if self.more().await? { Err(broken()) } else { Ok(None) };
        }
        let id = self.integer()?.try_into().map_err(unexpected)?;
        let name = self.text()?.ok_or_else(broken)?;
        let name = PetName::try_from(name).map_err(unexpected)?;
        let category_id = CategoryId(self.integer()?);
        let status = self.text()?.map(|word| word.parse()).transpose().map_err(unexpected)?;
        Ok(Some(Pet { id, name, category_id, status }))
    }

    /// Reads on, if there is more: a message, which has whole rows.
    async fn more(&mut self) -> Result<bool, StorageError> {
        match self.stream.next().await {
            None => Ok(false),
            Some(message) => {
                self.buffer.extend_from_slice(&message.map_err(failed)?);
                Ok(true)
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<BytesMut, StorageError> {
        if self.buffer.len() < bytes { Err(broken()) } else { Ok(self.buffer.split_to(bytes)) }
    }

    fn field(&mut self) -> Result<Option<BytesMut>, StorageError> {
        let length = self.take(4)?.get_i32();
        usize::try_from(length).ok().map(|length| self.take(length)).transpose()
    }

    fn integer(&mut self) -> Result<i64, StorageError> {
        let field = self.field()?.filter(|field| field.len() == 8);
        field.map(|mut field| field.get_i64()).ok_or_else(broken)
    }

    fn text(&mut self) -> Result<Option<String>, StorageError> {
        let field = self.field()?;
        field.map(|field| String::from_utf8(field.to_vec())).transpose().map_err(unexpected)
    }
}

fn failed(error: tokio_postgres::Error) -> StorageError {
    Failure::NotSent(error).of_read()
}

fn broken() -> StorageError {
    StorageError::Unexpected(cause("the rows are not as COPY has them"))
}
