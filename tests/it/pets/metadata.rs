//! The shop's own data about its pets and orders: stored as sent, merged, bounded, and never a reason for a page to fail.

use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::events::{follow, types};
use crate::support::memory::resident_kilobytes;
use crate::support::postgres::key;
use crate::support::program::ServeProcess;
use crate::support::write_requests::ORDERS;
use crate::support::{Answer, Client, TestService};

fn rex(metadata: &Value) -> Value {
    json!({"name": "Rex", "categoryId": 3, "status": "available", "metadata": metadata})
}

async fn add(client: &Client, metadata: &Value) -> i64 {
    let answer = client.post("/v1/pets", &rex(metadata)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.json()["id"].as_i64().unwrap()
}

async fn patch_order(client: &Client, order: &Value, body: &Value) -> Answer {
    client
        .send(Method::PATCH, &format!("{ORDERS}/{}", order["id"]), |request| {
            request.header("content-type", "application/merge-patch+json").body(body.to_string())
        })
        .await
}

/// So many members.
fn members(count: usize, value: &str) -> Value {
    (0..count).map(|number| (format!("n{number}"), json!(value))).collect::<Map<_, _>>().into()
}

/// Members of so many bytes in all: at least nine of them.
fn bytes(count: usize) -> Value {
    let mut members: Map<String, Value> =
        (0..8).map(|number| (number.to_string(), json!("é".repeat(250)))).collect();
    members.insert("x".into(), json!("y".repeat(count - 8 * 501 - 1)));
    members.into()
}

#[tokio::test]
async fn values_come_back_byte_for_byte_from_every_operation() {
    let service = TestService::start().await;
    let client = &service.client;
    let hostile = json!({
        "__proto__": "constructor",
        "bidi": "\u{202e}abc\u{2066}",
        "emoji": "🐕‍🦺",
        "formula": "=1+1",
        "http": "HTTP/1.1 400 Bad Request\n\nx",
        "lines": "a\n\tb",
        "price": "129.00",
        "quotes": "\"'`\\",
        "script": "</script><script>alert(1)</script>",
        "sql": "'; DROP TABLE pets; --",
    });
    let pet = add(client, &hostile).await;
    // The names are in this order.
    let text = format!(r#""metadata":{hostile}}}"#);
    for path in [
        format!("/v1/pets/{pet}"),
        format!("/v1/pets?id={pet}"),
        "/v1/pets".into(),
        "/v1/pets?status=available".into(),
    ] {
        assert!(client.get(&path).await.body.contains(&text), "{path}");
    }
    let placed = client.post(ORDERS, &json!({"petId": pet, "metadata": hostile})).await;
    assert!(placed.body.ends_with(&text), "{}", placed.body);
    let order = placed.json();
    for path in [format!("{ORDERS}/{}", order["id"]), ORDERS.into(), format!("{ORDERS}?petId={pet}")] {
        assert!(client.get(&path).await.body.contains(&text), "{path}");
    }
    let patched = client.patch_pet(pet, &json!({"metadata": {"new": "x"}})).await.json();
    assert_eq!(patched["metadata"]["http"], hostile["http"]);
}

#[tokio::test]
async fn an_empty_object_is_the_same_as_none() {
    let service = TestService::start().await;
    let client = &service.client;
    let without = r#"{"id":1,"name":"Rex","categoryId":3}"#;
    let body = json!({"name": "Rex", "categoryId": 3, "metadata": {}});
    let first = client.post_with_key("/v1/pets", "once", &body).await;
    assert_eq!(first.body, without);
    let same = client.post_with_key("/v1/pets", "once", &json!({"name": "Rex", "categoryId": 3})).await;
    assert_eq!((same.status, &*same.body), (201, without));
    let set = client.patch_pet(1, &json!({"metadata": {"a": "1"}})).await;
    assert_eq!(set.json()["metadata"], json!({"a": "1"}));
    for removal in [json!({"a": null}), json!(null)] {
        client.patch_pet(1, &json!({"metadata": {"a": "1"}})).await;
        let removed = client.patch_pet(1, &json!({"metadata": removal})).await;
        assert_eq!(removed.body, without);
    }
    let stored = service.database.connect().await.query_one("SELECT metadata IS NULL FROM pets", &[]).await;
    assert!(stored.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn metadata_has_one_etag_whatever_the_order_of_its_names() {
    let service = TestService::start().await;
    let client = &service.client;
    let text = r#"{"name":"Rex","categoryId":3,"metadata":{"b":"1","aa":"2"}}"#;
    let created = client.post_text("/v1/pets", text).await;
    assert!(created.body.ends_with(r#""metadata":{"aa":"2","b":"1"}}"#), "{}", created.body);
    let patched = client.patch_pet(1, &json!({"metadata": {"aa": "2"}})).await;
    let got = client.get("/v1/pets/1").await;
    assert_eq!([created.header("etag"), patched.header("etag")], [got.header("etag"); 2]);
    let listed = client.get("/v1/pets?id=1").await;
    assert_eq!(listed.body, format!("[{}]", got.body));
    for etag in [got.header("etag"), listed.header("etag")] {
        let changed = client
            .send(Method::PATCH, "/v1/pets/1", |request| {
                let request = request.header("if-match", etag).header("content-type", "application/json");
                request.body("{}")
            })
            .await;
        assert_eq!(changed.status, 200, "{etag}");
    }
}

#[tokio::test]
async fn what_exceeds_a_limit_is_refused_and_named() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    for good in
        [members(20, "x"), json!({"x".repeat(40): "🐕".repeat(500)}), bytes(4_096), json!({"A-Z_0": " "})]
    {
        add(client, &good).await;
        assert_eq!(client.patch_pet(pet, &json!({"metadata": good})).await.status, 200, "{good}");
        client.patch_pet(pet, &json!({"metadata": null})).await;
    }
    let name = "must have a name of 1 to 40 characters: `A-Z`, `a-z`, `0-9`, `_` and `-`.";
    let value = "must have 1 to 500 characters, and no control characters except line feed and tab.";
    let string = "must be a string";
    for (bad, message) in [
        (members(21, "x"), "`/metadata` must have at most 20 members, not 21.".to_owned()),
        (
            bytes(4_097),
            "`/metadata` must have at most 4096 bytes in its names and values together, not 4097.".into(),
        ),
        (json!({"x".repeat(41): "x"}), format!("`/metadata/{}` {name}", "x".repeat(41))),
        (json!({"": "x"}), format!("`/metadata/` {name}")),
        (json!({"a.b": "x"}), format!("`/metadata/a.b` {name}")),
        (json!({"a[0]": "x"}), format!("`/metadata/a[0]` {name}")),
        (json!({"é": "x"}), format!("`/metadata/é` {name}")),
        (json!({"a": "🐕".repeat(501)}), format!("`/metadata/a` {value}")),
        (json!({"a": ""}), format!("`/metadata/a` {value}")),
        (json!({"a": "\0"}), format!("`/metadata/a` {value}")),
        (json!({"a": "\r"}), format!("`/metadata/a` {value}")),
        (json!({"a": "\u{85}"}), format!("`/metadata/a` {value}")),
        (json!({"price": 129.5}), format!("`/metadata/price` {string}: send \"129.5\".")),
        (json!({"a": true}), format!("`/metadata/a` {string}: send \"true\".")),
        (json!({"a": {"b": "c"}}), format!("`/metadata/a` {string}.")),
        (json!({"a": ["b"]}), format!("`/metadata/a` {string}.")),
        (json!(["a"]), "`/metadata` must be an object of strings: it is not an object.".into()),
        (json!("a"), "`/metadata` must be an object of strings: it is not an object.".into()),
        (json!(7), "`/metadata` must be an object of strings: it is not an object.".into()),
    ] {
        let order = json!({"petId": pet, "metadata": bad});
        for answer in [
            client.post("/v1/pets", &rex(&bad)).await,
            client.post(ORDERS, &order).await,
            client.patch_pet(pet, &json!({"metadata": bad})).await,
        ] {
            assert_eq!(answer.error(), (400, "invalid_field".into()), "{bad}: {}", answer.body);
            assert_eq!(
                (&answer.json()["message"], &answer.json()["field"]),
                (&json!(message), &json!("metadata"))
            );
        }
    }
    for (text, message) in [
        (r#"{"a":"1","a":"2"}"#, "`/metadata` must be an object of strings: `a` appears twice."),
        (r#"{"a":null}"#, "`/metadata/a` must be a string."),
        ("null", "`/metadata` must not be `null`: leave it out."),
    ] {
        let body = format!(r#"{{"name":"Rex","categoryId":3,"metadata":{text}}}"#);
        assert_eq!(client.post_text("/v1/pets", &body).await.json()["message"], message, "{text}");
    }
}

#[tokio::test]
async fn a_patch_merges_members_and_the_result_keeps_to_the_limits() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = add(client, &json!({"price": "129.00", "photo": "https://example.com/rex.jpg"})).await;
    let patch = async |metadata: Value| client.patch_pet(pet, &json!({"metadata": metadata})).await;
    let changed = patch(json!({"price": "99.00", "photo": null, "breed": "collie", "absent": null})).await;
    assert_eq!(changed.json()["metadata"], json!({"breed": "collie", "price": "99.00"}));
    assert_eq!(patch(json!({})).await.body, changed.body);
    assert_eq!(patch(members(18, "x")).await.status, 200);
    let before = client.get(&format!("/v1/pets/{pet}")).await.body;
    let refused = patch(json!({"one-more": "x"})).await;
    assert_eq!(refused.json()["message"], "`/metadata` must have at most 20 members, not 21.");
    assert_eq!(client.get(&format!("/v1/pets/{pet}")).await.body, before);
    assert_eq!(patch(json!({"one-more": "x", "n0": null})).await.status, 200);
    let renamed = client.patch_pet(pet, &json!({"name": "Max"})).await;
    assert_eq!(renamed.json()["metadata"]["one-more"], "x");
}

#[tokio::test]
async fn changes_of_different_members_at_the_same_time_all_survive() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    let pet = add(&first.client, &json!({"a": "0"})).await;
    let mut changing = JoinSet::new();
    for number in 0..20 {
        let client = [&first, &second][number % 2].client.clone();
        let name = format!("n{number}");
        changing.spawn(async move {
            let metadata = if number == 0 { json!({"a": null, name: "x"}) } else { json!({name: "x"}) };
            let answer = client.patch_pet(pet, &json!({"metadata": metadata})).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
        });
    }
    while let Some(changed) = changing.join_next().await {
        changed.unwrap();
    }
    let found = first.client.get(&format!("/v1/pets/{pet}")).await.json();
    assert_eq!(found["metadata"].as_object().unwrap().len(), 20, "{found}");
}

#[tokio::test]
async fn a_change_of_metadata_is_an_event_of_its_pet_or_order() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = add(client, &json!({"a": "1"})).await;
    let order = client.post(ORDERS, &json!({"petId": pet})).await.json();
    client.patch_pet(pet, &json!({"metadata": {"a": "2"}})).await;
    client.patch_pet(pet, &json!({"metadata": {"a": "2"}})).await;
    patch_order(client, &order, &json!({"metadata": {"cashier": "Kim"}})).await;
    patch_order(client, &order, &json!({"metadata": {"cashier": "Kim"}})).await;
    let (events, _) = follow(client, "/v1/events", 5).await;
    assert_eq!(
        types(&events),
        ["pet.created", "pet.updated", "order.placed", "pet.updated", "order.updated"]
    );
}

#[tokio::test]
async fn sql_can_store_nothing_that_is_large_or_no_object() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    add(&service.client, &json!({"a": "1"})).await;
    service.client.post(ORDERS, &json!({"petId": 1})).await;
    for table in ["pets", "orders"] {
        for bad in ["[]", "7", "\"a\"", "null", &json!({"a": "x".repeat(1_000_000)}).to_string()] {
            let update = format!("UPDATE {table} SET metadata = '{bad}'");
            let error = database.batch_execute(&update).await.unwrap_err();
            let constraint = format!("{table}_metadata");
            assert_eq!(error.as_db_error().unwrap().constraint(), Some(&*constraint), "{bad:.20}");
        }
    }
}

#[tokio::test]
async fn what_sql_stored_against_the_rules_is_shown_as_far_as_it_is_strings_and_no_page_fails() {
    let service = TestService::start().await;
    let client = &service.client;
    let database = service.database.connect().await;
    add(client, &json!({"a": "1"})).await;
    client.post(ORDERS, &json!({"petId": 1})).await;
    let nested = format!("{}{}", "[".repeat(4_000), "]".repeat(4_000));
    let stored = format!(
        r#"{{"good": "yes", "number": 7, "null": null, "list": {nested}, "a.b": "odd name", "cr": "\r", "empty": ""}}"#
    );
    for table in ["pets", "orders"] {
        database.batch_execute(&format!("UPDATE {table} SET metadata = '{stored}'")).await.unwrap();
    }
    let shown = json!({"a.b": "odd name", "cr": "\r", "empty": "", "good": "yes"});
    for path in ["/v1/pets/1", "/v1/pets?id=1", "/v1/pets", &format!("{ORDERS}/1"), ORDERS] {
        let answer = client.get(path).await;
        let found = answer.json();
        let found = found.get(0).unwrap_or(&found);
        assert_eq!(found["metadata"], shown, "{path}");
    }
    // A change of something else keeps what cannot be shown.
    assert_eq!(client.patch_pet(1, &json!({"name": "Max"})).await.json()["metadata"], shown);
    let row = database.query_one("SELECT (metadata -> 'number')::int FROM pets", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
}

#[tokio::test]
async fn a_reference_is_removed_by_null_and_is_free_again() {
    let service = TestService::start().await;
    let client = &service.client;
    let chip = json!({"name": "Rex", "categoryId": 3, "status": "available", "reference": "chip 7"});
    assert_eq!(client.post("/v1/pets", &chip).await.status, 201);
    assert_eq!(client.post("/v1/pets", &chip).await.error(), (409, "reference_taken".into()));
    let removed = client.patch_pet(1, &json!({"reference": null})).await;
    assert_eq!(removed.body, r#"{"id":1,"name":"Rex","categoryId":3,"status":"available"}"#);
    assert_eq!(client.get("/v1/pets?reference=chip+7").await.body, "[]");
    assert_eq!(client.post("/v1/pets", &chip).await.status, 201);
    assert_eq!(client.patch_pet(1, &json!({"reference": null})).await.body, removed.body);

    let order = client.post(ORDERS, &json!({"petId": 1, "reference": "basket"})).await.json();
    assert_eq!(patch_order(client, &order, &json!({"reference": null})).await.json().get("reference"), None);
    assert_eq!(client.get(&format!("{ORDERS}?reference=basket")).await.body, "[]");
}

/// Two batches of lists are full of the largest pages, each another one, while clients that do not read hold as many more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_pages_of_many_clients_fit_into_the_documented_memory() {
    const AT_ONCE: usize = 128;
    let service = TestService::start().await;
    let full = bytes(4_096).to_string();
    let insert = format!(
        "INSERT INTO pets (name, category_id, metadata) SELECT 'Rex', number, '{full}' FROM generate_series(1, 400) AS number"
    );
    service.database.connect().await.batch_execute(&insert).await.unwrap();
    let mut pages = vec!["/v1/pets?limit=1".to_owned()];
    while pages.len() < 2 * AT_ONCE {
        pages.push(service.client.get(pages.last().unwrap()).await.next().unwrap().to_owned());
    }
    let mut pages = pages.into_iter().map(|page| page.replace("limit=1", "limit=100"));
    // This is about memory, and a debug build is slow.
    let patient = ["--database-timeout", "60s", "--body-timeout", "60s"];
    let node = ServeProcess::start(&service.database.url(), &patient);
    node.client.get("/v1/pets?limit=1").await;
    let before = resident_kilobytes(node.id(), "VmHWM:");
    let mut idle = Vec::new();
    for page in pages.by_ref().take(AT_ONCE) {
        let mut socket = TcpStream::connect(node.address).await.unwrap();
        let head =
            format!("GET {page} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", key().reveal());
        socket.write_all(head.as_bytes()).await.unwrap();
        // Rendered, and waiting for the client.
        socket.readable().await.unwrap();
        idle.push(socket);
    }
    let mut reading = JoinSet::new();
    for page in pages {
        let client = node.client.clone();
        reading.spawn(async move {
            loop {
                let answer = client.get(&page).await;
                // On a busy machine, some wait for too long in the queue.
                if answer.status != 503 {
                    return answer;
                }
            }
        });
    }
    let mut read = 0;
    while let Some(page) = reading.join_next().await {
        let page = page.unwrap();
        assert!(page.status == 200 && page.body.len() > 400_000, "{}", page.status);
        read += 1;
    }
    assert_eq!(read, AT_ONCE);
    let added = resident_kilobytes(node.id(), "VmHWM:") - before;
    eprintln!("{added} kB");
    // What the slow readers hold, and three copies of two batches of 64 pages.
    assert!(added < 4 * 128 * 430, "{added} kB");
}
