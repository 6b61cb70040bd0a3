//! The schema: migrations, constraints, and TLS to the database.

use std::process::Child;
use std::time::{Duration, Instant};

use petstore_config::{DatabaseUrl, PoolSettings, ReadFrom};
use petstore_storage::{SCHEMA_LATEST, SCHEMA_NEEDED, Storage, StorageError, migrate};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_postgres::Client;

use crate::support::TestDatabase;
use crate::support::postgres::{connect, migration_files, wait_for_blocked_statement};
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{petstore, run};
use crate::support::wait::{PROMPTLY, eventually};

/// Rows that each schema version can store, inserted as soon as the version is reached.
const SAMPLES: [(i32, &str); 8] = [
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
    (6, "INSERT INTO imported_chunks (source, keys) VALUES ('pets.csv', '{1,2,ä}')"),
    (
        7,
        "INSERT INTO api_keys (name, prefix, digest, scopes, lineage_id) \
         VALUES ('shop', 'psk_ghijkl', sha256('y'), '{pets:read}', 1)",
    ),
    (
        9,
        // What the service cannot show, which nothing forbade.
        "INSERT INTO orders (pet_id, status, created_at, updated_at, reference) \
         SELECT 1, 'cancelled', now(), now(), reference FROM unnest(ARRAY[E'a\\tb', ' ', U&'\\3000', 'basket']) reference",
    ),
    (14, "INSERT INTO api_key_events (key_id, action, actor) VALUES (1, 'changed', 'ada')"),
];

#[tokio::test]
async fn migrations_apply_one_by_one_to_a_database_with_data() {
    let database = TestDatabase::empty().await;
    let url = DatabaseUrl::from(database.url());
    let client = database.connect().await;
    assert_eq!(migration_files().len(), usize::try_from(SCHEMA_LATEST).unwrap());
    for version in 1..=SCHEMA_LATEST {
        let applied = migrate(&url, version).await.unwrap();
        let files = applied.iter().filter(|name| name.starts_with('V')).count();
        let indexes = if matches!(version, 9 | 12) { 2 } else { 0 };
        assert_eq!((files, applied.len() - files), (1, indexes), "{applied:?}");
        for (_, sample) in SAMPLES.iter().filter(|(since, _)| *since == version) {
            client.batch_execute(sample).await.unwrap();
        }
        // Nodes of the previous release change rows between any two migrations.
        if version >= 5 {
            let change = "UPDATE pets SET name = name; UPDATE orders SET pet_id = pet_id; UPDATE api_keys SET name = name";
            client.batch_execute(change).await.unwrap();
        }
    }
    let row = client.query_one("SELECT count(*), min(category_id) FROM pets", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, i64::MIN));
    let references = "SELECT reference FROM orders WHERE id > 2 ORDER BY id";
    let references: Vec<Option<String>> =
        client.query(references, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(references, [Some("a b".to_owned()), None, None, Some("basket".to_owned())], "corrected");
    assert!(migrate(&url, SCHEMA_LATEST).await.unwrap().is_empty(), "nothing is left to do");
}

#[tokio::test]
async fn ten_nodes_can_migrate_concurrently() {
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
    assert_eq!(up_to_date, 9, "exactly one node migrated");
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
            assert!(error.lines().last().unwrap().contains("run `petstore migrate` first"), "{error}");
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
async fn migrate_refuses_a_database_without_utf8_and_says_how_to_create_one() {
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
async fn an_older_program_works_with_a_newer_schema_and_does_not_change_it() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    let newer =
        "INSERT INTO refinery_schema_history VALUES (999, 'from_the_future', '2099-01-01T00:00:00Z', '1')";
    client.batch_execute(newer).await.unwrap();
    let output = run(&["migrate"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "the schema is up to date\n");
    let settings = PoolSettings {
        database_connections: 1,
        database_timeout: Duration::from_secs(5),
        reads: ReadFrom::default(),
    };
    Storage::new(&database.url().into(), &settings).unwrap().check().await.unwrap();
}

#[tokio::test]
async fn the_database_refuses_the_same_names_as_the_domain() {
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

/// The certificates of an authority and of `localhost`, signed by it, and the key of the latter.
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
async fn the_database_certificate_is_verified_according_to_sslmode() {
    let postgres = PrivatePostgres::start();
    let (authority, server, key) = authority_and_server();
    let client = connect(&postgres.url).await;
    // The server writes the files itself, so that its user owns them.
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
    // The server reloads its settings asynchronously.
    eventually("the server supports TLS", async || works(&format!("{by_name}?sslmode=require")).await).await;
    for (url, expected) in [
        (format!("{by_name}?sslmode=verify-full&sslrootcert={right}"), true),
        (format!("{by_name}?sslmode=verify-full&sslrootcert={wrong}"), false),
        (format!("{by_name}?sslmode=verify-full"), false),
        // The certificate is for the host name, not for the IP address.
        (format!("{}?sslmode=verify-full&sslrootcert={right}", postgres.url), false),
        (format!("{by_name}?sslmode=prefer"), true),
        (by_name.clone(), true),
        (format!("{by_name}?sslmode=disable"), false),
    ] {
        assert_eq!(works(&url).await, expected, "{url}");
    }
    // The same from the environment, as psql understands it. The URL wins.
    let ours = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", right)];
    let others = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", wrong)];
    for (url, variables, error) in [
        (by_name.clone(), ours, None),
        (by_name.clone(), others, Some("invalid peer certificate")),
        (format!("{by_name}?sslmode=require"), ours, Some("needs sslmode=verify-full")),
        (by_name.clone(), [("PGSSLMODE", "verify-ca"), ("PGUSER", "")], Some("PGSSLMODE, must be")),
        (by_name.clone(), [("PGSSLCRL", "/crl"), ("PGUSER", "")], Some("PGSSLCRL is not supported")),
    ] {
        let output = run(&["migrate"], &[&[("DATABASE_URL", &*url)], &variables[..]].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), error.is_none(), "{variables:?}: {errors}");
        assert!(errors.contains(error.unwrap_or_default()), "{variables:?}: {errors}");
    }
    for file in [right, wrong] {
        std::fs::remove_file(file).unwrap();
    }
}

#[tokio::test]
async fn the_variables_of_libpq_name_the_server_and_never_give_less_encryption_than_asked_for() {
    let database = TestDatabase::empty().await;
    let config: tokio_postgres::Config = database.url().parse().unwrap();
    let host = match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    };
    let port = config.get_ports()[0].to_string();
    let migrate = |more: &[(&str, &str)]| {
        let server = [
            ("DATABASE_URL", "postgresql://"),
            ("PGHOST", &*host),
            ("PGPORT", &*port),
            ("PGUSER", config.get_user().unwrap()),
            ("PGDATABASE", database.name()),
        ];
        let output = run(&["migrate"], &[&server[..], more].concat());
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    // The server has no TLS.
    for mode in ["require", "verify-full"] {
        let (succeeded, error) = migrate(&[("PGSSLMODE", mode)]);
        assert!(!succeeded && error.contains("server does not support TLS"), "{mode}: {error}");
    }
    assert_eq!(migrate(&[]), (true, String::new()));
}

/// Whether the database can be reached at this URL. It has no schema, so the check fails with that error.
async fn works(url: &str) -> bool {
    let settings = PoolSettings {
        database_connections: 1,
        database_timeout: Duration::from_secs(5),
        reads: ReadFrom::default(),
    };
    match Storage::new(&url.to_owned().into(), &settings) {
        Ok(storage) => matches!(storage.check().await, Err(StorageError::Unusable(_))),
        Err(_) => false,
    }
}

/// A database at version 4, and a transaction that locks `pets`, which the migration to version 5 must lock.
async fn with_blocked_migration() -> (TestDatabase, Client) {
    let database = TestDatabase::empty().await;
    migrate(&DatabaseUrl::from(database.url()), 4).await.unwrap();
    let long = database.connect().await;
    // The server ends the transaction after a while, so that a migration that waits indefinitely fails the test.
    long.batch_execute("SET idle_in_transaction_session_timeout = '60s'").await.unwrap();
    long.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE").await.unwrap();
    (database, long)
}

#[tokio::test]
async fn migrate_does_not_block_requests_while_it_waits_for_a_long_transaction() {
    let (database, holder) = with_blocked_migration().await;
    let url = database.url();
    let mut command = petstore(&["migrate", "--database-url", &url]);
    let migrating = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let mut migrating = migrating.unwrap();
    let watch = database.connect().await;
    wait_for_blocked_statement(&watch).await;
    // A request queues behind an attempt of the migration, and is served when that gives up, long before the transaction
    // ends.
    let started = Instant::now();
    watch.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE; COMMIT").await.unwrap();
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
    assert!(migrating.try_wait().unwrap().is_none(), "it retries");
    holder.batch_execute("COMMIT").await.unwrap();
    let output = migrating.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    assert!(log.contains("another transaction holds a lock that a migration needs: retrying"), "{log}");
    assert!(output.stdout.starts_with(b"applied V5"), "{log}");
}

#[tokio::test]
async fn migrate_may_take_longer_than_the_statements_of_others() {
    let (database, holder) = with_blocked_migration().await;
    // Shorter than one attempt.
    let limit = format!("ALTER DATABASE {} SET statement_timeout = '300ms'", database.name());
    holder.batch_execute("COMMIT; BEGIN; LOCK TABLE pets IN SHARE MODE").await.unwrap();
    database.server().await.batch_execute(&limit).await.unwrap();
    let output = run(&["migrate", "--patience", "0s"], &[("DATABASE_URL", &database.url())]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("petstore: other transactions hold locks"), "{error}");
}

#[tokio::test]
async fn migrate_that_gives_up_says_which_versions_it_applied() {
    let database = TestDatabase::empty().await;
    migrate(&DatabaseUrl::from(database.url()), 6).await.unwrap();
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; SELECT FROM orders").await.unwrap();
    let output = run(&["migrate", "--patience", "0s"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(output.status.code(), Some(1));
    let applied = String::from_utf8(output.stdout).unwrap();
    assert_eq!(applied, "applied V7__least_privilege_partitions\napplied V8__create_events\n");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("petstore: other transactions hold locks"), "{error}");
}

#[tokio::test]
async fn migrate_gives_up_when_its_patience_runs_out_and_changes_nothing() {
    let (database, _long) = with_blocked_migration().await;
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

#[tokio::test]
async fn migrate_gives_up_at_once_if_more_patience_does_not_help() {
    let database = TestDatabase::empty().await;
    database.connect().await.batch_execute("CREATE TABLE pets ()").await.unwrap();
    let started = Instant::now();
    let output = run(&["migrate", "--patience", "60s"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(r#"relation "pets" already exists"#), "{error}");
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
}
