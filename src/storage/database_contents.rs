//! What a database holds before anything is done to it, and the mark of one that holds a demonstration.
//!
//! **Invariant:** looking changes nothing, and works on any database: an empty one, an old one, somebody else's.

use thiserror::Error;
use tokio_postgres::Client;

use super::postgres::connect::{ConnectError, Connector};
use super::postgres::migrations;
use super::{DatabaseUrlError, Storage, StorageError};
use crate::config::DatabaseUrl;

/// Every table and view, but those of the system and of extensions, and the parts of partitioned tables; those
/// where ours would be without their schema.
const TABLES: &str = "\
    SELECT CASE nspname WHEN current_schema() THEN relname ELSE nspname || '.' || relname END \
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace \
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relispartition \
      AND nspname <> 'information_schema' AND nspname NOT LIKE 'pg\\_%' \
      AND NOT EXISTS (SELECT FROM pg_depend \
        WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e') \
    ORDER BY 1";

/// Whether the history of migrations is ours, and not that of another program with the same tool.
const MIGRATED: &str =
    "SELECT EXISTS (SELECT FROM refinery_schema_history WHERE version = 1 AND name = 'create_pets')";

const IS_MARKED: &str = "SELECT obj_description('pets'::regclass, 'pg_class') IS NOT DISTINCT FROM $1";

/// PostgreSQL takes no parameter here: the text is [`MARK`].
const SET_MARK: &str = "COMMENT ON TABLE pets IS 'for demonstrations: petstore demo'";
const MARK: &str = "for demonstrations: petstore demo";

/// What a database holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseContents {
    /// Nothing: it is new, or migrated and not used yet, or a demonstration that never came to its animals.
    Nothing,
    /// What a demonstration put there, and whoever used it since.
    Demonstration,
    /// Tables that are not ours: these.
    OtherTables(Vec<String>),
    /// A shop: in our tables there are animals, or keys to them.
    Shop,
}

/// Why a database could not be looked at.
#[derive(Debug, Error)]
pub enum DatabaseContentsError {
    /// Its address cannot be used.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It refused.
    #[error("the database could not be looked at")]
    Database(#[from] tokio_postgres::Error),
}

/// Looks at what a database holds.
pub async fn database_contents(url: &DatabaseUrl) -> Result<DatabaseContents, DatabaseContentsError> {
    let client = Connector::new(url)?.open().await?;
    let rows = client.query(TABLES, &[]).await?;
    let tables = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
    let ours = if tables.iter().any(|table| table == migrations::HISTORY) && is(&client, MIGRATED).await? {
        migrations::tables()
    } else {
        Vec::new()
    };
    let (ours, others): (Vec<_>, Vec<_>) = tables.into_iter().partition(|table| ours.contains(table));
    if !others.is_empty() {
        return Ok(DatabaseContents::OtherTables(others));
    }
    if !ours.iter().any(|table| table == "pets") {
        return Ok(DatabaseContents::Nothing);
    }
    let marked: bool = client.query_one(IS_MARKED, &[&MARK]).await?.try_get(0)?;
    let pets = has_rows(&client, "pets").await?;
    let keys = ours.iter().any(|table| table == "api_keys") && has_rows(&client, "api_keys").await?;
    Ok(match (marked, pets, keys) {
        (true, true, _) => DatabaseContents::Demonstration,
        (true, false, _) | (false, false, false) => DatabaseContents::Nothing,
        (false, _, _) => DatabaseContents::Shop,
    })
}

async fn has_rows(client: &Client, table: &str) -> Result<bool, tokio_postgres::Error> {
    is(client, &format!("SELECT EXISTS (SELECT FROM {table})")).await
}

async fn is(client: &Client, question: &str) -> Result<bool, tokio_postgres::Error> {
    client.query_one(question, &[]).await?.try_get(0)
}

impl Storage {
    /// Marks the database as one that holds a demonstration.
    pub async fn mark_as_demonstration(&self) -> Result<(), StorageError> {
        self.database.write(SET_MARK, &[], |_| Ok(())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_that_is_set_is_the_one_that_is_looked_for() {
        assert!(SET_MARK.ends_with(&format!(" IS '{MARK}'")));
    }
}
