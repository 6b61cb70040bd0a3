//! Which schema version a database has, and what a connection is refused with if it is too old.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// The table of applied migrations.
pub const HISTORY: &str = "refinery_schema_history";

/// The schema version of the database; 0 if it was never migrated.
pub async fn schema_version(client: &Client) -> Result<i32, tokio_postgres::Error> {
    let found = client.query_one("SELECT max(version) AS version FROM refinery_schema_history", &[]).await;
    match found {
        Ok(row) => row.try_get::<_, Option<i32>>("version").map(Option::unwrap_or_default),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Checks that the schema is new enough. If not, the error says what to run.
pub fn check_version(found: i32, needed: i32) -> Result<(), String> {
    if found >= needed {
        return Ok(());
    }
    Err(format!(
        "the database's schema is at version {found}, but this program needs {needed}: \
         run `petstore migrate` first"
    ))
}

/// Which privileges a role lacks, and what to run.
#[must_use]
pub fn lacking_text(role: &str, lacking: &[String]) -> String {
    let lacking = lacking.join(", ");
    format!(
        "the role {role} lacks {lacking}: run `petstore migrate --grant-to {role}` as the owner of the database"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_schema_is_refused_with_what_to_run_and_a_newer_one_is_accepted() {
        assert!(check_version(8, 9).unwrap_err().contains("run `petstore migrate` first"));
        assert_eq!(check_version(9, 9), Ok(()));
        assert_eq!(check_version(10, 9), Ok(()));
    }
}
