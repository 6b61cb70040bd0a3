//! `petstore demo`: one command, a service with animals in it, and nothing left afterwards.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use petstore::domain::api_key::ApiKey;
use serde_json::Value;

use crate::support::postgres::ROOT;
use crate::support::program::petstore;
use crate::support::{Client, TestDatabase};

/// A directory for temporary files of one test, removed with this value.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let name = format!("petstore-test-{:016x}", rand::random::<u64>());
        let place = std::env::temp_dir().join(name);
        fs::create_dir(&place).unwrap();
        // As the system's own: root's PostgreSQL is another user.
        fs::set_permissions(&place, Permissions::from_mode(0o1777)).unwrap();
        Self(place)
    }

    /// What is in it, and which processes work in it.
    fn leftovers(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let here = |process: &PathBuf| {
            // One that is gone by now, or is somebody else's, has none to read.
            fs::read_link(process.join("cwd")).is_ok_and(|directory| directory.starts_with(&self.0))
        };
        files.chain(processes.filter(here)).map(|path| path.display().to_string()).collect()
    }

    /// Waits until nothing is left.
    fn assert_empties(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.leftovers().is_empty() {
            assert!(Instant::now() < deadline, "left behind: {:?}", self.leftovers());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A demonstration that was killed with its test may still be removing what is in it.
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::remove_dir_all(&self.0).is_err() && self.0.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A demonstration that runs, killed with this value.
struct Demo {
    child: Child,
    output: BufReader<ChildStdout>,
    /// What it printed up to its last line.
    said: String,
}

impl Demo {
    fn spawn(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = petstore(&[&["demo"], arguments].concat());
        command.env("TMPDIR", &place.0);
        // Where the developer has PostgreSQL.
        command.envs(["PATH", "PGBIN"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, said: String::new() }
    }

    /// Starts it on a free port and waits until it has said all.
    fn start(place: &Place, environment: &[(&str, &str)]) -> Self {
        let mut demo = Self::spawn(place, &["--listen", "127.0.0.1:0"], environment);
        demo.read_until("Ctrl-C stops ");
        demo
    }

    /// Reads until a line begins so.
    fn read_until(&mut self, beginning: &str) {
        loop {
            let begin = self.said.len();
            let read = self.output.read_line(&mut self.said).unwrap();
            assert!(read > 0, "the demonstration ended: {}", self.said);
            if self.said[begin..].starts_with(beginning) {
                return;
            }
        }
    }

    /// What it said after this word on a line.
    fn told(&self, word: &str) -> &str {
        let line = self.said.lines().find_map(|line| line.trim().strip_prefix(word));
        line.unwrap_or_else(|| panic!("no {word}: {}", self.said)).trim()
    }

    fn client(&self) -> Client {
        let address = self.told("Address").strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap();
        let key: ApiKey = self.told("Key").parse().unwrap();
        Client::new(address.parse().unwrap(), Some(&key))
    }

    fn signal(&self, signal: &str) {
        let kill = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    /// Waits for its end, and returns it with what it said to standard error.
    fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + Duration::from_mins(2);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the demonstration does not end: {}", self.said);
            std::thread::sleep(Duration::from_millis(20));
        };
        let errors = self.child.stderr.take().unwrap();
        (status, std::io::read_to_string(errors).unwrap())
    }

    fn assert_stops_well(self, signal: &str) {
        self.signal(signal);
        let (status, errors) = self.end();
        assert!(status.success(), "{signal}: {errors}");
        assert_eq!(errors, "", "{signal}");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many animals the service has, page by page.
async fn count_pets(client: &Client) -> usize {
    let mut page = client.get("/v1/pets?limit=100").await;
    let mut count = page.ids().len();
    while let Some(next) = page.next() {
        page = client.get(next).await;
        count += page.ids().len();
    }
    count
}

/// Runs a line as somebody who copied it does.
fn sh(line: &str) -> Value {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn demo_serves_a_thousand_animals_and_its_lines_work_as_printed() {
    let place = Place::new();
    let demo = Demo::start(&place, &[]);
    let client = demo.client();
    assert_eq!(count_pets(&client).await, 1_000);

    let lines: Vec<&str> = demo.said.lines().filter(|line| line.trim().starts_with("curl ")).collect();
    let [look, add] = lines[..] else { panic!("{}", demo.said) };
    let looked = sh(look);
    assert_eq!(looked.as_array().unwrap().len(), 3);
    assert!(looked.as_array().unwrap().iter().all(|pet| pet["status"] == "available"), "{looked}");
    let added = sh(add);
    assert_eq!((&added["id"], &added["name"]), (&1_001.into(), &"Rex".into()));
    assert_eq!(count_pets(&client).await, 1_001);

    let page = reqwest::get(demo.told("Docs")).await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(demo.said.contains("fsync off"), "{}", demo.said);
    demo.assert_stops_well("-INT");
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[test]
fn demo_leaves_nothing_behind_after_a_signal_whenever_it_comes() {
    let place = Place::new();
    let demo = Demo::start(&place, &[]);
    assert!(place.leftovers().len() > 3, "the server is not where it is looked for: {:?}", place.leftovers());
    demo.assert_stops_well("-TERM");
    assert_eq!(place.leftovers(), Vec::<String>::new());

    // While PostgreSQL is only just made.
    for signal in ["-INT", "-TERM"] {
        let mut demo = Demo::spawn(&place, &["--listen", "127.0.0.1:0"], &[]);
        demo.read_until("Starting a temporary PostgreSQL ");
        demo.assert_stops_well(signal);
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn postgresql_ends_and_is_removed_when_demo_is_killed_at_once() {
    let place = Place::new();
    let demo = Demo::start(&place, &[]);
    demo.signal("-KILL");
    drop(demo);
    place.assert_empties();

    let mut early = Demo::spawn(&place, &["--listen", "127.0.0.1:0"], &[]);
    early.read_until("Starting a temporary PostgreSQL ");
    early.signal("-KILL");
    drop(early);
    place.assert_empties();
}

#[test]
fn demo_leaves_nothing_behind_when_it_fails_half_way() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, error) = Demo::spawn(&place, &["--listen", &address], &[]).end();
    assert_eq!(status.code(), Some(1));
    assert!(error.starts_with(&format!("petstore: cannot listen on {address}: ")), "{error}");
    assert_eq!(place.leftovers(), Vec::<String>::new());

    // Programs that are there, and fail: a disk that is full shows in the same way.
    for (initdb, postgres, said) in [
        ("echo no space left on device; exit 1", "exit 1", "no space left on device"),
        ("mkdir \"${1#--pgdata=}\"", "echo FATAL: no memory; exit 1", "FATAL: no memory"),
    ] {
        let bin = Place::new();
        for (name, text) in [("initdb", initdb), ("postgres", postgres)] {
            fs::write(bin.0.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(bin.0.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        let (status, error) = Demo::spawn(&place, &[], &[("PGBIN", bin.0.to_str().unwrap())]).end();
        assert_eq!(status.code(), Some(1));
        assert_eq!(error, format!("petstore: PostgreSQL ended by itself; the last it said:\n{said}\n"));
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn demo_ends_when_postgresql_does() {
    let place = Place::new();
    let demo = Demo::start(&place, &[]);
    let directory = fs::read_dir(&place.0).unwrap().next().unwrap().unwrap().path();
    let postmaster = fs::read_to_string(directory.join("data/postmaster.pid")).unwrap();
    let kill = Command::new("kill").args(["-INT", postmaster.lines().next().unwrap()]).status().unwrap();
    assert!(kill.success());
    let (status, error) = demo.end();
    assert_eq!(status.code(), Some(1));
    assert!(error.contains("PostgreSQL ended by itself"), "{error}");
    assert!(error.contains("database system is shut down"), "{error}");
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[test]
fn demo_takes_the_next_port_when_its_own_is_taken_and_says_so() {
    let place = Place::new();
    // Perhaps somebody else has it: that is as good.
    let _taken = TcpListener::bind("127.0.0.1:8080");
    let mut demo = Demo::spawn(&place, &[], &[]);
    demo.read_until("Ctrl-C stops ");
    assert!(demo.said.contains("127.0.0.1:8080 is taken: trying the next port.\n"), "{}", demo.said);
    let address = demo.told("Address").strip_prefix("http://127.0.0.1:").unwrap();
    let port: u16 = address.strip_suffix("/v1").unwrap().parse().unwrap();
    assert!((8081..8100).contains(&port), "{port}");
}

#[test]
fn demo_without_postgresql_says_what_to_install() {
    let place = Place::new();
    let (status, error) = Demo::spawn(&place, &[], &[("PGBIN", "/nowhere")]).end();
    assert_eq!(status.code(), Some(1));
    assert_eq!(
        error,
        "petstore: no PostgreSQL server was found in /nowhere: install one (Debian and Ubuntu: `apt-get install \
         postgresql`; Fedora: `dnf install postgresql-server`), or name an empty database in DATABASE_URL\n"
    );
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn demo_uses_an_empty_database_and_comes_back_to_it() {
    let (place, database) = (Place::new(), TestDatabase::empty().await);
    let url = database.url();
    let environment = [("DATABASE_URL", url.as_str())];
    let demo = Demo::start(&place, &environment);
    assert!(demo.said.contains(", with 1,000 animals.\n"), "{}", demo.said);
    let first = demo.client();
    assert_eq!(count_pets(&first).await, 1_000);
    first.add("Rex", Some("available")).await;
    demo.assert_stops_well("-INT");
    assert_eq!(place.leftovers(), Vec::<String>::new());

    let demo = Demo::start(&place, &environment);
    assert!(demo.said.contains(", with the animals of the last time.\n"), "{}", demo.said);
    assert_eq!(count_pets(&demo.client()).await, 1_001);
    let keys = "SELECT count(*), count(*) FILTER (WHERE revoked_at IS NULL) FROM api_keys";
    let client = database.connect().await;
    let row = client.query_one(keys, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 1), "a key ends with its demonstration");
    demo.assert_stops_well("-TERM");
    let row = client.query_one(keys, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(1), 0);
}

#[tokio::test]
async fn demo_refuses_a_database_that_holds_anything_else_and_does_not_touch_it() {
    let shop = "animals or keys that are not the demonstration's";
    for (migrated, fill, holds) in [
        (false, "CREATE TABLE customers (id int)", "tables that are not petstore's (customers)"),
        (
            false,
            "CREATE SCHEMA crm; CREATE TABLE crm.notes (id int); CREATE TABLE orders (id int)",
            "tables that are not petstore's (crm.notes, orders)",
        ),
        (true, "CREATE VIEW sold AS SELECT FROM pets", "tables that are not petstore's (sold)"),
        (true, "DELETE FROM api_keys; INSERT INTO pets (name, category_id) VALUES ('Rex', 1)", shop),
        (true, "", shop),
    ] {
        let place = Place::new();
        let database = if migrated { TestDatabase::new().await } else { TestDatabase::empty().await };
        let client = database.connect().await;
        client.batch_execute(fill).await.unwrap();
        let count = "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_description)";
        let before = client.query_one(count, &[]).await.unwrap();
        let (status, error) = Demo::spawn(&place, &[], &[("DATABASE_URL", &database.url())]).end();
        assert_eq!(status.code(), Some(1), "{fill}");
        assert_eq!(
            error,
            format!(
                "petstore: the database at DATABASE_URL holds {holds}, so no demonstration is put there: unset \
                 DATABASE_URL for a temporary database, or name an empty one\n"
            )
        );
        let after = client.query_one(count, &[]).await.unwrap();
        let numbers = |row: &tokio_postgres::Row| (row.get::<_, i64>(0), row.get::<_, i64>(1));
        assert_eq!(numbers(&before), numbers(&after), "{fill}");
    }
}

#[tokio::test]
async fn demo_uses_a_database_that_was_migrated_and_never_used() {
    let (place, database) = (Place::new(), TestDatabase::new().await);
    database.connect().await.batch_execute("DELETE FROM api_keys").await.unwrap();
    let demo = Demo::start(&place, &[("DATABASE_URL", &database.url())]);
    assert_eq!(count_pets(&demo.client()).await, 1_000);
}

/// What varies from one time to the next, and from one machine to the next, is made the same.
fn fixed(line: &str) -> String {
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
fn the_picture_in_the_readme_shows_what_demo_says() {
    let place = Place::new();
    let demo = Demo::start(&place, &[]);
    let address = demo.told("Address").strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap();
    let said = demo.said.replace(demo.told("Key"), "psk_…").replace(address, "127.0.0.1:8080");
    let said: Vec<String> = ["$ petstore demo"].into_iter().chain(said.lines()).map(fixed).collect();
    let picture = fs::read_to_string(Path::new(ROOT).join("docs/img/demo.svg")).unwrap_or_default();
    let lines = picture.lines().filter(|line| line.starts_with("<text "));
    let drawn: Vec<String> = lines.map(|line| fixed(&text_of(line))).collect();
    assert_eq!(drawn, said, "run `make generate NAME=demo`");
}
