//! `petstore import`, as an operator runs it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use petstore_config::DatabaseUrl;
use petstore_storage::{SCHEMA_NEEDED, migrate};
use serde_json::{Value, json};

use crate::support::TestDatabase;
use crate::support::folder::Folder;
use crate::support::import::{assert_each_once, import, import_with_code, numbered_csv, start};
use crate::support::postgres::{PetRow, count_pets};
use crate::support::program::{petstore, run};

fn pet(name: &str, category_id: i64, status: Option<&str>) -> PetRow {
    (name.to_owned(), category_id, status.map(ToOwned::to_owned))
}

#[tokio::test]
async fn import_adds_the_pets_of_a_csv_or_ndjson_file_in_file_order() {
    let csv =
        "\u{feff}categoryId,name\r\n3,Rex\r\n-9223372036854775808,\"Ré, \"\"the 🐕\"\"\"\r\n\r\n0, x \r\n";
    let csv_with_status = "name,status,categoryId\nRex,available,3\nTom,,4\nKit,pending,5\nOld,sold,6";
    let ndjson = "\u{feff}{\"name\": \"Rex\", \"categoryId\": 3.0, \"status\": \"sold\"}\r\n\n\
        {\"categoryId\": 1e2, \"name\": \"\\u0052\\ud83d\\udc15\\\\\"}";
    for (name, content, expected) in [
        ("a.csv", csv, vec![pet("Rex", 3, None), pet("Ré, \"the 🐕\"", i64::MIN, None), pet(" x ", 0, None)]),
        (
            "b.csv",
            csv_with_status,
            vec![
                pet("Rex", 3, Some("available")),
                pet("Tom", 4, None),
                pet("Kit", 5, Some("pending")),
                pet("Old", 6, Some("sold")),
            ],
        ),
        ("c.ndjson", ndjson, vec![pet("Rex", 3, Some("sold")), pet("R🐕\\", 100, None)]),
        ("d.jsonl", "", vec![]),
    ] {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let printed = import_with_code(0, &database, &[&folder.write(name, content)]);
        assert_eq!(printed, format!("{} rows added, 0 already imported\n", expected.len()), "{name}");
        assert_eq!(database.pets().await, expected, "{name}");
        assert_eq!(folder.names(), [name], "no rejects, no file for them");
    }
}

#[tokio::test]
async fn imports_of_the_same_references_in_opposite_orders_wait_for_each_other_and_add_each_pet_once() {
    const PETS: i64 = 4_000;
    let header = "name,categoryId,reference".to_owned();
    let row = |number: i64| format!("Pet {number},1,chip {number}");
    let folder = Folder::new();
    let mut rows: Vec<String> = (0..PETS).map(row).collect();
    let ascending = folder.write("ascending.csv", format!("{header}\n{}\n", rows.join("\n")));
    rows.reverse();
    let descending = folder.write("descending.csv", format!("{header}\n{}\n", rows.join("\n")));
    for flags in [&["--atomic"][..], &[]] {
        let database = TestDatabase::new().await;
        for round in 0..4 {
            let start = |file: &str| start(&database, &[&[file], flags].concat());
            let imports = [start(&ascending), start(&descending)];
            for import in imports {
                let output = import.wait_with_output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(!errors.contains("deadlock"), "{flags:?}, round {round}: {errors}");
            }
            let session = database.connect().await;
            assert_eq!(count_pets(&session).await, PETS, "{flags:?}, round {round}");
            session.batch_execute("TRUNCATE pets CASCADE").await.unwrap();
        }
    }
}

#[tokio::test]
async fn every_invalid_row_is_recorded_with_its_line_and_reason() {
    let long = "x".repeat(256);
    let endless = "x".repeat(20_000);
    let csv = format!(
        "name,categoryId,status,key\n\
         ,1,,1\n\
         \" \u{3000}\",1,,2\n\
         {long},1,,3\n\
         \"two\nlines\",1,,4\n\
         Rex,,,5\n\
         Rex,1.5,,6\n\
         Rex,9223372036854775808,,7\n\
         Rex,1,Sold,8\n\
         Rex,1\n\
         Rex,1,,9,\n\
         Rex,1,,\n\
         Rex,1,,{endless}\n\
         Good,1,,10\n"
    );
    let csv_reasons = [
        (2, "`name` must have at least one character that is not white space."),
        (3, "`name` must have at least one character that is not white space."),
        (4, "`name` must have at most 255 characters."),
        (5, "`name` must not contain control characters."),
        (7, "`categoryId` must be an integer from -2^63 to 2^63 - 1."),
        (8, "`categoryId` must be an integer from -2^63 to 2^63 - 1."),
        (9, "`categoryId` must be an integer from -2^63 to 2^63 - 1."),
        (10, "`status` must be one of `available`, `pending`, `sold`."),
        (11, "The row has 2 values, but the header 4 columns."),
        (12, "The row has 5 values, but the header 4 columns."),
        (13, "`key` must have 1 to 200 characters, none of them a control character."),
        (14, "`key` must have 1 to 200 characters, none of them a control character."),
    ];
    let ndjson = format!(
        r#"{{"key": 1, "name": "", "categoryId": 1}}
{{"key": 1, "name": "{long}", "categoryId": 1}}
{{"key": 1, "name": "a\u0000", "categoryId": 1}}
{{"key": 1, "name": null, "categoryId": 1}}
{{"key": 1, "categoryId": 1}}
{{"key": 1, "name": "Rex"}}
{{"key": 1, "name": "Rex", "categoryId": "1"}}
{{"key": 1, "name": "Rex", "categoryId": 1, "status": null}}
{{"key": 1, "name": "Rex", "categoryId": 1, "status": ""}}
{{"key": 1, "name": "Rex", "categoryId": 1, "stauts": "sold"}}
{{"key": 1, "name": "Rex", "name": "Rex", "categoryId": 1}}
{{"key": 1, "key": 1, "name": "Rex", "categoryId": 1}}
["Rex", 1]

{{"key": 1, "name": "Rex", "categoryId": 1
{{"name": "Rex", "categoryId": 1}}
{{"key": null, "name": "Rex", "categoryId": 1}}
{{"key": "", "name": "Rex", "categoryId": 1}}
{{"key": 1.5, "name": "Rex", "categoryId": 1}}
{endless}
{{"key": "good", "name": "Good", "categoryId": 1}}
"#
    );
    let ndjson_reasons = [
        (1, "`/name` must have at least one character that is not white space."),
        (2, "`/name` must have at most 255 characters."),
        (3, "`/name` must not contain control characters."),
        (4, "`/name` must be a string."),
        (5, "`/name` is required: it must be a string of 1 to 255 characters."),
        (6, "`/categoryId` is required: it must be an integer."),
        (7, "`/categoryId` must be an integer from -2^63 to 2^63 - 1."),
        (8, "`/status` must not be `null`: leave it out."),
        (9, "`/status` must be one of `available`, `pending`, `sold`."),
        (10, "`/stauts` cannot be set: did you mean `/status`?"),
        (11, "The line is not valid: `name` appears twice."),
        (12, "The line is not valid: `key` appears twice."),
        (13, "The line is not valid: it is not an object."),
        (15, "The line is not valid: it ends too early."),
        (16, "`/key` is required: it is the source's key."),
        (17, "`/key` must be a string or an integer."),
        (18, "`/key` must have 1 to 200 characters, none of them a control character."),
        (19, "`/key` must be a string or an integer."),
        (20, "The line has more than 16384 bytes."),
    ];
    for (name, content, reasons) in
        [("a.csv", csv, &csv_reasons[..]), ("b.ndjson", ndjson, &ndjson_reasons[..])]
    {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let file = folder.write(name, content);
        let bound = reasons.len().to_string();
        let arguments = [&*file, "--key-column", "key", "--max-errors", &bound];
        let printed = import_with_code(3, &database, &arguments);
        let rejects = format!("{name}.rejects.ndjson");
        let place = folder.path(&rejects);
        assert_eq!(printed, format!("1 row added, 0 already imported, {bound} rejected: see {place}\n"));
        assert_eq!(database.pets().await, [pet("Good", 1, None)]);
        let noted: Vec<Value> =
            folder.read(&rejects).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected: Vec<Value> =
            reasons.iter().map(|(line, reason)| json!({"line": line, "reason": reason})).collect();
        assert_eq!(noted, expected, "{name}");

        let one_less = (reasons.len() - 1).to_string();
        let (database, other) = (TestDatabase::new().await, folder.path("elsewhere"));
        let arguments = [&*file, "--key-column=key", "--max-errors", &one_less, "--rejects", &other];
        assert_eq!(import_with_code(4, &database, &arguments), "", "one invalid row too many");
        assert_eq!(folder.read("elsewhere"), folder.read(&rejects));
        assert!(database.pets().await.is_empty());
    }
}

#[tokio::test]
async fn a_line_one_byte_too_long_does_not_swallow_the_next_one() {
    for end in ["\n", "\r\n"] {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let mut ndjson = String::new();
        for (number, length) in (1..).zip([16_384, 16_385, 50, 16_386, 16_384, 100_000, 50]) {
            let object = format!("{{\"name\": \"Rex\", \"categoryId\": {number}");
            write!(ndjson, "{object}{}}}{end}", " ".repeat(length - object.len() - 1)).unwrap();
        }
        let file = folder.write("a.ndjson", ndjson);
        import_with_code(3, &database, &[&file, "--max-errors=9"]);
        let arrived = [1, 3, 5, 7].map(|number| pet("Rex", number, None));
        assert_eq!(database.pets().await, arrived, "{end:?}");
        let rejects = [2, 4, 6].map(|line| {
            format!("{}\n", json!({"line": line, "reason": "The line has more than 16384 bytes."}))
        });
        assert_eq!(folder.read("a.ndjson.rejects.ndjson").unwrap(), rejects.concat(), "{end:?}");
    }
}

#[tokio::test]
async fn text_that_is_not_utf_8_is_refused() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    for (name, content, reason) in [
        ("a.csv", &b"name,categoryId\nR\xe9x,1\n"[..], "The row is not UTF-8."),
        ("b.ndjson", b"{\"name\": \"R\xe9x\", \"categoryId\": 1}", "The line is not valid: it is not UTF-8."),
    ] {
        import_with_code(3, &database, &[&folder.write(name, content), "--max-errors=1"]);
        assert!(folder.read(&format!("{name}.rejects.ndjson")).unwrap().contains(reason));
    }
}

#[tokio::test]
async fn an_invalid_csv_header_is_refused_with_the_reason() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    for (header, key, problem) in [
        ("", None, "the input is empty"),
        ("name,status", None, "the column `categoryId` is missing"),
        ("categoryId", None, "the column `name` is missing"),
        ("name,categoryId,name", None, "the column `name` appears twice"),
        ("name,categoryId", Some("sku"), "the column `sku` is missing"),
        (
            "name,categoryId,Status",
            None,
            "there is no column `Status`; the columns are `name`, `categoryId`, `status`, `reference`, `metadata`",
        ),
        (
            "id,name,categoryId",
            None,
            "there is no column `id`; the columns are `name`, `categoryId`, `status`, `reference`, `metadata`; `--key-column id` uses it as the \
             source's key",
        ),
    ] {
        let file = folder.write("a.csv", format!("{header}\n"));
        let mut arguments = vec![&*file];
        arguments.extend(key.iter().flat_map(|key| ["--key-column", *key]));
        let output = import(&database, &arguments);
        assert_eq!(output.status.code(), Some(1), "{header}");
        let error = String::from_utf8(output.stderr).unwrap();
        let advice = "Nothing was added. To start again, fix the file and run: ";
        assert!(
            error.starts_with(&format!("petstore: the header is not usable: {problem}\n{advice}")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_invalid_import_command_line_is_refused() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let file = folder.write("a.csv", "name,categoryId\n");
    let unnamed = folder.write("pets", "");
    let unusable = folder.write("control\u{1}character", "name,categoryId,key\n");
    for (arguments, code) in [
        (&[][..], 2),
        (&["-"], 2),
        (&[&*file, "--format", "json"], 2),
        (&[&file, "--key-column", "name"], 2),
        (&[&file, "--key-column", "status"], 2),
        (&[&file, "--key-column", ""], 2),
        (&[&file, "--source", "shop"], 2),
        (&[&file, "--max-errors", "-1"], 2),
        (&[&unnamed], 2),
        (&["-", "--format", "csv", "--key-column", "key"], 2),
        (&[&unusable, "--format", "csv", "--key-column", "key"], 2),
        (&["no-such-file.csv"], 1),
    ] {
        let output = import(&database, arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn an_invalid_row_leaves_nothing_of_an_atomic_import_and_whole_chunks_of_any_other() {
    let folder = Folder::new();
    let bad = numbered_csv(1..=12_000) + "12001,,1,\n" + &numbered_csv(12_002..=12_500)[27..];
    let good = numbered_csv(1..=12_500);
    for (flags, there) in [(&["--atomic"][..], 0), (&[], 10_000)] {
        let database = TestDatabase::new().await;
        let file = folder.write("a.csv", &bad);
        let arguments = [&[&*file, "--key-column", "key"], flags].concat();
        let output = import(&database, &arguments);
        assert_eq!(output.status.code(), Some(4));
        let error = String::from_utf8(output.stderr).unwrap();
        let words = "petstore: stopped at line 12002: `name` must have at least one character that is not white space.";
        assert!(error.starts_with(words), "{error}");
        assert_eq!(database.pets().await.len(), there);
        folder.write("a.csv", &good);
        let printed = import_with_code(0, &database, &arguments);
        let (added, before) = if there == 0 { ("12,500", "0") } else { ("2,500", "10,000") };
        assert_eq!(printed, format!("{added} rows added, {before} already imported\n"));
        assert_eq!(database.pets().await.len(), 12_500);
        assert_eq!(folder.names(), ["a.csv"], "the old rejects file is removed");
    }
}

#[tokio::test]
async fn a_dry_run_finds_every_invalid_row_and_changes_nothing() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let file = folder.write("a.csv", numbered_csv(1..=20_000));
    let printed = import_with_code(0, &database, &[&file, "--key-column=key", "--dry-run"]);
    assert_eq!(printed, "20,000 rows are valid (0 already imported)\n");
    let file = folder.write("b.csv", "name,categoryId\nRex,1\n,1\nTom,x\n");
    let printed = import_with_code(3, &database, &[&file, "--dry-run"]);
    assert!(printed.starts_with("1 row is valid, 2 rejected: see "), "{printed}");
    assert_eq!(folder.read("b.csv.rejects.ndjson").unwrap().lines().count(), 2);
    assert_eq!(stored(&database).await, (0, 0, 1));
    // Without keys, no row counts as already imported, so no database is needed.
    let output = run(&["import", &file, "--dry-run"], &[("DATABASE_URL", "postgresql://127.0.0.1:1/none")]);
    assert_eq!(output.status.code(), Some(3));
}

/// The number of pets, that of imported chunks, and the last id of a pet that was assigned or the first that will be.
async fn stored(database: &TestDatabase) -> (i64, i64, i64) {
    let state = "SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM imported_chunks), \
        (SELECT last_value FROM pets_id_seq)";
    let row = database.connect().await.query_one(state, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[tokio::test]
async fn a_dry_run_counts_the_rows_that_the_import_then_skips() {
    for first in [numbered_csv(1..=10_000), numbered_csv(shuffled(10_000).map(|key| key + 1))] {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let client = database.connect().await;
        let arguments = [&*folder.path("a.csv"), "--key-column=key"];
        let dry_run = [&arguments[..], &["--dry-run"]].concat();
        folder.write("a.csv", &first);
        import_with_code(0, &database, &arguments);
        let before = stored(&database).await;
        // Known keys, new ones, and new ones that appear twice: in the same chunk and in another one.
        let keys = (9_001..=19_000).chain([19_000, 10_001, 1]);
        folder.write("a.csv", numbered_csv(keys) + "19001,,1,\n");
        // It does not wait for an import of the same source.
        let lock = "SELECT pg_advisory_lock(hashtextextended('petstore import a.csv', 0))";
        client.execute(lock, &[]).await.unwrap();
        let printed = import_with_code(3, &database, &dry_run);
        client.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
        let rejects = folder.path("a.csv.rejects.ndjson");
        let expected = format!("10,003 rows are valid (1,003 already imported), 1 rejected: see {rejects}\n");
        assert_eq!(printed, expected);
        assert_eq!(stored(&database).await, before);
        let printed = import_with_code(3, &database, &[&arguments[..], &["--max-errors=1"]].concat());
        let expected = format!("9,000 rows added, 1,003 already imported, 1 rejected: see {rejects}\n");
        assert_eq!(printed, expected);
        // Another source has none of these keys.
        let printed = import_with_code(3, &database, &[&dry_run[..], &["--source=b"]].concat());
        let expected = format!("10,003 rows are valid (2 already imported), 1 rejected: see {rejects}\n");
        assert_eq!(printed, expected);
    }
}

#[tokio::test]
async fn only_an_earlier_rejects_file_or_an_empty_file_is_replaced() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let input = folder.write("a.csv", "name,categoryId\n,1\n");
    let valid = folder.write("b.csv", "name,categoryId\nRex,1\n");
    let earlier = "{\"line\":7,\"reason\":\"`name` is bad.\"}\n{\"line\":9,\"reas";
    let (rejects, target) = (folder.path("rejects"), folder.path("target"));
    for content in ["notes\n", "{\"line\":7}\n", "{\"name\":\"Rex\",\"categoryId\":1}\n", "\n", "\u{fffd}"] {
        folder.write("rejects", content);
        for file in [&input, &valid] {
            let output = import(&database, &[file, "--rejects", &rejects]);
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{content:?}: {error}");
            assert_eq!(
                error,
                format!("petstore: {rejects} exists and is not a rejects file: pass another --rejects\n")
            );
            assert_eq!(folder.read("rejects").unwrap(), content);
        }
    }
    import_with_code(2, &database, &[&input, "--rejects", &input]);
    assert_eq!(folder.read("a.csv").unwrap(), "name,categoryId\n,1\n");
    import_with_code(2, &database, &[&input, "--rejects", &folder.path("")]);
    std::fs::remove_file(&rejects).unwrap();
    std::os::unix::fs::symlink(&target, &rejects).unwrap();
    for content in [None, Some(""), Some(earlier)] {
        content.map(|content| folder.write("target", content));
        import_with_code(2, &database, &[&input, "--rejects", &rejects]);
        assert_eq!(folder.read("target").as_deref(), content);
        assert!(std::fs::symlink_metadata(&rejects).unwrap().is_symlink());
    }
    std::fs::remove_file(&rejects).unwrap();
    for content in ["", earlier] {
        folder.write("rejects", content);
        import_with_code(4, &database, &[&input, "--rejects", &rejects]);
        assert!(folder.read("rejects").unwrap().starts_with("{\"line\":2,"));
        import_with_code(0, &database, &[&valid, "--rejects", &rejects]);
        assert_eq!(
            folder.read("rejects"),
            None,
            "all rows are valid: the rejects of the earlier run are outdated"
        );
    }
    // A pipe or a device is written to and stays.
    let output = import(&database, &[&input, "--max-errors=1", "--rejects", "/dev/stderr"]);
    assert_eq!(output.status.code(), Some(3));
    let reason = "`name` must have at least one character that is not white space.";
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!("{}\n", json!({"line": 2, "reason": reason}))
    );
}

#[tokio::test]
async fn compression_is_detected_by_content_not_by_file_name() {
    let folder = Folder::new();
    let gzip = |text: &str| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        packed.finish().unwrap()
    };
    let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 3).unwrap();
    let (first, second) = ("name,categoryId\nRex,1\n", "Tom,2\n");
    for (name, content) in [
        ("a.csv.gz", gzip(&format!("{first}{second}"))),
        ("a.csv.zst", zstd(&format!("{first}{second}"))),
        ("a.csv", [gzip(first), gzip(second)].concat()),
        ("b.csv.gz", [zstd(first), zstd(second)].concat()),
        ("c.csv.zst", format!("{first}{second}").into_bytes()),
    ] {
        let database = TestDatabase::new().await;
        import_with_code(0, &database, &[&folder.write(name, content)]);
        assert_eq!(database.pets().await, [pet("Rex", 1, None), pet("Tom", 2, None)], "{name}");
    }
}

#[tokio::test]
async fn import_reads_standard_input_and_writes_its_rejects_to_standard_error() {
    let database = TestDatabase::new().await;
    let mut child =
        petstore(&["import", "-", "--format=ndjson", "--key-column=id", "--source=pipe", "--max-errors=9"])
            .env("DATABASE_URL", database.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let rows = b"{\"id\": 7, \"name\": \"Rex\", \"categoryId\": 1}\n{\"id\": 8}\n";
    child.stdin.take().unwrap().write_all(rows).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "1 row added, 0 already imported, 1 rejected: see standard error\n");
    let errors = String::from_utf8(output.stderr).unwrap();
    let reason = "`/name` is required: it must be a string of 1 to 255 characters.";
    assert_eq!(errors, format!("{}\n", json!({"line": 2, "reason": reason})));
}

#[tokio::test]
async fn an_unclosed_quote_is_refused_before_it_swallows_the_whole_file() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let file = folder.write("a.csv", format!("name,categoryId\n\"Rex,1\n{}", "Tom,1\n".repeat(500_000)));
    let output = import(&database, &[&file, "--max-errors=9"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("a CSV row has more than 262144 bytes: is a quote not closed?"), "{error}");
    assert_eq!(database.pets().await, []);
}

#[tokio::test]
async fn the_first_of_several_rows_with_the_same_key_wins() {
    // Twice within a chunk, twice in different chunks, in order and out of order, and again in another run.
    let ascending = (1..=11_000).collect::<Vec<u32>>();
    for repeated in [&[11_000, 1][..], &[11_000, 11_000], &[1, 11_000, 5_000, 5_001]] {
        let (database, folder) = (TestDatabase::new().await, Folder::new());
        let keys = ascending.iter().chain(repeated).copied();
        let file = folder.write("a.csv", numbered_csv(keys));
        let printed = import_with_code(0, &database, &[&file, "--key-column=key"]);
        assert_eq!(printed, format!("11,000 rows added, {} already imported\n", repeated.len()));
        let longer = folder.write("a.csv", numbered_csv((1..=11_002).rev()));
        let printed = import_with_code(0, &database, &[&longer, "--key-column=key"]);
        assert_eq!(printed, "2 rows added, 11,000 already imported\n");
        assert_each_once(&database, 11_002).await;
    }
}

#[tokio::test]
async fn an_import_key_belongs_to_its_source_which_defaults_to_the_file_name() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let csv = "sku,name,categoryId\n007,Rex,1\n";
    for (name, flags, added) in [
        ("a.csv", &["--key-column=sku"][..], 1),
        ("b.csv", &["--key-column=sku"], 1),
        ("b.csv", &["--key-column=sku", "--source=a.csv"], 0),
        ("c.csv", &["--key-column=sku", "--source=shop"], 1),
        ("a.csv", &["--key-column=sku", "--source=shop"], 0),
        // Without keys, every row is added.
        ("d.csv", &[], 1),
        ("d.csv", &[], 1),
    ] {
        let content = if flags.is_empty() { "name,categoryId\nRex,1\n" } else { csv };
        let file = folder.write(name, content);
        let printed = import_with_code(0, &database, &[&[&*file], flags].concat());
        let expected = if added == 1 { "1 row added" } else { "0 rows added" };
        assert!(printed.starts_with(expected), "{name} {flags:?}: {printed}");
    }
    // The same key, as a number or as a string.
    let ndjson = r#"{"sku": "8", "name": "Rex", "categoryId": 1}
{"sku": 8, "name": "Rex", "categoryId": 1}
{"sku": "007", "name": "Rex", "categoryId": 1}"#;
    let file = folder.write("a.ndjson", ndjson);
    let printed = import_with_code(0, &database, &[&file, "--key-column=sku", "--source=a.csv"]);
    assert_eq!(printed, "1 row added, 2 already imported\n");
}

/// The numbers below `count`, shuffled.
fn shuffled(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(move |number| (number * 7_919 + 13) % count)
}

#[tokio::test]
async fn an_import_that_is_killed_and_rerun_adds_every_row_once() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let client = database.connect().await;
    for (name, content, kills) in
        [("sorted.csv", numbered_csv(0..40_000), 3), ("shuffled.csv", numbered_csv(shuffled(40_000)), 3)]
    {
        client.batch_execute("TRUNCATE pets, orders, imported_chunks").await.unwrap();
        let file = folder.write(name, content);
        for kill in 1..=kills {
            let mut child = start(&database, &[&file, "--key-column=key"]);
            let deadline = Instant::now() + Duration::from_mins(1);
            // In the middle of the import, a little later each time.
            while count_pets(&client).await < i64::from(kill) * 8_000 {
                assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "{name}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let there = count_pets(&client).await;
        assert!((24_000..40_000).contains(&there), "{name}: {there} were there after the last kill");
        import_with_code(0, &database, &[&file, "--key-column=key"]);
        assert_each_once(&database, 40_000).await;
        let printed = import_with_code(0, &database, &[&file, "--key-column=key"]);
        assert_eq!(printed, "0 rows added, 40,000 already imported\n");
    }
}

#[tokio::test]
async fn an_atomic_import_is_invisible_until_it_commits_and_leaves_nothing_when_it_is_killed() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let client = database.connect().await;
    let file = folder.write("a.csv", numbered_csv(shuffled(40_000)));
    let in_progress = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND xact_start IS NOT NULL AND query LIKE '%staged%' AND pid <> pg_backend_pid()";
    let mut seen_in_progress = 0;
    for kill in [true, false] {
        let mut child = start(&database, &[&file, "--key-column=key", "--atomic"]);
        while child.try_wait().unwrap().is_none() {
            let running: i64 = client.query_one(in_progress, &[]).await.unwrap().get(0);
            let seen = count_pets(&client).await;
            assert!(seen == 0 || (!kill && seen == 40_000), "{seen} of 40,000 were seen");
            seen_in_progress += running;
            if kill && seen_in_progress >= 5 {
                child.kill().unwrap();
            }
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), !kill);
        assert_eq!(count_pets(&client).await, if kill { 0 } else { 40_000 });
    }
    assert!(seen_in_progress > 10, "too few samples while it ran: {seen_in_progress}");
    assert_each_once(&database, 40_000).await;
}

#[tokio::test]
async fn concurrent_imports_of_the_same_source_add_every_row_once() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let file = folder.write("a.csv", numbered_csv(shuffled(12_000)));
    let children: Vec<Child> = (0..3).map(|_| start(&database, &[&file, "--key-column=key"])).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_each_once(&database, 12_000).await;
}

#[tokio::test]
async fn import_refuses_a_schema_that_is_too_old_and_says_what_to_run() {
    let (database, folder) = (TestDatabase::empty().await, Folder::new());
    let file = folder.write("a.csv", "name,categoryId\nRex,1\n");
    for version in 0..SCHEMA_NEEDED {
        if version > 0 {
            migrate(&DatabaseUrl::from(database.url()), version).await.unwrap();
        }
        let output = import(&database, &[&file]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.ends_with("run `petstore migrate` first\n"), "{error}");
    }
}
