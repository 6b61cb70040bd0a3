//! Every field of a pet is stored and returned, whichever way the pet takes. The fields are those of the OpenAPI document.

use serde_json::{Map, Value, json};

use crate::support::TestService;
use crate::support::folder::Folder;
use crate::support::import::import_with_code;
use crate::support::openapi::DOCUMENT;
use crate::support::program::run;

type Pet = Map<String, Value>;

/// A pet with a value for every field. Texts differ from number to number.
fn full(number: i64) -> Pet {
    let value = |schema: &Value| {
        let named = schema["$ref"].as_str().and_then(|name| DOCUMENT.pointer(name.trim_start_matches('#')));
        let schema = named.unwrap_or(schema);
        match (schema["enum"].get(0), schema["type"].as_str()) {
            (Some(word), _) => word.clone(),
            (_, Some("integer")) => json!(number),
            (_, Some("object")) => json!({"text": format!("\"={number}\n,"), "A-1": "é"}),
            _ => json!(format!("={number}")),
        }
    };
    let fields = DOCUMENT["components"]["schemas"]["NewPet"]["properties"].as_object().unwrap();
    fields.iter().map(|(name, schema)| (name.clone(), value(schema))).collect()
}

/// The same without a reference: other statements insert it.
fn plain(number: i64) -> Pet {
    full(number).into_iter().filter(|(name, _)| name != "reference").collect()
}

fn csv(pet: &Pet) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let quoted = |value: &Value| match text(value) {
        text if text.contains(['"', ',']) => format!("\"{}\"", text.replace('"', "\"\"")),
        text => text,
    };
    let (names, values): (Vec<String>, Vec<String>) =
        pet.iter().map(|(name, value)| (name.clone(), quoted(value))).unzip();
    format!("{}\n{}\n", names.join(","), values.join(","))
}

fn lost(way: &str, found: &Value, expected: &Pet) -> Vec<String> {
    let differing = expected.iter().filter(|(name, value)| found[*name] != **value);
    differing.map(|(name, value)| format!("{way}: `{name}` is {}, not {value}", found[name])).collect()
}

#[tokio::test]
async fn every_field_of_a_pet_survives_every_way_in_and_out() {
    let (service, folder) = (TestService::start().await, Folder::new());
    let (client, database) = (&service.client, &service.database);
    let import = |name: &str, content: String| import_with_code(0, database, &[&folder.write(name, content)]);
    client.post("/v1/pets", &json!(plain(1))).await;
    client.post("/v1/pets", &json!(full(2))).await;
    client.post_with_key("/v1/pets", "a", &json!(plain(3))).await;
    client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
    client.patch_pet(4, &json!(full(4))).await;
    import("a.ndjson", json!(plain(5)).to_string());
    import("b.ndjson", json!(full(6)).to_string());
    import("c.csv", csv(&plain(7)));
    import("d.csv", csv(&full(8)));
    let mut problems = Vec::new();
    for (id, way, expected) in [
        (1, "createPet", plain(1)),
        (2, "createPet with a reference", full(2)),
        (3, "createPet with a key", plain(3)),
        (4, "updatePet", full(4)),
        (5, "import", plain(5)),
        (6, "import with references", full(6)),
        (7, "import of CSV", plain(7)),
        (8, "import of CSV with references", full(8)),
    ] {
        problems.extend(lost(way, &client.get(&format!("/v1/pets/{id}")).await.json(), &expected));
    }

    // What getPet shows, every other way out shows as well.
    let pet = client.get("/v1/pets/1").await.json().as_object().unwrap().clone();
    let status = pet["status"].as_str().unwrap();
    for query in
        ["limit=5", "id=1", &format!("status={status}"), &format!("categoryId={}", pet["categoryId"])]
    {
        let page = client.get(&format!("/v1/pets?{query}")).await.json();
        problems.extend(lost(query, &page[0], &pet));
    }
    let referenced = client.get("/v1/pets/2").await.json().as_object().unwrap().clone();
    let page = client.get("/v1/pets?reference=%3D2").await.json();
    problems.extend(lost("reference=", &page[0], &referenced));
    for filter in [&[][..], &["--status", status]] {
        let exported = |format: &str| {
            let arguments = [&["export", "--format", format], filter].concat();
            String::from_utf8(run(&arguments, &[("DATABASE_URL", &database.url())]).stdout).unwrap()
        };
        let lines = exported("ndjson");
        let line = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
        problems.extend(lost("export", &line, &referenced));
        let rows = exported("csv");
        let rows: Vec<&str> = rows.lines().collect();
        let found = format!("{}\n{}\n", rows[0], rows[2]);
        if found != csv(&referenced) {
            problems.push(format!("export of CSV: {found:?}, not {:?}", csv(&referenced)));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[tokio::test]
async fn a_repeated_key_with_another_field_or_value_is_another_request() {
    let service = TestService::start().await;
    let minimal = json!({"name": "Rex", "categoryId": 1});
    // Each text field with two texts, so that the same text in another field is tried, too.
    let with = |name: &str, text: &str| {
        let value = full(1)[name].clone();
        let mut pet = minimal.clone();
        pet[name] = if value.is_string() && value == "=1" { json!(text) } else { value };
        pet
    };
    let mut bodies = vec![minimal.clone()];
    for name in full(1).keys().filter(|name| *name != "categoryId") {
        bodies.extend([with(name, "a"), with(name, "b")]);
    }
    bodies.dedup();
    let admin = service.database.connect().await;
    for (number, body) in bodies.iter().enumerate() {
        for (other_number, other) in bodies.iter().enumerate().filter(|(_, other)| *other != body) {
            let key = format!("{number}-{other_number}");
            for (body, status) in [(body, 201), (other, 422)] {
                admin.batch_execute("UPDATE pets SET reference = NULL").await.unwrap();
                let answer = service.client.post_with_key("/v1/pets", &key, body).await;
                assert_eq!(answer.status, status, "{key}: {body}: {}", answer.body);
            }
        }
    }
}
