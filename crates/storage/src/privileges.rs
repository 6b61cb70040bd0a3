//! The privileges of the service's role: what it needs, and what `petstore migrate --grant-to` grants.
//!
//! **Invariant:** the grants are those of deploy/postgresql/roles.sql, which is part of the program.

use petstore_config::DatabaseUrl;
use petstore_postgres::{ConnectError, Connector, lacking_text, unexpected};
use thiserror::Error;
use tokio_postgres::Client;

use super::{DatabaseUrlError, Storage, StorageError};

/// A script for psql, whose grants are between BEGIN and COMMIT.
const ROLES: &str = include_str!("../../../deploy/postgresql/roles.sql");

/// The privileges that the role lacks, on the objects that exist; with `$1`, only those that `petstore serve` needs.
const MISSING: &str = "\
    SELECT current_user::text AS role, privilege || ' on ' || name AS missing
    FROM (VALUES
      ('SELECT', 'refinery_schema_history', true),
      ('SELECT', 'pets', true), ('INSERT', 'pets', true), ('UPDATE', 'pets', true),
      ('DELETE', 'pets', true),
      ('SELECT', 'orders', true), ('INSERT', 'orders', true), ('UPDATE', 'orders', true),
      ('SELECT', 'api_keys', true), ('INSERT', 'api_keys', false), ('UPDATE', 'api_keys', true),
      ('SELECT', 'api_key_events', false), ('INSERT', 'api_key_events', false),
      ('SELECT', 'idempotency_keys', true), ('INSERT', 'idempotency_keys', true),
      ('SELECT', 'events', true), ('SELECT', 'event_feed', true),
      ('SELECT', 'imported_chunks', false), ('INSERT', 'imported_chunks', false)
    ) AS needed (privilege, name, is_for_serving)
    WHERE (is_for_serving OR NOT $1) AND NOT CASE privilege
      -- A row is deleted as a whole.
      WHEN 'DELETE' THEN has_table_privilege(to_regclass(name), privilege)
      -- On any column: the service updates only some columns of api_keys.
      ELSE has_any_column_privilege(to_regclass(name), privilege)
    END
    UNION ALL
    SELECT current_user::text, 'USAGE on ' || name
    FROM (VALUES ('pets_id_seq')) AS needed (name)
    WHERE NOT has_sequence_privilege(to_regclass(name), 'USAGE')
    UNION ALL
    SELECT current_user::text, 'EXECUTE on ' || name
    FROM (VALUES
      ('create_idempotency_partitions()'), ('drop_idempotency_partitions()'),
      ('stored_results(uuid[])'), ('stored_results_with_versions(uuid[])'), ('result_days()'),
      ('event_origin()'), ('create_event_partitions()'), ('drop_event_partitions(interval)')
    ) AS needed (name)
    WHERE NOT has_function_privilege(to_regprocedure(name), 'EXECUTE')";

/// The privileges that a role needs for all commands and lacks, such as `INSERT on pets`.
pub(super) async fn missing_privileges(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    client.query(MISSING, &[&false]).await?.iter().map(|row| row.try_get("missing")).collect()
}

impl Storage {
    /// Checks that the role has the privileges that the service needs.
    pub(super) async fn check_privileges(&self) -> Result<(), StorageError> {
        let rows = self.database.read(MISSING, &[&true]).await?;
        let Some(first) = rows.first() else { return Ok(()) };
        let role = first.try_get("role").map_err(unexpected)?;
        let missing: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get("missing")).collect();
        Err(StorageError::Unusable(lacking_text(role, &missing.map_err(unexpected)?)))
    }
}

/// Why privileges were not granted.
#[derive(Debug, Error)]
pub enum GrantPrivilegesError {
    /// The database URL is invalid.
    #[error(transparent)]
    Url(#[from] DatabaseUrlError),
    /// The database is unreachable.
    #[error("cannot grant privileges")]
    Connect(#[from] ConnectError),
    /// A statement failed.
    #[error("cannot grant privileges")]
    Database(#[from] tokio_postgres::Error),
    /// There is no such role.
    #[error("there is no role {0}: create it first (CREATE ROLE {0} LOGIN)")]
    NoRole(String),
}

/// Grants a role what the service needs, and only that. A superuser also lets it see how servers replicate (`pg_monitor`).
pub async fn grant(url: &DatabaseUrl, role: &str) -> Result<(), GrantPrivilegesError> {
    let client = Connector::new(url)?.open().await?;
    let names = "\
        SELECT quote_ident(service.rolname) AS service, quote_ident(current_database()) AS database,
          quote_ident(current_schema()) AS schema, granting.rolsuper AS is_superuser
        FROM pg_roles AS service, pg_roles AS granting
        WHERE service.rolname = $1 AND granting.rolname = current_user";
    let found = client.query_opt(names, &[&role]).await?;
    let row = found.ok_or_else(|| GrantPrivilegesError::NoRole(role.to_owned()))?;
    let transaction =
        ROLES.split("COMMIT;").next().and_then(|text| text.split("BEGIN;").nth(1)).unwrap_or_default();
    let for_superuser = if row.try_get("is_superuser")? { "GRANT pg_monitor TO :\"service\";" } else { "" };
    let mut grants = format!("{transaction}{for_superuser}");
    for variable in ["service", "database", "schema"] {
        grants = grants.replace(&format!(":\"{variable}\""), row.try_get(variable)?);
    }
    // One simple query is one transaction.
    Ok(client.batch_execute(&grants).await?)
}
