//! Incidents that an operator meets: what the log and `petstore doctor` say then is what the table in docs/runbook.md says.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tokio::task::JoinSet;
use tokio_postgres::Config;

use crate::support::folder::Folder;
use crate::support::postgres::connect;
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{ServeProcess, new_key, run};
use crate::support::repository::{heading_id, read};
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};

const PAGE: &str = "docs/runbook.md";

/// A row of the table.
struct Incident {
    log: String,
    doctor: String,
}

/// Whether a link from the page leads to a heading, there or on another page.
fn leads_to_a_heading(link: &str) -> bool {
    let (page, anchor) = link.split_once('#').unwrap();
    let page = if page.is_empty() { PAGE.to_owned() } else { format!("docs/{page}") };
    let page = read(&page);
    let mut headings = page.lines().filter(|line| line.starts_with('#'));
    headings.any(|heading| heading_id(heading.trim_start_matches('#').trim()) == anchor)
}

/// The rows of the table, by the name of the incident.
fn rows() -> Vec<(String, Incident)> {
    let page = read(PAGE);
    let table = page.split("| incident |").nth(1).unwrap().split("\n\n").next().unwrap();
    // What is quoted, if something is.
    let cell = |text: &str| text.split('`').nth(1).unwrap_or(text).trim().to_owned();
    let row = |line: &str| {
        let cells: Vec<String> = line.trim_matches('|').split(" | ").map(cell).collect();
        let [name, log, doctor, see] = cells.try_into().unwrap();
        let link = see.split("](").nth(1).unwrap().trim_end_matches(')');
        assert!(leads_to_a_heading(link), "{see} leads nowhere");
        (name, Incident { log, doctor })
    };
    table.lines().skip(2).map(row).collect()
}

impl Incident {
    fn named(name: &str) -> Self {
        rows().into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no row for {name:?}")).1
    }

    /// Runs `petstore doctor`, which must say what the table says.
    fn check_doctor(&self, environment: &[(&str, &str)]) {
        let output = run(&["doctor"], environment);
        let text = String::from_utf8(output.stdout).unwrap();
        let is_said = text.lines().any(|line| contains(&squeezed(line), &squeezed(&self.doctor)));
        assert!(is_said, "{:?} is not in:\n{text}", self.doctor);
    }

    fn check_log(&self, log: &str) {
        assert!(contains(log, &self.log), "{:?} is not in:\n{log}", self.log);
    }

    /// Waits until the log of a node says what the table says.
    async fn wait_for_log(&self, node: &ServeProcess) {
        eventually(&format!("the log has {:?}", self.log), async || contains(&node.log(), &self.log)).await;
    }
}

/// Whether a text contains the parts of the other one, which `…` separates, in this order.
fn contains(text: &str, parts: &str) -> bool {
    let mut rest = text;
    parts.split('…').all(|part| match rest.split_once(part.trim()) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// The text with single spaces, because doctor aligns its columns.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_table_has_eleven_incidents() {
    let names: Vec<String> = rows().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 11, "{names:?}");
}

#[tokio::test]
async fn the_database_is_down() {
    let incident = Incident::named("the database is down");
    let (postgres, _) = PrivatePostgres::start_with_key();
    let node = ServeProcess::start(&postgres.url, &[]);
    postgres.stop("immediate");
    node.client.get("/v1/pets").await;
    incident.wait_for_log(&node).await;
    incident.check_doctor(&[("DATABASE_URL", &postgres.url)]);
}

#[tokio::test]
async fn its_password_was_changed() {
    let incident = Incident::named("the database password was changed");
    let (postgres, _) = PrivatePostgres::start_with_key();
    let owner = connect(&postgres.url).await;
    let hba: String = owner.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
    let rules = fs::read_to_string(&hba).unwrap();
    owner.batch_execute("CREATE ROLE shop LOGIN SUPERUSER PASSWORD 'new'").await.unwrap();
    fs::write(&hba, format!("host all shop all scram-sha-256\n{rules}")).unwrap();
    owner.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let config: Config = postgres.url.parse().unwrap();
    let url = format!("postgresql://shop:old@127.0.0.1:{}/postgres", config.get_ports()[0]);
    let node = ServeProcess::start(&url, &[]);
    incident.wait_for_log(&node).await;
    incident.check_doctor(&[("DATABASE_URL", &url)]);
}

#[tokio::test]
async fn the_disk_of_the_database_is_full() {
    let incident = Incident::named("the disk of the database is full");
    let folder = Folder::new();
    let disk = folder.path("disk");
    fs::create_dir(&disk).unwrap();
    let command =
        |program: &str, arguments: &[&str]| Command::new(program).args(arguments).status().unwrap().success();
    // Only root can mount one. CI is root.
    if !command("mount", &["-t", "tmpfs", "-o", "size=150m,mode=777", "tmpfs", &disk]) {
        return;
    }
    let postgres = PrivatePostgres::start_in(Path::new(&disk).join("postgres"));
    let url = postgres.url.clone();
    let migrated = run(&["migrate"], &[("DATABASE_URL", &url)]);
    assert!(migrated.status.success(), "{migrated:?}");
    let node = ServeProcess::start(&url, &[]);
    let client = Client::new(node.address, Some(&new_key(&url, &[])));
    command("sh", &["-c", &format!("dd if=/dev/zero of={disk}/rest bs=1M 2>/dev/null")]);
    for _ in 0..200 {
        client.post("/v1/pets", &json!({"name": "x".repeat(255), "categoryId": 1})).await;
    }
    incident.check_log(&node.log());
    incident.check_doctor(&[("DATABASE_URL", &url)]);
    drop(node);
    drop(postgres);
    assert!(command("umount", &["--lazy", &disk]));
}

#[tokio::test]
async fn its_connections_are_exhausted() {
    let incident = Incident::named("the database connections are exhausted");
    let (postgres, _) = PrivatePostgres::start_with_key();
    let owner = connect(&postgres.url).await;
    // With a limit of the database instead of the server's, the test can still connect as a superuser.
    owner.batch_execute("CREATE ROLE shop LOGIN; ALTER DATABASE postgres CONNECTION LIMIT 0").await.unwrap();
    let url = postgres.url.replace("postgres@", "shop@");
    let node = ServeProcess::start(&url, &[]);
    incident.wait_for_log(&node).await;
    incident.check_doctor(&[("DATABASE_URL", &url)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_locked() {
    let incident = Incident::named("a row is locked");
    let database = TestDatabase::new().await;
    let node = ServeProcess::start(&database.url(), &[]);
    let pet = node.client.add("Rex", None).await;
    let holder = database.connect().await;
    holder.batch_execute(&format!("BEGIN; SELECT FROM pets WHERE id = {pet} FOR UPDATE")).await.unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let client = node.client.clone();
        clients.spawn(async move {
            loop {
                client.patch_pet(pet, &json!({"name": "Max"})).await;
            }
        });
    }
    incident.wait_for_log(&node).await;
    incident.check_doctor(&[("DATABASE_URL", &database.url())]);
}

#[tokio::test]
async fn a_table_is_locked() {
    let incident = Incident::named("a table is locked");
    let database = TestDatabase::new().await;
    let node = ServeProcess::start(&database.url(), &["--database-timeout", "1s"]);
    let holder = database.connect().await;
    holder.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    node.client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
    incident.wait_for_log(&node).await;
    incident.check_doctor(&[("DATABASE_URL", &database.url())]);
}

#[tokio::test]
async fn a_migration_is_missing() {
    let incident = Incident::named("a migration is missing");
    let database = TestDatabase::empty().await;
    let output = run(&["serve"], &[("DATABASE_URL", &database.url())]);
    incident.check_log(&String::from_utf8(output.stderr).unwrap());
    incident.check_doctor(&[("DATABASE_URL", &database.url())]);
}

#[tokio::test]
async fn a_privilege_is_missing() {
    let incident = Incident::named("a privilege is missing");
    let database = TestDatabase::new().await;
    let role = format!("{}_reader", database.name());
    let admin = database.connect().await;
    admin.batch_execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")).await.unwrap();
    let granted = run(&["migrate", "--grant-to", &role], &[("DATABASE_URL", &database.url())]);
    assert!(granted.status.success(), "{granted:?}");
    admin.batch_execute(&format!("REVOKE INSERT ON orders FROM {role}")).await.unwrap();
    let url = database.url_as(&role);
    let output = run(&["serve"], &[("DATABASE_URL", &url)]);
    incident.check_log(&String::from_utf8(output.stderr).unwrap());
    incident.check_doctor(&[("DATABASE_URL", &url)]);
    let clean = format!(
        "REVOKE ALL ON DATABASE {} FROM {role}; DROP OWNED BY {role}; DROP ROLE {role}",
        database.name()
    );
    admin.batch_execute(&clean).await.unwrap();
}

#[tokio::test]
async fn a_variable_is_misspelt() {
    let incident = Incident::named("a variable is misspelt");
    let database = TestDatabase::new().await;
    let environment = [("DATABASE_URL", &*database.url()), ("PETSTORE_LITSEN", "127.0.0.1:0")];
    let output = run(&["serve"], &environment);
    incident.check_log(&String::from_utf8(output.stderr).unwrap());
    incident.check_doctor(&environment);
}
