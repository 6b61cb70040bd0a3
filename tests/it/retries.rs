//! Safe retries: a request with an `Idempotency-Key` takes effect once, however often it is sent.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use petstore::storage::STATEMENTS;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use crate::support::postgres::{ROOT, key, locked_out};
use crate::support::program::{ServeProcess, new_key};
use crate::support::{Answer, Client, TestDatabase, TestService};

/// Adds a pet under a key.
async fn add_once(client: &Client, key: &str, body: &Value) -> Answer {
    post_under(client, &[key.as_bytes()], &body.to_string()).await
}

/// Sends text as JSON, with so many keys.
async fn post_under(client: &Client, keys: &[&[u8]], body: &str) -> Answer {
    client
        .send(Method::POST, "/v1/pets", |request| {
            let request = request.header("content-type", "application/json").body(body.to_owned());
            keys.iter().fold(request, |request, key| request.header("idempotency-key", *key))
        })
        .await
}

fn replayed(answer: &Answer) -> bool {
    assert!(matches!(answer.header("idempotent-replayed"), "" | "true"), "{answer:?}");
    answer.header("idempotent-replayed") == "true"
}

fn rex() -> Value {
    json!({"name": "Rex", "categoryId": 3, "status": "available"})
}

async fn count(service: &TestService) -> i64 {
    service.database.connect().await.query_one("SELECT count(*) FROM pets", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn the_same_request_gets_the_first_answer_again() {
    let service = TestService::start().await;
    let first = add_once(&service.client, "order-4711", &rex()).await;
    assert_eq!((first.status, replayed(&first)), (201, false));
    for _ in 0..3 {
        let again = add_once(&service.client, "order-4711", &rex()).await;
        assert_eq!((again.status, replayed(&again)), (201, true));
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("location"), first.header("location"));
    }
    // The same, in other words.
    let other_words = r#"{"status":"available", "categoryId":3.0,"name":"\u0052ex"}"#;
    let again = post_under(&service.client, &[b"order-4711"], other_words).await;
    assert_eq!((again.body, count(&service).await), (first.body, 1));
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused() {
    let service = TestService::start().await;
    add_once(&service.client, "order-4711", &rex()).await;
    for other in [
        json!({"name": "Rexi", "categoryId": 3, "status": "available"}),
        json!({"name": "Rex", "categoryId": 4, "status": "available"}),
        json!({"name": "Rex", "categoryId": 3}),
    ] {
        let refused = add_once(&service.client, "order-4711", &other).await;
        assert_eq!(refused.error(), (422, "idempotency_key_reused".into()));
    }
    assert_eq!(count(&service).await, 1);
}

#[tokio::test]
async fn keys_of_different_callers_are_different() {
    let service = TestService::start().await;
    let key = new_key(&service.database.url(), &[]);
    let other = Client::new(service.address, Some(&key));
    assert!(!replayed(&add_once(&service.client, "a", &rex()).await));
    assert!(!replayed(&add_once(&other, "a", &rex()).await));
    assert_eq!(count(&service).await, 2);
}

#[tokio::test]
async fn a_request_that_failed_is_not_remembered() {
    let service = TestService::start().await;
    let invalid = json!({"name": "", "categoryId": 3});
    assert_eq!(add_once(&service.client, "a", &invalid).await.status, 400);
    let mended = add_once(&service.client, "a", &rex()).await;
    assert_eq!((mended.status, replayed(&mended)), (201, false));
}

#[tokio::test]
async fn a_bad_idempotency_key_is_refused_but_after_a_bad_media_type() {
    let service = TestService::start().await;
    for bad in ["", "a b", "caf\u{e9}", &"x".repeat(256)] {
        let answer = post_under(&service.client, &[bad.as_bytes()], &rex().to_string()).await;
        assert_eq!(answer.error(), (400, "invalid_header".into()), "{bad:?}");
    }
    let twice = post_under(&service.client, &[b"a", b"a"], &rex().to_string()).await;
    assert_eq!(twice.error(), (400, "invalid_header".into()));
    let text = service.client.send(Method::POST, "/v1/pets", |request| {
        request.header("idempotency-key", "").header("content-type", "text/plain").body("{}")
    });
    assert_eq!(text.await.status, 415);
    assert_eq!(count(&service).await, 0);
}

#[tokio::test]
async fn keys_are_remembered_for_24_hours_and_across_midnight() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    let first = add_once(&service.client, "a", &rex()).await;
    // In the last minute of a day, it is remembered for the next one as well.
    let tomorrow = "DELETE FROM idempotency_keys WHERE kept_on > (now() AT TIME ZONE 'UTC')::date";
    database.execute(tomorrow, &[]).await.unwrap();
    // As if it had been sent just after the midnight before last: yesterday's page, a moment less than 24 hours ago.
    let age =
        "UPDATE idempotency_keys SET kept_on = kept_on - 1, used_at = now() - interval '23 hours 59 minutes'";
    database.execute(age, &[]).await.unwrap();
    let again = add_once(&service.client, "a", &rex()).await;
    assert!(replayed(&again));
    assert_eq!(again.body, first.body);
    let too_old = "UPDATE idempotency_keys SET used_at = now() - interval '24 hours 1 minute'";
    database.execute(too_old, &[]).await.unwrap();
    let forgotten = add_once(&service.client, "a", &rex()).await;
    assert_eq!((forgotten.status, replayed(&forgotten)), (201, false));
    assert_eq!(count(&service).await, 2);
    // Of the two days that know the key now, only one is not too old.
    let latest = add_once(&service.client, "a", &rex()).await;
    assert!(replayed(&latest));
    assert_eq!(latest.body, forgotten.body);
}

#[tokio::test]
async fn old_pages_are_dropped_and_new_ones_are_there_before_they_are_needed() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    let old = "CREATE TABLE idempotency_keys_20200101 PARTITION OF idempotency_keys \
        FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')";
    database.batch_execute(old).await.unwrap();
    let pages = async || -> Vec<String> {
        let names = "SELECT relname::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid \
            WHERE inhparent = 'idempotency_keys'::regclass ORDER BY 1";
        database.query(names, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    // A node does it when it starts.
    let _another = service.start_another().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(15);
    while pages().await.contains(&"idempotency_keys_20200101".to_owned()) {
        assert!(std::time::Instant::now() < deadline, "{:?}", pages().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pages().await.len(), 9, "yesterday, today and seven days to come");
}

/// The statement that adds a pet once, as it would run at another time.
fn add_once_at(time: &str) -> String {
    let statement = STATEMENTS
        .concat()
        .into_iter()
        .find(|statement| statement.contains("INTO idempotency_keys"))
        .unwrap();
    statement
        .replace("now()", &format!("timestamptz '{time}'"))
        .replace("$3::pet_status[]", "$3::text[]::pet_status[]")
        .replace("$4::uuid[]", "$4::text[]::uuid[]")
        .replace("$5::uuid[]", "$5::text[]::uuid[]")
}

/// Runs it, and returns the id of the pet, and whether it was remembered from before.
async fn run_at(client: &tokio_postgres::Client, time: &str) -> Result<(i64, bool), tokio_postgres::Error> {
    let hash = vec!["00000000-0000-0000-0000-000000000001"];
    let (names, categories, statuses) = (vec!["Rex"], vec![1_i64], vec![None::<&str>]);
    let row = client.query_one(&add_once_at(time), &[&names, &categories, &statuses, &hash, &hash]).await?;
    let before: Option<i64> = row.get(3);
    Ok((before.unwrap_or_else(|| row.get(1)), before.is_some()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_meet_at_midnight_add_one_pet() {
    let before = ["2031-05-04 12:00:00Z", "2031-05-04 23:59:10Z", "2031-05-04 23:59:59.9Z"];
    let after = ["2031-05-05 00:00:00Z", "2031-05-05 00:00:05Z"];
    let pairs: Vec<(&str, &str)> = before[1..]
        .iter()
        .flat_map(|before| after.map(|after| (*before, after)))
        .chain([(before[0], before[0]), (before[1], before[2]), ("2031-05-04 23:58:59Z", before[1])])
        .collect();
    for (one, other) in pairs.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]) {
        let service = TestService::start().await;
        let database = &service.database;
        let (first, second) = (database.connect().await, database.connect().await);
        for (day, next) in [("2031-05-04", "2031-05-05"), ("2031-05-05", "2031-05-06")] {
            let page = format!(
                "CREATE TABLE page_{} PARTITION OF idempotency_keys FOR VALUES FROM ('{day}') TO ('{next}')",
                day.replace('-', "_")
            );
            first.batch_execute(&page).await.unwrap();
        }
        first.batch_execute("BEGIN").await.unwrap();
        let (id, before) = run_at(&first, one).await.unwrap();
        assert!(!before, "{one}");
        // The other attempt begins before the first is committed, and waits for it.
        let mut waiting = tokio::spawn(async move { (run_at(&second, other).await, second) });
        let watch = database.connect().await;
        tokio::select! {
            _ = locked_out(&watch) => {}
            _ = &mut waiting => panic!("it did not wait: {one}, {other}"),
        }
        first.batch_execute("COMMIT").await.unwrap();
        let (refused, second) = waiting.await.unwrap();
        assert_eq!(refused.unwrap_err().code(), Some(&SqlState::UNIQUE_VIOLATION), "{one}, {other}");
        // Sent again, and time has passed, it learns of the pet that is there; and so does whoever comes later.
        for again in [one.max(other), "2031-05-05 00:01:00Z"] {
            assert_eq!(run_at(&second, again).await.unwrap(), (id, true), "{one}, {other}, {again}");
        }
        assert_eq!(count(&service).await, 1, "{one}, {other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_the_same_instant_one_adds_the_pet() {
    const ROUNDS: usize = 25;
    let first = TestService::start().await;
    let second = first.start_another().await;
    for round in 0..ROUNDS {
        let (key, barrier) = (format!("round-{round}"), Arc::new(Barrier::new(64)));
        let mut clients = JoinSet::new();
        for number in 0..64 {
            let client = [&first, &second][number % 2].client.clone();
            let (key, barrier) = (key.clone(), barrier.clone());
            clients.spawn(async move {
                barrier.wait().await;
                add_once(&client, &key, &rex()).await
            });
        }
        let answers = clients.join_all().await;
        let added: Vec<&Answer> =
            answers.iter().filter(|answer| answer.status == 201 && !replayed(answer)).collect();
        assert_eq!(added.len(), 1, "{answers:?}");
        for answer in &answers {
            match answer.status {
                201 => assert_eq!(answer.body, added[0].body),
                409 => assert_eq!(answer.error().1, "idempotency_in_progress"),
                other => panic!("{other}: {}", answer.body),
            }
        }
    }
    assert_eq!(count(&first).await, i64::try_from(ROUNDS).unwrap());
}

#[tokio::test]
async fn a_request_whose_first_attempt_is_still_under_way_answers_409() {
    let service = TestService::start().await;
    // Somebody else holds the key, and does not end.
    let digest = {
        add_once(&service.client, "a", &rex()).await;
        let database = service.database.connect().await;
        let delete = "DELETE FROM idempotency_keys RETURNING digest::text";
        database.query_one(delete, &[]).await.unwrap().get::<_, String>(0)
    };
    let holder = service.database.connect().await;
    holder.batch_execute("BEGIN").await.unwrap();
    let insert = "INSERT INTO idempotency_keys \
        SELECT $1::text::uuid, (now() AT TIME ZONE 'UTC')::date, now(), gen_random_uuid(), 1";
    holder.execute(insert, &[&digest]).await.unwrap();
    let rex = rex();
    let (held, plain, other) = tokio::join!(
        add_once(&service.client, "a", &rex),
        service.client.add("Max", None),
        add_once(&service.client, "b", &rex),
    );
    assert_eq!(held.error(), (409, "idempotency_in_progress".into()));
    assert!(plain > 0, "who travels with it is added");
    assert_eq!((other.status, replayed(&other)), (201, false));
    holder.batch_execute("ROLLBACK").await.unwrap();
    let after = add_once(&service.client, "a", &rex).await;
    assert_eq!((after.status, replayed(&after)), (201, false));
}

/// What a client can do, and what can happen to it.
#[derive(Debug, Clone)]
enum Step {
    /// Sends one of two bodies under one of three keys.
    Send { key: usize, body: usize },
    /// The same, but the connection breaks before the answer.
    Lose { key: usize, body: usize },
    /// The node dies, with all that it knows, and another takes its place.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..3_usize, 0..2_usize).prop_map(|(key, body)| Step::Send { key, body }),
        2 => (0..3_usize, 0..2_usize).prop_map(|(key, body)| Step::Lose { key, body }),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..25)
}

/// What the client may believe of a key.
#[derive(Debug, Clone, Default)]
struct Belief {
    /// What was answered: the body sent, and the pet.
    known: Option<(usize, String)>,
    /// Bodies whose fate is not known.
    lost: Vec<usize>,
}

async fn follow_model(steps: Vec<Step>) {
    let first = TestService::start().await;
    let mut node = first.start_another().await;
    let bodies = [json!({"name": "Rex", "categoryId": 1}), json!({"name": "Max", "categoryId": 2})];
    let mut beliefs: HashMap<usize, Belief> = HashMap::new();
    for step in &steps {
        match *step {
            Step::Crash => node = first.start_another().await,
            Step::Lose { key, body } => {
                let name = format!("key-{key}");
                let sending = add_once(&node.client, &name, &bodies[body]);
                let _ = timeout(Duration::from_micros(1_500), sending).await;
                beliefs.entry(key).or_default().lost.push(body);
            }
            Step::Send { key, body } => {
                let answer = add_once(&node.client, &format!("key-{key}"), &bodies[body]).await;
                let belief = beliefs.entry(key).or_default();
                match (answer.status, &belief.known) {
                    (201, Some((known, pet))) => {
                        assert!(*known == body && replayed(&answer), "{steps:?}: {answer:?}");
                        assert_eq!(*pet, answer.body, "{steps:?}");
                    }
                    (201, None) => {
                        // Somebody's lost attempt may have been first, if it asked for the same.
                        assert!(!replayed(&answer) || belief.lost.contains(&body), "{steps:?}: {answer:?}");
                        belief.known = Some((body, answer.body));
                    }
                    (422, Some((known, _))) => assert_ne!(*known, body, "{steps:?}"),
                    (422, None) => {
                        assert!(belief.lost.iter().any(|lost| *lost != body), "{steps:?}: {answer:?}");
                    }
                    (other, _) => panic!("{steps:?}: {other} {}", answer.body),
                }
            }
        }
    }
    // However it went, a key has added at most one pet; one with an answer exactly one.
    let used = beliefs.len();
    let known = beliefs.values().filter(|belief| belief.known.is_some()).count();
    // A lost attempt may still be under way.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let pets = usize::try_from(count(&first).await).unwrap();
    assert!(
        (known..=used).contains(&pets),
        "{steps:?}: {pets} pets for {used} keys, {known} of them answered"
    );
}

#[test]
fn any_sequence_of_attempts_and_crashes_adds_each_pet_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    runner
        .run(&steps(), |steps| {
            runtime.block_on(follow_model(steps));
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn the_examples_of_the_guide_are_whole_and_add_a_pet_once_through_an_outage() {
    let guide = std::fs::read_to_string(Path::new(ROOT).join("docs/retries.md")).unwrap();
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let allow = async |allowed: bool| {
        let alter = format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allowed}", database.name());
        database.server().await.batch_execute(&alter).await.unwrap();
    };
    allow(false).await;
    database.disconnect_all().await;
    let mut running = Vec::new();
    for example in ["docs/examples/add_pet.py", "docs/examples/add-pet.sh"] {
        let path = Path::new(ROOT).join(example);
        assert!(
            guide.contains(&std::fs::read_to_string(&path).unwrap()),
            "{example} is in the guide as it is"
        );
        let child = Command::new(&path)
            .args(["Rex", "3"])
            .env("PETSTORE_URL", format!("http://{}", service.address))
            .env("PETSTORE_KEY", key().reveal())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        running.push((example, child));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    allow(true).await;
    for (example, child) in running {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{example}: {said}");
        // What a client prints besides the last answer is its own business.
        assert!(said.lines().last().unwrap().contains("\"Rex\""), "{example}: {said}");
    }
    let pets = database.connect().await.query_one("SELECT count(*) FROM pets", &[]).await.unwrap();
    assert_eq!(pets.get::<_, i64>(0), 2);
}
