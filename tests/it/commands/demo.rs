//! `petstore demo`: one command starts a service with pets, and leaves nothing behind.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::demo::{Demo, TemporaryDirectory};
use crate::support::folder::Folder;
use crate::support::program::{run, signal};
use crate::support::repository::ROOT;
use crate::support::{Client, TestDatabase};

/// Counts the pets of the service, page by page.
async fn count_pets(client: &Client) -> usize {
    let mut page = client.get("/v1/pets?limit=100").await;
    let mut count = page.ids().len();
    while let Some(next) = page.next() {
        page = client.get(next).await;
        count += page.ids().len();
    }
    count
}

/// Runs a copied command line.
fn sh(line: &str) -> Value {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn demo_serves_a_thousand_pets_and_its_commands_work_as_printed() {
    let directory = TemporaryDirectory::new();
    let demo = Demo::start(&directory, &[]);
    let client = demo.client();
    assert_eq!(count_pets(&client).await, 1_000);

    let lines: Vec<&str> = demo.printed.lines().filter(|line| line.trim().starts_with("curl ")).collect();
    let [list, add, without_answer] = lines[..] else { panic!("{}", demo.printed) };
    let listed = sh(list);
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert!(listed.as_array().unwrap().iter().all(|pet| pet["status"] == "available"), "{listed}");
    let added = sh(add);
    assert_eq!((&added["id"], &added["name"]), (&1_001.into(), &"Rex".into()));
    let output = Command::new("sh").args(["-c", without_answer]).output().unwrap();
    assert_eq!(output.status.code(), Some(52), "curl: empty reply from server");
    assert_eq!(count_pets(&client).await, 1_002);

    let page = reqwest::get(demo.field("Docs")).await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(demo.printed.contains("fsync off"), "{}", demo.printed);
    demo.assert_stops_cleanly("INT");
    assert_eq!(directory.leftovers(), Vec::<String>::new());
}

#[test]
fn demo_leaves_nothing_behind_after_a_signal_at_any_time() {
    let directory = TemporaryDirectory::new();
    let demo = Demo::start(&directory, &[]);
    assert!(directory.leftovers().len() > 3, "the server runs elsewhere: {:?}", directory.leftovers());
    demo.assert_stops_cleanly("TERM");
    assert_eq!(directory.leftovers(), Vec::<String>::new());

    // While PostgreSQL is still being created.
    for signal in ["INT", "TERM"] {
        let mut demo = Demo::spawn(&directory, &["--listen", "127.0.0.1:0"], &[]);
        demo.read_until("Starting a temporary PostgreSQL ");
        demo.assert_stops_cleanly(signal);
        assert_eq!(directory.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn postgresql_stops_and_its_files_are_removed_when_demo_is_killed() {
    let directory = TemporaryDirectory::new();
    let demo = Demo::start(&directory, &[]);
    demo.signal("KILL");
    drop(demo);
    directory.assert_empties();

    let mut early = Demo::spawn(&directory, &["--listen", "127.0.0.1:0"], &[]);
    early.read_until("Starting a temporary PostgreSQL ");
    early.signal("KILL");
    drop(early);
    directory.assert_empties();
}

#[test]
fn demo_leaves_nothing_behind_when_startup_fails() {
    let directory = TemporaryDirectory::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, error) = Demo::spawn(&directory, &["--listen", &address], &[]).wait();
    assert_eq!(status.code(), Some(1));
    assert!(error.starts_with(&format!("petstore: cannot listen on {address}: ")), "{error}");
    assert_eq!(directory.leftovers(), Vec::<String>::new());

    // Programs that exist and fail, as on a full disk.
    for (initdb, postgres, printed) in [
        ("echo no space left on device; exit 1", "exit 1", "no space left on device"),
        ("mkdir \"${1#--pgdata=}\"", "echo FATAL: no memory; exit 1", "FATAL: no memory"),
    ] {
        let bin = TemporaryDirectory::new();
        for (name, text) in [("initdb", initdb), ("postgres", postgres)] {
            fs::write(bin.0.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(bin.0.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        let (status, error) = Demo::spawn(&directory, &[], &[("PGBIN", bin.0.to_str().unwrap())]).wait();
        assert_eq!(status.code(), Some(1));
        assert_eq!(error, format!("petstore: PostgreSQL exited unexpectedly; its last output:\n{printed}\n"));
        assert_eq!(directory.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn demo_stops_when_postgresql_stops() {
    let directory = TemporaryDirectory::new();
    let demo = Demo::start(&directory, &[]);
    let cluster = fs::read_dir(&directory.0).unwrap().next().unwrap().unwrap().path();
    let postmaster = fs::read_to_string(cluster.join("data/postmaster.pid")).unwrap();
    signal("INT", postmaster.lines().next().unwrap().parse().unwrap());
    let (status, error) = demo.wait();
    assert_eq!(status.code(), Some(1));
    assert!(error.contains("PostgreSQL exited unexpectedly"), "{error}");
    assert!(error.contains("database system is shut down"), "{error}");
    assert_eq!(directory.leftovers(), Vec::<String>::new());
}

#[test]
fn demo_uses_the_next_port_and_says_so_when_its_port_is_taken() {
    let directory = TemporaryDirectory::new();
    // If another program has this port, that serves the test as well.
    let _taken = TcpListener::bind("127.0.0.1:8080");
    let mut demo = Demo::spawn(&directory, &[], &[]);
    demo.read_until("Ctrl-C stops ");
    assert!(demo.printed.contains("127.0.0.1:8080 is in use: trying the next port.\n"), "{}", demo.printed);
    let address = demo.field("Address").strip_prefix("http://127.0.0.1:").unwrap();
    let port: u16 = address.strip_suffix("/v1").unwrap().parse().unwrap();
    assert!((8081..8100).contains(&port), "{port}");
}

#[test]
fn demo_without_postgresql_says_what_to_install() {
    let directory = TemporaryDirectory::new();
    let (status, error) = Demo::spawn(&directory, &[], &[("PGBIN", "/nowhere")]).wait();
    assert_eq!(status.code(), Some(1));
    assert_eq!(
        error,
        "petstore: no PostgreSQL server found in /nowhere: install one (Debian and Ubuntu: `apt-get install \
         postgresql`; Fedora: `dnf install postgresql-server`), or set DATABASE_URL to an empty database\n"
    );
    assert_eq!(directory.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn demo_fills_an_empty_database_and_reuses_it_on_the_next_run() {
    let (directory, database) = (TemporaryDirectory::new(), TestDatabase::empty().await);
    let url = database.url();
    let environment = [("DATABASE_URL", url.as_str())];
    let demo = Demo::start(&directory, &environment);
    assert!(demo.printed.contains(" with 1,000 pets.\n"), "{}", demo.printed);
    let first = demo.client();
    assert_eq!(count_pets(&first).await, 1_000);
    first.add("Rex", Some("available")).await;
    demo.assert_stops_cleanly("INT");
    assert_eq!(directory.leftovers(), Vec::<String>::new());

    let demo = Demo::start(&directory, &environment);
    assert!(demo.printed.contains(" with the pets from the last demo.\n"), "{}", demo.printed);
    assert_eq!(count_pets(&demo.client()).await, 1_001);
    let keys = "SELECT count(*), count(*) FILTER (WHERE revoked_at IS NULL) FROM api_keys";
    let client = database.connect().await;
    let row = client.query_one(keys, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 1), "a key is revoked when its demo stops");
    demo.assert_stops_cleanly("TERM");
    let row = client.query_one(keys, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(1), 0);
}

#[tokio::test]
async fn demo_refuses_a_database_with_other_data_and_does_not_change_it() {
    let other_data = "pets or keys that are not from a demo";
    for (migrated, fill, holds) in [
        (false, "CREATE TABLE customers (id int)", "other tables (customers)"),
        (
            false,
            "CREATE SCHEMA crm; CREATE TABLE crm.notes (id int); CREATE TABLE orders (id int)",
            "other tables (crm.notes, orders)",
        ),
        (true, "CREATE VIEW sold AS SELECT FROM pets", "other tables (sold)"),
        (true, "DELETE FROM api_keys; INSERT INTO pets (name, category_id) VALUES ('Rex', 1)", other_data),
        (true, "", other_data),
    ] {
        let directory = TemporaryDirectory::new();
        let database = if migrated { TestDatabase::new().await } else { TestDatabase::empty().await };
        let client = database.connect().await;
        client.batch_execute(fill).await.unwrap();
        let count = "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_description)";
        let before = client.query_one(count, &[]).await.unwrap();
        let (status, error) = Demo::spawn(&directory, &[], &[("DATABASE_URL", &database.url())]).wait();
        assert_eq!(status.code(), Some(1), "{fill}");
        assert_eq!(
            error,
            format!(
                "petstore: the database at DATABASE_URL contains {holds}: unset DATABASE_URL to use a temporary \
                 database, or set it to an empty one\n"
            )
        );
        let after = client.query_one(count, &[]).await.unwrap();
        let numbers = |row: &tokio_postgres::Row| (row.get::<_, i64>(0), row.get::<_, i64>(1));
        assert_eq!(numbers(&before), numbers(&after), "{fill}");
    }
}

#[tokio::test]
async fn demo_refuses_a_database_of_a_demo_that_has_become_a_shop() {
    let (directory, folder) = (TemporaryDirectory::new(), Folder::new());
    let pets = folder.write("pets.csv", "name,categoryId\nRex,1\n");
    let keys = folder.write("keys.csv", "key,name,categoryId\n1,Rex,1\n");
    let declared = folder.write("keys.toml", "[keys.kiosk]\nscopes = ['pets:read']\n");
    let insert =
        "INSERT INTO api_keys (name, prefix, digest, scopes) VALUES ('a', 'psk_aaaaaa', sha256('a'), '{}')";
    for (commands, sql, is_shop) in [
        (&[&["keys", "create", "--name", "shop"][..]][..], "", true),
        (&[&["keys", "create", "--name", "shop"]], "UPDATE api_keys SET revoked_at = now()", true),
        (&[&["keys", "create", "--name", "shop"]], "DELETE FROM api_keys", true),
        (&[&["keys", "apply", &declared]], "", true),
        (&[], insert, true),
        (&[&["import", &pets]], "", true),
        (&[&["import", &keys, "--key-column=key"]], "", true),
        (&[&["import", &pets], &["seed", "--count=1"]], "", true),
        (&[&["import", &pets, "--dry-run"], &["seed", "--count=1"], &["keys", "revoke", "1"]], "", false),
    ] {
        let name = format!("{commands:?} {sql}");
        let database = TestDatabase::empty().await;
        let (url, client) = (database.url(), database.connect().await);
        let environment = [("DATABASE_URL", url.as_str())];
        Demo::start(&directory, &environment).assert_stops_cleanly("INT");
        for command in commands {
            let output = run(command, &environment);
            assert!(output.status.success(), "{command:?}: {output:?}");
        }
        client.batch_execute(sql).await.unwrap();
        let state = "SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM api_key_events)";
        let state = async || {
            let row = client.query_one(state, &[]).await.unwrap();
            (row.get::<_, i64>(0), row.get::<_, i64>(1))
        };
        let before = state().await;
        let mut demo = Demo::spawn(&directory, &["--listen", "127.0.0.1:0"], &environment);
        if is_shop {
            let (status, error) = demo.wait();
            assert_eq!(status.code(), Some(1), "{name}");
            let refused = "the database at DATABASE_URL contains pets or keys that are not from a demo: ";
            assert!(error.contains(refused), "{name}: {error}");
            assert_eq!(state().await, before, "{name}");
        } else {
            demo.read_until("Ctrl-C stops ");
            demo.assert_stops_cleanly("INT");
        }
    }
}

#[tokio::test]
async fn demo_fills_a_migrated_database_without_data() {
    let (directory, database) = (TemporaryDirectory::new(), TestDatabase::new().await);
    database.connect().await.batch_execute("DELETE FROM api_keys").await.unwrap();
    let demo = Demo::start(&directory, &[("DATABASE_URL", &database.url())]);
    assert_eq!(count_pets(&demo.client()).await, 1_000);
}

/// Replaces what differs from run to run and from machine to machine.
fn redacted(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let bare = word.trim_matches([',', '(']);
        let varies = bare.starts_with('/') || bare.parse::<f64>().is_ok();
        let word = if varies { "…".to_owned() } else { word.to_owned() };
        words.push(word);
    }
    words.join(" ").trim_end().to_owned()
}

/// The text of a line of SVG.
fn text_of(line: &str) -> String {
    let inside = line.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text);
    let text: String = inside.collect();
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[test]
fn the_demo_picture_in_the_readme_shows_the_output_of_demo() {
    let directory = TemporaryDirectory::new();
    let demo = Demo::start(&directory, &[]);
    let address = demo.field("Address").strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap();
    let printed = demo.printed.replace(demo.field("Key"), "psk_…").replace(address, "127.0.0.1:8080");
    let printed: Vec<String> = ["$ petstore demo"].into_iter().chain(printed.lines()).map(redacted).collect();
    let picture = fs::read_to_string(Path::new(ROOT).join("docs/img/demo.svg")).unwrap_or_default();
    let lines = picture.lines().filter(|line| line.starts_with("<text "));
    let drawn: Vec<String> = lines.map(|line| redacted(&text_of(line))).collect();
    assert_eq!(drawn, printed, "run `make generate NAME=demo`");
}
