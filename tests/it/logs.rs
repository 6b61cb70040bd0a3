//! What the log says, and how often.

use futures_util::future::{join, join_all};
use serde_json::{Value, json};

use petstore::version::{COMMIT, VERSION};

use crate::support::postgres::connect;
use crate::support::program::ServeProcess;
use crate::support::wait::eventually;
use crate::support::{Client, TestDatabase};
use crate::unhealthy_database::PrivatePostgres;

fn lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn an_outage_is_logged_when_it_begins_and_when_it_ends_and_its_requests_are_counted() {
    let (postgres, key) = PrivatePostgres::start_with_key();
    let service = ServeProcess::start(&postgres.url, &[]);
    let client = Client::new(service.address, Some(&key));
    assert_eq!(client.get("/v1/pets").await.status, 200);
    postgres.stop("fast");
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
    let deaf = with("not receiving key change notifications");
    assert_eq!(deaf.len(), 1, "{deaf:#?}");
    assert_eq!(with("receiving key change notifications again").len(), 1);

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
