//! The life cycle of a key: creation, listing, use, rotation, revocation, and its audit log.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use petstore_domain::api_key::ApiKey;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::metrics::metric;
use crate::support::postgres::key;
use crate::support::program::{ServeProcess, run};
use crate::support::proxy::Proxy;
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase, TestService};

/// Runs `petstore keys` and returns its output. It must print nothing to standard error.
fn keys(database: &TestDatabase, arguments: &[&str]) -> String {
    let output = run(&[&["keys"], arguments].concat(), &[("DATABASE_URL", &database.url())]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert_eq!(errors, "", "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a `petstore keys` command that prints a new key.
fn new_key(database: &TestDatabase, arguments: &[&str]) -> ApiKey {
    keys(database, arguments).strip_suffix('\n').unwrap().parse().unwrap()
}

/// The entry of this key in `keys list --json`.
fn record(database: &TestDatabase, key: &ApiKey) -> Value {
    let list: Value = serde_json::from_str(&keys(database, &["list", "--json"])).unwrap();
    let records = list.as_array().unwrap();
    records.iter().find(|record| record["prefix"] == key.prefix()).unwrap().clone()
}

fn id(database: &TestDatabase, key: &ApiKey) -> String {
    record(database, key)["id"].to_string()
}

#[tokio::test]
async fn keys_list_shows_the_scopes_rate_limit_and_expiry_of_a_key() {
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
async fn a_key_expires_by_the_clock_of_the_database() {
    let minutes = |minutes: i64| -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
        Arc::new(move || Timestamp::now() + SignedDuration::from_mins(minutes))
    };
    let ahead = TestService::start_at(&[], minutes(10)).await;
    assert_eq!(ahead.client_with_new_key(&["--expires", "5m"]).get("/v1/pets").await.status, 200);
    let behind = TestService::start_at(&[], minutes(-10)).await;
    let (client, started) = (behind.client_with_new_key(&["--expires", "2s"]), Instant::now());
    eventually("the key has expired", async || client.get("/v1/pets").await.status == 401).await;
    assert!(started.elapsed() >= Duration::from_millis(1500), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_user_without_a_name_can_manage_keys() {
    // Only root can become another user. CI is root.
    if !std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        return;
    }
    let database = TestDatabase::new().await;
    let as_stranger = |arguments: &[&str]| {
        let stranger = [
            "--reuid",
            "12345",
            "--regid",
            "12345",
            "--clear-groups",
            env!("CARGO_BIN_EXE_petstore"),
            "keys",
        ];
        let mut setpriv = std::process::Command::new("setpriv");
        let output =
            setpriv.args(stranger).args(arguments).env("DATABASE_URL", database.url()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    as_stranger(&["create", "--name", "shop"]);
    as_stranger(&["revoke", "2"]);
    let shown: Value = serde_json::from_str(&keys(&database, &["show", "2", "--json"])).unwrap();
    for event in shown["events"].as_array().unwrap() {
        assert!(event["actor"].as_str().unwrap().starts_with("uid-12345@"), "{event}");
    }
    assert_eq!(shown["events"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn keys_show_lists_who_created_rotated_and_revoked_a_key() {
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
    // USER@HOST of the test run.
    let actor = shown["events"][2]["actor"].as_str().unwrap();
    assert!(actor.split('@').filter(|part| !part.is_empty()).count() == 2, "{actor}");
    assert_eq!(shown["state"], "revoked");

    let text = keys(&database, &["show", &new_id]);
    assert!(text.starts_with(&format!("id         {new_id}\n")), "{text}");
    assert!(text.contains("created by Grace"), "{text}");
}

#[tokio::test]
async fn a_rotated_key_has_a_successor_with_its_scopes_and_expires_after_the_overlap() {
    let service = TestService::start().await;
    let database = &service.database;
    let create =
        ["create", "--name", "kiosk", "--scope", "pets:read", "--rate-limit", "900/m", "--expires", "10d"];
    let old = new_key(database, &create);
    let new = new_key(database, &["rotate", &id(database, &old), "--overlap", "2s"]);
    let (old_client, new_client) =
        (Client::new(service.address, Some(&old)), Client::new(service.address, Some(&new)));
    assert_eq!(old_client.get("/v1/pets").await.status, 200);
    assert_eq!(new_client.get("/v1/pets").await.status, 200);
    let (old_record, new_record) = (record(database, &old), record(database, &new));
    for same in ["name", "scopes", "rateLimit"] {
        assert_eq!(old_record[same], new_record[same], "{same}");
    }
    let time = |record: &Value, member: &str| record[member].as_str().unwrap().parse::<Timestamp>().unwrap();
    let lifetime = time(&new_record, "expiresAt") - time(&new_record, "createdAt");
    // Of the old key, which was given in whole seconds.
    let expected = 10 * 24 * 60 * 60;
    assert!((expected - 1..=expected).contains(&lifetime.get_seconds()), "{lifetime}");

    eventually("the old key expires", async || {
        let answer = old_client.get("/v1/pets").await;
        assert!(answer.status == 200 || Timestamp::now() >= time(&old_record, "expiresAt"));
        answer.status != 200
    })
    .await;
    assert_eq!(old_client.get("/v1/pets").await.error(), (401, "invalid_api_key".into()));
    assert_eq!(new_client.get("/v1/pets").await.status, 200);
    assert_eq!(record(database, &old)["state"], "expired");

    let again = run(
        &["keys", "rotate", &id(database, &old), "--overlap", "1h"],
        &[("DATABASE_URL", &database.url())],
    );
    assert_eq!(again.status.code(), Some(1), "an expired key cannot be rotated");
    assert!(again.stdout.is_empty());
}

#[tokio::test]
async fn commands_on_an_unknown_key_fail_with_a_clear_message() {
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

/// Sends requests with a key until it is refused. Returns when the last request that was served was sent: a machine that
/// stalls may deliver the answer much later.
async fn send_until_refused(client: Client, served: Arc<AtomicBool>) -> Instant {
    let mut last_served = Instant::now();
    loop {
        let sent = Instant::now();
        let answer = client.get("/v1/pets?limit=1").await;
        match answer.status {
            200 => last_served = sent,
            401 => return last_served,
            other => panic!("{other}: {}", answer.body),
        }
        served.store(true, Ordering::Release);
    }
}

/// Revokes a key that clients of two nodes use all the time. Returns for how long any of the nodes still accepted requests
/// with it.
async fn revoke_under_load(nodes: [&TestService; 2], database: &TestDatabase) -> Duration {
    let key = new_key(database, &["create", "--name", "doomed"]);
    let id = id(database, &key);
    let mut clients = JoinSet::new();
    let mut all_served = Vec::new();
    for node in nodes {
        for _ in 0..2 {
            let served = Arc::new(AtomicBool::new(false));
            all_served.push(served.clone());
            clients.spawn(send_until_refused(Client::new(node.address, Some(&key)), served));
        }
    }
    eventually("every client is served", async || {
        all_served.iter().all(|served| served.load(Ordering::Acquire))
    })
    .await;
    let revoke = "UPDATE api_keys SET revoked_at = now() WHERE id = $1";
    let connection = database.connect().await;
    connection.execute(revoke, &[&id.parse::<i64>().unwrap()]).await.unwrap();
    let revoked = Instant::now();
    let last = clients.join_all().await.into_iter().max().unwrap();
    last.saturating_duration_since(revoked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_is_refused_by_every_node_within_three_seconds() {
    let first = TestService::start().await;
    let second = first.start_another().await;
    let (nodes, database) = ([&first, &second], &*first.database);
    for _ in 0..3 {
        let time = revoke_under_load(nodes, database).await;
        eprintln!("time from a revocation to the last request that was served: {time:?}");
        assert!(time < Duration::from_secs(3), "{time:?}");
    }
}

/// Starts a service that connects to its database through a proxy.
async fn start_behind_proxy() -> (TestDatabase, Proxy, ServeProcess) {
    let database = TestDatabase::new().await;
    let url = database.url();
    let address = url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    let proxy = Proxy::start(address.clone()).await;
    let service = ServeProcess::start(&url.replace(&address, &proxy.address.to_string()), &[]);
    (database, proxy, service)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_changes_during_its_lookup_is_not_cached_in_its_old_state() {
    let (database, proxy, service) = start_behind_proxy().await;
    let connection = database.connect().await;
    for delay in [500, 1_000, 2_500] {
        for change in ["revoked_at = now()", "expires_at = now()", "scopes = '{orders:read}'"] {
            let key = new_key(&database, &["create", "--name", "doomed"]);
            let client = Client::new(service.address, Some(&key));
            // The lookup runs before the change, and its result arrives after it.
            proxy.delay_response_to(key.digest().as_bytes(), Duration::from_millis(delay));
            let first = tokio::spawn({
                let client = client.clone();
                async move { client.get("/v1/pets").await.status }
            });
            eventually("the lookup has run", async || proxy.holds_the_response()).await;
            let id: i64 = id(&database, &key).parse().unwrap();
            let change = format!("UPDATE api_keys SET {change} WHERE id = $1");
            connection.execute(&change, &[&id]).await.unwrap();
            let changed = Instant::now();
            first.await.unwrap();
            // The promise is about time: a changed key is served for less than 3 seconds.
            let mut last_served = None;
            while changed.elapsed() < Duration::from_secs(5) {
                let sent = changed.elapsed();
                match client.get("/v1/pets").await.status {
                    200 => last_served = Some(sent),
                    refused => assert!(matches!(refused, 401 | 403), "{refused}"),
                }
                // Refused for 2 seconds: it is not served again.
                if last_served.is_none_or(|last| changed.elapsed() > last + Duration::from_secs(2)) {
                    break;
                }
            }
            let last_served = last_served.unwrap_or_default();
            assert!(last_served < Duration::from_secs(3), "{change}, {delay} ms: served for {last_served:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_causes_no_refusals() {
    let service = TestService::start().await;
    let database = &service.database;
    let mut current = new_key(database, &["create", "--name", "shop"]);
    for _ in 0..5 {
        let client = Client::new(service.address, Some(&current));
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..4 {
            let (client, stop, answers) = (client.clone(), stop.clone(), answers.clone());
            clients.spawn(async move {
                let mut own = 0;
                while !stop.load(Ordering::Acquire) {
                    assert_eq!(client.get("/v1/pets?limit=1").await.status, 200);
                    answers.fetch_add(1, Ordering::Relaxed);
                    own += 1;
                }
                own
            });
        }
        let next = new_key(database, &["rotate", &id(database, &current), "--overlap", "1h"]);
        assert_eq!(Client::new(service.address, Some(&next)).get("/v1/pets").await.status, 200);
        let before = answers.load(Ordering::Relaxed);
        let served = async || answers.load(Ordering::Relaxed) >= before + 100;
        eventually("the old key is still served", served).await;
        stop.store(true, Ordering::Release);
        assert!(clients.join_all().await.into_iter().all(|own| own > 0));
        current = next;
    }
}

#[tokio::test]
async fn changing_scopes_or_rate_limit_in_sql_takes_effect() {
    let service = TestService::start().await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);
    let database = service.database.connect().await;
    database.execute("UPDATE api_keys SET scopes = '{orders:read}'", &[]).await.unwrap();
    eventually("the scope is gone", async || service.client.get("/v1/pets").await.status == 403).await;
    let limit =
        "UPDATE api_keys SET scopes = '{pets:read}', rate_limit_requests = 1, rate_limit_seconds = 3600";
    database.execute(limit, &[]).await.unwrap();
    eventually("the limit applies", async || service.client.get("/v1/pets").await.status == 429).await;
}

/// How many times a key was looked up in the database.
async fn lookups(service: &TestService) -> Option<f64> {
    metric(service.admin_address, r#"petstore_key_lookups_total{outcome="miss"}"#).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_key_needs_no_lookup_and_an_unknown_key_only_one() {
    let service = TestService::start().await;
    assert_eq!(service.client.get("/v1/pets").await.status, 200);

    let before = lookups(&service).await.unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        assert_eq!(service.client.get("/v1/pets?limit=1").await.status, 200);
    }
    let looked_up = lookups(&service).await.unwrap() - before;
    let at_most = started.elapsed().as_secs_f64() / 2.0 + 1.0;
    assert!(
        (1.0..=at_most).contains(&looked_up),
        "every two seconds: {looked_up} in {:?}",
        started.elapsed()
    );

    let without_key = service.client.without_key();
    let send = async |key: &str| {
        without_key.get_with_header("/v1/pets", "authorization", &format!("Bearer {key}")).await.status
    };
    let mut number = 0_u32;
    let mut unknown = || {
        number += 1;
        let mut bytes = number.to_be_bytes().into_iter().flat_map(|byte| [byte / 16, byte % 16]).cycle();
        ApiKey::generate(|| bytes.next().unwrap())
    };
    let before = lookups(&service).await;
    for _ in 0..200 {
        let key = unknown();
        let (start, end) = key.reveal().split_at(41);
        let mistyped = format!("{start}{}", if end == "0" { "1" } else { "0" });
        assert_eq!(send(&mistyped).await, 401);
    }
    assert_eq!(lookups(&service).await, before, "a bad checksum");
    for _ in 0..200 {
        let key = unknown();
        for _ in 0..3 {
            assert_eq!(send(key.reveal()).await, 401);
        }
    }
    assert_eq!(lookups(&service).await, before.map(|before| before + 200.0), "an unknown key");
}

#[tokio::test]
async fn the_last_use_is_recorded_to_the_minute_and_not_for_every_request() {
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
    // The server updates its statistics with some delay.
    eventually("the update is counted", async || {
        let updates: i64 = connection.query_one(updates, &[]).await.unwrap().get(0);
        assert!(updates <= 1, "{updates} updates for 50 requests");
        updates == 1
    })
    .await;
}

#[tokio::test]
async fn malformed_unknown_revoked_and_expired_keys_get_identical_answers() {
    let service = TestService::start().await;
    let database = &service.database;
    let unknown = ApiKey::generate(|| 1);
    let revoked = new_key(database, &["create", "--name", "revoked"]);
    keys(database, &["revoke", &id(database, &revoked)]);
    let expired = new_key(database, &["create", "--name", "expired", "--expires", "1s"]);
    eventually("the key expires", async || record(database, &expired)["state"] == "expired").await;
    let mut answers = BTreeSet::new();
    for key in ["psk_malformed", unknown.reveal(), revoked.reveal(), expired.reveal()] {
        // Twice: a cached result makes no difference.
        for _ in 0..2 {
            let without_key = service.client.without_key();
            let answer =
                without_key.get_with_header("/v1/pets", "authorization", &format!("Bearer {key}")).await;
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
async fn no_key_appears_in_a_database_dump_or_in_any_log() {
    let database = TestDatabase::new().await;
    let canary =
        new_key(&database, &["create", "--name", "canary", "--scope", "pets:read", "--rate-limit", "20/h"]);
    let secret = &canary.reveal()[10..];
    let service = ServeProcess::start(&database.url(), &["--log", "trace", "--header-timeout", "1s"]);
    let client = Client::new(service.address, Some(&canary));
    // The key in its header, and in places where people put it by mistake.
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
        let without_key = client.without_key();
        without_key.send(method, &path, |request| request.header("authorization", canary.reveal())).await;
    }
    client.post("/v1/pets", &json!({"name": canary.reveal(), "categoryId": canary.reveal()})).await;
    client.post_text("/v1/pets", canary.reveal()).await;
    crate::support::raw_http::exchange(service.address, canary.reveal().as_bytes()).await;
    let half = format!("GET /v1/pets HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", canary.reveal());
    crate::support::raw_http::exchange(service.address, half.as_bytes()).await;
    while client.get("/v1/pets").await.status != 429 {}
    keys(&database, &["revoke", &id(&database, &canary)]);
    while client.get("/v1/pets").await.status != 401 {}
    // And while the database is unavailable.
    let away = format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", database.name());
    database.server().await.batch_execute(&away).await.unwrap();
    database.disconnect_all().await;
    eventually("the cached revocation is forgotten", async || client.get("/v1/pets").await.status == 503)
        .await;
    let back = format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", database.name());
    database.server().await.batch_execute(&back).await.unwrap();

    let (_, log) = service.terminate();
    assert!(log.lines().count() > 100, "too few lines for a log of everything: {log}");
    assert!(!log.contains(secret), "the key is in the log");
    let dump = std::process::Command::new("pg_dump").arg(database.url()).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dump = String::from_utf8(dump.stdout).unwrap();
    assert!(dump.contains(canary.prefix()), "the dump has no keys");
    assert!(!dump.contains(secret), "the key is in the dump");
}
