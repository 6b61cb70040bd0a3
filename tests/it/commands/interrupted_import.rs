//! What `petstore import` leaves and says when it ends early: the rows that are in the database, and how to continue.

use std::fs::{self, File, OpenOptions};
use std::future::pending;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Output};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_postgres::Client;

use crate::support::folder::Folder;
use crate::support::import::{assert_each_once, import, import_with_code, numbered_csv, start};
use crate::support::postgres::count_pets;
use crate::support::program::{petstore, signal};
use crate::support::wait::eventually;
use crate::support::{TestDatabase, TestService};

const SIGNALS: [(&str, i32); 2] = [("INT", 130), ("TERM", 143)];

/// The rows of a CSV file without keys.
fn csv_without_keys(rows: usize) -> String {
    format!("name,categoryId\n{}", "Rex,1\n".repeat(rows))
}

/// Starts an import of a named pipe, writes the text to it, and returns its open end: the import waits for more.
fn start_waiting(database: &TestDatabase, pipe: &str, flags: &[&str], text: &str) -> (Child, File) {
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let child = start(database, &[&[pipe], flags].concat());
    let mut input = OpenOptions::new().write(true).open(pipe).unwrap();
    input.write_all(text.as_bytes()).unwrap();
    (child, input)
}

/// Waits for the end of an import, which must have this code, and returns the last two lines of its errors: the cause, and
/// what it did. Lines about its progress come before them.
fn end(child: Child, code: i32) -> [String; 2] {
    last_lines(&child.wait_with_output().unwrap(), code)
}

fn last_lines(output: &Output, code: i32) -> [String; 2] {
    let errors = str::from_utf8(&output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let lines: Vec<&str> = errors.lines().collect();
    let [.., cause, outcome] = lines[..] else { panic!("two lines: {errors}") };
    [cause.to_owned(), outcome.to_owned()]
}

/// Runs the command that an import printed after this text, and returns its output.
fn run_printed(line: &str, before: &str, database: &TestDatabase) -> String {
    let command = line.strip_prefix(before).unwrap_or_else(|| panic!("{line}"));
    let output =
        Command::new("sh").args(["-c", command]).env("DATABASE_URL", database.url()).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until another session waits for a lock.
async fn until_blocked(client: &Client) {
    let blocked = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
        WHERE datname = current_database() AND NOT granted";
    eventually("a session waits for a lock", async || {
        client.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

#[tokio::test]
async fn a_signal_stops_an_import_between_two_chunks_and_the_printed_command_continues_it() {
    for (name, code) in SIGNALS {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let client = database.connect().await;
        let file = folder.path("Tom's pets.csv");
        let (child, input) =
            start_waiting(&database, &file, &["--key-column", "key"], &numbered_csv(1..=12_000));
        eventually("two chunks are in the database", async || count_pets(&client).await == 10_000).await;
        signal(name, child.id());
        let [cause, outcome] = end(child, code);
        assert_eq!(cause, format!("petstore: stopped by SIG{name}"));
        assert_eq!(count_pets(&client).await, 10_000);
        drop(input);
        fs::remove_file(&file).unwrap();
        folder.write("Tom's pets.csv", numbered_csv(1..=12_500));
        let before = "10,000 rows added, 0 already imported. To continue, run: ";
        let printed = run_printed(&outcome, before, &database);
        assert_eq!(printed, "2,500 rows added, 10,000 already imported\n");
        assert_each_once(&database, 12_500).await;
    }
}

#[tokio::test]
async fn a_signal_leaves_nothing_of_an_import_in_one_transaction() {
    let in_progress = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND state = 'idle in transaction' AND query LIKE 'TRUNCATE staged'";
    let plain = csv_without_keys(12_000);
    for (flags, content) in [(&[][..], plain), (&["--key-column=key", "--atomic"], numbered_csv(1..=12_000))]
    {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let client = database.connect().await;
        let (child, _input) = start_waiting(&database, &folder.path("a.csv"), flags, &content);
        eventually("two chunks are inserted", async || {
            client.query_one(in_progress, &[]).await.unwrap().get::<_, i64>(0) == 1
        })
        .await;
        signal("TERM", child.id());
        let [cause, outcome] = end(child, 143);
        assert_eq!(cause, "petstore: stopped by SIGTERM");
        assert!(outcome.starts_with("Nothing was added. To start again, run: "), "{outcome}");
        assert_eq!(count_pets(&client).await, 0);
    }
}

#[tokio::test]
async fn a_signal_stops_an_import_that_waits_for_another_one() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let client = database.connect().await;
    let lock = "SELECT pg_advisory_lock(hashtextextended('petstore import a.csv', 0))";
    client.execute(lock, &[]).await.unwrap();
    let child = start(&database, &[&folder.write("a.csv", numbered_csv(1..=9)), "--key-column=key"]);
    until_blocked(&client).await;
    signal("INT", child.id());
    let [cause, outcome] = end(child, 130);
    assert_eq!(cause, "petstore: stopped by SIGINT");
    assert!(outcome.starts_with("Nothing was added. To start again, run: "), "{outcome}");
}

#[tokio::test]
async fn a_signal_stops_an_import_whose_commit_is_not_confirmed_and_the_outcome_is_reported_as_unknown() {
    let wait_at_commit = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'; \
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON pets DEFERRABLE INITIALLY DEFERRED \
        FOR EACH ROW EXECUTE FUNCTION wait(); \
        SELECT pg_advisory_lock(1)";
    let unknown = "Whether the rows were added is unknown.";
    for (flags, content, expected) in [
        (
            &["--key-column=key"][..],
            numbered_csv(1..=5),
            "0 rows added, 0 already imported, 5 unknown. To continue, run: ",
        ),
        (&["--key-column=key", "--atomic"], numbered_csv(1..=5), &format!("{unknown} To continue, run: ")),
        (
            &[],
            csv_without_keys(5),
            &format!("{unknown} Check that before you run the command again: it would add them twice."),
        ),
    ] {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let client = database.connect().await;
        client.batch_execute(wait_at_commit).await.unwrap();
        let child = start(&database, &[&[&*folder.write("a.csv", content)], flags].concat());
        until_blocked(&client).await;
        signal("TERM", child.id());
        let [cause, outcome] = end(child, 143);
        assert_eq!(cause, "petstore: stopped by SIGTERM");
        assert_eq!(count_pets(&client).await, 0);
        client.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
        eventually("the rows are added after all", async || count_pets(&client).await == 5).await;
        if flags.is_empty() {
            assert_eq!(outcome, expected);
        } else {
            let printed = run_printed(&outcome, expected, &database);
            assert_eq!(printed, "0 rows added, 5 already imported\n");
        }
    }
}

#[tokio::test]
async fn an_interrupted_pipe_is_not_a_complete_input() {
    // An interactive Ctrl-C reaches both ends of a pipe: the input ends as well.
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let (client, locker) = (database.connect().await, database.connect().await);
    locker.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE").await.unwrap();
    let (child, input) = start_waiting(&database, &folder.path("a.csv"), &[], &csv_without_keys(6_000));
    until_blocked(&client).await;
    signal("INT", child.id());
    drop(input);
    locker.batch_execute("COMMIT").await.unwrap();
    end(child, 130);
    assert_eq!(count_pets(&client).await, 0);
}

#[tokio::test]
async fn the_printed_command_has_no_password() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let file = folder.write("a.csv", csv_without_keys(1) + "Tom,x\n");
    for flags in [&["--database-url", &*database.url()][..], &[&format!("--database-url={}", database.url())]]
    {
        let output = import(&database, &[flags, &[&file]].concat());
        let [_, outcome] = last_lines(&output, 4);
        assert!(outcome.ends_with(&format!(" import --database-url \"$DATABASE_URL\" {file}")), "{outcome}");
    }
}

/// The text, compressed.
fn gzip(text: &str) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

#[tokio::test]
async fn a_truncated_or_corrupt_file_ends_an_import_with_the_number_of_rows_added() {
    let whole = numbered_csv(1..=30_000);
    let cut = |mut packed: Vec<u8>| {
        packed.truncate(packed.len() / 2);
        packed
    };
    let mut bad_checksum = gzip(&whole);
    let checksum = bad_checksum.len() - 8;
    bad_checksum[checksum] ^= 1;
    let unclosed = format!("{}30001,\"Rex,1,\n{}", &whole, "Tom,1,,\n".repeat(50_000)).into_bytes();
    let in_chunks = "rows added, 0 already imported. To continue, fix the file and run: ";
    let nothing = "Nothing was added. To start again, fix the file and run: ";
    for (name, content, cause) in [
        ("cut.csv.gz", cut(gzip(&whole)), "is truncated: "),
        ("cut.csv.zst", cut(zstd::encode_all(whole.as_bytes(), 3).unwrap()), "is truncated: "),
        (
            "checksum.csv.gz",
            bad_checksum,
            "cannot be read: corrupt gzip stream does not have a matching checksum",
        ),
        (
            "quote.csv",
            unclosed,
            "cannot be read: a CSV row has more than 262144 bytes: is a quote not closed?",
        ),
    ] {
        for flags in [&["--key-column=key"][..], &["--key-column=key", "--atomic"]] {
            let (database, folder) = (TestDatabase::new().await, Folder::new());
            let file = folder.write(name, &content);
            let [error, outcome] = last_lines(&import(&database, &[&[&*file], flags].concat()), 1);
            assert!(error.starts_with(&format!("petstore: the input {cause}")), "{name}: {error}");
            let added = count_pets(&database.connect().await).await;
            let before = if flags.len() == 1 {
                assert!((5_000..=30_000).contains(&added), "{name}: {added}");
                format!("{},{:03} {in_chunks}", added / 1_000, added % 1_000)
            } else {
                assert_eq!(added, 0, "{name}");
                nothing.to_owned()
            };
            folder.write(name, &whole);
            run_printed(&outcome, &before, &database);
            assert_each_once(&database, 30_000).await;
        }
    }
}

#[tokio::test]
async fn an_import_that_loses_the_database_says_what_was_added() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let client = database.connect().await;
    let (child, mut input) =
        start_waiting(&database, &folder.path("a.csv"), &["--key-column=key"], &numbered_csv(1..=7_000));
    eventually("a chunk is in the database", async || count_pets(&client).await == 5_000).await;
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.execute(others, &[]).await.unwrap();
    let header = "key,name,categoryId,status\n".len();
    input.write_all(&numbered_csv(7_001..=12_000).as_bytes()[header..]).unwrap();
    let [cause, outcome] = end(child, 1);
    assert!(cause.starts_with("petstore: database unavailable: "), "{cause}");
    let before = "5,000 rows added, 0 already imported. To continue, run: ";
    assert!(outcome.starts_with(before), "{outcome}");
}

#[tokio::test]
async fn standard_input_has_to_be_sent_again() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let file = folder.write("a.csv", numbered_csv(1..=6_000) + "6001,,1,\n");
    let output = petstore(&["import", "-", "--format=csv", "--key-column=key", "--source=a"])
        .env("DATABASE_URL", database.url())
        .stdin(File::open(file).unwrap())
        .output()
        .unwrap();
    let [_, outcome] = last_lines(&output, 4);
    let before = "5,000 rows added, 0 already imported. To continue, fix the input and send all of it to: ";
    assert!(outcome.starts_with(before), "{outcome}");
    // A longer file of the same source: only the missing rows are added.
    let longer = folder.write("b.csv", numbered_csv(1..=6_001));
    let printed = import_with_code(0, &database, &[&longer, "--key-column=key", "--source=a"]);
    assert_eq!(printed, "1,001 rows added, 5,000 already imported\n");
}

/// Where a client stops sending: in the message that contains these bytes, or after it.
#[derive(Debug, Clone, Copy)]
enum Stall {
    Within(&'static [u8]),
    After(&'static [u8]),
}

impl Stall {
    /// The number of bytes that the client still sends, once they contain the message.
    fn end(self, sent: &[u8]) -> Option<usize> {
        let (Self::Within(bytes) | Self::After(bytes)) = self;
        let start = sent.windows(bytes.len()).position(|window| window == bytes)?;
        let length =
            |at: usize| sent[at..at + 4].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        // The first message has no type.
        let mut end = length(0);
        while end <= start {
            end += 1 + length(end + 1);
        }
        Some(if matches!(self, Self::Within(_)) { start + bytes.len() } else { end })
    }
}

/// Forwards a connection to the database until the client stops sending. `support/proxy.rs` says why this is another proxy.
async fn stalling_proxy(stall: Stall, target: String) -> (SocketAddr, oneshot::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, (stalled, is_stalled)) = (listener.local_addr().unwrap(), oneshot::channel());
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(target).await.unwrap();
        let (mut sent, mut forwarded, mut answer) = (Vec::new(), 0, vec![0; 16 * 1024]);
        loop {
            tokio::select! {
                read = client.read_buf(&mut sent) => {
                    assert!(read.unwrap() > 0, "the import has ended");
                    let end = stall.end(&sent).unwrap_or(usize::MAX);
                    server.write_all(&sent[forwarded..end.min(sent.len())]).await.unwrap();
                    forwarded = sent.len();
                    if end <= forwarded {
                        break;
                    }
                }
                read = server.read(&mut answer) => client.write_all(&answer[..read.unwrap()]).await.unwrap(),
            }
        }
        stalled.send(()).unwrap();
        // Both connections stay open.
        pending::<()>().await;
    });
    (address, is_stalled)
}

#[tokio::test]
async fn an_import_that_stops_while_it_sends_a_chunk_does_not_delay_events() {
    for flags in [&["--key-column=key"][..], &["--key-column=key", "--atomic"]] {
        for stall in [Stall::Within(b"Pet 2000"), Stall::After(b"Pet 2000")] {
            let (service, folder) = (TestService::start().await, Folder::new());
            let url = service.database.url();
            let database = url.split_once('@').unwrap().1.split_once('/').unwrap().0;
            let (address, stalled) = stalling_proxy(stall, database.to_owned()).await;
            let file = folder.write("a.csv", numbered_csv(1..=4_000));
            let separator = if url.ends_with('?') { "" } else { "&" };
            let url = url.replace(database, &address.to_string()) + separator + "sslmode=disable";
            let mut child =
                petstore(&[&["import", &file], flags].concat()).env("DATABASE_URL", url).spawn().unwrap();
            stalled.await.unwrap();
            let id = service.client.add("Rex", None).await;
            let event = format!("\"petId\":{id}");
            let is_shown = async || service.client.get("/v1/events?limit=100").await.body.contains(&event);
            eventually(&format!("the event is shown: {flags:?} {stall:?}"), is_shown).await;
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
