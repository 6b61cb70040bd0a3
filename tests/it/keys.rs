//! The life of a key: made, listed, used, rotated, revoked, and what is kept of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use petstore::domain::api_key::ApiKey;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::postgres::key;
use crate::support::program::{ServeProcess, run};
use crate::support::proxy::Proxy;
use crate::support::{Client, TestDatabase, TestService};

/// Runs `petstore keys` and returns what it printed; it must say nothing else.
fn keys(database: &TestDatabase, arguments: &[&str]) -> String {
    let output = run(&[&["keys"], arguments].concat(), &[("DATABASE_URL", &database.url())]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert_eq!(errors, "", "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a key with a command that prints one.
fn new_key(database: &TestDatabase, arguments: &[&str]) -> ApiKey {
    keys(database, arguments).strip_suffix('\n').unwrap().parse().unwrap()
}

/// What `keys list --json` says of the key with this prefix.
fn record(database: &TestDatabase, key: &ApiKey) -> Value {
    let list: Value = serde_json::from_str(&keys(database, &["list", "--json"])).unwrap();
    let records = list.as_array().unwrap();
    records.iter().find(|record| record["prefix"] == key.prefix()).unwrap().clone()
}

fn id(database: &TestDatabase, key: &ApiKey) -> String {
    record(database, key)["id"].to_string()
}

#[tokio::test]
async fn keys_list_shows_what_a_key_may_do_and_when_it_ends() {
    let database = TestDatabase::new().await;
    let limits = ["--expires", "2099-01-31", "--rate-limit", "600/m"];
    let key = new_key(
        &database,
        &[&["create", "--name", "kiosk", "--scope", "pets:read", "--scope", "orders:read"], &limits[..]]
            .concat(),
    );
    let record = record(&database, &key);
    let members: Vec<&String> = record.as_object().unwrap().keys().collect();
    assert_eq!(
        members,
        ["id", "prefix", "name", "scopes", "createdAt", "expiresAt", "lastUsedAt", "rateLimit", "state"]
    );
    assert!(key.reveal().starts_with(record["prefix"].as_str().unwrap()));
    assert_eq!(record["name"], "kiosk");
    assert_eq!(record["scopes"], json!(["pets:read", "orders:read"]));
    assert_eq!(record["expiresAt"], "2099-01-31T00:00:00Z");
    assert_eq!(record["lastUsedAt"], Value::Null);
    assert_eq!(record["rateLimit"], "600/m");
    assert_eq!(record["state"], "active");
    let created: Timestamp = record["createdAt"].as_str().unwrap().parse().unwrap();
    assert!((Timestamp::now() - created).get_seconds().abs() < 60);

    let table = keys(&database, &["list"]);
    let mut lines = table.lines();
    let heading = lines.next().unwrap();
    for column in ["ID", "PREFIX", "NAME", "STATE", "SCOPES", "RATE LIMIT", "CREATED", "EXPIRES", "LAST USED"]
    {
        assert!(heading.contains(column), "{table}");
    }
    let line = lines.find(|line| line.contains("kiosk")).unwrap();
    for word in [key.prefix(), "active", "pets:read orders:read", "600/m", "2099-01-31T00:00:00Z", "never"] {
        assert!(line.contains(word), "{table}");
    }
    assert!(!table.contains(key.reveal()));
}

#[tokio::test]
async fn keys_show_tells_who_did_what_to_a_key() {
    let database = TestDatabase::new().await;
    let old = new_key(&database, &["create", "--name", "shop", "--by", "Ada"]);
    let old_id = id(&database, &old);
    let new = new_key(&database, &["rotate", &old_id, "--overlap", "1h", "--by", "Grace"]);
    let new_id = id(&database, &new);
    assert_eq!(keys(&database, &["revoke", &old_id]), format!("key {old_id} revoked\n"));
    assert_eq!(keys(&database, &["revoke", &old_id]), format!("key {old_id} was already revoked\n"));

    let shown: Value = serde_json::from_str(&keys(&database, &["show", &old_id, "--json"])).unwrap();
    let events: Vec<(&str, Option<i64>)> = shown["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["action"].as_str().unwrap(), event["successorId"].as_i64()))
        .collect();
    assert_eq!(events, [("created", None), ("rotated", new_id.parse().ok()), ("revoked", None)]);
    assert_eq!(shown["events"][0]["actor"], "Ada");
    assert_eq!(shown["events"][1]["actor"], "Grace");
    // Whoever runs this test, on whatever machine.
    let actor = shown["events"][2]["actor"].as_str().unwrap();
    assert!(actor.split('@').filter(|part| !part.is_empty()).count() == 2, "{actor}");
    assert_eq!(shown["state"], "revoked");

    let text = keys(&database, &["show", &new_id]);
    assert!(text.starts_with(&format!("id         {new_id}\n")), "{text}");
    assert!(text.contains("created by Grace"), "{text}");
}

#[tokio::test]
async fn a_rotated_key_has_a_successor_with_its_rights_and_ends_after_the_overlap() {
    let service = TestService::start().await;
    let database = &service.database;
    let create =
        ["create", "--name", "kiosk", "--scope", "pets:read", "--rate-limit", "900/m", "--expires", "10d"];
    let old = new_key(database, &create);
    let new = new_key(database, &["rotate", &id(database, &old), "--overlap", "2s"]);
    let (old_record, new_record) = (record(database, &old), record(database, &new));
    for same in ["name", "scopes", "rateLimit"] {
        assert_eq!(old_record[same], new_record[same], "{same}");
    }
    let time = |record: &Value, member: &str| record[member].as_str().unwrap().parse::<Timestamp>().unwrap();
    let lifetime = time(&new_record, "expiresAt") - time(&new_record, "createdAt");
    assert_eq!(lifetime.get_seconds(), 10 * 24 * 60 * 60, "as long as the old one was to live");

    let (old_client, new_client) =
        (Client::new(service.address, Some(&old)), Client::new(service.address, Some(&new)));
    assert_eq!(old_client.get("/v1/pets").await.status, 200);
    assert_eq!(new_client.get("/v1/pets").await.status, 200);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(old_client.get("/v1/pets").await.error(), (401, "invalid_api_key".into()));
    assert_eq!(new_client.get("/v1/pets").await.status, 200);
    assert_eq!(record(database, &old)["state"], "expired");

    let again = run(
        &["keys", "rotate", &id(database, &old), "--overlap", "1h"],
        &[("DATABASE_URL", &database.url())],
    );
    assert_eq!(again.status.code(), Some(1), "an ended key has no rights to pass on");
    assert!(again.stdout.is_empty());
}

#[tokio::test]
async fn commands_on_a_key_that_is_not_there_say_so() {
    let database = TestDatabase::new().await;
    for arguments in [&["show", "999"][..], &["revoke", "999"], &["rotate", "999", "--overlap", "1h"]] {
        let output = run(&[&["keys"], arguments].concat(), &[("DATABASE_URL", &database.url())]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("key has the id 999"), "{error}");
        assert!(output.stdout.is_empty());
    }
    for arguments in [
        &["show", "first"][..],
        &["revoke", "0"],
        &["rotate", "1"],
        &["rotate", "1", "--overlap", "1y"],
        &["create", "--name", "shop", "--expires", "yesterday"],
        &["create", "--name", "shop", "--rate-limit", "fast"],
        &["create", "--name", "shop", "--by", " "],
    ] {
        let output = run(&[&["keys"], arguments].concat(), &[("DATABASE_URL", &database.url())]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

/// Asks with a key, again and again, until it is refused; returns when that was, and when it last was not.
async fn ask_until_refused(client: Client, served: Arc<AtomicBool>) -> Instant {
    let began = Instant::now();
    let mut last_served = began;
    loop {
        assert!(began.elapsed() < Duration::from_secs(15), "a revoked key is still served");
        let answer = client.get("/v1/pets?limit=1").await;
        match answer.status {
            200 => last_served = Instant::now(),
            401 => return last_served,
            other => panic!("{other}: {}", answer.body),
        }
        served.store(true, Ordering::Release);
    }
}

/// Revokes a key that two nodes are asked with all the time, and returns how long any of them still took it.
async fn revoke_under_load(nodes: [&TestService; 2], database: &TestDatabase) -> Duration {
    let key = new_key(database, &["create", "--name", "doomed"]);
    let id = id(database, &key);
    let mut clients = JoinSet::new();
    let mut all_served = Vec::new();
    for node in nodes {
        for _ in 0..2 {
            let served = Arc::new(AtomicBool::new(false));
            all_served.push(served.clone());
            clients.spawn(ask_until_refused(Client::new(node.address, Some(&key)), served));
        }
    }
    while !all_served.iter().all(|served| served.load(Ordering::Acquire)) {
        sleep(Duration::from_millis(5)).await;
    }
    let revoke = "UPDATE api_keys SET revoked_at = now() WHERE id = $1";
    let connection = database.connect().await;
    connection.execute(revoke, &[&id.parse::<i64>().unwrap()]).await.unwrap();
    let revoked = Instant::now();
    let last = clients.join_all().await.into_iter().max().unwrap();
    last.saturating_duration_since(revoked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_is_refused_by_every_node_within_a_second() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    let (nodes, database) = ([&first, &second], &*first.database);
    let mut times = Vec::new();
    for _ in 0..10 {
        times.push(revoke_under_load(nodes, database).await);
    }
    times.sort_unstable();
    eprintln!("the last 200 after a revocation: {times:?}");
    assert!(times.iter().all(|time| *time < Duration::from_secs(1)), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_is_refused_within_five_seconds_where_changes_are_not_heard() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    let (nodes, database) = ([&first, &second], &*first.database);
    // Whoever listens is cut off, at once and again and again.
    let connection = database.connect().await;
    let cutting = tokio::spawn(async move {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
            WHERE datname = current_database() AND query LIKE 'LISTEN%'";
        loop {
            connection.query(cut, &[]).await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
    });
    sleep(Duration::from_millis(200)).await;
    for _ in 0..2 {
        let time = revoke_under_load(nodes, database).await;
        eprintln!("the last 200 after an unheard revocation: {time:?}");
        assert!(time < Duration::from_secs(5), "{time:?}");
    }
    cutting.abort();
}

/// A service that reaches its database through a proxy.
async fn start_behind_proxy() -> (TestDatabase, Proxy, ServeProcess) {
    let database = TestDatabase::new().await;
    let url = database.url();
    let address = url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    let proxy = Proxy::start(address.clone()).await;
    let service = ServeProcess::start(&url.replace(&address, &proxy.address.to_string()), &[]);
    (database, proxy, service)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_changed_while_it_is_looked_up_is_not_remembered_as_it_was() {
    let (database, proxy, service) = start_behind_proxy().await;
    // Until the node is notified of changes, it remembers nothing for long.
    sleep(Duration::from_millis(1_500)).await;
    let connection = database.connect().await;
    for delay in [500, 1_000, 2_000] {
        for change in ["revoked_at = now()", "expires_at = now()", "scopes = '{orders:read}'"] {
            let key = new_key(&database, &["create", "--name", "doomed"]);
            let client = Client::new(service.address, Some(&key));
            // The answer to the look-up was on its way before the change, and comes after it.
            proxy.delay_answer_to(key.digest().as_bytes(), Duration::from_millis(delay));
            let asking = tokio::spawn({
                let client = client.clone();
                async move { client.get("/v1/pets").await.status }
            });
            while !proxy.has_met_it() {
                sleep(Duration::from_millis(5)).await;
            }
            sleep(Duration::from_millis(50)).await;
            let id: i64 = id(&database, &key).parse().unwrap();
            let change = format!("UPDATE api_keys SET {change} WHERE id = $1");
            connection.execute(&change, &[&id]).await.unwrap();
            let changed = Instant::now();
            asking.await.unwrap();
            // Asked all the time, so that it is in use.
            let mut last_served = None;
            while changed.elapsed() < Duration::from_secs(7) {
                match client.get("/v1/pets").await.status {
                    200 => last_served = Some(changed.elapsed()),
                    refused => assert!(matches!(refused, 401 | 403), "{refused}"),
                }
                // Long after the end, now and then is enough.
                if last_served.is_none_or(|last| changed.elapsed() > last + Duration::from_secs(2)) {
                    break;
                }
            }
            let last_served = last_served.unwrap_or_default();
            assert!(last_served < Duration::from_secs(5), "{change}, {delay} ms: served for {last_served:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_refuses_nobody() {
    let service = TestService::start().await;
    let database = &service.database;
    let mut current = new_key(database, &["create", "--name", "shop"]);
    for _ in 0..5 {
        let client = Client::new(service.address, Some(&current));
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for _ in 0..4 {
            let (client, stop) = (client.clone(), stop.clone());
            clients.spawn(async move {
                let mut answers = 0;
                while !stop.load(Ordering::Acquire) {
                    assert_eq!(client.get("/v1/pets?limit=1").await.status, 200);
                    answers += 1;
                }
                answers
            });
        }
        let next = new_key(database, &["rotate", &id(database, &current), "--overlap", "1h"]);
        assert_eq!(Client::new(service.address, Some(&next)).get("/v1/pets").await.status, 200);
        sleep(Duration::from_millis(300)).await;
        stop.store(true, Ordering::Release);
        assert!(clients.join_all().await.into_iter().all(|answers| answers > 0));
        current = next;
    }
}

#[tokio::test]
async fn a_change_of_scopes_or_limit_by_hand_is_heard_as_well() {
    let service = TestService::start().await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    let database = service.database.connect().await;
    database.execute("UPDATE api_keys SET scopes = '{orders:read}'", &[]).await.unwrap();
    eventually("the scope is gone", || async { service.client.get("/v1/pets").await.status == 403 }).await;
    let limit =
        "UPDATE api_keys SET scopes = '{pets:read}', rate_limit_requests = 1, rate_limit_seconds = 3600";
    database.execute(limit, &[]).await.unwrap();
    eventually("the limit holds", || async { service.client.get("/v1/pets").await.status == 429 }).await;
}

/// Waits for what must come within a second or two.
async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// How often keys were looked up in the database.
async fn look_ups(database: &tokio_postgres::Client) -> i64 {
    let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
        WHERE query LIKE '%FROM api_keys WHERE digest%' AND dbid = (SELECT oid FROM pg_database \
        WHERE datname = current_database()) AND query NOT LIKE '%pg_stat_statements%'";
    database.query_one(calls, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_key_costs_no_look_and_an_unknown_one_a_single_look() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    database.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await.unwrap();
    // Until the node hears of changes, it looks again now and then.
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    sleep(Duration::from_secs(4)).await;
    service.client.get("/v1/pets").await;

    let before = look_ups(&database).await;
    let began = Instant::now();
    // Longer than a key is believed where changes are not heard.
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(service.client.get("/v1/pets?limit=1").await.status, 200);
    }
    assert_eq!(look_ups(&database).await, before, "a known key");

    let nobody = service.client.without_key();
    let ask = async |key: &str| {
        let header = format!("Bearer {key}");
        nobody.send(Method::GET, "/v1/pets", |request| request.header("authorization", header)).await.status
    };
    let mut number = 0_u32;
    let mut unknown = || {
        number += 1;
        let mut bytes = number.to_be_bytes().into_iter().flat_map(|byte| [byte / 16, byte % 16]).cycle();
        ApiKey::generate(|| bytes.next().unwrap())
    };
    for _ in 0..200 {
        let key = unknown();
        let (start, end) = key.reveal().split_at(41);
        let mistyped = format!("{start}{}", if end == "0" { "1" } else { "0" });
        assert_eq!(ask(&mistyped).await, 401);
    }
    assert_eq!(look_ups(&database).await, before, "a bad checksum");
    for _ in 0..200 {
        let key = unknown();
        for _ in 0..3 {
            assert_eq!(ask(key.reveal()).await, 401);
        }
    }
    assert_eq!(look_ups(&database).await, before + 200, "an unknown key");
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    assert_eq!(look_ups(&database).await, before + 200, "the known key is still known");
}

#[tokio::test]
async fn the_last_use_is_written_down_to_the_minute_and_not_for_every_request() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    for _ in 0..50 {
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
    }
    assert_eq!(record(&database, &key())["lastUsedAt"], Value::Null, "not while it serves");
    assert!(service.terminate().0);
    let used: Timestamp = record(&database, &key())["lastUsedAt"].as_str().unwrap().parse().unwrap();
    assert_eq!(used.as_second() % 60, 0);
    assert!((0..120).contains(&(Timestamp::now().as_second() - used.as_second())));
    let updates = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'api_keys'";
    let connection = database.connect().await;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // The server counts with some delay.
        let updates: i64 = connection.query_one(updates, &[]).await.unwrap().get(0);
        assert!(updates <= 1, "{updates} updates for 50 requests");
        if updates == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "no update is counted");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn keys_that_are_not_in_force_look_alike_from_outside() {
    let service = TestService::start().await;
    let database = &service.database;
    let unknown = ApiKey::generate(|| 1);
    let revoked = new_key(database, &["create", "--name", "revoked"]);
    keys(database, &["revoke", &id(database, &revoked)]);
    let expired = new_key(database, &["create", "--name", "expired", "--expires", "1s"]);
    sleep(Duration::from_millis(1_100)).await;
    let mut answers = BTreeSet::new();
    for key in ["psk_malformed", unknown.reveal(), revoked.reveal(), expired.reveal()] {
        // Twice: what was remembered at the first time makes no difference.
        for _ in 0..2 {
            let header = format!("Bearer {key}");
            let nobody = service.client.without_key();
            let answer =
                nobody.send(Method::GET, "/v1/pets", |request| request.header("authorization", header)).await;
            let mut headers: Vec<String> = answer
                .headers
                .iter()
                .filter(|(name, _)| *name != "x-request-id" && *name != "date")
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
                .collect();
            headers.sort();
            answers.insert((answer.status, headers, answer.body));
        }
    }
    assert_eq!(answers.len(), 1, "{answers:#?}");
}

#[tokio::test]
async fn no_key_is_in_a_dump_of_the_database_or_in_any_log() {
    let database = TestDatabase::new().await;
    let canary =
        new_key(&database, &["create", "--name", "canary", "--scope", "pets:read", "--rate-limit", "20/h"]);
    let secret = &canary.reveal()[10..];
    let service = ServeProcess::start(&database.url(), &["--log", "trace"]);
    let client = Client::new(service.address, Some(&canary));
    // Where the key belongs, and where people put it by mistake.
    for (method, path) in [
        (Method::GET, "/v1/pets".to_owned()),
        (Method::GET, "/v1/pets/1".to_owned()),
        (Method::POST, "/v1/pets".to_owned()),
        (Method::GET, "/v1/nowhere".to_owned()),
        (Method::DELETE, "/v1/pets".to_owned()),
        (Method::GET, format!("/v1/pets?key={}", canary.reveal())),
        (Method::GET, format!("/v1/pets?cursor={}", canary.reveal())),
        (Method::GET, format!("/v1/pets/{}", canary.reveal())),
        (Method::GET, format!("/v1/{}", canary.reveal())),
        (Method::GET, format!("/{}", canary.reveal())),
    ] {
        client.send(method.clone(), &path, |request| request).await;
        let nobody = client.without_key();
        nobody.send(method, &path, |request| request.header("authorization", canary.reveal())).await;
    }
    client.post("/v1/pets", &json!({"name": canary.reveal(), "categoryId": canary.reveal()})).await;
    client.post_text("/v1/pets", canary.reveal()).await;
    crate::hostile_clients::exchange(service.address, canary.reveal().as_bytes()).await;
    let half = format!("GET /v1/pets HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", canary.reveal());
    crate::hostile_clients::exchange(service.address, half.as_bytes()).await;
    while client.get("/v1/pets").await.status != 429 {}
    keys(&database, &["revoke", &id(&database, &canary)]);
    while client.get("/v1/pets").await.status != 401 {}
    // And when the database is away.
    let away = format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", database.name());
    database.server().await.batch_execute(&away).await.unwrap();
    database.disconnect_all().await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(client.get("/v1/pets").await.status, 503);
    let back = format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", database.name());
    database.server().await.batch_execute(&back).await.unwrap();

    let (_, log) = service.terminate();
    assert!(log.lines().count() > 100, "a log with everything in it: {log}");
    assert!(!log.contains(secret), "the key is in the log");
    let dump = std::process::Command::new("pg_dump").arg(database.url()).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dump = String::from_utf8(dump.stdout).unwrap();
    assert!(dump.contains(canary.prefix()), "the dump has the keys' table");
    assert!(!dump.contains(secret), "the key is in the dump");
}
