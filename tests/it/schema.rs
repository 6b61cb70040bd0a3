//! The schema: migrations, constraints, the plan of each statement, and TLS on the way to it.

use std::process::Child;
use std::time::Duration;

use petstore::config::{DatabaseUrl, PoolSettings};
use petstore::storage::{SCHEMA_LATEST, SCHEMA_NEEDED, STATEMENTS, Storage, StorageError, migrate};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_postgres::Client;

use crate::support::TestDatabase;
use crate::support::postgres::{connect, locked_out, migration_files};
use crate::support::program::{petstore, run};
use crate::unhealthy_database::PrivatePostgres;

/// What a shop may have stored once the schema was at a version: added as soon as that version is reached.
const SAMPLES: [(i32, &str); 6] = [
    (
        1,
        "INSERT INTO pets (name, category_id, status) \
         VALUES ('Rex', 1, 'available'), ('Ré🐕', -9223372036854775808, NULL)",
    ),
    (
        2,
        "INSERT INTO api_keys (name, prefix, digest, scopes) \
         VALUES ('shop', 'psk_abcdef', sha256('x'), '{pets:read}')",
    ),
    (
        4,
        "INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
         VALUES (gen_random_uuid(), (now() AT TIME ZONE 'UTC')::date, now(), gen_random_uuid(), 1)",
    ),
    (
        5,
        "INSERT INTO orders (pet_id, status, created_at, updated_at) \
         VALUES (1, 'placed', now(), now()), (1, 'cancelled', now(), now())",
    ),
    (6, "INSERT INTO imported_chunks (source, keys) VALUES ('animals.csv', '{1,2,ä}')"),
    (
        7,
        "INSERT INTO api_keys (name, prefix, digest, scopes, lineage_id) \
         VALUES ('shop', 'psk_ghijkl', sha256('y'), '{pets:read}', 1)",
    ),
];

#[tokio::test]
async fn migrations_apply_one_by_one_over_what_is_stored() {
    let database = TestDatabase::empty().await;
    let url = DatabaseUrl::from(database.url());
    let client = database.connect().await;
    assert_eq!(migration_files().len(), usize::try_from(SCHEMA_LATEST).unwrap());
    for version in 1..=SCHEMA_LATEST {
        assert_eq!(migrate(&url, version).await.unwrap().len(), 1, "version {version} is one step");
        for (_, sample) in SAMPLES.iter().filter(|(since, _)| *since == version) {
            client.batch_execute(sample).await.unwrap();
        }
    }
    let row = client.query_one("SELECT count(*), min(category_id) FROM pets", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, i64::MIN));
    assert!(migrate(&url, SCHEMA_LATEST).await.unwrap().is_empty(), "and nothing is left to do");
}

#[tokio::test]
async fn ten_nodes_may_migrate_at_once() {
    let database = TestDatabase::empty().await;
    let nodes: Vec<Child> = (0..10)
        .map(|_| {
            let mut command = petstore(&["migrate", "--database-url", &database.url()]);
            command.stdout(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<_> = nodes.into_iter().map(|node| node.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()));
    let up_to_date = outputs.iter().filter(|output| output.stdout == b"the schema is up to date\n").count();
    assert_eq!(up_to_date, 9, "one did it, the others found it done");
}

#[tokio::test]
async fn serve_and_keys_refuse_a_schema_that_is_too_old_and_say_what_to_run() {
    let database = TestDatabase::empty().await;
    let url = database.url();
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"][..],
        &["keys", "create", "--name", "shop"],
    ] {
        for version in 0..SCHEMA_NEEDED {
            if version > 0 {
                migrate(&DatabaseUrl::from(url.clone()), version).await.unwrap();
            }
            let output = run(arguments, &[("DATABASE_URL", &url)]);
            assert!(!output.status.success());
            assert!(output.stdout.is_empty());
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(error.ends_with("run `petstore migrate` first\n"), "{error}");
        }
        database
            .connect()
            .await
            .batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn migrate_refuses_a_database_that_cannot_hold_every_name_and_says_how_to_create_one_that_can() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let database = TestDatabase::with_encoding(encoding).await;
        let output = run(&["migrate"], &[("DATABASE_URL", &database.url())]);
        assert_eq!(output.status.code(), Some(1), "{encoding}");
        let error = String::from_utf8(output.stderr).unwrap();
        let create = "CREATE DATABASE petstore ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0";
        assert!(error.contains(encoding) && error.contains(create), "{error}");
        let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
        let row = database.connect().await.query_one(tables, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0, "nothing was changed");
    }
}

#[tokio::test]
async fn an_older_program_leaves_a_newer_schema_alone() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    let newer =
        "INSERT INTO refinery_schema_history VALUES (999, 'from_the_future', '2099-01-01T00:00:00Z', '1')";
    client.batch_execute(newer).await.unwrap();
    let output = run(&["migrate"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "the schema is up to date\n");
    let settings = PoolSettings { database_connections: 1, database_timeout: Duration::from_secs(5) };
    Storage::new(&database.url().into(), &settings).unwrap().check().await.unwrap();
}

#[tokio::test]
async fn the_database_itself_refuses_what_the_domain_refuses() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    for (name, constraint) in [
        ("", "pets_name_length"),
        (&*"x".repeat(256), "pets_name_length"),
        (" \u{a0}\u{3000}", "pets_name_not_blank"),
        ("\u{2009}", "pets_name_not_blank"),
        ("a\nb", "pets_name_no_control"),
        ("a\u{85}", "pets_name_no_control"),
        ("\u{7f}", "pets_name_no_control"),
    ] {
        let insert = "INSERT INTO pets (name, category_id) VALUES ($1, 1)";
        let error = client.execute(insert, &[&name]).await.unwrap_err();
        let violated = error.as_db_error().and_then(|error| error.constraint()).unwrap_or_default();
        // An empty name is blank as well as too short; PostgreSQL names either.
        assert!(
            violated == constraint || (name.is_empty() && violated == "pets_name_not_blank"),
            "{name:?}: {violated}"
        );
    }
    for name in ["Rex", "🐕", "\u{200b}", "\u{feff}", "\u{e000}"] {
        client.execute("INSERT INTO pets (name, category_id) VALUES ($1, 1)", &[&name]).await.unwrap();
    }
}

#[tokio::test]
async fn no_statement_scans_a_table() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    // A plan that was made while a table was empty is still used when it is full.
    look_at_all_plans(&client, false).await;
    // As uneven as a real shop: 90 % available, 9 % sold, 1 % pending.
    let fill = "\
        INSERT INTO pets (name, category_id, status) \
        SELECT 'Pet ' || n, n % 7, (CASE WHEN n % 100 = 0 THEN 'pending' WHEN n % 100 < 10 THEN 'sold' \
          ELSE 'available' END)::pet_status FROM generate_series(1, 100000) n; \
        INSERT INTO api_keys (name, prefix, digest, scopes) \
        SELECT 'key', 'psk_', sha256(n::text::bytea), '{}' FROM generate_series(1, 100000) n; \
        INSERT INTO api_key_events (key_id, action, actor) \
        SELECT n, 'created', 'a test' FROM generate_series(1, 100000) n; \
        INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
        SELECT gen_random_uuid(), current_date - n % 2, now(), gen_random_uuid(), n FROM generate_series(1, 100000) n; \
        INSERT INTO orders (pet_id, status, created_at, updated_at) \
        SELECT n, (CASE WHEN n % 100 = 0 THEN 'placed' WHEN n % 100 < 10 THEN 'cancelled' ELSE 'completed' END)::order_status, \
          now(), now() FROM generate_series(1, 100000) n; \
        ANALYZE";
    client.batch_execute(fill).await.unwrap();
    look_at_all_plans(&client, true).await;
}

async fn look_at_all_plans(client: &Client, filled: bool) {
    let statements: Vec<&str> = STATEMENTS.concat();
    assert!(statements.len() >= 6);
    for statement in statements {
        for status in ["available", "pending", "sold"] {
            for mode in ["force_generic_plan", "force_custom_plan"] {
                let session = format!("SET plan_cache_mode = {mode}; SET enable_seqscan = off");
                client.batch_execute(&session).await.unwrap();
                let plan = plan(client, statement, status).await;
                assert!(!plan.contains("Seq Scan"), "{statement}\n{plan}");
                // An index is looked into at a place, never read from end to end.
                let scans = plan.matches("Index Scan").count() + plan.matches("Index Only Scan").count();
                assert_eq!(scans, plan.matches("Index Cond").count(), "{statement}\n{plan}");
                // Of what is remembered of requests, nothing but what is looked for.
                let whole_days =
                    plan.lines().filter(|line| line.contains("Index Cond") && line.contains("kept_on"));
                for line in whole_days {
                    assert!(line.contains("digest ="), "{statement}\n{plan}");
                }
                // Looking for a status among all others would read the whole table for a rare one.
                assert!(!looks_for_a_status(&plan), "{statement}\n{plan}");
                // Sorting what the client sent is fine; sorting what is stored is not, if it is much.
                let sent = !filled || statement.contains("INSERT") || statement.contains("idempotency_keys");
                // The three short pages of a pet's orders.
                let sent = sent || statement.contains("unnest($3::order_status[])");
                assert!(sent || !plan.contains("Sort"), "{statement}\n{plan}");
            }
        }
    }
}

/// Whether a table is read and the status of its rows looked at afterwards, but for a single row.
fn looks_for_a_status(plan: &str) -> bool {
    let mut from_a_table = false;
    plan.lines().any(|line| {
        if line.contains(" Scan ") {
            from_a_table = !line.contains("CTE Scan");
        }
        if line.contains("Index Cond") && line.contains("(id = ") {
            from_a_table = false;
        }
        from_a_table && line.contains("Filter: (") && line.contains("status")
    })
}

async fn plan(client: &Client, statement: &str, status: &str) -> String {
    client.batch_execute(&format!("PREPARE looked_at AS {statement}")).await.unwrap();
    let types = "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'looked_at'";
    let types: Vec<String> = client.query_one(types, &[]).await.unwrap().get(0);
    let values: Vec<String> = types
        .iter()
        .map(|name| match name.as_str() {
            "bigint" => "20".to_owned(),
            "bigint[]" => "'{1,500,90000}'".to_owned(),
            "pet_status" => format!("'{status}'"),
            "order_status" => "'placed'".to_owned(),
            "order_status[]" => "'{placed,completed}'".to_owned(),
            "uuid" => "gen_random_uuid()".to_owned(),
            "pet_status[]" => format!("'{{{status}}}'"),
            "text" => "'x'".to_owned(),
            "text[]" => "'{}'".to_owned(),
            "bytea" => "sha256('x')".to_owned(),
            "bytea[]" => "ARRAY[sha256('x'), sha256('y')]".to_owned(),
            "uuid[]" => "ARRAY[gen_random_uuid(), gen_random_uuid()]".to_owned(),
            "integer" => "1".to_owned(),
            "double precision" => "60".to_owned(),
            "timestamp with time zone" => "now()".to_owned(),
            "timestamp with time zone[]" => "'{2026-11-15T00:00:00Z}'".to_owned(),
            other => panic!("a parameter of type {other}: give it a value here"),
        })
        .collect();
    let values = if values.is_empty() { String::new() } else { format!("({})", values.join(", ")) };
    let explain = format!("EXPLAIN EXECUTE looked_at {values}");
    let plan: Vec<String> =
        client.query(&explain, &[]).await.unwrap().iter().map(|line| line.get(0)).collect();
    client.batch_execute("DEALLOCATE looked_at").await.unwrap();
    plan.join("\n")
}

/// A certificate authority, and a certificate of `localhost` that it signed.
fn authority_and_server() -> (String, String, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let server_key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server_pem = server.signed_by(&server_key, &issuer).unwrap().pem();
    (authority_pem, server_pem, server_key.serialize_pem())
}

#[tokio::test]
async fn tls_to_the_database_is_checked_as_sslmode_says() {
    let postgres = PrivatePostgres::start();
    let (authority, server, key) = authority_and_server();
    let client = connect(&postgres.url).await;
    // The server writes its own files, so that they are its user's.
    for (file, text) in
        [("server.crt", &*server), ("server.key", &*key), ("pg_hba.conf", "hostssl all all all trust")]
    {
        let lines = text.trim().replace('\n', "','");
        let write = format!("COPY (SELECT unnest(ARRAY['{lines}'])) TO PROGRAM 'umask 077; cat > {file}'");
        client.batch_execute(&write).await.unwrap();
    }
    client.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let directory = std::env::temp_dir();
    let right = directory.join(format!("petstore-authority-{}.pem", std::process::id()));
    let wrong = directory.join(format!("petstore-other-authority-{}.pem", std::process::id()));
    std::fs::write(&right, authority).unwrap();
    std::fs::write(&wrong, authority_and_server().0).unwrap();

    let by_name = postgres.url.replace("127.0.0.1", "localhost");
    let (right, wrong) = (right.to_str().unwrap(), wrong.to_str().unwrap());
    // The server reads its settings anew in its own time.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while !works(&format!("{by_name}?sslmode=require")).await {
        assert!(tokio::time::Instant::now() < deadline, "the server does not speak TLS");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (url, expected) in [
        (format!("{by_name}?sslmode=verify-full&sslrootcert={right}"), true),
        (format!("{by_name}?sslmode=verify-full&sslrootcert={wrong}"), false),
        (format!("{by_name}?sslmode=verify-full"), false),
        // The certificate is for the name, not for the number.
        (format!("{}?sslmode=verify-full&sslrootcert={right}", postgres.url), false),
        (format!("{by_name}?sslmode=prefer"), true),
        (by_name.clone(), true),
        (format!("{by_name}?sslmode=disable"), false),
    ] {
        assert_eq!(works(&url).await, expected, "{url}");
    }
    for file in [right, wrong] {
        std::fs::remove_file(file).unwrap();
    }
}

/// Whether the database can be used at this address (it has no schema, but says so itself).
async fn works(url: &str) -> bool {
    let settings = PoolSettings { database_connections: 1, database_timeout: Duration::from_secs(5) };
    match Storage::new(&url.to_owned().into(), &settings) {
        Ok(storage) => matches!(storage.check().await, Err(StorageError::SchemaTooOld(_))),
        Err(_) => false,
    }
}

/// A database at version 4, and a transaction that holds its pets, to which version 5 refers.
async fn held_back() -> (TestDatabase, Client) {
    let database = TestDatabase::empty().await;
    migrate(&DatabaseUrl::from(database.url()), 4).await.unwrap();
    let long = database.connect().await;
    // The server ends it after a while, so that a migration that waits for ever fails its test and does not hang.
    long.batch_execute("SET idle_in_transaction_session_timeout = '20s'").await.unwrap();
    long.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE").await.unwrap();
    (database, long)
}

#[tokio::test]
async fn migrate_lets_requests_pass_while_a_long_transaction_is_in_its_way_and_ends_when_that_does() {
    let (database, holder) = held_back().await;
    let url = database.url();
    let mut command = petstore(&["migrate", "--database-url", &url]);
    let migrating = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let mut migrating = migrating.unwrap();
    let watch = database.connect().await;
    locked_out(&watch).await;
    // Who asks for pets now stands behind the migration, and a request waits for a second at most.
    let began = std::time::Instant::now();
    watch.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE; COMMIT").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(migrating.try_wait().unwrap().is_none(), "it tries again");
    holder.batch_execute("COMMIT").await.unwrap();
    let output = migrating.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    assert!(log.contains("another transaction holds a lock that a migration needs: retrying"), "{log}");
    assert!(output.stdout.starts_with(b"applied V5"), "{log}");
}

#[tokio::test]
async fn migrate_gives_up_when_its_patience_is_over_and_changes_nothing() {
    let (database, _long) = held_back().await;
    let output = run(&["migrate", "--patience", "0s"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with(
            "petstore: other transactions hold locks that a migration needs (waited 0ns): end them"
        ),
        "{error}"
    );
    let version = "SELECT max(version) FROM refinery_schema_history";
    let row = database.connect().await.query_one(version, &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 4);
}
