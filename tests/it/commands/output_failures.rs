//! Every command with an output that fails: a full disk, a closed pipe, and a pipe that nobody reads when a signal arrives.
//!
//! The exit code says whether the change was made. So a script that runs a failed command again makes the change exactly
//! once, and no key is active that nobody could see.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::iter;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use clap::CommandFactory;
use petstore::cli::Cli;
use petstore_domain::api_key::ApiKey;

use crate::support::folder::Folder;
use crate::support::postgres::key;
use crate::support::program::{free_address, petstore, signal};
use crate::support::wait::{eventually, eventually_blocking, holds_in_time};
use crate::support::{Client, TestDatabase};

/// What a command does, which decides how it ends when its output fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// It changes nothing: it fails if the output fails, unless the reader closed the pipe.
    Prints,
    /// It prints a key: if that fails, nothing is changed.
    Issues,
    /// It prints what it has changed: if that fails, it reports to standard error, and succeeds.
    Changes,
    /// The same in several steps. A signal ends it between two of them, and another run continues.
    ChangesInSteps,
    /// It runs until a signal stops it.
    Serves,
}
use Kind::{Changes, ChangesInSteps, Issues, Prints, Serves};

struct Case {
    /// With its arguments. `{…}` is a file in the folder of the test.
    command: &'static str,
    kind: Kind,
    /// Whether the change was made exactly once, in SQL.
    once: &'static str,
    /// What standard error must contain if standard output fails after a change.
    report: &'static str,
}

const fn prints(command: &'static str) -> Case {
    Case { command, kind: Prints, once: "SELECT true", report: "" }
}

const ONE_NEW_KEY: &str = "SELECT count(*) = 1 FROM api_keys WHERE id > 1 AND revoked_at IS NULL";
const TWO_PETS: &str = "SELECT count(*) = 2 FROM pets";

const CASES: [Case; 27] = [
    prints("--help"),
    prints("--version"),
    prints("doctor"),
    prints("keys list"),
    prints("keys show 1"),
    prints("keys generate"),
    prints("keys apply {keys.toml} --dry-run"),
    prints("export"),
    prints("events"),
    prints("openapi"),
    Case { command: "keys create --name new", kind: Issues, once: ONE_NEW_KEY, report: "" },
    Case { command: "keys create --name new --json", kind: Issues, once: ONE_NEW_KEY, report: "" },
    Case { command: "keys rotate 1 --overlap 1h", kind: Issues, once: ONE_NEW_KEY, report: "" },
    Case { command: "keys apply {keys.toml}", kind: Issues, once: ONE_NEW_KEY, report: "" },
    Case { command: "keys apply {keys.toml} --json", kind: Issues, once: ONE_NEW_KEY, report: "" },
    Case {
        command: "keys apply {no-keys.toml} --prune",
        kind: Issues,
        once: "SELECT NOT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL AND name = 'test')",
        report: "",
    },
    Case {
        command: "keys revoke 1",
        kind: Changes,
        once: "SELECT count(*) = 1 FROM api_key_events WHERE action = 'revoked'",
        report: "key 1 revoked",
    },
    Case { command: "import {pets.csv}", kind: Changes, once: TWO_PETS, report: "2 rows added" },
    Case { command: "import {pets.csv} --atomic", kind: Changes, once: TWO_PETS, report: "2 rows added" },
    Case {
        command: "import {keys.csv} --key-column key",
        kind: Changes,
        once: TWO_PETS,
        report: "2 rows added",
    },
    Case {
        command: "import {keys.csv} --key-column key --atomic",
        kind: Changes,
        once: TWO_PETS,
        report: "2 rows added",
    },
    Case {
        command: "import {pets.csv} --dry-run",
        kind: Changes,
        once: "SELECT count(*) = 0 FROM pets",
        report: "2 rows are valid",
    },
    Case {
        command: "seed --count 5",
        kind: Changes,
        once: "SELECT count(*) = 5 FROM pets",
        report: "added 5 pets",
    },
    Case { command: "export {out.csv}", kind: Changes, once: "SELECT true", report: "0 pets exported" },
    Case {
        command: "migrate",
        kind: ChangesInSteps,
        once: "SELECT to_regclass('pets_category_id_status_id_idx') IS NOT NULL",
        report: "applied V1__create_pets",
    },
    Case { command: "serve", kind: Serves, once: "SELECT true", report: "" },
    Case { command: "demo", kind: Serves, once: "SELECT true", report: "" },
];

/// The files that the commands use.
const FILES: [(&str, &str); 4] = [
    ("pets.csv", "name,categoryId\nRex,1\nTom,1\n"),
    ("keys.csv", "key,name,categoryId\nA,Rex,1\nB,Tom,1\n"),
    ("keys.toml", "[keys.kiosk]\nscopes = ['pets:read']\n"),
    ("no-keys.toml", "[keys.other]\nscopes = ['pets:read']\ndigest = '"),
];

/// A command, a database and the files that it uses.
struct Scene {
    database: TestDatabase,
    client: tokio_postgres::Client,
    folder: Folder,
    /// All that was printed.
    printed: String,
}

impl Scene {
    async fn new(case: &Case) -> Self {
        let is_empty = matches!(case.command, "migrate" | "demo");
        let database = if is_empty { TestDatabase::empty().await } else { TestDatabase::new().await };
        if case.kind == Prints {
            database.add_pets(1).await;
        }
        let folder = Folder::new();
        for (name, content) in FILES {
            let end = if content.ends_with('\n') { String::new() } else { format!("{}'\n", "1a".repeat(32)) };
            folder.write(name, format!("{content}{end}"));
        }
        let client = database.connect().await;
        let scene = Self { database, client, folder, printed: String::new() };
        if case.command == "events" {
            // An open transaction of any other test delays the feed.
            let prints = || !scene.command(case).output().unwrap().stdout.is_empty();
            eventually_blocking(|| "an event is shown".into(), prints);
        }
        scene
    }

    fn command(&self, case: &Case) -> Command {
        let words = case.command.split(' ').map(|word| {
            let file = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
            file.map_or_else(|| word.to_owned(), |file| self.folder.path(file))
        });
        let words: Vec<String> = words.collect();
        let mut command = petstore(&words.iter().map(String::as_str).collect::<Vec<_>>());
        command.env("DATABASE_URL", self.database.url());
        if case.command == "demo" {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command
    }

    /// Waits for the end of a command whose output failed, and checks that it did not panic.
    fn end(&mut self, child: Child) -> (ExitStatus, String) {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        self.printed.push_str(&errors);
        (output.status, errors)
    }

    async fn holds(&self, sql: &str) -> bool {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// The active keys that nobody could see.
    async fn unseen_keys(&self) -> Vec<String> {
        if !self.holds("SELECT to_regclass('api_keys') IS NOT NULL").await {
            return Vec::new();
        }
        let words = self.printed.split(|other: char| !other.is_ascii_alphanumeric() && other != '_');
        let seen: Vec<ApiKey> = words.filter_map(|word| word.parse().ok()).chain([key()]).collect();
        let digests: Vec<Vec<u8>> = seen.iter().map(|key| key.digest().as_bytes().to_vec()).collect();
        let unseen = "SELECT name FROM api_keys \
            WHERE revoked_at IS NULL AND digest <> ALL ($1) AND encode(digest, 'hex') NOT LIKE '1a1a%'";
        let rows = self.client.query(unseen, &[&digests]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Checks that the exit code tells whether the change was made, and that a script that runs a failed command again
    /// makes it once.
    async fn assert_done_once(&mut self, case: &Case, name: &str, succeeded: bool) {
        assert_eq!(self.unseen_keys().await, Vec::<String>::new(), "{name}");
        if case.kind != Prints && case.kind != ChangesInSteps {
            assert_eq!(self.holds(case.once).await, succeeded, "{name}: {}", self.printed);
        }
        if !succeeded {
            let output = self.command(case).output().unwrap();
            assert!(output.status.success(), "{name}: {output:?}");
            self.printed.push_str(str::from_utf8(&output.stdout).unwrap());
        }
        assert!(self.holds(case.once).await, "{name}: {}", self.printed);
        assert_eq!(self.unseen_keys().await, Vec::<String>::new(), "{name}");
    }
}

/// Whatever is written to it fails, as on a full disk.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// The writing end of a pipe that nobody reads any more.
fn closed() -> PipeWriter {
    pipe().unwrap().1
}

/// A pipe that is full.
fn blocked() -> (PipeReader, PipeWriter) {
    const O_NONBLOCK: i32 = 0o4000;
    let (reader, writer) = pipe().unwrap();
    // Opened again: the program must not get a descriptor that does not block.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filling = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path).unwrap();
    for size in [4_096, 1] {
        let failed = iter::repeat_with(|| filling.write_all(&vec![b'.'; size])).find_map(Result::err);
        assert_eq!(failed.unwrap().kind(), ErrorKind::WouldBlock);
    }
    (reader, writer)
}

/// Waits until a thread of the process waits for the reader of a pipe.
fn wait_until_blocked(name: &str, child: &mut Child) {
    let tasks = format!("/proc/{}/task", child.id());
    let is_blocked = || {
        let waits =
            fs::read_dir(&tasks).into_iter().flatten().flatten().map(|task| task.path().join("wchan"));
        waits.filter_map(|wait| fs::read_to_string(wait).ok()).any(|wait| wait.contains("pipe_write"))
    };
    eventually_blocking(
        || format!("{name} is blocked"),
        || is_blocked() || child.try_wait().unwrap().is_some(),
    );
}

fn wait_for_end(name: &str, child: &mut Child) {
    if !holds_in_time(|| child.try_wait().unwrap().is_some()) {
        child.kill().unwrap();
        panic!("{name} does not end");
    }
}

#[test]
fn every_command_is_in_the_table() {
    fn leaves(command: &clap::Command, path: &str) -> BTreeSet<String> {
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        let inner: Vec<_> = inner.map(|inner| (inner, format!("{path} {}", inner.get_name()))).collect();
        if inner.is_empty() {
            return [path.trim().to_owned()].into();
        }
        inner.iter().flat_map(|(inner, path)| leaves(inner, path)).collect()
    }
    for leaf in leaves(&Cli::command(), "") {
        let is_this = |case: &Case| format!("{} ", case.command).starts_with(&format!("{leaf} "));
        assert!(CASES.iter().any(is_this), "petstore {leaf} is not in the table");
    }
}

/// Runs every command with an output that fails, and checks that its exit code tells whether the change was made.
async fn assert_every_exit_code(output: &str, stdout: impl Fn() -> Stdio, stderr: impl Fn() -> Stdio) {
    for case in CASES.iter().filter(|case| case.kind != Serves) {
        let name = format!("petstore {} to {output}", case.command);
        let mut scene = Scene::new(case).await;
        let child = scene.command(case).stdout(stdout()).stderr(stderr()).spawn().unwrap();
        let is_reported = child.stderr.is_some();
        let (status, errors) = scene.end(child);
        let succeeds = match case.kind {
            Prints => output.contains("closed"),
            Issues => false,
            _ => true,
        };
        assert_eq!(status.code(), Some(i32::from(!succeeds)), "{name}: {errors}");
        if is_reported && !(case.kind == Prints && succeeds) {
            assert!(errors.starts_with("petstore: "), "{name}: {errors}");
            assert!(errors.contains(case.report), "{name}: {errors}");
            assert!(!errors.contains("To start again"), "{name}: {errors}");
        }
        scene.assert_done_once(case, &name, succeeds).await;
    }
}

#[tokio::test]
async fn the_exit_code_says_whether_the_change_was_made_if_the_disk_is_full() {
    assert_every_exit_code("a full disk", || full().into(), Stdio::piped).await;
}

#[tokio::test]
async fn the_exit_code_says_whether_the_change_was_made_if_the_disk_of_both_outputs_is_full() {
    assert_every_exit_code("two full disks", || full().into(), || full().into()).await;
}

#[tokio::test]
async fn the_exit_code_says_whether_the_change_was_made_if_the_pipe_is_closed() {
    assert_every_exit_code("a closed pipe", || closed().into(), Stdio::piped).await;
}

#[tokio::test]
async fn the_exit_code_says_whether_the_change_was_made_if_both_pipes_are_closed() {
    assert_every_exit_code("two closed pipes", || closed().into(), || closed().into()).await;
}

#[tokio::test]
async fn the_exit_code_says_whether_the_change_was_made_if_a_signal_arrives_before_the_output_is_read() {
    for case in CASES.iter().filter(|case| !matches!(case.kind, Serves | Prints)) {
        let name = format!("petstore {} to a blocked pipe", case.command);
        let mut scene = Scene::new(case).await;
        let (mut reader, writer) = blocked();
        let mut command = scene.command(case);
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        wait_until_blocked(&name, &mut child);
        signal("TERM", child.id());
        wait_for_end(&name, &mut child);
        let (status, errors) = scene.end(child);
        let succeeds = case.kind == Changes;
        let expected = if succeeds { (Some(0), None) } else { (None, Some(15)) };
        assert_eq!((status.code(), status.signal()), expected, "{name}: {errors}");
        if succeeds {
            assert!(errors.contains(case.report), "{name}: {errors}");
        }
        reader.read_to_string(&mut scene.printed).unwrap();
        scene.assert_done_once(case, &name, succeeds).await;
    }
}

#[tokio::test]
async fn a_printed_key_is_reported_as_invalid_if_the_commit_fails() {
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN RAISE ''no more keys''; END'; \
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON api_keys DEFERRABLE INITIALLY DEFERRED \
        FOR EACH ROW EXECUTE FUNCTION refuse()";
    for case in CASES.iter().filter(|case| case.kind == Issues) {
        let scene = Scene::new(case).await;
        scene.client.batch_execute(refuse).await.unwrap();
        let output = scene.command(case).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{}: {errors}", case.command);
        let expected = "petstore: nothing was changed, so a key that was printed is not valid: ";
        assert!(
            errors.starts_with(expected) && errors.contains("no more keys"),
            "{}: {errors}",
            case.command
        );
        assert!(!output.stdout.is_empty(), "{}", case.command);
        assert!(!scene.holds(case.once).await, "{}", case.command);
    }
}

#[tokio::test]
async fn a_blocked_output_does_not_keep_a_transaction_open() {
    let case = CASES.iter().find(|case| case.command == "keys create --name new").unwrap();
    let mut scene = Scene::new(case).await;
    let (mut reader, writer) = blocked();
    let mut child = scene.command(case).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_blocked("keys create", &mut child);
    let open = "SELECT count(*) = 0 FROM pg_stat_activity \
        WHERE datname = current_database() AND state = 'idle in transaction'";
    assert!(!scene.holds(open).await);
    eventually("the database ends the transaction", async || scene.holds(open).await).await;
    reader.read_to_string(&mut scene.printed).unwrap();
    let (status, errors) = scene.end(child);
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(
        errors.starts_with("petstore: nothing was changed, so a key that was printed is not valid: "),
        "{errors}"
    );
    assert!(!scene.holds(case.once).await);
}

#[tokio::test]
async fn demo_revokes_its_key_if_nobody_can_read_it() {
    let case = CASES.iter().find(|case| case.command == "demo").unwrap();
    for (output, stdout) in [("a full disk", Stdio::from(full())), ("a closed pipe", Stdio::from(closed()))] {
        let mut scene = Scene::new(case).await;
        let mut child = scene.command(case).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_end(output, &mut child);
        let (status, errors) = scene.end(child);
        assert_eq!(status.code(), Some(1), "{output}: {errors}");
        assert!(errors.starts_with("petstore: cannot write the output: "), "{output}: {errors}");
        assert_eq!(scene.unseen_keys().await, Vec::<String>::new(), "{output}");
    }
    let mut scene = Scene::new(case).await;
    let (_reader, writer) = blocked();
    let mut child = scene.command(case).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_blocked("demo", &mut child);
    signal("TERM", child.id());
    wait_for_end("demo", &mut child);
    let (status, errors) = scene.end(child);
    assert_eq!(status.code(), Some(0), "{errors}");
    assert_eq!(scene.unseen_keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn serve_needs_neither_standard_output_nor_standard_error() {
    let database = TestDatabase::new().await;
    for [stdout, stderr] in [[Stdio::from(full()), full().into()], [Stdio::from(closed()), closed().into()]] {
        let address = free_address();
        let mut child = petstore(&["serve", "--drain-delay", "0s"])
            .env("DATABASE_URL", database.url())
            .env("PETSTORE_LISTEN", address.to_string())
            .env("PETSTORE_ADMIN_LISTEN", free_address().to_string())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let client = Client::new(address, Some(&key()));
        eventually_blocking(|| "serve listens".into(), || std::net::TcpStream::connect(address).is_ok());
        assert_eq!(client.get("/v1/pets").await.status, 200);
        signal("TERM", child.id());
        wait_for_end("serve", &mut child);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
