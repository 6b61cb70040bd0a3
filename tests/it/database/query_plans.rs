//! The statements that serve requests: each is a literal that psql accepts, and uses the index that it should.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use petstore_storage::STATEMENTS;
use tokio_postgres::Client;

use crate::support::TestDatabase;
use crate::support::repository::{ROOT, read};

/// The files of the statements, in the order of [`STATEMENTS`].
const FILES: [&str; STATEMENTS.len()] = [
    "list_pets",
    "pets",
    "delete_pet",
    "insert_pets",
    "api_keys",
    "apply_keys",
    "read_orders",
    "place_and_end_orders",
    "expire_orders",
    "update_order",
    "idempotency_keys",
    "events",
    "partitions",
];

/// A statement, and where it is.
struct Statement {
    /// Such as `pets::FIND`.
    name: String,
    text: &'static str,
    /// The source of its file.
    source: String,
}

/// Every statement, in the order of [`STATEMENTS`].
fn statements() -> Vec<Statement> {
    let statements = FILES.into_iter().zip(STATEMENTS).flat_map(|(file, listed)| {
        let source = read(&format!("crates/storage/src/{file}.rs"));
        let list = source.split("const STATEMENTS: &[&str] =").nth(1).unwrap().split(';').next().unwrap();
        let names: Vec<String> = list
            .split(|c: char| c != '_' && !c.is_alphanumeric())
            .filter(|name| !name.is_empty())
            .map(|name| format!("{file}::{name}"))
            .collect();
        assert_eq!(names.len(), listed.len(), "{file}");
        names.into_iter().zip(listed).map(move |(name, text)| Statement {
            name,
            text,
            source: source.clone(),
        })
    });
    statements.collect()
}

#[test]
fn every_statement_is_listed() {
    for (file, listed) in FILES.into_iter().zip(STATEMENTS) {
        let text = read(&format!("crates/storage/src/{file}.rs"));
        let declared = text.lines().filter(|line| {
            line.trim_start_matches("pub(super) ").starts_with("const ") && line.contains(": &str =")
        });
        assert_eq!(declared.count(), listed.len(), "{file}");
        let inline = ["read(\"", "write(\"", "query(\""].iter().any(|call| text.contains(call));
        assert!(!inline, "{file} has a statement that is not a constant");
    }
}

#[test]
fn every_statement_is_one_literal_without_escapes() {
    for Statement { name, text, source } in statements() {
        // A macro or an escape would make what is in the source differ from what is sent.
        assert!(source.contains(text), "{name} cannot be copied from the source");
    }
    // Those of imports, exports and diagnoses as well.
    for entry in fs::read_dir(Path::new(ROOT).join("crates/storage/src")).unwrap() {
        let path = entry.unwrap().path();
        let source = if path.is_file() { fs::read_to_string(&path).unwrap() } else { continue };
        assert!(!source.contains("concat!"), "{}", path.display());
        for constant in source.split(": &str =").skip(1) {
            let literal = constant.trim_start().split("\";").next().unwrap();
            // A raw string has no escapes. Others may start with an escaped line break.
            let escapes = literal.starts_with('"') && literal.trim_start_matches(['"', '\\']).contains('\\');
            assert!(!escapes, "{}: {literal}", path.display());
        }
    }
}

/// Without comments, and with white space that does not matter.
fn essence(statement: &str) -> String {
    let lines = statement.lines().filter(|line| !line.trim_start().starts_with("--"));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_list_in_descending_order_is_the_ascending_one_with_every_comparison_and_order_reversed() {
    let statements = statements();
    let mut checked = 0;
    for Statement { name, text, .. } in &statements {
        let Some(ascending) = name.strip_suffix("_DESCENDING") else { continue };
        let ascending = statements.iter().find(|statement| statement.name == ascending).unwrap();
        let mut reversed = essence(ascending.text).replace(" > ", " < ").replace(" <= ", " >= ");
        for columns in ["category_id, status, id", "status, id", "id"] {
            let descending = columns.replace(',', " DESC,") + " DESC";
            reversed = reversed.replace(&format!("ORDER BY {columns} "), &format!("ORDER BY {descending} "));
        }
        // An ascending list starts after an id of at least 0.
        assert_eq!(essence(text).replace(" AND id >= 1", ""), reversed, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 7);
}

#[tokio::test]
async fn psql_accepts_every_statement_once_its_parameters_are_filled_in() {
    let database = TestDatabase::new().await;
    database.add_pets(20).await;
    let client = database.connect().await;
    let mut script = String::new();
    for Statement { name, text, .. } in statements() {
        let mut filled = text.to_owned();
        // The last one first: `$1` is also the beginning of `$10`.
        for (index, kind) in parameter_types(&client, text).await.iter().enumerate().rev() {
            let value = format!("{}::{kind}", sample(kind, "available"));
            filled = filled.replace(&format!("${}", index + 1), &value);
        }
        writeln!(script, "\\echo {name}\nBEGIN;\n{filled};\nROLLBACK;").unwrap();
    }
    let mut psql = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--output", "/dev/null"])
        .args(["--dbname", &database.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = psql.stdin.take().unwrap();
    // If psql ends early, its errors say why.
    let _ = input.write_all(script.as_bytes());
    drop(input);
    let output = psql.wait_with_output().unwrap();
    let (names, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let last = names.lines().last();
    assert!(output.status.success() && errors.is_empty(), "{last:?}: {errors}");
    assert_eq!(names.lines().count(), statements().len());
}

#[tokio::test]
async fn no_statement_needs_a_sequential_scan() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    // A plan that was made for an empty table may still be used when the table is full.
    check_all_plans(&client, false).await;
    fill(&client, 100_000).await;
    check_all_plans(&client, true).await;
}

/// Fills the tables, and updates the statistics. The distributions are skewed: of the pets 90 % are available, 9 % sold and 1 %
/// pending; of the orders, most are completed.
async fn fill(client: &Client, rows: u32) {
    let fill = format!(
        "\
        INSERT INTO pets (name, category_id, status, reference) \
        SELECT 'Pet ' || n, n % 7, (CASE WHEN n % 100 = 0 THEN 'pending' WHEN n % 100 < 10 THEN 'sold' \
          ELSE 'available' END)::pet_status, CASE WHEN n % 3 = 0 THEN 'chip ' || n END FROM generate_series(1, {rows}) n; \
        INSERT INTO api_keys (name, prefix, digest, scopes) \
        SELECT 'key', 'psk_', sha256(n::text::bytea), '{{}}' FROM generate_series(1, {rows}) n; \
        INSERT INTO api_key_events (key_id, action, actor) \
        SELECT n, 'created', 'a test' FROM generate_series(1, {rows}) n; \
        INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
        SELECT gen_random_uuid(), (now() AT TIME ZONE 'UTC')::date - n % 2, now(), gen_random_uuid(), n \
        FROM generate_series(1, {rows}) n; \
        INSERT INTO orders (pet_id, status, created_at, updated_at, expires_at, reference) \
        SELECT n, (CASE WHEN n % 20 = 0 THEN 'placed' WHEN n % 100 < 10 THEN 'cancelled' ELSE 'completed' END)::order_status, \
          now(), now(), now() + interval '1 hour', 'basket ' || n / 2 FROM generate_series(1, {rows}) n; \
        DO $$ BEGIN FOR day IN 2..31 LOOP EXECUTE format( \
          'CREATE TABLE events_%s PARTITION OF events FOR VALUES FROM (%L) TO (%L)', day, \
          date_trunc('day', now(), 'UTC') - day * interval '1 day', \
          date_trunc('day', now(), 'UTC') - (day - 1) * interval '1 day'); END LOOP; END $$; \
        INSERT INTO events (xid, type, pet_id, happened_at) \
        SELECT n::text::xid8, 'pet.created', n, now() - n % 30 * interval '1 day' FROM generate_series(1, {rows}) n; \
        ANALYZE"
    );
    client.batch_execute(&fill).await.unwrap();
}

async fn check_all_plans(client: &Client, filled: bool) {
    let first_columns = first_columns(client).await;
    for Statement { name, text, .. } in statements() {
        for status in ["available", "pending", "sold"] {
            for mode in ["force_generic_plan", "force_custom_plan"] {
                let session = format!("SET plan_cache_mode = {mode}; SET enable_seqscan = off");
                client.batch_execute(&session).await.unwrap();
                let plan = plan(client, text, status).await;
                // `event_feed` has one row.
                let scans = plan.replace("Seq Scan on event_feed", "");
                assert!(!scans.contains("Seq Scan"), "{name}\n{plan}");
                if let Err(problem) = starts_at_values(&plan, &first_columns) {
                    panic!("{name}: {problem}\n{plan}");
                }
                // Filtering by status after a scan would read the whole table for a rare status.
                assert!(!filters_by_status(&plan), "{name}\n{plan}");
                // Sorting what the client sent is fine; sorting many stored rows is not.
                let small = !filled || text.contains("INSERT") || text.contains("stored_results");
                // The orders of one pet, at most three short lists; the pets of one category, at most four.
                let small = small
                    || text.contains("unnest($3::order_status[])")
                    || text.contains("AS wanted (status)");
                assert!(
                    small || !plan.replace("Incremental Sort", "").contains("Sort  (cost"),
                    "{name}\n{plan}"
                );
            }
        }
    }
}

/// The first column of each index.
async fn first_columns(client: &Client) -> HashMap<String, String> {
    let columns = "SELECT indexrelid::regclass::text, attname::text FROM pg_index \
        JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]";
    client.query(columns, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Whether the condition of each index scan is on the first column of its index. Otherwise the index is read from end to
/// end or, as PostgreSQL 18 can (skip scan), searched once for each value of that column. The system's own tables are small.
fn starts_at_values(plan: &str, first_columns: &HashMap<String, String>) -> Result<(), String> {
    for (index, condition) in index_scans(plan).into_iter().filter(|(index, _)| !index.starts_with("pg_")) {
        let Some(condition) = condition else {
            return Err(format!("{index} is scanned without a condition"));
        };
        let mut words = condition.split(|c: char| c != '_' && !c.is_alphanumeric());
        if !words.any(|word| word == first_columns[index]) {
            return Err(format!("{index} is not searched by its first column"));
        }
    }
    Ok(())
}

/// The indexes that a plan scans, each with its condition.
fn index_scans(plan: &str) -> Vec<(&str, Option<&str>)> {
    let kinds = ["Scan using ", "Scan Backward using ", "Bitmap Index Scan on "];
    let mut scans: Vec<(&str, Option<&str>)> = Vec::new();
    for line in plan.lines() {
        if let Some((_, index)) = kinds.iter().find_map(|kind| line.split_once(kind)) {
            scans.push((index.split(' ').next().unwrap(), None));
        }
        if let Some((_, condition)) = line.split_once("Index Cond: ") {
            scans.last_mut().unwrap().1 = Some(condition);
        }
    }
    scans
}

/// Whether rows of a table are filtered by status after they are read, except for a single row.
fn filters_by_status(plan: &str) -> bool {
    let mut from_a_table = false;
    plan.lines().any(|line| {
        if line.contains(" Scan ") {
            from_a_table = !line.contains("CTE Scan");
        }
        if line.contains("Index Cond") && line.contains("(id = ") {
            from_a_table = false;
        }
        from_a_table && line.trim_start().starts_with("Filter: (") && line.contains("status")
    })
}

/// The indexes that each statement searches where sequential scans are allowed. The service does not allow them, because it keeps
/// plans: that of a table that was empty would be used for years.
const INDEXES: [(&str, &[&str]); 66] = [
    ("list_pets::LIST", &["pets_pkey"]),
    ("list_pets::LIST_DESCENDING", &["pets_pkey"]),
    ("list_pets::LIST_BY_STATUS", &["pets_status_id_idx"]),
    ("list_pets::LIST_BY_STATUS_DESCENDING", &["pets_status_id_idx"]),
    ("list_pets::LIST_BY_CATEGORY", &["pets_category_id_status_id_idx"]),
    ("list_pets::LIST_BY_CATEGORY_DESCENDING", &["pets_category_id_status_id_idx"]),
    ("list_pets::FIND_BY_REFERENCE", &["pets_reference_key"]),
    ("pets::FIND", &["pets_pkey"]),
    ("pets::ADVISORY_LOCK", &[]),
    ("pets::ROW_LOCK", &["pets_pkey"]),
    ("pets::FIND_WITH_OPEN_ORDER", &["orders_one_open_a_pet", "pets_pkey"]),
    ("pets::UPDATE", &["pets_pkey"]),
    ("delete_pet::ROW_LOCK", &["pets_pkey"]),
    ("delete_pet::FIND_WITH_ORDER", &["orders_pet_id_status_id_idx", "pets_pkey"]),
    ("delete_pet::DELETE", &["pets_pkey"]),
    ("insert_pets::INSERT", &[]),
    ("insert_pets::INSERT_ONCE", &["idempotency_keys_pkey", "pets_reference_key"]),
    ("api_keys::FIND", &["api_keys_digest_key"]),
    ("api_keys::INSERT", &[]),
    ("api_keys::NOW", &[]),
    ("api_keys::LIST", &["api_keys_pkey"]),
    ("api_keys::LIST_EVENTS", &["api_key_events_key_id"]),
    ("api_keys::REVOKE", &["api_keys_pkey"]),
    ("api_keys::LOCK_LINEAGES", &[]),
    ("api_keys::LOCK", &["api_keys_pkey"]),
    ("api_keys::FIND_SUCCESSOR", &["api_keys_pkey"]),
    ("api_keys::ROTATE", &["api_key_events_key_id", "api_keys_pkey"]),
    ("api_keys::UPDATE_LAST_USED", &["api_keys_pkey"]),
    ("apply_keys::NOW", &[]),
    ("apply_keys::LIST", &["api_key_events_key_id", "api_keys_pkey"]),
    ("apply_keys::CHANGE_TERMS", &["api_keys_pkey"]),
    ("apply_keys::CHANGE_EXPIRY", &["api_keys_pkey"]),
    ("apply_keys::REPLACE", &["api_keys_pkey"]),
    ("read_orders::LIST", &["orders_pkey"]),
    ("read_orders::LIST_DESCENDING", &["orders_pkey"]),
    ("read_orders::LIST_BY_STATUS", &["orders_status_id_idx"]),
    ("read_orders::LIST_BY_STATUS_DESCENDING", &["orders_status_id_idx"]),
    ("read_orders::LIST_OF_PET", &["orders_pet_id_status_id_idx"]),
    ("read_orders::LIST_OF_PET_DESCENDING", &["orders_pet_id_status_id_idx"]),
    ("read_orders::LIST_OF_REFERENCE", &["orders_reference_status_id_idx"]),
    ("read_orders::LIST_OF_REFERENCE_DESCENDING", &["orders_reference_status_id_idx"]),
    ("read_orders::FIND", &["orders_pkey"]),
    ("place_and_end_orders::SET_PET_STATUS", &["pets_pkey"]),
    ("place_and_end_orders::INSERT", &[]),
    ("place_and_end_orders::PET_ADVISORY_LOCK", &["orders_pkey"]),
    ("place_and_end_orders::ROW_LOCK", &["orders_pkey"]),
    ("place_and_end_orders::PET_ROW_LOCK", &["orders_pkey", "pets_pkey"]),
    ("place_and_end_orders::SET_STATUS", &["orders_pkey"]),
    ("expire_orders::DUE", &["orders_expires_at_idx"]),
    ("expire_orders::LOCK_PETS", &[]),
    ("expire_orders::LOCK", &["orders_pkey", "pets_pkey"]),
    ("expire_orders::OVERDUE", &["orders_expires_at_idx"]),
    ("update_order::UPDATE", &["orders_pkey"]),
    ("idempotency_keys::FIND", &["idempotency_keys_pkey"]),
    ("idempotency_keys::STORE", &[]),
    ("idempotency_keys::WAIT_FOR_STANDBY", &[]),
    ("events::FEED", &["events_pkey"]),
    ("events::HEAD", &["events_pkey"]),
    ("events::NEWEST", &["events_pkey"]),
    ("events::LAG", &["events_pkey"]),
    ("events::EPOCH", &[]),
    ("partitions::CREATE_FOR_KEYS", &[]),
    ("partitions::CREATE_FOR_EVENTS", &[]),
    ("partitions::DROP_FOR_KEYS", &[]),
    ("partitions::DROP_FOR_EVENTS", &[]),
    ("partitions::DAYS_PREPARED", &[]),
];

/// How many partitions a statement that runs without a request may read: it runs while a request waits, 40 times per second.
const PARTITIONS: [(&str, usize); 1] = [("events::HEAD", 3)];

#[tokio::test]
async fn statements_that_run_all_the_time_read_few_partitions() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    fill(&client, 1_000).await;
    for (name, most) in PARTITIONS {
        let statement = statements().into_iter().find(|statement| statement.name == name).unwrap();
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let session = format!("SET plan_cache_mode = {mode}; SET enable_seqscan = off");
            client.batch_execute(&session).await.unwrap();
            // EXPLAIN shows what is left after pruning at the start of the execution.
            let plan = plan(&client, statement.text, "pending").await;
            let partitions = index_scans(&plan).len();
            assert!((1..=most).contains(&partitions), "{name}, {mode}: {partitions} partitions\n{plan}");
        }
    }
}

#[tokio::test]
async fn every_statement_uses_its_index_even_if_sequential_scans_are_allowed() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    fill(&client, 20_000).await;
    // Partitions of other days, the only row of `event_feed`, and the system's own tables.
    let small = "SELECT relname::text FROM pg_class WHERE reltuples <= 1 OR relnamespace = 'pg_catalog'::regnamespace";
    let small: BTreeSet<String> =
        client.query(small, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let names: Vec<String> = statements().into_iter().map(|statement| statement.name).collect();
    assert_eq!(names, INDEXES.map(|(name, _)| name));
    for (Statement { name, text, .. }, (_, expected)) in statements().into_iter().zip(INDEXES) {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            client.batch_execute(&format!("SET plan_cache_mode = {mode}")).await.unwrap();
            let plan = plan(&client, text, "pending").await;
            let sequential =
                plan.lines().filter_map(|line| line.split_once("Seq Scan on ")?.1.split(' ').next());
            let large: Vec<&str> = sequential.filter(|table| !small.contains(*table)).collect();
            assert!(large.is_empty(), "{name}, {mode}: {large:?} scanned\n{plan}");
            // A custom plan knows that the reference is not null, and may search that index instead.
            let by_reference = name.starts_with("read_orders::LIST_OF_PET") && mode == "force_custom_plan";
            let is_expected = |indexes: &[&str]| {
                indexes == expected || (by_reference && indexes == ["orders_reference_status_id_idx"])
            };
            let indexes = searched_indexes(&plan);
            let indexes: Vec<&str> = indexes.iter().map(|index| &**index).collect();
            assert!(is_expected(&indexes), "{name}, {mode}: {indexes:?}\n{plan}");
        }
    }
}

/// The indexes that a plan searches, except the system's own. Those of partitions have the name of the whole table's.
fn searched_indexes(plan: &str) -> BTreeSet<String> {
    let of_table = |(index, condition): (&str, Option<&str>)| {
        let parts = index.split('_').filter(|part| part.parse::<u32>().is_err());
        let index = parts.collect::<Vec<_>>().join("_");
        // As good as the primary key, if both are given.
        match index.strip_suffix("_status_id_idx") {
            Some(table) if condition.unwrap().contains("(id = ") => format!("{table}_pkey"),
            _ => index,
        }
    };
    index_scans(plan).into_iter().filter(|(index, _)| !index.starts_with("pg_")).map(of_table).collect()
}

async fn plan(client: &Client, statement: &str, status: &str) -> String {
    let types = parameter_types(client, statement).await;
    let values: Vec<String> = types.iter().map(|kind| sample(kind, status)).collect();
    let values = if values.is_empty() { String::new() } else { format!("({})", values.join(", ")) };
    client.batch_execute(&format!("PREPARE checked AS {statement}")).await.unwrap();
    let explain = format!("EXPLAIN EXECUTE checked {values}");
    let plan: Vec<String> =
        client.query(&explain, &[]).await.unwrap().iter().map(|line| line.get(0)).collect();
    client.batch_execute("DEALLOCATE checked").await.unwrap();
    plan.join("\n")
}

/// The types of the parameters of a statement, in their order.
async fn parameter_types(client: &Client, statement: &str) -> Vec<String> {
    client.batch_execute(&format!("PREPARE typed AS {statement}")).await.unwrap();
    let types = "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'typed'";
    let types = client.query_one(types, &[]).await.unwrap().get(0);
    client.batch_execute("DEALLOCATE typed").await.unwrap();
    types
}

/// A value of a parameter of this type. All arrays have the same length, because they are the columns of a table.
fn sample(kind: &str, status: &str) -> String {
    match kind {
        "bigint" => "20".to_owned(),
        "bigint[]" => "'{1,500,9000}'".to_owned(),
        "pet_status" => format!("'{status}'"),
        "order_status" => "'placed'".to_owned(),
        "order_status[]" => "'{placed,completed,cancelled}'".to_owned(),
        "uuid" => "gen_random_uuid()".to_owned(),
        "pet_status[]" => format!("'{{{status},{status},{status}}}'"),
        "jsonb" => "'{}'".to_owned(),
        "jsonb[]" => "ARRAY['{}', '{}', '{}']::jsonb[]".to_owned(),
        "text" => "'x'".to_owned(),
        "text[]" => "'{1,2,3}'".to_owned(),
        "boolean" => "true".to_owned(),
        "bytea" => "sha256('x')".to_owned(),
        "bytea[]" => "ARRAY[sha256('x'), sha256('y'), sha256('z')]".to_owned(),
        "uuid[]" => "ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()]".to_owned(),
        "integer" => "1".to_owned(),
        "double precision" => "60".to_owned(),
        "timestamp with time zone" => "now()".to_owned(),
        "double precision[]" => "ARRAY[1, 2, 3]".to_owned(),
        other => panic!("add a value for parameters of type {other}"),
    }
}
