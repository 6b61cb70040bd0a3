//! The shop's own numbers of its pets: given once, found by them, and never shared by two pets.

use std::fmt::Write;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::folder::Folder;
use crate::support::import::import_with_code;
use crate::support::postgres::count_pets;
use crate::support::program::run;
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase, TestService};

const REFERENCE: &str = "must have 1 to 255 characters, not all white space, and no control characters";
const TAKEN: &str = r#"{"code":"reference_taken","message":"Another pet already has this `reference`: send a different one, or find that pet with `GET /v1/pets?reference=…`.","status":409,"field":"reference"}"#;

fn rex(reference: &str) -> Value {
    json!({"name": "Rex", "categoryId": 3, "reference": reference})
}

/// Adds a pet with a reference, and returns its id.
async fn add(client: &Client, reference: &str) -> i64 {
    client.post("/v1/pets", &rex(reference)).await.json()["id"].as_i64().unwrap()
}

#[tokio::test]
async fn a_pet_has_a_reference_only_if_it_was_set() {
    let service = TestService::start().await;
    let client = &service.client;
    let without = client.post("/v1/pets", &json!({"name": "Tom", "categoryId": 3})).await;
    assert_eq!(without.body, r#"{"id":1,"name":"Tom","categoryId":3}"#);
    let with = client.post("/v1/pets", &rex(" 985 🐕 ")).await;
    assert_eq!(with.body, r#"{"id":2,"name":"Rex","categoryId":3,"reference":" 985 🐕 "}"#);
    for path in ["/v1/pets/2", "/v1/pets?id=2", "/v1/pets?reference=+985+%F0%9F%90%95+", "/v1/pets"] {
        assert!(client.get(path).await.body.contains(&*with.body), "{path}");
    }
}

#[tokio::test]
async fn a_reference_is_checked_like_a_name() {
    let service = TestService::start().await;
    for bad in [json!(""), json!(" \u{3000}"), json!("a\nb"), json!("x".repeat(256))] {
        let body = json!({"name": "Rex", "categoryId": 3, "reference": bad});
        let answer = service.client.post("/v1/pets", &body).await;
        assert_eq!(answer.error(), (400, "invalid_field".into()), "{bad}");
        assert_eq!(answer.json()["message"], format!("`/reference` {REFERENCE}."));
    }
    let null = json!({"name": "Rex", "categoryId": 3, "reference": null});
    let answer = service.client.post("/v1/pets", &null).await;
    assert_eq!(answer.json()["message"], "`/reference` must not be `null`: leave it out.");
    assert_eq!(service.client.post("/v1/pets", &rex(&"🐕".repeat(255))).await.status, 201);
    // No other way in accepts more.
    let database = service.database.connect().await;
    for bad in ["''", "' '", "E'a\\nb'", "repeat('x', 256)"] {
        let insert = format!("INSERT INTO pets (name, category_id, reference) VALUES ('Rex', 1, {bad})");
        let error = database.batch_execute(&insert).await.unwrap_err();
        assert_eq!(error.as_db_error().unwrap().constraint(), Some("pets_reference"), "{bad}");
    }
}

#[tokio::test]
async fn a_taken_reference_is_refused_and_nothing_changes() {
    let service = TestService::start().await;
    let client = &service.client;
    let first = add(client, "chip 7").await;
    let other = client.add("Tom", None).await;
    assert_eq!(client.post("/v1/pets", &rex("chip 7")).await.body, TAKEN);
    assert_eq!(client.post_with_key("/v1/pets", "once", &rex("chip 7")).await.body, TAKEN);
    assert_eq!(client.patch_pet(other, &json!({"name": "Max", "reference": "chip 7"})).await.body, TAKEN);
    assert_eq!(count_pets(&service.database.connect().await).await, 2);
    let unchanged = json!({"id": other, "name": "Tom", "categoryId": 1});
    assert_eq!(client.get(&format!("/v1/pets/{other}")).await.json(), unchanged);
    // References differ by every character.
    assert_eq!(client.post("/v1/pets", &rex("Chip 7")).await.status, 201);
    // The one that is given up is free again.
    let changed = client.patch_pet(first, &json!({"reference": "chip 8"})).await;
    assert_eq!(changed.json()["reference"], "chip 8");
    assert_eq!(client.post_with_key("/v1/pets", "once", &rex("chip 7")).await.status, 201);
}

#[tokio::test]
async fn update_pet_sets_a_reference_and_keeps_it_unless_told_otherwise() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", None).await;
    let set = client.patch_pet(pet, &json!({"reference": "a"})).await;
    assert_eq!(set.json(), json!({"id": pet, "name": "Rex", "categoryId": 1, "reference": "a"}));
    assert_eq!(client.patch_pet(pet, &json!({"reference": "a"})).await.body, set.body);
    assert_eq!(client.patch_pet(pet, &json!({"name": "Max"})).await.json()["reference"], "a");
    assert_eq!(client.get("/v1/pets?reference=a").await.ids(), [pet]);
}

#[tokio::test]
async fn a_retry_gets_its_own_pet_and_not_the_error_that_its_reference_is_taken() {
    let service = TestService::start().await;
    let client = &service.client;
    let first = client.post_with_key("/v1/pets", "once", &rex("chip 7")).await;
    let retry = client.post_with_key("/v1/pets", "once", &rex("chip 7")).await;
    assert_eq!((retry.status, &retry.body), (201, &first.body));
    assert_eq!(retry.header("idempotent-replayed"), "true");
    let different = client.post_with_key("/v1/pets", "once", &rex("chip 8")).await;
    assert_eq!(different.error(), (422, "idempotency_key_reused".into()));
}

#[tokio::test]
async fn of_concurrent_pets_with_one_reference_one_is_added_and_their_neighbours_are_all_added() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    let nodes = [first, second];
    for round in 0..5 {
        let mut adding = JoinSet::new();
        for number in 0..40 {
            let client = nodes[number % 2].client.clone();
            let (key, shared) = (format!("{round}-{number}"), format!("chip {round}"));
            adding.spawn(async move {
                let body = match number % 4 {
                    0 | 1 => rex(&shared),
                    2 => rex(&format!("own {key}")),
                    _ => json!({"name": "Tom", "categoryId": 1}),
                };
                loop {
                    let answer = match number % 3 {
                        0 => client.post("/v1/pets", &body).await,
                        _ => client.post_with_key("/v1/pets", &key, &body).await,
                    };
                    // On a busy machine, the reference may be held for too long. Nothing was changed, so it is sent again.
                    if answer.status != 503 {
                        return (number % 4 < 2, answer.status);
                    }
                }
            });
        }
        let outcomes = adding.join_all().await;
        let statuses = |is_shared| {
            let mut found: Vec<u16> = outcomes
                .iter()
                .filter(|(shared, _)| *shared == is_shared)
                .map(|(_, status)| *status)
                .collect();
            found.sort_unstable();
            found
        };
        assert_eq!(statuses(true), [&[201][..], &[409; 19]].concat());
        assert_eq!(statuses(false), [201; 20]);
    }
    assert_eq!(count_pets(&nodes[0].database.connect().await).await, 5 * 21);
}

#[tokio::test]
async fn a_pet_whose_reference_somebody_holds_in_a_transaction_does_not_hold_up_its_neighbours() {
    let service = TestService::start().await;
    let holder = service.database.connect().await;
    let insert = "BEGIN; INSERT INTO pets (name, category_id, reference) VALUES ('Rex', 1, 'held')";
    holder.batch_execute(insert).await.unwrap();
    let body = rex("held");
    let held = service.client.post("/v1/pets", &body);
    let neighbours = async { (add(&service.client, "free").await, service.client.add("Tom", None).await) };
    let (held, _) = tokio::join!(held, neighbours);
    assert_eq!(held.error(), (503, "unavailable".into()));
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(service.client.post("/v1/pets", &rex("held")).await.body, TAKEN);
}

#[tokio::test]
async fn list_pets_finds_the_pets_with_these_references() {
    let service = TestService::start().await;
    let client = &service.client;
    for number in 1..=101 {
        assert_eq!(add(client, &format!("r{number}")).await, number);
    }
    client.patch_pet(2, &json!({"status": "sold", "categoryId": 9})).await;
    for (query, ids) in [
        ("reference=r3&reference=r1&reference=nobody&reference=r3", &[1, 3][..]),
        ("reference=R1", &[]),
        ("reference=r1&reference=r2&status=sold", &[2]),
        ("reference=r1&reference=r2&categoryId=3", &[1]),
        ("reference=r1&reference=r2&id=2&id=3", &[2]),
    ] {
        assert_eq!(client.get(&format!("/v1/pets?{query}")).await.ids(), ids, "{query}");
    }
    let references =
        |count: usize| (1..=count).map(|n| format!("reference=r{n}")).collect::<Vec<_>>().join("&");
    let all = client.get(&format!("/v1/pets?{}", references(100))).await;
    assert_eq!((all.ids().len(), all.next()), (100, None), "all in one answer");
    let first = client.get(&format!("/v1/pets?{}&limit=2", references(3))).await;
    let next = "/v1/pets?limit=2&reference=r1&reference=r2&reference=r3&cursor=AQAAAAAAAAAC";
    assert_eq!((first.ids(), first.next()), (vec![1, 2], Some(next)));
    assert_eq!(client.get(next).await.ids(), [3]);
    for bad in [references(101), "reference=".into(), "reference=a%0Ab".into()] {
        let answer = client.get(&format!("/v1/pets?{bad}")).await;
        assert_eq!(answer.error(), (400, "invalid_parameter".into()));
        let message = format!("`reference` {REFERENCE}, and can appear up to 100 times.");
        assert_eq!(
            (&answer.json()["message"], &answer.json()["field"]),
            (&json!(message), &json!("reference"))
        );
    }
}

#[tokio::test]
async fn a_change_of_a_reference_is_an_event() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", None).await;
    client.patch_pet(pet, &json!({"reference": "a"})).await;
    let changed = format!("\"type\":\"pet.updated\",\"petId\":{pet},");
    eventually("the change is in the feed", async || client.get("/v1/events").await.body.contains(&changed))
        .await;
}

#[tokio::test]
async fn an_import_rejects_the_rows_whose_references_are_taken_and_adds_the_others() {
    let (database, folder) = (TestDatabase::new().await, Folder::new());
    let fill = "INSERT INTO pets (name, category_id, reference) VALUES ('Old', 1, 'a')";
    database.connect().await.batch_execute(fill).await.unwrap();
    let csv = "key,name,categoryId,reference\n1,One,1,a\n2,Two,1,b\n3,Three,1,b\n4,Four,1,\n5,Five,1,c\n";
    let path = folder.write("pets.csv", csv);
    let rejects = "{\"line\":2,\"reason\":\"Another pet has the `reference` \\\"a\\\".\"}\n\
        {\"line\":4,\"reason\":\"Another pet has the `reference` \\\"b\\\".\"}\n";
    let references = async || -> Vec<(String, Option<String>)> {
        let rows = "SELECT name, reference FROM pets ORDER BY id";
        let rows = database.connect().await.query(rows, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let some = |text: &str| Some(text.to_owned());

    let printed = import_with_code(3, &database, &[&path, "--key-column=key", "--dry-run"]);
    let see = format!("{}.rejects.ndjson", folder.path("pets.csv"));
    assert_eq!(printed, format!("3 rows are valid (0 already imported), 2 rejected: see {see}\n"));
    assert_eq!(folder.read("pets.csv.rejects.ndjson").unwrap(), rejects);
    assert_eq!(references().await.len(), 1);

    // In one transaction, none is added.
    import_with_code(4, &database, &[&path, "--key-column=key", "--atomic"]);
    assert_eq!(references().await.len(), 1);

    let printed = import_with_code(3, &database, &[&path, "--key-column=key", "--max-errors=2"]);
    assert_eq!(printed, format!("3 rows added, 0 already imported, 2 rejected: see {see}\n"));
    assert_eq!(folder.read("pets.csv.rejects.ndjson").unwrap(), rejects);
    let added = [("Old", some("a")), ("Two", some("b")), ("Four", None), ("Five", some("c"))];
    let added = added.map(|(name, reference)| (name.to_owned(), reference));
    assert_eq!(references().await, added);

    // Run again with the rows mended, it adds just these.
    folder.write("pets.csv", csv.replace("One,1,a", "One,1,d").replace("Three,1,b", "Three,1,e"));
    let printed = import_with_code(0, &database, &[&path, "--key-column=key"]);
    assert_eq!(printed, "2 rows added, 3 already imported\n");
    let last = [("One".to_owned(), some("d")), ("Three".to_owned(), some("e"))];
    assert_eq!(references().await, [&added[..], &last].concat());
}

#[tokio::test]
async fn references_survive_an_export_and_an_import() {
    let (from, to, folder) = (TestDatabase::new().await, TestDatabase::new().await, Folder::new());
    let fill =
        "INSERT INTO pets (name, category_id, reference) VALUES ('Rex', 1, '=1, \"x\"'), ('Tom', 2, NULL)";
    from.connect().await.batch_execute(fill).await.unwrap();
    let export = |database: &TestDatabase, file: &str| {
        let output = run(&["export", file], &[("DATABASE_URL", &database.url())]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    export(&from, &folder.path("a.csv"));
    let csv = "id,name,categoryId,status,reference,metadata\n1,Rex,1,,\"=1, \"\"x\"\"\",\n2,Tom,2,,,\n";
    assert_eq!(folder.read("a.csv").unwrap(), csv);
    import_with_code(0, &to, &[&folder.path("a.csv"), "--key-column=id"]);
    export(&to, &folder.path("b.csv"));
    assert_eq!(folder.read("b.csv").unwrap(), csv);
}

#[tokio::test]
async fn a_row_whose_reference_is_taken_does_not_use_up_its_import_key() {
    // Each row has a key and a reference: the rows that are added, and the lines that are rejected.
    for (rows, added, rejected) in [
        // In one chunk, where the keys ascend up to there and where they do not.
        (&["A TAKEN", "A FREE"][..], &["A FREE"][..], &[2][..]),
        (&["B OTHER", "A TAKEN", "A FREE"], &["B OTHER", "A FREE"], &[3]),
        (&["A TAKEN", "A TAKEN", "A FREE", "A LAST"], &["A FREE"], &[2, 3]),
        (&["A TAKEN", "B FREE", "A FREE", "A LAST"], &["B FREE", "A LAST"], &[2, 4]),
        (&["A FREE", "A TAKEN", "B FREE"], &["A FREE"], &[4]),
        // In another chunk.
        (&["A TAKEN", "-", "A FREE"], &["A FREE"], &[2]),
        (&["B OTHER", "A TAKEN", "-", "A FREE", "A LAST"], &["B OTHER", "A FREE"], &[3]),
    ] {
        for flags in [&[][..], &["--atomic"]] {
            let (database, folder) = (TestDatabase::new().await, Folder::new());
            let client = database.connect().await;
            let first = "INSERT INTO pets (name, category_id, reference) VALUES ('first', 1, 'TAKEN')";
            client.batch_execute(first).await.unwrap();
            let (mut csv, mut filled) = ("key,name,categoryId,reference\n".to_owned(), 0);
            for row in rows {
                if let Some((key, reference)) = row.split_once(' ') {
                    writeln!(csv, "{key},{row},1,{reference}").unwrap();
                } else {
                    // So many rows that the next one is in another chunk.
                    filled = 5_000;
                    (0..filled).for_each(|number| writeln!(csv, "{number},filler,1,").unwrap());
                }
            }
            let file = folder.write("a.csv", csv);
            let arguments = [&["import", &*file, "--key-column=key", "--max-errors=9"], flags].concat();
            let name = format!("{rows:?} {flags:?}");
            let count = |number: usize| {
                if number == 1 { "1 row".into() } else { format!("{} rows", grouped(number)) }
            };
            let valid = rows.iter().filter(|row| **row != "-").count() + filled - rejected.len();
            let new = added.len() + filled;
            // A dry run inserts nothing, so it does not find that the third row's reference is taken by the second.
            if rows != ["A TAKEN", "B FREE", "A FREE", "A LAST"] {
                let output =
                    run(&[&arguments[..], &["--dry-run"]].concat(), &[("DATABASE_URL", &database.url())]);
                let printed = String::from_utf8(output.stdout).unwrap();
                let verb = if valid == 1 { "is" } else { "are" };
                let expected =
                    format!("{} {verb} valid ({} already imported), ", count(valid), grouped(valid - new));
                assert!(printed.starts_with(&expected), "{name}: {printed}");
            }
            let output = run(&arguments, &[("DATABASE_URL", &database.url())]);
            let printed = String::from_utf8(output.stdout).unwrap();
            let expected = format!("{} added, {} already imported, ", count(new), grouped(valid - new));
            assert!(printed.starts_with(&expected), "{name}: {printed}");
            let lines: Vec<Value> =
                folder.read("a.csv.rejects.ndjson").unwrap().lines().map(json_line).collect();
            let lines: Vec<u64> = lines.iter().map(|line| line["line"].as_u64().unwrap()).collect();
            assert_eq!(lines, rejected, "{name}");
            let names = "SELECT name FROM pets WHERE name NOT IN ('first', 'filler') ORDER BY id";
            let names = client.query(names, &[]).await.unwrap();
            assert_eq!(names.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), added, "{name}");
            // Another run finds exactly these keys.
            let again =
                String::from_utf8(run(&arguments, &[("DATABASE_URL", &database.url())]).stdout).unwrap();
            assert!(again.starts_with("0 rows added"), "{name}: {again}");
        }
    }
}

fn json_line(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// A number below a million with a thousands separator.
fn grouped(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}
