//! SQL on the `api_keys` table.
//!
//! **Invariant:** what identifies a key here is its digest; the key itself never arrives.

use std::sync::Arc;

use tokio_postgres::Row;

use super::{Storage, StorageError};
use crate::domain::api_key::{IssuedKey, KeyDigest, KeyId, KeyName, Scope};

const FIND: &str = "SELECT id, scopes FROM api_keys WHERE digest = $1";

const INSERT: &str = "INSERT INTO api_keys (name, prefix, digest, scopes) VALUES ($1, $2, $3, $4)";

pub(super) const STATEMENTS: &[&str] = &[FIND, INSERT];

impl Storage {
    /// The key with this digest, if one was issued.
    pub async fn find_api_key(&self, digest: &KeyDigest) -> Result<Option<IssuedKey>, StorageError> {
        self.database.read(FIND, &[&digest.as_bytes()]).await?.first().map(issued_key).transpose()
    }

    /// Keeps a new key. `prefix` is its start, to recognise it by.
    pub async fn insert_api_key(
        &self,
        name: &KeyName,
        prefix: &str,
        digest: &KeyDigest,
        scopes: &[Scope],
    ) -> Result<(), StorageError> {
        let scopes: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
        self.database.write(INSERT, &[&name.as_str(), &prefix, &digest.as_bytes(), &scopes]).await.map(drop)
    }
}

fn issued_key(row: &Row) -> Result<IssuedKey, StorageError> {
    let decode = || -> Result<IssuedKey, tokio_postgres::Error> {
        let words: Vec<&str> = row.try_get(1)?;
        // A scope that this program does not know was issued by a newer one, and opens nothing here.
        let scopes = words.into_iter().filter_map(|word| word.parse().ok()).collect();
        Ok(IssuedKey { id: KeyId(row.try_get(0)?), scopes })
    };
    decode().map_err(|error| StorageError::Unexpected(Arc::new(error)))
}
