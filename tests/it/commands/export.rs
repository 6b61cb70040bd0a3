//! `petstore export`, as an operator runs it, and importing the result.

use std::io::Read;
use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use petstore_domain::pet::PetName;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::TestDatabase;
use crate::support::folder::Folder;
use crate::support::import::import_with_code;
use crate::support::program::{petstore, run, signal};
use crate::support::wait::eventually;

fn export(database: &TestDatabase, arguments: &[&str]) -> Output {
    run(&[&["export"], arguments].concat(), &[("DATABASE_URL", &database.url())])
}

fn exported(database: &TestDatabase, arguments: &[&str]) -> String {
    let output = export(database, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const FILL: &str = "\
    INSERT INTO pets (name, category_id, status) VALUES \
      ('Rex', 3, 'available'), (' Ré, \"the 🐕\" ', -9223372036854775808, NULL), ('Tom', 4, 'sold')";

#[tokio::test]
async fn export_writes_every_pet_in_id_order_in_both_formats() {
    let database = TestDatabase::new().await;
    assert_eq!(exported(&database, &[]), "");
    assert_eq!(exported(&database, &["--format", "csv"]), "id,name,categoryId,status,reference,metadata\n");
    database.connect().await.batch_execute(FILL).await.unwrap();
    let ndjson = "{\"id\":1,\"name\":\"Rex\",\"categoryId\":3,\"status\":\"available\"}\n\
        {\"id\":2,\"name\":\" Ré, \\\"the 🐕\\\" \",\"categoryId\":-9223372036854775808}\n\
        {\"id\":3,\"name\":\"Tom\",\"categoryId\":4,\"status\":\"sold\"}\n";
    let csv = "id,name,categoryId,status,reference,metadata\n1,Rex,3,available,,\n\
        2,\" Ré, \"\"the 🐕\"\" \",-9223372036854775808,,,\n3,Tom,4,sold,,\n";
    let output = export(&database, &[]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), ndjson);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "3 pets exported\n");
    assert_eq!(exported(&database, &["-", "--format", "csv"]), csv);

    let folder = Folder::new();
    for (name, content) in [("a", ndjson), ("a.ndjson", ndjson), ("a.jsonl", ndjson), ("a.csv", csv)] {
        assert_eq!(exported(&database, &[&folder.path(name)]), "3 pets exported\n");
        assert_eq!(folder.read(name).unwrap(), content, "{name}");
    }
    assert_eq!(exported(&database, &[&folder.path("b"), "--format=csv"]), "3 pets exported\n");
    assert_eq!(folder.read("b").unwrap(), csv);
    let mut in_the_folder = petstore(&["export", "c.csv"]);
    let output = in_the_folder.env("DATABASE_URL", database.url()).current_dir(folder.path("")).output();
    assert_eq!(output.unwrap().stdout, b"3 pets exported\n");
    assert_eq!(folder.read("c.csv").unwrap(), csv);

    exported(&database, &[&folder.path("a.csv.gz")]);
    let packed = std::fs::File::open(folder.path("a.csv.gz")).unwrap();
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, csv);
    exported(&database, &[&folder.path("a.ndjson.zst")]);
    let packed = std::fs::File::open(folder.path("a.ndjson.zst")).unwrap();
    assert_eq!(String::from_utf8(zstd::decode_all(packed).unwrap()).unwrap(), ndjson);
    let names = ["a", "a.csv", "a.csv.gz", "a.jsonl", "a.ndjson", "a.ndjson.zst", "b", "c.csv"];
    assert_eq!(folder.names(), names, "and no temporary file");
}

#[tokio::test]
async fn import_detects_a_changed_byte_in_a_compressed_export() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    // One long name that cannot be compressed, so that most bytes of the file are its letters.
    let insert =
        "INSERT INTO pets (name, category_id) VALUES ('Zg7kQ1xTm9bVw3LsYd5RhNc8PjFa2EuKo6GiXtB4', 1)";
    database.connect().await.batch_execute(insert).await.unwrap();
    for name in ["a.csv.gz", "a.csv.zst"] {
        exported(&database, &[&folder.path(name)]);
        let mut packed = std::fs::read(folder.path(name)).unwrap();
        // After the header.
        let place = packed.len() * 3 / 4;
        packed[place] ^= 1;
        let file = folder.write(name, packed);
        let output = run(&["import", &file, "--key-column", "id"], &[("DATABASE_URL", &database.url())]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {error}");
        assert!(error.starts_with("petstore: the input cannot be read: "), "{name}: {error}");
    }
}

#[tokio::test]
async fn the_status_flag_filters_the_export() {
    let database = TestDatabase::new().await;
    database.connect().await.batch_execute(FILL).await.unwrap();
    for (status, names) in [("available", &["Rex"][..]), ("pending", &[]), ("sold", &["Tom"])] {
        let text = exported(&database, &["--status", status]);
        let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found.iter().map(|pet| pet["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    }
    assert_eq!(export(&database, &["--status", "sold"]).stderr, b"1 pet exported\n");
    assert_eq!(export(&database, &["--status", "lost"]).status.code(), Some(2));
}

#[tokio::test]
async fn a_failed_export_leaves_the_existing_file_unchanged() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    database.connect().await.batch_execute(FILL).await.unwrap();
    assert_eq!(export(&database, &["/dev/full"]).status.code(), Some(1));
    folder.write("a.csv", "as it was");
    let output =
        run(&["export", &folder.path("a.csv")], &[("DATABASE_URL", "postgresql://127.0.0.1:1/none")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(folder.read("a.csv").unwrap(), "as it was");
}

#[tokio::test]
async fn an_export_does_not_follow_a_planted_symlink_and_runs_despite_an_old_temporary_file() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    database.connect().await.batch_execute(FILL).await.unwrap();
    folder.write("victim", "as it was");
    std::os::unix::fs::symlink(folder.path("victim"), folder.path("a.csv.part")).unwrap();
    folder.write("b.csv.part", "left by a crash");
    for name in ["a.csv", "b.csv"] {
        exported(&database, &[&folder.path(name)]);
        assert_eq!(folder.read(name).unwrap().lines().count(), 4, "{name}");
        assert!(std::fs::symlink_metadata(folder.path(name)).unwrap().is_file(), "{name}");
    }
    assert_eq!(folder.read("victim").unwrap(), "as it was");
    assert_eq!(folder.read("b.csv.part").unwrap(), "left by a crash");
    assert_eq!(folder.names(), ["a.csv", "a.csv.part", "b.csv", "b.csv.part", "victim"]);
}

/// Makes every export write thousands of pets, and then block until the lock is released that this returns.
async fn block_exports(database: &TestDatabase) -> Client {
    let client = database.connect().await;
    let fill = "INSERT INTO pets (name, category_id) SELECT 'Pet ' || n, n FROM generate_series(1, 10000) n; \
        ALTER TABLE pets RENAME COLUMN name TO stored_name; \
        ALTER TABLE pets RENAME TO stored_pets; \
        CREATE VIEW pets AS SELECT *, \
        CASE WHEN id < 9000 THEN stored_name ELSE stored_name || pg_advisory_xact_lock_shared(1) END AS name \
        FROM stored_pets ORDER BY id; \
        SELECT pg_advisory_lock(1)";
    client.batch_execute(fill).await.unwrap();
    client
}

fn start(database: &TestDatabase, arguments: &[&str]) -> Child {
    let mut command = petstore(&[&["export"], arguments].concat());
    command.env("DATABASE_URL", database.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[tokio::test]
async fn an_interrupted_or_failed_export_removes_its_temporary_file() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let client = block_exports(&database).await;
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE datname = current_database() AND query LIKE 'COPY %'";
    let file = folder.write("Tom's pets.csv", "as it was");
    for (way, code) in [("TERM", 143), ("INT", 130), ("database", 1)] {
        let child = start(&database, &[&file]);
        eventually("there is a temporary file", async || folder.names().len() == 2).await;
        if way == "database" {
            client.execute(terminate, &[]).await.unwrap();
        } else {
            signal(way, child.id());
        }
        let end = child.wait_with_output().unwrap();
        let printed = String::from_utf8(end.stderr).unwrap();
        assert_eq!(folder.names(), ["Tom's pets.csv"], "{way}: {printed}");
        assert_eq!(folder.read("Tom's pets.csv").unwrap(), "as it was", "{way}");
        assert_eq!(end.status.code(), Some(code), "{way}");
        if way == "database" {
            assert!(printed.starts_with("petstore: "), "{printed}");
        } else {
            let advice = format!("Nothing was written to {file}. To start again, run: ");
            let words = format!("petstore: stopped by SIG{way}\n{advice}");
            assert!(printed.starts_with(&words), "{printed}");
            let quoted = format!(" export '{}'\n", file.replace('\'', r"'\''"));
            assert!(printed.ends_with(&quoted), "{printed}");
        }
    }
}

#[tokio::test]
async fn an_interrupted_export_to_a_pipe_says_that_the_output_is_incomplete() {
    let database = TestDatabase::new().await;
    let _lock = block_exports(&database).await;
    for (file, output) in [("-", "standard output"), ("/dev/stdout", "/dev/stdout")] {
        let mut child = start(&database, &[file]);
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        signal("INT", child.id());
        let end = child.wait_with_output().unwrap();
        assert_eq!(end.status.code(), Some(130), "{file}");
        let printed = String::from_utf8(end.stderr).unwrap();
        let advice = format!("The export to {output} is incomplete. To start again, run: ");
        assert!(printed.starts_with(&format!("petstore: stopped by SIGINT\n{advice}")), "{printed}");
        assert!(printed.ends_with(&format!(" export {file}\n")), "{printed}");
    }
}

#[tokio::test]
async fn an_export_removes_what_a_killed_one_left_behind() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let lock = block_exports(&database).await;
    let file = folder.path("a.csv");
    let mut child = start(&database, &[&file]);
    eventually("there is a temporary file", async || folder.names().len() == 1).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(folder.names()[0].starts_with("a.csv."), "{:?}", folder.names());
    lock.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
    // None of these is a temporary file of an export to `a.csv`.
    let others = [
        "a.csv.0123456.part",
        "a.csv.0123456g.part",
        "a.csv.01234567.parts",
        "a.csv.01234567",
        "a.csv.part",
        "b.csv.01234567.part",
        "ba.csv.01234567.part",
    ];
    for name in others {
        folder.write(name, "as it was");
    }
    folder.write("victim", "as it was");
    std::os::unix::fs::symlink(folder.path("victim"), folder.path("a.csv.89abcdef.part")).unwrap();
    std::fs::create_dir(folder.path("a.csv.89abcde0.part")).unwrap();
    exported(&database, &[&file]);
    let mut expected =
        [&others[..], &["a.csv", "a.csv.89abcdef.part", "a.csv.89abcde0.part", "victim"]].concat();
    expected.sort_unstable();
    assert_eq!(folder.names(), expected);
    for name in others.iter().chain(&["victim"]) {
        assert_eq!(folder.read(name).unwrap(), "as it was", "{name}");
    }
    assert_eq!(folder.read("a.csv").unwrap().lines().count(), 10_001);
}

#[tokio::test]
async fn concurrent_exports_of_the_same_file_both_complete() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let lock = block_exports(&database).await;
    let mut children = Vec::new();
    for count in 1..=3 {
        children.push(start(&database, &[&folder.path("a.csv")]));
        eventually("each has a temporary file", async || folder.names().len() == count).await;
    }
    lock.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
    for child in children {
        let end = child.wait_with_output().unwrap();
        assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    }
    assert_eq!(folder.names(), ["a.csv"]);
    assert_eq!(folder.read("a.csv").unwrap().lines().count(), 10_001);
}

#[tokio::test]
async fn metadata_is_one_column_of_json_or_one_column_per_named_member() {
    let (from, to, folder) = (TestDatabase::new().await, TestDatabase::new().await, Folder::new());
    let insert = r#"INSERT INTO pets (name, category_id, metadata) VALUES
        ('Rex', 1, '{"price": "129.00", "note": "a\n\"b\"", "photo": "=x"}'), ('Tom', 2, NULL)"#;
    from.connect().await.batch_execute(insert).await.unwrap();
    let json = "id,name,categoryId,status,reference,metadata\n\
        1,Rex,1,,,\"{\"\"note\"\":\"\"a\\n\\\"\"b\\\"\"\"\",\"\"photo\"\":\"\"=x\"\",\"\"price\"\":\"\"129.00\"\"}\"\n2,Tom,2,,,\n";
    assert_eq!(exported(&from, &["--format=csv"]), json);
    let columns = "id,name,categoryId,status,reference,metadata.note,metadata.photo,metadata.price\n\
        1,Rex,1,,,\"a\n\"\"b\"\"\",=x,129.00\n2,Tom,2,,,,,\n";
    let flags = ["--format=csv", "--metadata=note,photo,price"];
    assert_eq!(exported(&from, &flags), columns);
    assert!(exported(&from, &[&flags[..], &["--escape-formulas"]].concat()).contains(",'=x,129.00\n"));
    let twice = run(&["export", "--format=csv", "--metadata=price,price"], &[("DATABASE_URL", &from.url())]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("`price` twice"));
    // Either is read back.
    for (number, content) in [json, columns].into_iter().enumerate() {
        let file = folder.write(&format!("{number}.csv"), content);
        import_with_code(0, &to, &[&file, "--key-column=id"]);
    }
    let rows = "SELECT count(*) FROM pets WHERE metadata = '{\"price\": \"129.00\", \"note\": \"a\\n\\\"b\\\"\", \"photo\": \"=x\"}'";
    assert_eq!(to.connect().await.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 2);
    let both = folder.write("both.csv", "name,categoryId,metadata,metadata.price\nRex,1,,1\n");
    let refused = |code: i32, file: &str| {
        let output = run(&["import", file], &[("DATABASE_URL", &to.url())]);
        assert_eq!(output.status.code(), Some(code));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(1, &both).contains("use one or the other"));
    let bad = folder.write("bad.csv", "name,categoryId,metadata.a.b\nRex,1,1\n");
    assert!(refused(1, &bad).contains("`metadata.a.b` must have a name of 1 to 40"));
    let long = format!("name,categoryId,metadata.a\nRex,1,{}\nTom,2,x\n", "x".repeat(501));
    let file = folder.write("long.csv", long);
    let printed = refused(4, &file);
    let rejects = folder.read("long.csv.rejects.ndjson").unwrap_or_default();
    let reason = "`metadata` has the member `a`, which must have 1 to 500 characters";
    assert!(rejects.contains(reason), "{printed}{rejects}");
}

#[tokio::test]
async fn formulas_in_names_are_escaped_in_csv_only_with_the_flag() {
    let database = TestDatabase::new().await;
    let fill = "INSERT INTO pets (name, category_id) SELECT name, -1 FROM unnest(ARRAY[\
        '=1+1', '+1', '-1', '@SUM(1)', ' =1+1', '＝1', '=LINK(\"a\",\"b\")', 'Rex', 'a=b', '''=1']) name";
    database.connect().await.batch_execute(fill).await.unwrap();
    let as_stored = "id,name,categoryId,status,reference,metadata\n1,=1+1,-1,,,\n2,+1,-1,,,\n3,-1,-1,,,\n4,@SUM(1),-1,,,\n5,\" =1+1\",-1,,,\n\
        6,＝1,-1,,,\n7,\"=LINK(\"\"a\"\",\"\"b\"\")\",-1,,,\n8,Rex,-1,,,\n9,a=b,-1,,,\n10,'=1,-1,,,\n";
    let escaped = "id,name,categoryId,status,reference,metadata\n1,'=1+1,-1,,,\n2,'+1,-1,,,\n3,'-1,-1,,,\n4,'@SUM(1),-1,,,\n5,' =1+1,-1,,,\n\
        6,'＝1,-1,,,\n7,\"'=LINK(\"\"a\"\",\"\"b\"\")\",-1,,,\n8,Rex,-1,,,\n9,a=b,-1,,,\n10,'=1,-1,,,\n";
    assert_eq!(exported(&database, &["--format=csv"]), as_stored);
    assert_eq!(exported(&database, &["--format=csv", "--escape-formulas"]), escaped);
    let folder = Folder::new();
    exported(&database, &["--escape-formulas", &folder.path("a.csv")]);
    assert_eq!(folder.read("a.csv").unwrap(), escaped);
    for flags in [&[&*folder.path("a.ndjson")][..], &[], &["--format=ndjson", &folder.path("a.csv")]] {
        let output = export(&database, &[flags, &["--escape-formulas"]].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error, "petstore: --escape-formulas applies to CSV only: pass --format csv\n");
    }
}

#[tokio::test]
async fn a_closed_output_pipe_is_not_an_error() {
    let database = TestDatabase::new().await;
    let fill = "INSERT INTO pets (name, category_id) SELECT 'Pet ' || n, n FROM generate_series(1, 100000) n";
    database.connect().await.batch_execute(fill).await.unwrap();
    let mut command = petstore(&["export"]);
    command.env("DATABASE_URL", database.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut byte = [0];
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut byte).unwrap();
    drop(output);
    let end = child.wait_with_output().unwrap();
    assert!(end.status.success());
    assert_eq!(String::from_utf8(end.stderr).unwrap(), "");
}

#[tokio::test]
async fn an_export_during_writes_is_a_consistent_snapshot() {
    let database = TestDatabase::new().await;
    let client = database.connect().await;
    let fill = "INSERT INTO pets (name, category_id, status) \
        SELECT 'Pet ' || n, n, (CASE WHEN n = 1 THEN 'sold' ELSE 'available' END)::pet_status \
        FROM generate_series(1, 20000) n";
    client.batch_execute(fill).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    // At every instant, exactly one of the first and the last pet is sold. New pets are added in pairs.
    let writer = tokio::spawn(async move {
        let mut writes = 0;
        while !stopped.load(Ordering::Relaxed) {
            let write = "BEGIN; \
                UPDATE pets SET status = CASE status WHEN 'sold' THEN 'available' ELSE 'sold' END::pet_status \
                WHERE id IN (1, 20000); \
                INSERT INTO pets (name, category_id) VALUES ('twin', 1), ('twin', 1); COMMIT";
            client.batch_execute(write).await.unwrap();
            writes += 1;
        }
        writes
    });
    for _ in 0..5 {
        let url = database.url();
        let output = tokio::task::spawn_blocking(move || run(&["export"], &[("DATABASE_URL", &url)]));
        let text = String::from_utf8(output.await.unwrap().stdout).unwrap();
        let pets: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ids: Vec<i64> = pets.iter().map(|pet| pet["id"].as_i64().unwrap()).collect();
        assert!(ids.is_sorted());
        assert_eq!(pets.iter().filter(|pet| pet["status"] == "sold").count(), 1);
        assert_eq!(pets.iter().filter(|pet| pet["name"] == "twin").count() % 2, 0);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 10);
}

/// Names that a faulty parser or writer would change.
fn odd_name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[\"',;|\\\\{}\\[\\]:]{1,4}",
        "[\u{5d0}-\u{5ea}\u{627}-\u{64a}\u{202e}\u{200f}]{1,5}",
        "[\u{1f400}-\u{1f43f}\u{200d}\u{fe0f}]{1,3}",
        "[ \u{a0}\u{3000}]{1,2}",
        "[^\\p{Cc}]{1,6}",
        Just("\\.".to_owned()),
        Just("\\N".to_owned()),
        Just("\\n\"\"".to_owned()),
        Just("null".to_owned()),
        Just("=1+1".to_owned()),
        Just("#".to_owned()),
    ];
    let parts = proptest::collection::vec(part, 1..6).prop_map(|parts| parts.concat());
    parts.prop_filter("not a name", |name| PetName::try_from(name.clone()).is_ok())
}

#[tokio::test]
async fn an_export_can_be_imported_and_yields_the_same_pets() {
    let status = prop_oneof![Just(None), Just(Some("available")), Just(Some("pending")), Just(Some("sold"))];
    let pets = proptest::collection::vec((odd_name(), any::<i64>(), status), 300);
    let mut runner = TestRunner::default();
    let folder = Folder::new();
    for name in ["a.csv", "b.ndjson", "c.csv.zst", "d.jsonl.gz"] {
        let (from, to) = (TestDatabase::new().await, TestDatabase::new().await);
        let pets = pets.new_tree(&mut runner).unwrap().current();
        let client = from.connect().await;
        for (name, category_id, status) in &pets {
            let insert = "INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3::text::pet_status)";
            client.execute(insert, &[name, category_id, status]).await.unwrap();
        }
        let file = folder.path(name);
        exported(&from, &[&file]);
        let output = run(&["import", &file, "--key-column", "id"], &[("DATABASE_URL", &to.url())]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let again: Vec<Value> =
            exported(&to, &[]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (place, ((name, category_id, status), pet)) in pets.iter().zip(&again).enumerate() {
            let mut expected = json!({"id": place + 1, "name": name, "categoryId": category_id});
            if let Some(status) = status {
                expected["status"] = (*status).into();
            }
            assert_eq!(*pet, expected);
        }
        assert_eq!(again.len(), pets.len());
    }
}
