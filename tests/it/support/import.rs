//! `petstore import`, its input, and what it has added.

use std::fmt::Write as _;
use std::process::{Child, Output, Stdio};

use super::postgres::TestDatabase;
use super::program::{petstore, run};

/// Runs an import.
pub(crate) fn import(database: &TestDatabase, arguments: &[&str]) -> Output {
    run(&[&["import"], arguments].concat(), &[("DATABASE_URL", &database.url())])
}

/// Runs an import that must exit with this code, and returns its output.
pub(crate) fn import_with_code(code: i32, database: &TestDatabase, arguments: &[&str]) -> String {
    let output = import(database, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Starts an import.
pub(crate) fn start(database: &TestDatabase, arguments: &[&str]) -> Child {
    petstore(&[&["import"], arguments].concat())
        .env("DATABASE_URL", database.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// CSV rows with these keys, each pet named after its key.
pub(crate) fn numbered_csv(keys: impl Iterator<Item = u32>) -> String {
    let mut csv = "key,name,categoryId,status\n".to_owned();
    for key in keys {
        writeln!(csv, "{key},Pet {key},{},sold", key % 100).unwrap();
    }
    csv
}

/// Asserts that there are so many pets with different names, and so many different import keys.
pub(crate) async fn assert_each_once(database: &TestDatabase, numbers: i64) {
    let once = "SELECT count(*), count(DISTINCT name), \
        (SELECT count(*) FROM imported_chunks, unnest(keys)), \
        (SELECT count(DISTINCT key) FROM imported_chunks, unnest(keys) AS key) FROM pets";
    let row = database.connect().await.query_one(once, &[]).await.unwrap();
    let counts: [i64; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
    assert_eq!(counts, [numbers; 4]);
}
