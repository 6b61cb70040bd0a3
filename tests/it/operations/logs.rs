//! What the log says, and how often.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;

use futures_util::future::{join, join_all};
use petstore_config::version::{COMMIT, VERSION};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::postgres::{connect, wait_for_blocked_statement};
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::{ServeProcess, free_address, petstore, run};
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};

fn lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn an_outage_is_logged_when_it_begins_and_when_it_ends_and_its_requests_are_counted() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(client.get("/v1/pets").await.status, 200);
    // So that the node notices nothing before the server is gone.
    service.stop_process().await;
    postgres.stop("fast");
    service.signal("CONT");
    for _ in 0..300 {
        let answer = client.get("/v1/pets?status=available").await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    }
    postgres.start_again();
    eventually("the database is back", async || client.get("/v1/pets").await.status == 200).await;
    // The last failures are counted when nothing more is heard of their cause.
    eventually("all failures are logged", async || counted(&lines(&service.log())) >= 300).await;
    let (_, log) = service.terminate();

    let lines = lines(&log);
    let with = |message: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["message"].as_str().unwrap().starts_with(message)).collect()
    };
    let lost = with("database unavailable");
    assert_eq!(lost.len(), 1, "{lost:#?}");
    assert_eq!(lost[0]["level"], "ERROR");
    assert!(postgres.url.contains(lost[0]["server"].as_str().unwrap()), "{lost:#?}");
    assert!(lost[0]["cause"].as_str().unwrap().contains("refused"), "{lost:#?}");
    let back = with("database back");
    assert_eq!(back.len(), 1, "{back:#?}");
    assert_eq!(back[0]["level"], "INFO");
    assert!(back[0]["seconds"].as_f64().unwrap() > 0.0);

    let failed: Vec<&Value> = with("request").into_iter().filter(|line| line["status"] == 503).collect();
    assert!((1..60).contains(&failed.len()), "{}", failed.len());
    for line in failed {
        assert_eq!((&line["route"], &line["key"]), (&json!("/v1/pets"), &json!(1)), "{line}");
        let cause = line["cause"].as_str().unwrap();
        assert!(cause.starts_with("database unavailable: "), "{line}");
    }
}

#[tokio::test]
async fn a_database_that_opens_no_more_connections_is_back_when_it_answers_on_those_that_are_open() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    let pet = json!({"name": "Rex", "categoryId": 1});
    assert_eq!(client.post("/v1/pets", &pet).await.status, 201);
    // From another database, because this one is about to accept no more sessions.
    let session = connect(&postgres.url).await;
    let other = connect(&format!("{}/template1", postgres.url.rsplit_once('/').unwrap().0)).await;
    session.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    other.batch_execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false").await.unwrap();
    // They wait for the lock on the connections that are open; for the others, one would have to be opened: each order needs
    // one of its own. On a machine that stalls, some give up before others ask, so they ask again.
    let call = async |number: usize| {
        let client = Client::new(service.address, Some(&key));
        while !service.log().contains("database back") {
            match number % 3 {
                0 => client.get("/v1/pets").await,
                1 => client.get("/v1/pets/1").await,
                _ => client.post("/v1/store/orders", &json!({"petId": 1})).await,
            };
        }
    };
    let outage = async {
        service.wait_for_log("answering 503 until it is back").await;
        session.batch_execute("COMMIT").await.unwrap();
        service.wait_for_log("database back").await;
    };
    join(join_all((0..48).map(call)), outage).await;
}

/// The failed requests that the log accounts for.
fn counted(lines: &[Value]) -> u64 {
    let count = |line: &Value| match line["message"].as_str() {
        Some("request") if line["status"] == 503 => 1 + line["others"].as_u64().unwrap_or_default(),
        Some("more requests failed for the same cause") => line["requests"].as_u64().unwrap(),
        _ => 0,
    };
    lines.iter().map(count).sum()
}

#[tokio::test]
async fn the_first_line_has_the_version_and_what_differs_from_the_defaults_but_no_password() {
    let database = TestDatabase::new().await;
    let url = database.url().replacen('@', ":secret@", 1);
    let service = ServeProcess::start(&url, &["--max-requests", "99", "--drain-timeout", "10s"]);
    let log = service.terminate().1;
    let first = &lines(&log)[0];
    assert_eq!((&first["message"], &first["level"]), (&json!("starting"), &json!("INFO")));
    assert_eq!((&first["version"], &first["commit"]), (&json!(VERSION), &json!(COMMIT)));
    let settings = first["settings"].as_str().unwrap();
    assert!(settings.contains("--max-requests 99"), "{settings}");
    assert!(settings.contains(":***@"), "{settings}");
    assert!(!settings.contains("--drain-timeout"), "this is its default: {settings}");
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn a_request_is_logged_with_the_address_of_its_client() {
    let database = TestDatabase::new().await;
    let request = async |service: &ServeProcess| {
        let proxied = "198.51.100.7, 127.0.0.2";
        let answer = service.client.get_with_header("/v1/pets", "X-Forwarded-For", proxied).await;
        assert_eq!(answer.status, 200);
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
    };
    for (flags, expected) in [
        (&[][..], [json!("198.51.100.7"), json!("127.0.0.1")]),
        (&["--trusted-proxy", "192.0.2.1"], [json!("127.0.0.1"), json!("127.0.0.1")]),
        (&["--log-client-addresses", "false"], [Value::Null, Value::Null]),
    ] {
        let service = ServeProcess::start(&database.url(), flags);
        request(&service).await;
        let lines = lines(&service.terminate().1);
        let clients = lines.iter().filter(|line| line["message"] == "request").map(|line| &line["client"]);
        assert_eq!(clients.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>(), "{flags:?}");
    }
}

#[tokio::test]
async fn the_log_says_who_changed_which_pet_and_order() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    client.patch_pet(pet, &json!({"name": "Max"})).await;
    let order = client.post("/v1/store/orders", &json!({"petId": pet})).await.json()["id"].as_i64().unwrap();
    let ended = client.post_text(&format!("/v1/store/orders/{order}/complete"), "").await;
    assert_eq!(ended.status, 200);
    client.get(&format!("/v1/pets?id={pet}")).await;
    let lines = lines(&service.terminate().1);
    let found: Vec<Value> = lines
        .iter()
        .filter(|line| line["message"] == "request")
        .map(|line| json!([line["operation"], line["pet"], line["order"], line["key"]]))
        .collect();
    let expected = [
        json!(["createPet", pet, null, 1]),
        json!(["updatePet", pet, null, 1]),
        json!(["placeOrder", pet, order, 1]),
        json!(["completeOrder", pet, order, 1]),
        json!(["listPets", null, null, 1]),
    ];
    assert_eq!(found, expected);
}

/// The lines with these messages, which may end in `…`: the level, and the type of each field. A field that some lines lack
/// has a question mark.
fn shapes(logs: &[String], messages: &[&str]) -> String {
    let mut text = String::new();
    for message in messages {
        let is_wanted = |line: &Value| match (message.strip_suffix('…'), line["message"].as_str().unwrap())
        {
            (Some(start), found) => found.starts_with(start),
            (None, found) => found == *message,
        };
        let mut by_level: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for line in logs.iter().flat_map(|log| lines(log)).filter(is_wanted) {
            by_level.entry(line["level"].as_str().unwrap().to_owned()).or_default().push(line);
        }
        assert!(!by_level.is_empty(), "the log has no line {message:?}: {logs:#?}");
        for (level, lines) in by_level {
            writeln!(text, "{level} {message}").unwrap();
            let mut fields: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
            for (name, value) in lines.iter().flat_map(|line| line.as_object().unwrap()) {
                fields.entry(name).or_insert((type_name(value), 0)).1 += 1;
            }
            for line in &lines {
                // `--log petstore=info`, the default, selects these targets.
                let target = line["target"].as_str().unwrap();
                let is_ours = target.split("::").next().is_some_and(|name| name.starts_with("petstore"));
                assert!(is_ours, "{line}");
            }
            for common in ["timestamp", "level", "message", "target"] {
                assert_eq!(fields.remove(common), Some(("string", lines.len())), "{lines:#?}");
            }
            for (name, (type_name, found)) in fields {
                writeln!(text, "  {name}: {type_name}{}", if found < lines.len() { "?" } else { "" })
                    .unwrap();
            }
        }
    }
    text
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        _ => panic!("{value}"),
    }
}

#[tokio::test]
async fn log_queries_find_the_same_lines_of_requests_and_of_the_process() {
    let database = TestDatabase::new().await;
    let (session, keys) = (database.connect().await, database.connect().await);
    // So that it can read keys, but not record their use.
    keys.batch_execute("BEGIN; LOCK TABLE api_keys IN EXCLUSIVE MODE").await.unwrap();
    let service = ServeProcess::start(&database.url(), &["--database-timeout", "200ms"]);
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    client.post("/v1/store/orders", &json!({"petId": pet})).await;
    client.without_key().get("/v1/pets").await;
    client.get("/v1/nothing").await;
    let mut malformed = TcpStream::connect(service.address).unwrap();
    malformed.write_all(b"nonsense\r\n\r\n").unwrap();
    malformed.read_to_end(&mut Vec::new()).unwrap();
    service.signal("HUP");
    service.wait_for_log("SIGHUP ignored").await;
    // Requests fail for the same cause: often enough for a line that counts those before it, and for one about the last.
    session.batch_execute("BEGIN; LOCK TABLE pets").await.unwrap();
    let failed = async || {
        assert_eq!(client.get("/v1/pets").await.status, 503);
        service.log().contains("\"others\":")
    };
    eventually("failures are counted", failed).await;
    join_all((0..8).map(|_| client.get("/v1/pets"))).await;
    service.wait_for_log("more requests failed for the same cause").await;
    let log = service.terminate().1;
    keys.batch_execute("COMMIT").await.unwrap();

    // It stops while a request is in flight.
    let flags =
        ["--otlp-endpoint", "http://127.0.0.1:1", "--database-timeout", "1m", "--drain-timeout", "200ms"];
    let traced = ServeProcess::start(&database.url(), &flags);
    traced.client.get("/v1/store/orders").await;
    let client = traced.client.clone();
    let waiting =
        tokio::spawn(async move { client.try_send(Method::GET, "/v1/pets", |request| request).await });
    wait_for_blocked_statement(&keys).await;
    let traced = traced.terminate().1;
    let _ = waiting.await;
    let failed = |flags: &[&str]| {
        let output = run(&[&["serve"], flags].concat(), &[("DATABASE_URL", "host=none")]);
        String::from_utf8(output.stderr).unwrap()
    };
    let logs = [log, traced, failed(&[]), failed(&["--listen", "none"])];
    let text = shapes(
        &logs,
        &[
            "starting",
            "listening",
            "request",
            "request rejected before it was parsed",
            "more requests failed for the same cause",
            "SIGHUP ignored: restart the service to apply changed settings",
            "stopping: draining requests in flight",
            "requests were still in flight when the drain timeout elapsed",
            "could not record when keys were last used",
            "stopped",
            "the service failed",
            "invalid settings",
        ],
    );
    insta::assert_snapshot!("lines_of_requests_and_the_process", text);
}

#[tokio::test]
async fn log_queries_find_the_same_lines_about_the_database() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    let server = database.server().await;
    // The other server is not reachable.
    let cluster = ServeProcess::start(&database.url().replacen('@', "@127.0.0.1:1,", 1), &[]);
    for (level, start) in
        [("INFO", "database server: "), ("WARN", "database server: "), ("INFO", "reads are ")]
    {
        cluster.wait_for_log(&format!(r#""level":"{level}","message":"{start}"#)).await;
    }
    let cluster = cluster.terminate().1;

    // systemd's socket does not exist.
    let mut command = petstore(&["serve"]);
    command.env("NOTIFY_SOCKET", "/nonexistent");
    let service = ServeProcess::start_as(command, &database.url(), free_address(), free_address());
    service.wait_for_log("could not notify systemd").await;
    connection.batch_execute("SELECT start_event_epoch('a test wants it')").await.unwrap();
    service.wait_for_log("event feed restarted").await;
    drop(connection);
    let accept = async |accepts: bool| {
        let name = database.name();
        server.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {accepts}")).await.unwrap();
    };
    accept(false).await;
    database.disconnect_all().await;
    for line in ["database unavailable", "could not expire overdue orders"] {
        service.client.get("/v1/pets").await;
        service.wait_for_log(line).await;
    }
    accept(true).await;
    service.client.get("/v1/pets").await;
    service.wait_for_log("database back").await;
    let outage = service.terminate().1;

    let connection = database.connect().await;
    connection.batch_execute("ALTER TABLE events RENAME TO other").await.unwrap();
    let broken = ServeProcess::start(&database.url(), &[]);
    for line in ["could not create partitions", "could not drop old partitions"] {
        broken.wait_for_log(line).await;
    }
    let text = shapes(
        &[cluster, outage, broken.terminate().1],
        &[
            "database server: …",
            "reads are …",
            "database unavailable: answering 503 until it is back",
            "database back",
            "event feed restarted: every reader gets 410",
            "could not expire overdue orders: retrying in 10 s",
            "could not create partitions: retrying in 10 s",
            "could not drop old partitions: retrying in 60 s",
            "could not notify systemd",
        ],
    );
    insta::assert_snapshot!("lines_about_the_database", text);
}
