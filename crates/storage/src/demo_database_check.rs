//! Examines what a database contains before `petstore demo` uses it, and marks a database of demo data.
//!
//! **Invariants:**
//! - the examination changes nothing and works on any database: empty, old, or another program's;
//! - a marked database that has become a shop is recognised: the audit log names everybody who created a key, and an import
//!   removes the mark, or fails.

use petstore_config::DatabaseUrl;
use petstore_postgres::{Connector, HISTORY, StorageError};
use tokio_postgres::Client;

use super::diagnostics::ExamineError;
use super::migrations;
use super::storage::Storage;

/// Every table and view, except those of the system and of extensions, and partitions. Those in the current schema are
/// unqualified.
const TABLES: &str = r"
    SELECT CASE nspname WHEN current_schema() THEN relname ELSE nspname || '.' || relname END AS name
    FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
      AND NOT relispartition
      AND nspname <> 'information_schema'
      AND nspname NOT LIKE 'pg\_%'
      -- deptype e: a member of an extension.
      AND NOT EXISTS (
        SELECT FROM pg_depend
        WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
    ORDER BY name";

/// Whether the migration history is this program's: others use refinery, too.
const IS_MIGRATED: &str = "\
    SELECT EXISTS (SELECT FROM refinery_schema_history WHERE version = 1 AND name = 'create_pets') AS yes";

/// Marks demo data. Only the owner of the table may.
const MARK: &str = "COMMENT ON TABLE pets IS 'for demonstrations: petstore demo'";
pub(super) const UNMARK: &str = "COMMENT ON TABLE pets IS NULL";
pub(super) const IS_MARKED: &str = "\
    SELECT obj_description('pets'::regclass, 'pg_class')
      IS NOT DISTINCT FROM 'for demonstrations: petstore demo' AS yes";

const HAS_PETS: &str = "SELECT EXISTS (SELECT FROM pets) AS yes";
const HAS_KEYS: &str = "SELECT EXISTS (SELECT FROM api_keys) AS yes";

/// Whether anybody but a demo created a key. The audit log has the answer even if the key was deleted; a key that the log does
/// not contain was inserted in SQL.
const HAS_OTHER_KEYS: &str = "\
    SELECT EXISTS (SELECT FROM api_key_events WHERE action = 'created' AND actor <> 'petstore demo')
      OR EXISTS (SELECT FROM api_keys WHERE id NOT IN (SELECT key_id FROM api_key_events)) AS yes";

/// Whether an import added pets. Releases up to 1.1.0 left the mark.
const HAS_IMPORTS: &str = "SELECT EXISTS (SELECT FROM imported_chunks) AS yes";

/// What a database contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseContents {
    /// Nothing: it is new, or migrated but unused, or marked for a demo that did not get to insert pets.
    Nothing,
    /// Demo data.
    Demonstration,
    /// Tables of other programs: these.
    OtherTables(Vec<String>),
    /// A shop: this program's tables with pets or API keys.
    Shop,
}

/// Examines what a database contains.
pub async fn database_contents(url: &DatabaseUrl) -> Result<DatabaseContents, ExamineError> {
    let client = Connector::new(url)?.open().await?;
    let rows = client.query(TABLES, &[]).await?;
    let tables = rows.iter().map(|row| row.try_get("name")).collect::<Result<Vec<String>, _>>()?;
    let has_history = tables.iter().any(|table| table == HISTORY);
    let ours = if has_history && query_bool(&client, IS_MIGRATED).await? {
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
    let marked = query_bool(&client, IS_MARKED).await?;
    let pets = query_bool(&client, HAS_PETS).await?;
    let has = async |table, statement| {
        let exists = ours.iter().any(|ours| ours == table);
        if exists { query_bool(&client, statement).await } else { Ok(false) }
    };
    let others_used_it = if marked {
        has("api_key_events", HAS_OTHER_KEYS).await? || has("imported_chunks", HAS_IMPORTS).await?
    } else {
        pets || has("api_keys", HAS_KEYS).await?
    };
    Ok(match (others_used_it, pets) {
        (true, _) => DatabaseContents::Shop,
        (false, true) => DatabaseContents::Demonstration,
        (false, false) => DatabaseContents::Nothing,
    })
}

pub(super) async fn query_bool(client: &Client, statement: &str) -> Result<bool, tokio_postgres::Error> {
    client.query_one(statement, &[]).await?.try_get("yes")
}

impl Storage {
    /// Marks the database as one of demo data.
    pub async fn mark_as_demonstration(&self) -> Result<(), StorageError> {
        self.database.write(MARK, &[], |_| Ok(())).await
    }
}
