//! The service as a role with only the grants of `deploy/postgresql/roles.sql`.

use std::path::Path;
use std::process::Command;

use petstore_config::DatabaseUrl;
use petstore_domain::api_key::ApiKey;
use petstore_storage::{SCHEMA_NEEDED, migrate};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client as Connection;
use tokio_postgres::error::SqlState;

use crate::support::folder::Folder;
use crate::support::partitions::{OLD_PARTITION, days, drop_partitions, partition_name, prepared};
use crate::support::postgres::connect;
use crate::support::program::{ServeProcess, run};
use crate::support::repository::ROOT;
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};

/// A database with an owner, which migrates it, and a role for the service.
struct Deployment {
    database: TestDatabase,
    owner: String,
    service: String,
}

impl Deployment {
    async fn new() -> Self {
        let deployment = Self::empty().await;
        let migrated = run(&["migrate"], &[("DATABASE_URL", &deployment.database.url_as(&deployment.owner))]);
        assert!(migrated.status.success(), "{migrated:?}");
        // A superuser creates the role; the owner can run the file again.
        deployment.grant(&deployment.database.url());
        deployment.grant(&deployment.database.url_as(&deployment.owner));
        deployment
    }

    /// The same, with the schema and the grants of 1.0.0.
    async fn with_schema_of_1_0_0() -> Self {
        let deployment = Self::empty().await;
        let (url, service) = (deployment.database.url_as(&deployment.owner), &deployment.service);
        migrate(&DatabaseUrl::from(url), 6).await.unwrap();
        let create = format!("CREATE ROLE {service} LOGIN");
        deployment.database.connect().await.batch_execute(&create).await.unwrap();
        let grants = format!(
            "GRANT SELECT ON refinery_schema_history TO {service};
             GRANT SELECT, INSERT, UPDATE ON pets, orders, api_keys TO {service};
             GRANT USAGE ON SEQUENCE pets_id_seq TO {service};
             GRANT SELECT, INSERT ON api_key_events, imported_chunks, idempotency_keys TO {service};
             GRANT EXECUTE ON FUNCTION turn_idempotency_pages() TO {service}"
        );
        deployment.as_owner().await.batch_execute(&grants).await.unwrap();
        deployment
    }

    /// A database without tables, and its owner.
    async fn empty() -> Self {
        let database = TestDatabase::empty().await;
        let (owner, service) = (format!("{}_owner", database.name()), format!("{}_service", database.name()));
        let roles = format!(
            "DROP ROLE IF EXISTS {owner}; DROP ROLE IF EXISTS {service}; CREATE ROLE {owner} LOGIN; \
             ALTER DATABASE {} OWNER TO {owner}",
            database.name()
        );
        database.connect().await.batch_execute(&roles).await.unwrap();
        Self { database, owner, service }
    }

    /// Runs `petstore serve`, which must fail, and returns its error.
    fn try_to_serve(&self) -> String {
        let listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let output = run(&[&["serve"], &listen[..]].concat(), &[("DATABASE_URL", &self.url())]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs the shipped `roles.sql`.
    fn grant(&self, url: &str) {
        let output = Command::new("psql")
            .args(["--no-psqlrc", "--quiet", "--dbname", url, "--set", &format!("service={}", self.service)])
            .arg("--file")
            .arg(Path::new(ROOT).join("deploy/postgresql/roles.sql"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn url(&self) -> String {
        self.database.url_as(&self.service)
    }

    async fn as_owner(&self) -> Connection {
        connect(&self.database.url_as(&self.owner)).await
    }

    async fn as_service(&self) -> Connection {
        connect(&self.url()).await
    }

    /// Runs a command as the role of the service, and returns its output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = run(arguments, &[("DATABASE_URL", &self.url())]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        assert!(!errors.contains("denied"), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Drops the database and its roles.
    async fn remove(self) {
        let server = self.database.server().await;
        drop(self.database);
        server.batch_execute(&format!("DROP ROLE {}", self.owner)).await.unwrap();
        server.batch_execute(&format!("DROP ROLE {}", self.service)).await.unwrap();
    }
}

#[tokio::test]
async fn the_service_works_with_the_privileges_of_the_shipped_role() {
    let deployment = Deployment::new().await;
    let owner = deployment.as_owner().await;
    owner.batch_execute(OLD_PARTITION).await.unwrap();
    drop_partitions(&owner, -1).await;
    assert_eq!(days(&owner).await, 0);
    let service = ServeProcess::start(&deployment.url(), &["--order-hold", "168h"]);
    eventually("partitions are created and dropped", async || {
        let old = "SELECT to_regclass('idempotency_keys_20200101') IS NULL";
        days(&owner).await == prepared() && owner.query_one(old, &[]).await.unwrap().get::<_, bool>(0)
    })
    .await;

    let key: ApiKey = deployment.run(&["keys", "create", "--name", "shop"]).parse().unwrap();
    let client = Client::new(service.address, Some(&key));
    call_every_operation(&client).await;

    // The role can also use partitions that are created later.
    drop_partitions(&owner, -1).await;
    let rex = json!({"name": "Rex", "categoryId": 1});
    eventually("a missing partition is created", async || {
        client.post_with_key("/v1/pets", "later", &rex).await.status == 201
    })
    .await;
    let again = client.post_with_key("/v1/pets", "later", &rex).await;
    assert_eq!((again.status, again.is_replayed()), (201, true));

    let records: Value = serde_json::from_str(&deployment.run(&["keys", "list", "--json"])).unwrap();
    let id = records[0]["id"].to_string();
    let successor: ApiKey = deployment.run(&["keys", "rotate", &id, "--overlap", "1h"]).parse().unwrap();
    let successor = Client::new(service.address, Some(&successor));
    assert_eq!(successor.get("/v1/pets").await.status, 200);
    assert!(deployment.run(&["keys", "show", &id]).contains("rotated by"));
    deployment.run(&["keys", "revoke", &id]);
    eventually("the key is refused", async || client.get("/v1/pets").await.status == 401).await;

    import_and_export(&deployment);
    assert!(deployment.run(&["doctor"]).contains("ok       role"));
    let (exited_well, log) = service.terminate();
    assert!(exited_well, "{log}");
    assert!(!log.contains("denied") && !log.contains("must be owner"), "{log}");
    let used = "SELECT count(*) FROM api_keys WHERE last_used_at IS NULL";
    assert_eq!(owner.query_one(used, &[]).await.unwrap().get::<_, i64>(0), 0, "the last use is recorded");

    let migrated = run(&["migrate"], &[("DATABASE_URL", &deployment.url())]);
    assert_eq!(migrated.status.code(), Some(1), "only the owner can migrate");
    drop(owner);
    deployment.remove().await;
}

#[tokio::test]
async fn only_the_owner_changes_the_scopes_and_the_rate_limit_of_a_key() {
    let deployment = Deployment::new().await;
    let folder = Folder::new();
    let apply = |content: &str, url: &str| {
        let file = folder.write("keys.toml", content);
        let output = run(&["keys", "apply", &file, "--prune"], &[("DATABASE_URL", url)]);
        let (text, errors) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        (output.status.code(), text, errors)
    };
    let kiosk = "[keys.kiosk]\nscopes = ['pets:read']\n";
    // The service's role creates, revokes and rotates keys, and changes when they expire.
    let digest = |byte: &str| format!("digest = '{}'\n", byte.repeat(32));
    for content in [
        format!("[keys.old]\nscopes = ['pets:read']\n{kiosk}"),
        format!("{kiosk}expires = 2099-01-31\n"),
        format!("{kiosk}expires = 2099-02-28\n{}", digest("1a")),
    ] {
        let (code, text, errors) = apply(&content, &deployment.url());
        assert_eq!((code, &*errors), (Some(0), ""), "{content}");
        assert!(text.contains("applied: "), "{text}");
    }
    let wider = format!("[keys.kiosk]\nscopes = ['pets:read', 'pets:write']\n{}", digest("1a"));
    let slower = format!("{kiosk}rate-limit = '1/s'\n{}", digest("1a"));
    for content in [&wider, &slower] {
        let (code, text, errors) = apply(content, &deployment.url());
        assert_eq!((code, &*text), (Some(1), ""));
        let service = &deployment.service;
        let refused = format!(
            "petstore: the role {service} may not change the scopes or the rate limit of a key: run this command as the \
             owner of the database\n"
        );
        assert_eq!(errors, refused);
        let (code, text, errors) = apply(content, &deployment.database.url_as(&deployment.owner));
        assert_eq!((code, &*errors), (Some(0), ""));
        assert!(text.contains("2 changed"), "{text}");
    }
    deployment.remove().await;
}

/// Calls every operation.
async fn call_every_operation(client: &Client) {
    let id = client.add("Max", Some("available")).await;
    let rex = json!({"name": "Rex", "categoryId": 1, "status": "available"});
    for replayed in [false, true] {
        let added = client.post_with_key("/v1/pets", "a", &rex).await;
        assert_eq!((added.status, added.is_replayed()), (201, replayed), "{}", added.body);
    }
    assert_eq!(client.get("/v1/pets?status=available").await.ids().len(), 2);
    assert_eq!(client.get(&format!("/v1/pets/{id}")).await.status, 200);
    assert_eq!(client.patch_pet(id, &json!({"name": "Maxi"})).await.status, 200);
    for end in ["cancel", "complete"] {
        let order = client.post_with_key("/v1/store/orders", end, &json!({"petId": id})).await;
        assert_eq!(order.status, 201, "{}", order.body);
        let path = format!("/v1/store/orders/{}", order.json()["id"]);
        assert_eq!(client.get(&path).await.status, 200);
        let noted = client.send(Method::PATCH, &path, |request| {
            request.header("content-type", "application/json").body(r#"{"metadata":{"cashier":"Kim"}}"#)
        });
        assert_eq!(noted.await.status, 200);
        let path = format!("{path}/{end}");
        let ended = client.send(Method::POST, &path, |request| request.header("idempotency-key", "end"));
        assert_eq!(ended.await.status, 200);
    }
    assert_eq!(client.get("/v1/store/orders?status=completed").await.ids().len(), 1);
    let deleted = client.add("Duplicate", None).await;
    let path = format!("/v1/pets/{deleted}");
    assert_eq!(client.send(Method::DELETE, &path, |request| request).await.status, 204);
    let expiring = client.post("/v1/pets", &rex).await.json();
    let order = client.post("/v1/store/orders", &json!({"petId": expiring["id"], "holdSeconds": 1})).await;
    assert_eq!(order.status, 201, "{}", order.body);
    eventually("the order expires", async || {
        client.get("/v1/store/orders?status=expired").await.ids() == [order.json()["id"].as_i64().unwrap()]
    })
    .await;
    eventually("the events are shown", async || {
        client.get("/v1/events?limit=100").await.body.contains("order.expired")
    })
    .await;
}

/// Imports a file with unordered keys twice, checks it once more, and exports everything.
fn import_and_export(deployment: &Deployment) {
    let folder = Folder::new();
    let file = folder.write("pets.csv", "key,name,categoryId\n2,Ada,1\n1,Bea,1\n");
    for _ in 0..2 {
        deployment.run(&["import", &file, "--key-column", "key"]);
    }
    deployment.run(&["import", &file, "--key-column", "key", "--dry-run"]);
    let exported = deployment.run(&["export"]);
    for name in ["Ada", "Bea", "Maxi"] {
        assert_eq!(exported.matches(&format!("\"{name}\"")).count(), 1, "{exported}");
    }
    deployment.run(&["seed", "--count", "3"]);
}

#[tokio::test]
async fn an_import_into_the_database_of_a_demo_needs_the_owner() {
    let (deployment, folder) = (Deployment::new().await, Folder::new());
    let file = folder.write("pets.csv", "name,categoryId\nAda,1\n");
    let owner = deployment.as_owner().await;
    let mark = "COMMENT ON TABLE pets IS 'for demonstrations: petstore demo'";
    owner.batch_execute(mark).await.unwrap();
    let output = run(&["import", &file], &[("DATABASE_URL", &deployment.url())]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    let expected = "petstore: the database was used by `petstore demo`, and only the owner of its tables can end that: run this \
        command as the owner\nNothing was added. ";
    assert!(errors.starts_with(expected), "{errors}");
    let url = deployment.database.url_as(&deployment.owner);
    assert!(run(&["import", &file], &[("DATABASE_URL", &url)]).status.success());
    deployment.run(&["import", &file]);
    drop(owner);
    deployment.remove().await;
}

#[tokio::test]
async fn the_shipped_role_has_no_other_privileges() {
    let deployment = Deployment::new().await;
    let service = deployment.as_service().await;
    let partition = partition_name(&service, -1).await;
    let mut forbidden: Vec<String> = [
        "CREATE TABLE mine (id bigint)",
        "CREATE SCHEMA mine",
        "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE INDEX ON pets (name)",
        "ALTER TABLE pets ADD COLUMN mine text",
        "ALTER TABLE idempotency_keys OWNER TO CURRENT_USER",
        "ALTER FUNCTION create_idempotency_partitions() RESET search_path",
        "SELECT setval('pets_id_seq', 1)",
        "UPDATE api_keys SET scopes = '{pets:write}'",
        "UPDATE api_keys SET digest = sha256('mine')",
        "UPDATE api_keys SET lineage_id = 1",
        "UPDATE api_key_events SET actor = 'nobody'",
        "UPDATE idempotency_keys SET used_at = now()",
        "UPDATE imported_chunks SET keys = '{1}'",
        "UPDATE events SET pet_id = 1",
        "INSERT INTO events (type, pet_id) VALUES ('pet.created', 1)",
        "UPDATE event_feed SET epoch = 1",
        "SELECT start_event_epoch()",
        "SELECT create_daily_partitions('events')",
        "SELECT daily_partitions_before('events', '9999-12-31')",
        "SELECT nextval('event_numbers')",
        "ALTER TABLE pets DISABLE TRIGGER ALL",
        "INSERT INTO refinery_schema_history VALUES (999, 'mine', 'now', '1')",
        "SELECT rolpassword FROM pg_authid",
    ]
    .map(ToOwned::to_owned)
    .to_vec();
    forbidden.push(format!("SET ROLE {}", deployment.owner));
    forbidden.push(format!("SELECT FROM {partition}"));
    for table in [
        "pets",
        "orders",
        "api_keys",
        "api_key_events",
        "idempotency_keys",
        "imported_chunks",
        "events",
        "event_feed",
        "refinery_schema_history",
        &partition,
    ] {
        if table != "pets" {
            forbidden.push(format!("DELETE FROM {table}"));
        }
        forbidden.push(format!("TRUNCATE {table}"));
        forbidden.push(format!("DROP TABLE {table}"));
    }
    for statement in forbidden {
        let done = service.batch_execute(&statement).await;
        let refused = done.as_ref().err().and_then(tokio_postgres::Error::code);
        assert_eq!(refused, Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{statement}: {done:?}");
    }
    drop(service);
    deployment.remove().await;
}

#[tokio::test]
async fn security_definer_functions_are_not_public_and_ignore_temporary_tables() {
    let deployment = Deployment::new().await;
    let stranger = format!("{}_stranger", deployment.database.name());
    let admin = deployment.database.connect().await;
    admin
        .batch_execute(&format!("DROP ROLE IF EXISTS {stranger}; CREATE ROLE {stranger} LOGIN"))
        .await
        .unwrap();
    let functions = "SELECT oid::regprocedure::text, proconfig,
          format('%s(%s)', proname, array_to_string(array_fill('NULL'::text, ARRAY[pronargs::int]), ', '))
        FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef";
    let functions = admin.query(functions, &[]).await.unwrap();
    assert!(functions.len() >= 6, "{functions:?}");
    let by_stranger = connect(&deployment.database.url_as(&stranger)).await;
    for row in &functions {
        let (function, config, call): (String, Vec<String>, String) = (row.get(0), row.get(1), row.get(2));
        assert!(
            config.contains(&"search_path=pg_catalog, public, pg_temp".to_owned()),
            "{function}: {config:?}"
        );
        let error = by_stranger.execute(&format!("SELECT {call}"), &[]).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{function}");
    }
    drop(by_stranger);
    // They do not use a temporary table with the same name.
    drop_partitions(&deployment.as_owner().await, -1).await;
    let service = deployment.as_service().await;
    let today = partition_name(&service, 0).await;
    let mine =
        format!("CREATE TEMPORARY TABLE idempotency_keys (x int); CREATE TEMPORARY TABLE {today} (x int)");
    service.batch_execute(&mine).await.unwrap();
    service.execute("SELECT create_idempotency_partitions()", &[]).await.unwrap();
    assert_eq!(days(&admin).await, prepared());
    drop(service);
    admin.batch_execute(&format!("DROP ROLE {stranger}")).await.unwrap();
    drop(admin);
    deployment.remove().await;
}

/// What a role is granted: on tables and sequences, on columns, functions, the schema and the database, and its memberships.
async fn grants(client: &Connection, role: &str) -> Vec<String> {
    let grants = "
        SELECT oid::regclass::text AS name, relacl AS acl FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION ALL
        SELECT attrelid::regclass || '.' || attname, attacl FROM pg_attribute
        UNION ALL
        SELECT oid::regprocedure::text, proacl FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        UNION ALL
        SELECT nspname, nspacl FROM pg_namespace
        UNION ALL
        SELECT datname, datacl FROM pg_database WHERE datname = current_database()";
    let grants = format!(
        "SELECT name || ' ' || privilege_type FROM ({grants}) AS objects, aclexplode(acl) WHERE grantee = $1::text::regrole
        UNION ALL
        SELECT roleid::regrole::text FROM pg_auth_members WHERE member = $1::text::regrole
        ORDER BY 1"
    );
    client.query(&grants, &[&role]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn migrate_grants_a_role_exactly_what_the_shipped_file_does() {
    let deployment = Deployment::new().await;
    let other = format!("{}_Other \"role\"", deployment.database.name());
    let quoted = format!("\"{}\"", other.replace('"', "\"\""));
    let admin = deployment.database.connect().await;
    admin.batch_execute(&format!("DROP ROLE IF EXISTS {quoted}")).await.unwrap();
    let migrate = |url: &str| run(&["migrate", "--grant-to", &other], &[("DATABASE_URL", url)]);
    let refused = migrate(&deployment.database.url());
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("create it first"), "{refused:?}");
    admin.batch_execute(&format!("CREATE ROLE {quoted} LOGIN")).await.unwrap();
    // As a superuser, then again as the owner.
    for url in [deployment.database.url(), deployment.database.url_as(&deployment.owner)] {
        let granted = migrate(&url);
        let expected =
            format!("the schema is up to date\n{other} has the privileges that the service needs\n");
        assert_eq!(String::from_utf8_lossy(&granted.stdout), expected, "{granted:?}");
        let by_file = grants(&admin, &deployment.service).await;
        assert!(by_file.len() > 30, "{by_file:?}");
        assert_eq!(grants(&admin, &quoted).await, by_file);
    }
    let clean = format!(
        "REVOKE ALL ON DATABASE {} FROM {quoted}; DROP OWNED BY {quoted}; DROP ROLE {quoted}",
        deployment.database.name()
    );
    admin.batch_execute(&clean).await.unwrap();
    drop(admin);
    deployment.remove().await;
}

#[tokio::test]
async fn a_role_of_an_earlier_release_needs_only_migrate_to_serve_the_new_one() {
    let deployment = Deployment::with_schema_of_1_0_0().await;
    let refused = deployment.try_to_serve();
    assert!(refused.contains(&format!("needs {SCHEMA_NEEDED}: run `petstore migrate` first")), "{refused}");
    let owner = deployment.database.url_as(&deployment.owner);
    assert!(run(&["migrate"], &[("DATABASE_URL", &owner)]).status.success());
    let refused = deployment.try_to_serve();
    let service = &deployment.service;
    assert!(
        refused.contains(&format!("the role {service} lacks DELETE on pets, SELECT on events, ")),
        "{refused}"
    );
    assert!(
        refused.contains(&format!("run `petstore migrate --grant-to {service}` as the owner")),
        "{refused}"
    );
    assert!(run(&["migrate", "--grant-to", service], &[("DATABASE_URL", &owner)]).status.success());
    let process = ServeProcess::start(&deployment.url(), &["--order-hold", "168h"]);
    let key: ApiKey = deployment.run(&["keys", "create", "--name", "shop"]).parse().unwrap();
    call_every_operation(&Client::new(process.address, Some(&key))).await;
    drop(process);
    deployment.remove().await;
}

#[tokio::test]
async fn serve_does_not_start_if_it_lacks_a_privilege_that_its_statements_need() {
    let deployment = Deployment::new().await;
    let (owner, service) = (deployment.as_owner().await, deployment.service.clone());
    for (privilege, named) in [
        ("INSERT ON orders", "INSERT on orders"),
        ("DELETE ON pets", "DELETE on pets"),
        ("SELECT ON refinery_schema_history", "SELECT on refinery_schema_history"),
        ("EXECUTE ON FUNCTION create_event_partitions()", "EXECUTE on create_event_partitions()"),
    ] {
        owner.batch_execute(&format!("REVOKE {privilege} FROM {service}")).await.unwrap();
        let refused = deployment.try_to_serve();
        assert!(
            refused.contains(&format!("the role {service} lacks {named}: run")),
            "{privilege}: {refused}"
        );
        owner.batch_execute(&format!("GRANT {privilege} TO {service}")).await.unwrap();
    }
    // What only other commands need.
    owner.batch_execute(&format!("REVOKE INSERT ON imported_chunks, api_keys FROM {service}")).await.unwrap();
    drop(ServeProcess::start(&deployment.url(), &[]));
    drop(owner);
    deployment.remove().await;
}

#[tokio::test]
async fn doctor_names_each_missing_privilege() {
    let deployment = Deployment::new().await;
    let owner = deployment.as_owner().await;
    for (privilege, named) in [
        ("SELECT ON refinery_schema_history", "SELECT on refinery_schema_history"),
        ("INSERT ON pets", "INSERT on pets"),
        ("DELETE ON pets", "DELETE on pets"),
        ("UPDATE ON orders", "UPDATE on orders"),
        ("UPDATE (expires_at, revoked_at, last_used_at) ON api_keys", "UPDATE on api_keys"),
        ("INSERT ON api_key_events", "INSERT on api_key_events"),
        ("SELECT ON idempotency_keys", "SELECT on idempotency_keys"),
        ("USAGE ON SEQUENCE pets_id_seq", "USAGE on pets_id_seq"),
        ("EXECUTE ON FUNCTION create_idempotency_partitions()", "EXECUTE on create_idempotency_partitions()"),
        ("EXECUTE ON FUNCTION drop_idempotency_partitions()", "EXECUTE on drop_idempotency_partitions()"),
        ("SELECT ON events", "SELECT on events"),
        ("SELECT ON event_feed", "SELECT on event_feed"),
        ("EXECUTE ON FUNCTION event_origin()", "EXECUTE on event_origin()"),
        ("EXECUTE ON FUNCTION create_event_partitions()", "EXECUTE on create_event_partitions()"),
        ("EXECUTE ON FUNCTION drop_event_partitions(interval)", "EXECUTE on drop_event_partitions(interval)"),
    ] {
        owner.batch_execute(&format!("REVOKE {privilege} FROM {}", deployment.service)).await.unwrap();
        let output = run(&["doctor"], &[("DATABASE_URL", &deployment.url())]);
        assert_eq!(output.status.code(), Some(1), "{privilege}");
        let text = String::from_utf8(output.stdout).unwrap();
        let role = text.lines().find(|line| line.contains(" role ")).unwrap();
        let service = &deployment.service;
        let lacks =
            format!("{service} lacks {named}: run `petstore migrate --grant-to {service}` as the owner");
        assert!(role.starts_with("FAILURE") && role.contains(&lacks), "{text}");
        owner.batch_execute(&format!("GRANT {privilege} TO {}", deployment.service)).await.unwrap();
    }
    drop(owner);
    deployment.remove().await;
}

#[tokio::test]
async fn doctor_names_a_blocking_session_of_which_the_role_may_not_see_more() {
    let Deployment { database, owner, service } = Deployment::new().await;
    let admin = database.connect().await;
    admin.batch_execute(&format!("REVOKE pg_monitor FROM {service}")).await.unwrap();
    let holder = connect(&database.url_as(&owner)).await;
    holder
        .batch_execute("SET application_name = 'import'; BEGIN; LOCK TABLE pets IN SHARE MODE")
        .await
        .unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let found = run(&["doctor"], &[("DATABASE_URL", &database.url_as(&service))]);
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains(&format!("process {pid} (import, role {owner}): end it with ")), "{found}");
}

#[tokio::test]
async fn migrate_refuses_a_role_that_does_not_own_the_tables() {
    let Deployment { database, owner, .. } = Deployment::with_schema_of_1_0_0().await;
    let migrated = run(&["migrate"], &[("DATABASE_URL", &database.url())]);
    let error = String::from_utf8(migrated.stderr).unwrap();
    assert_eq!(migrated.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("the tables belong to the role {owner}, but this is")), "{error}");
    let as_owner = format!("{}&options=-c%20role%3D{owner}", database.url());
    let migrated = run(&["migrate"], &[("DATABASE_URL", &as_owner)]);
    assert!(migrated.status.success(), "{migrated:?}");
    // There is nothing to do, so it does not matter whose tables they are.
    let migrated = run(&["migrate"], &[("DATABASE_URL", &database.url())]);
    assert!(migrated.status.success(), "{migrated:?}");
}

#[tokio::test]
async fn migrate_needs_only_one_connection() {
    let Deployment { database, owner, .. } = Deployment::empty().await;
    let limit = format!("ALTER ROLE {owner} CONNECTION LIMIT 1");
    database.connect().await.batch_execute(&limit).await.unwrap();
    for _ in 0..5 {
        let migrated = run(&["migrate"], &[("DATABASE_URL", &database.url_as(&owner))]);
        assert!(migrated.status.success(), "{migrated:?}");
        eventually("its connection is closed", async || {
            let open = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
            database.connect().await.query_one(open, &[&owner]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
    }
}
