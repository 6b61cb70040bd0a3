//! `petstore doctor`, on healthy and unhealthy databases.

use std::net::TcpListener;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::TestService;
use crate::support::folder::Folder;
use crate::support::postgres::{TestDatabase, connect};
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{petstore, run};
use crate::support::wait::eventually;

fn doctor(url: &str, flags: &[&str]) -> Output {
    petstore(&["doctor"]).args(flags).env("DATABASE_URL", url).output().unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

/// The value of a setting, and where it came from.
fn setting(report: &Value, flag: &str) -> (Value, Value) {
    let settings = report["settings"].as_array().unwrap();
    let setting = settings.iter().find(|setting| setting["flag"] == flag).unwrap();
    (setting["value"].clone(), setting["source"].clone())
}

#[tokio::test]
async fn a_healthy_database_has_no_failures() {
    let database = TestDatabase::new().await;
    let output = doctor(&database.url(), &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let report = report(&output);
    assert_eq!(report["ok"], true);
    for name in [
        "database",
        "version",
        "encoding",
        "schema",
        "role",
        "encryption",
        "partitions",
        "clock",
        "space",
        "write",
        "pool",
    ] {
        assert_eq!(check(&report, name)["state"], "ok", "{report}");
    }
    assert_eq!(check(&report, "replication")["state"], "warning", "no standby");
}

#[tokio::test]
async fn a_single_server_that_is_meant_is_no_reason_to_warn() {
    let database = TestDatabase::new().await;
    let replication = |flags: &[&str]| {
        let report = report(&doctor(&database.url(), &[&["--json"], flags].concat()));
        (check(&report, "replication")["state"].clone(), check(&report, "replication")["says"].clone())
    };
    let (state, says) = replication(&[]);
    assert_eq!(state, "warning");
    assert!(says.as_str().unwrap().contains("--single-server true"), "{says}");
    assert_eq!(replication(&["--single-server", "true"]).0, "ok");
    assert_eq!(replication(&["--single-server", "false"]).0, "warning");
}

#[tokio::test]
async fn a_write_is_tried_and_rolled_back() {
    let database = TestDatabase::new().await;
    let report = report(&doctor(&database.url(), &["--json"]));
    assert_eq!(check(&report, "write")["state"], "ok", "{report}");
    assert_eq!(check(&report, "space")["state"], "ok", "{report}");
    assert_eq!(check(&report, "nodes")["says"], "none is connected");
    assert_eq!(check(&report, "encryption")["says"], "none; the connection stays on this machine");
    let pets = database.connect().await.query_one("SELECT count(*) FROM pets", &[]).await.unwrap();
    assert_eq!(pets.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_session_that_blocks_writes_is_named() {
    let database = TestDatabase::new().await;
    let holder = database.connect().await;
    holder
        .batch_execute("SET application_name = 'maintenance'; BEGIN; LOCK TABLE orders IN SHARE MODE")
        .await
        .unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let output = doctor(&database.url(), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    let write = check(&report, "write");
    let says = write["says"].as_str().unwrap();
    let named = format!("writes wait for a lock of process {pid} (maintenance, role ");
    assert!(write["state"] == "failure" && says.starts_with(&named), "{report}");
    assert!(says.contains("idle in transaction for ") && says.contains("pg_terminate_backend"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_blocks_a_statement_of_the_service_is_named() {
    let service = TestService::start().await;
    let pet = service.client.add("Rex", None).await;
    let holder = service.database.connect().await;
    holder.batch_execute(&format!("BEGIN; SELECT FROM pets WHERE id = {pet} FOR UPDATE")).await.unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let client = service.client.clone();
    // Each gives up after a second.
    let waiting =
        tokio::spawn(
            async move { while client.patch_pet(pet, &json!({"name": "Max"})).await.status == 503 {} },
        );
    let named = format!("statements of the service wait for a lock of process {pid} (");
    eventually("doctor names the session", async || {
        let report = report(&doctor(&service.database.url(), &["--json"]));
        let write = check(&report, "write");
        write["state"] == "warning" && write["says"].as_str().unwrap().contains(&named)
    })
    .await;
    holder.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn the_versions_of_connected_nodes_are_shown() {
    let database = TestDatabase::new().await;
    let nodes =
        |report: &Value| (check(report, "nodes")["state"].clone(), check(report, "nodes")["says"].clone());
    let (one, two) = (database.connect().await, database.connect().await);
    one.batch_execute("SET application_name = 'petstore/1.1.0+abc'").await.unwrap();
    let found = report(&doctor(&database.url(), &["--json"]));
    let says = nodes(&found).1;
    assert!(says.as_str().unwrap().contains("1.1.0 (abc) on 1 connection"), "{found}");
    two.batch_execute("SET application_name = 'petstore'").await.unwrap();
    let found = report(&doctor(&database.url(), &["--json"]));
    let (state, says) = nodes(&found);
    assert!(
        state == "warning" && says.as_str().unwrap().contains("1.0.0 or unknown on 1 connection, "),
        "{found}"
    );
    drop((one, two));
}

#[tokio::test]
async fn a_failed_check_names_the_problem_and_the_fix_and_sets_the_exit_code() {
    let database = TestDatabase::empty().await;
    let output = doctor(&database.url(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("FAILURE  schema") && text.contains("run `petstore migrate`"), "{text}");

    let output = doctor("postgresql://127.0.0.1:1/petstore", &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(check(&report(&output), "database")["state"], "failure");
}

#[tokio::test]
async fn a_database_without_utf8_fails_with_instructions_to_create_one() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let database = TestDatabase::with_encoding(encoding).await;
        let output = doctor(&database.url(), &["--json"]);
        assert_eq!(output.status.code(), Some(1), "{encoding}");
        let report = report(&output);
        assert_eq!(check(&report, "encoding")["state"], "failure", "{report}");
        let says = check(&report, "encoding")["says"].as_str().unwrap();
        assert!(says.contains(encoding) && says.contains("ENCODING 'UTF8'"), "{says}");
    }
}

#[tokio::test]
async fn missing_write_privileges_of_the_role_are_reported() {
    let database = TestDatabase::new().await;
    let role = format!("{}_reader", database.name());
    let admin = database.connect().await;
    admin.batch_execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")).await.unwrap();
    let report = report(&doctor(&database.url_as(&role), &["--json"]));
    admin.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
    assert_eq!(check(&report, "role")["state"], "failure", "{report}");
    assert!(check(&report, "role")["says"].as_str().unwrap().contains("pets"), "{report}");
}

#[test]
fn the_primary_is_found_among_all_servers_and_each_server_is_described() {
    let (primary, _) = PrivatePostgres::start_with_key();
    let standby = primary.start_standby("standby");
    let url = |order: [&PrivatePostgres; 2]| {
        format!("postgresql://postgres@{},{}/postgres", order[0].address(), order[1].address())
    };
    let output = doctor(&url([&standby, &primary]), &["--json"]);
    let found = report(&output);
    assert!(output.status.success(), "{found}");
    assert_eq!(check(&found, "replication")["state"], "warning", "asynchronous: {found}");
    let servers: Vec<&str> = found["checks"].as_array().unwrap()[..2]
        .iter()
        .inspect(|check| assert_eq!((&check["name"], &check["state"]), (&"server".into(), &"ok".into())))
        .map(|check| check["says"].as_str().unwrap())
        .collect();
    let follows = format!("{}: standby of {}, timeline 1, replayed ", standby.address(), primary.address());
    assert!(servers[0].starts_with(&follows), "{servers:?}");
    assert!(servers[1].starts_with(&format!("{}: primary, timeline 1, flushed ", primary.address())));

    primary.stop("fast");
    let found = report(&doctor(&url([&primary, &standby]), &["--json"]));
    assert_eq!(check(&found, "server")["state"], "warning", "unreachable: {found}");
    assert_eq!(check(&found, "replication")["state"], "failure", "a standby alone: {found}");

    primary.start_again();
    standby.promote();
    let found = report(&doctor(&url([&primary, &standby]), &["--json"]));
    let says = check(&found, "servers")["says"].as_str().unwrap();
    assert!(
        says.contains(&format!("{} and {} accept writes", primary.address(), standby.address())),
        "{says}"
    );
}

#[tokio::test]
async fn connections_that_are_reserved_for_others_are_not_available() {
    let (postgres, _) = PrivatePostgres::start_with_key();
    // PostgreSQL 15 has no such setting.
    let set = connect(&postgres.url).await.batch_execute("ALTER SYSTEM SET reserved_connections = 100").await;
    postgres.stop("fast");
    postgres.start_again();
    let found = report(&doctor(&postgres.url, &["--json"]));
    let says = check(&found, "pool")["says"].as_str().unwrap();
    let max = if set.is_ok() { 397 } else { 497 };
    assert!(says.contains(&format!("of at most {max} ")), "{says}");
}

#[tokio::test]
async fn settings_are_listed_with_their_sources_and_without_passwords() {
    let output =
        doctor("postgresql://shop:very-secret@127.0.0.1:1/petstore", &["--json", "--max-requests", "7"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("very-secret"));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("very-secret"));
    let report = report(&output);
    let of = |flag| setting(&report, flag);
    assert_eq!(of("--max-requests"), ("7".into(), "flag".into()));
    assert_eq!(
        of("--database-url"),
        ("postgresql://shop:***@127.0.0.1:1/petstore".into(), "environment".into())
    );
    assert_eq!(of("--body-timeout"), ("10s".into(), "default".into()));
    assert_eq!(of("--public-base-url"), (Value::Null, "not set".into()));
}

/// Forms of an address, valid or not, with a password.
const ADDRESSES: [&str; 14] = [
    "postgresql://shop:very-secret@127.0.0.1:1/petstore",
    "postgres://shop:very-secret@127.0.0.1:1,127.0.0.1:2/petstore?sslmode=require",
    "postgresql://127.0.0.1:1/petstore?user=shop&password=very-secret",
    "postgresql://shop:very%2dsecret@127.0.0.1:1/very-secret?sslmode=verify-ful",
    "host=127.0.0.1 port=1 user=shop password=very-secret dbname=petstore",
    "host=127.0.0.1 password='very-secret'",
    "shop:very-secret@127.0.0.1:1/petstore",
    "mysql://shop:very-secret@127.0.0.1:1/petstore",
    "postgresql:/shop:very-secret@127.0.0.1:1/petstore",
    "postgresql://shop:very-secret@127.0.0.1:port/petstore",
    "postgresql://shop:p@very-secret@127.0.0.1:1/petstore",
    "postgresql://shop:p?very-secret@127.0.0.1:1/petstore",
    "postgresql://shop:p/very-secret@127.0.0.1:1/petstore",
    "postgresql://127.0.0.1:1/petstore?passwort=very-secret",
];

#[tokio::test]
async fn no_command_prints_the_password_of_an_address_whatever_its_form() {
    let folder = Folder::new();
    let (pets, keys) = (folder.write("pets.csv", "name,categoryId\n"), folder.write("keys.toml", ""));
    // With a port that is in use, the service logs its settings and exits.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let commands: [&[&str]; 9] = [
        &["serve", "--listen", &taken, "--admin-listen", &taken],
        &["doctor"],
        &["doctor", "--json"],
        &["migrate", "--patience", "1s"],
        &["keys", "list"],
        &["keys", "apply", &keys],
        &["import", &pets],
        &["export"],
        &["events"],
    ];
    for address in ADDRESSES {
        let file = folder.write("url", address);
        for command in commands {
            for (name, value) in [("DATABASE_URL", address), ("DATABASE_URL_FILE", &*file)] {
                let output = run(command, &[(name, value)]);
                let printed = [output.stdout, output.stderr].concat();
                let printed = String::from_utf8_lossy(&printed);
                assert!(!output.status.success() && !printed.is_empty(), "{command:?}, {address}: {printed}");
                assert!(!printed.contains("very"), "{command:?}, {name}={address}: {printed}");
            }
        }
    }
}

#[tokio::test]
async fn the_settings_of_a_file_replace_those_of_the_environment_but_not_flags() {
    let database = TestDatabase::new().await;
    let folder = Folder::new();
    let settings = format!(
        "# of the node\nDATABASE_URL=\"{}\"\nPETSTORE_MAX_REQUESTS=7\nPETSTORE_MAX_CONNECTIONS=70\n",
        database.url()
    );
    let file = folder.write("petstore.env", settings);
    let output = petstore(&["doctor", "--json", "--env-file", &file, "--max-connections", "90"])
        // Would conflict with DATABASE_URL, fail the check of the environment, or change a setting.
        .env("DATABASE_URL_FILE", "/nonexistent")
        .env("PETSTORE_LISTNE", "127.0.0.1:1")
        .env("PETSTORE_BODY_TIMEOUT", "1s")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = report(&output);
    assert_eq!(setting(&report, "--max-requests").0, "7");
    assert_eq!(setting(&report, "--max-connections"), ("90".into(), "flag".into()));
    assert_eq!(setting(&report, "--body-timeout"), ("10s".into(), "default".into()));

    // Once is enough for every command.
    let output = petstore(&["--env-file", &file, "keys", "list"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_file_that_cannot_be_read_exits_with_2_and_names_the_line() {
    let folder = Folder::new();
    let missing = folder.path("missing");
    let good = folder.write("good", "PETSTORE_LISTEN=127.0.0.1:0\n");
    let malformed =
        folder.write("malformed", "DATABASE_URL=postgresql://db/petstore\n\nexport PETSTORE_LOG=off\n");
    let unknown =
        folder.write("unknown", "DATABASE_URL=postgresql://db/petstore\nPETSTORE_LISTNE=127.0.0.1:1\n");
    for (arguments, says) in [
        (&["--env-file", &missing][..], format!("{missing}: No such file")),
        (&["--env-file", &malformed], format!("{malformed}: line 3: ")),
        (&["--env-file", &unknown], format!("{unknown}: line 2: ")),
        (
            &["--env-file", &unknown],
            "PETSTORE_LISTNE is not a setting; the nearest is PETSTORE_LISTEN".into(),
        ),
        (&["--env-file", &good, "--env-file", &good], "--env-file can be given only once".into()),
        (&["--env-file", &good], "--database-url".into()),
        (&["--env-file"], "--env-file".into()),
    ] {
        let output = petstore(&["doctor"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(&says), "{arguments:?}: {error}");
    }
}
