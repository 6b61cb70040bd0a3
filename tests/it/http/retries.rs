//! Safe retries: a request with an `Idempotency-Key` takes effect once, however often it is sent.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use petstore_storage::STATEMENTS;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::support::interleaving::hold_idempotency_key;
use crate::support::metrics::scrape;
use crate::support::postgres::{count_pets, key, wait_for_blocked_statement};
use crate::support::program::ServeProcess;
use crate::support::repository::{ROOT, read};
use crate::support::wait::eventually;
use crate::support::{Answer, Client, TestDatabase, TestService};

/// Adds a pet with an idempotency key.
async fn add_with_key(client: &Client, key: &str, body: &Value) -> Answer {
    client.post_with_key("/v1/pets", key, body).await
}

/// Sends text as JSON, with any number of idempotency keys.
async fn post_with_keys(client: &Client, keys: &[&[u8]], body: &str) -> Answer {
    client
        .send(Method::POST, "/v1/pets", |request| {
            let request = request.header("content-type", "application/json").body(body.to_owned());
            keys.iter().fold(request, |request, key| request.header("idempotency-key", *key))
        })
        .await
}

fn rex() -> Value {
    json!({"name": "Rex", "categoryId": 3, "status": "available"})
}

#[tokio::test]
async fn a_retry_gets_the_first_answer() {
    let service = TestService::start().await;
    let first = add_with_key(&service.client, "order-4711", &rex()).await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    for _ in 0..3 {
        let again = add_with_key(&service.client, "order-4711", &rex()).await;
        assert_eq!((again.status, again.is_replayed()), (201, true));
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("location"), first.header("location"));
    }
    // The same request, in another notation.
    let other_notation = r#"{"status":"available", "categoryId":3.0,"name":"\u0052ex"}"#;
    let again = post_with_keys(&service.client, &[b"order-4711"], other_notation).await;
    assert_eq!((again.body, count_pets(&service.database.connect().await).await), (first.body, 1));
}

#[tokio::test]
async fn a_quoted_idempotency_key_is_the_same_as_a_bare_one() {
    let service = TestService::start().await;
    let longest = "x".repeat(255);
    for (bare, quoted) in [
        ("order-4711", r#""order-4711""#),
        (r#"a"b\c"#, r#""a\"b\\c""#),
        (&longest, &format!("\"{longest}\"")),
    ] {
        let first = add_with_key(&service.client, quoted, &rex()).await;
        assert_eq!((first.status, first.is_replayed()), (201, false), "{quoted}");
        let again = add_with_key(&service.client, bare, &rex()).await;
        assert_eq!((again.is_replayed(), again.body), (true, first.body), "{quoted}");
    }
    for other in [r#""order-4711"#, r#""order-4711\""#, r#""order"-4711""#, r#""\order-4711""#] {
        assert!(
            !add_with_key(&service.client, other, &rex()).await.is_replayed(),
            "{other} is a key of its own"
        );
    }
}

#[tokio::test]
async fn a_different_request_with_the_same_idempotency_key_answers_422() {
    let service = TestService::start().await;
    add_with_key(&service.client, "order-4711", &rex()).await;
    for other in [
        json!({"name": "Rexi", "categoryId": 3, "status": "available"}),
        json!({"name": "Rex", "categoryId": 4, "status": "available"}),
        json!({"name": "Rex", "categoryId": 3}),
    ] {
        let refused = add_with_key(&service.client, "order-4711", &other).await;
        assert_eq!(refused.error(), (422, "idempotency_key_reused".into()));
    }
    assert_eq!(count_pets(&service.database.connect().await).await, 1);
}

#[tokio::test]
async fn idempotency_keys_of_different_callers_are_independent() {
    let service = TestService::start().await;
    let other = service.client_with_new_key(&[]);
    assert!(!add_with_key(&service.client, "a", &rex()).await.is_replayed());
    assert!(!add_with_key(&other, "a", &rex()).await.is_replayed());
    assert_eq!(count_pets(&service.database.connect().await).await, 2);
}

#[tokio::test]
async fn a_failed_request_does_not_use_up_its_idempotency_key() {
    let service = TestService::start().await;
    let invalid = json!({"name": "", "categoryId": 3});
    assert_eq!(add_with_key(&service.client, "a", &invalid).await.status, 400);
    let retried = add_with_key(&service.client, "a", &rex()).await;
    assert_eq!((retried.status, retried.is_replayed()), (201, false));
}

#[tokio::test]
async fn a_bad_idempotency_key_answers_400_after_the_media_type_is_checked() {
    let service = TestService::start().await;
    for bad in ["", "a b", "caf\u{e9}", &"x".repeat(256), "\"\"", "\"a b\""] {
        let answer = post_with_keys(&service.client, &[bad.as_bytes()], &rex().to_string()).await;
        assert_eq!(answer.error(), (400, "invalid_header".into()), "{bad:?}");
    }
    let twice = post_with_keys(&service.client, &[b"a", b"a"], &rex().to_string()).await;
    assert_eq!(twice.error(), (400, "invalid_header".into()));
    let text = service.client.send(Method::POST, "/v1/pets", |request| {
        request.header("idempotency-key", "").header("content-type", "text/plain").body("{}")
    });
    assert_eq!(text.await.status, 415);
    assert_eq!(count_pets(&service.database.connect().await).await, 0);
}

#[tokio::test]
async fn idempotency_keys_are_kept_for_24_hours_across_midnight() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    let first = add_with_key(&service.client, "a", &rex()).await;
    // In the last minute of a day, a key is also stored for the next day.
    let tomorrow = "DELETE FROM idempotency_keys WHERE kept_on > (now() AT TIME ZONE 'UTC')::date";
    database.execute(tomorrow, &[]).await.unwrap();
    // As if it had been sent a little less than 24 hours ago: it is in yesterday's partition.
    let age =
        "UPDATE idempotency_keys SET kept_on = kept_on - 1, used_at = now() - interval '23 hours 59 minutes'";
    database.execute(age, &[]).await.unwrap();
    let again = add_with_key(&service.client, "a", &rex()).await;
    assert!(again.is_replayed());
    assert_eq!(again.body, first.body);
    let too_old = "UPDATE idempotency_keys SET used_at = now() - interval '24 hours 1 minute'";
    database.execute(too_old, &[]).await.unwrap();
    let forgotten = add_with_key(&service.client, "a", &rex()).await;
    assert_eq!((forgotten.status, forgotten.is_replayed()), (201, false));
    assert_eq!(count_pets(&service.database.connect().await).await, 2);
    // Two days contain the key now, and one of them is too old.
    let latest = add_with_key(&service.client, "a", &rex()).await;
    assert!(latest.is_replayed());
    assert_eq!(latest.body, forgotten.body);
}

/// The statement that adds a pet with an idempotency key, with another current time.
fn add_with_key_at(time: &str) -> String {
    let statement = STATEMENTS
        .concat()
        .into_iter()
        .find(|statement| statement.contains("INTO idempotency_keys"))
        .unwrap();
    statement
        .replace("now()", &format!("timestamptz '{time}'"))
        .replace("::pet_status[]", "::text[]::pet_status[]")
        .replace("::jsonb[]", "::text[]::jsonb[]")
        .replace("::uuid[]", "::text[]::uuid[]")
}

/// Longer than the first attempt takes.
const LOCK_WAIT_MILLISECONDS: i64 = 60_000;

/// Runs that statement. Returns the id of the pet, and whether it was replayed.
async fn run_at(client: &tokio_postgres::Client, time: &str) -> Result<(i64, bool), tokio_postgres::Error> {
    let hash = vec!["00000000-0000-0000-0000-000000000001"];
    let (names, categories, statuses) = (vec!["Rex"], vec![1_i64], vec![None::<&str>]);
    let none = vec![None::<&str>];
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&names, &categories, &statuses, &none, &none, &hash, &hash, &LOCK_WAIT_MILLISECONDS];
    let row = client.query_one(&add_with_key_at(time), &parameters).await?;
    let replayed: Option<i64> = row.get(3);
    Ok((replayed.unwrap_or_else(|| row.get(1)), replayed.is_some()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_attempts_around_midnight_add_one_pet() {
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
            let partition = format!(
                "CREATE TABLE partition_{} PARTITION OF idempotency_keys FOR VALUES FROM ('{day}') TO ('{next}')",
                day.replace('-', "_")
            );
            first.batch_execute(&partition).await.unwrap();
        }
        first.batch_execute("BEGIN").await.unwrap();
        let (id, replayed) = run_at(&first, one).await.unwrap();
        assert!(!replayed, "{one}");
        // The other attempt starts before the first is committed, and waits for it.
        let mut waiting = tokio::spawn(async move { (run_at(&second, other).await, second) });
        let watch = database.connect().await;
        tokio::select! {
            _ = wait_for_blocked_statement(&watch) => {}
            _ = &mut waiting => panic!("it did not wait: {one}, {other}"),
        }
        first.batch_execute("COMMIT").await.unwrap();
        let (refused, second) = waiting.await.unwrap();
        assert_eq!(refused.unwrap_err().code(), Some(&SqlState::UNIQUE_VIOLATION), "{one}, {other}");
        // A retry gets the pet that was added, at once and later.
        for again in [one.max(other), "2031-05-05 00:01:00Z"] {
            assert_eq!(run_at(&second, again).await.unwrap(), (id, true), "{one}, {other}, {again}");
        }
        assert_eq!(count_pets(&service.database.connect().await).await, 1, "{one}, {other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_many_concurrent_attempts_adds_the_pet() {
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
                add_with_key(&client, &key, &rex()).await
            });
        }
        let answers = clients.join_all().await;
        let added: Vec<&Answer> =
            answers.iter().filter(|answer| answer.status == 201 && !answer.is_replayed()).collect();
        assert_eq!(added.len(), 1, "{answers:?}");
        for answer in &answers {
            match answer.status {
                201 => assert_eq!(answer.body, added[0].body),
                409 => assert_eq!(answer.error().1, "idempotency_in_progress"),
                other => panic!("{other}: {}", answer.body),
            }
        }
    }
    assert_eq!(count_pets(&first.database.connect().await).await, i64::try_from(ROUNDS).unwrap());
}

#[tokio::test]
async fn a_retry_answers_409_while_the_first_attempt_is_in_progress() {
    let service = TestService::start().await;
    // Another transaction holds the key.
    add_with_key(&service.client, "a", &rex()).await;
    let holder = service.database.connect().await;
    // In the last minute of a day, there is one row for that day and one for the next.
    let delete = "DELETE FROM idempotency_keys RETURNING digest::text";
    let digest: String = holder.query(delete, &[]).await.unwrap()[0].get(0);
    holder.batch_execute("BEGIN").await.unwrap();
    hold_idempotency_key(&holder, &digest).await;
    let rex = rex();
    let (held, plain, other) = tokio::join!(
        add_with_key(&service.client, "a", &rex),
        service.client.add("Max", None),
        add_with_key(&service.client, "b", &rex),
    );
    assert_eq!(held.error(), (409, "idempotency_in_progress".into()));
    assert!(plain > 0, "a pet of the same batch is added");
    assert_eq!((other.status, other.is_replayed()), (201, false));
    holder.batch_execute("ROLLBACK").await.unwrap();
    let after = add_with_key(&service.client, "a", &rex).await;
    assert_eq!((after.status, after.is_replayed()), (201, false));
}

/// A request of a client, or a failure.
#[derive(Debug, Clone)]
enum Step {
    /// Sends one of two bodies with one of three keys.
    Send { key: usize, body: usize },
    /// The same, but the connection breaks, perhaps before the answer.
    Lose { key: usize, body: usize },
    /// The node crashes, with its memory, and another one replaces it.
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

/// What the client knows about a key.
#[derive(Debug, Clone, Default)]
struct Knowledge {
    /// The body that was sent and the pet that was answered.
    known: Option<(usize, String)>,
    /// Bodies whose outcome is unknown.
    lost: Vec<usize>,
}

async fn follow_model(steps: Vec<Step>) {
    let first = TestService::start().await;
    let mut node = first.start_another().await;
    let bodies = [json!({"name": "Rex", "categoryId": 1}), json!({"name": "Max", "categoryId": 2})];
    let mut known_keys: HashMap<usize, Knowledge> = HashMap::new();
    for step in &steps {
        match *step {
            Step::Crash => node = first.start_another().await,
            Step::Lose { key, body } => {
                let name = format!("key-{key}");
                let sending = add_with_key(&node.client, &name, &bodies[body]);
                // About the time that an answer takes, so that either may come first.
                let _ = timeout(Duration::from_micros(1_500), sending).await;
                known_keys.entry(key).or_default().lost.push(body);
            }
            Step::Send { key, body } => {
                let answer = add_with_key(&node.client, &format!("key-{key}"), &bodies[body]).await;
                let knowledge = known_keys.entry(key).or_default();
                match (answer.status, &knowledge.known) {
                    (201, Some((known, pet))) => {
                        assert!(*known == body && answer.is_replayed(), "{steps:?}: {answer:?}");
                        assert_eq!(*pet, answer.body, "{steps:?}");
                    }
                    (201, None) => {
                        // A lost attempt with the same body may have been first.
                        assert!(
                            !answer.is_replayed() || knowledge.lost.contains(&body),
                            "{steps:?}: {answer:?}"
                        );
                        knowledge.known = Some((body, answer.body));
                    }
                    (422, Some((known, _))) => assert_ne!(*known, body, "{steps:?}"),
                    (422, None) => {
                        assert!(knowledge.lost.iter().any(|lost| *lost != body), "{steps:?}: {answer:?}");
                    }
                    (other, _) => panic!("{steps:?}: {other} {}", answer.body),
                }
            }
        }
    }
    // A key has added at most one pet, and exactly one if it was answered.
    let used = known_keys.len();
    let known = known_keys.values().filter(|knowledge| knowledge.known.is_some()).count();
    // A lost attempt may still be in progress.
    let database = first.database.connect().await;
    let active = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' \
        AND pid <> pg_backend_pid() AND query LIKE '%INTO pets%'";
    eventually("no attempt is in progress", async || database.query(active, &[]).await.unwrap().is_empty())
        .await;
    let pets = usize::try_from(count_pets(&first.database.connect().await).await).unwrap();
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
async fn the_examples_match_the_page_and_add_a_pet_once_through_an_outage() {
    let page = read("docs/errors.md");
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let allow = async |allowed: bool| {
        let alter = format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allowed}", database.name());
        database.server().await.batch_execute(&alter).await.unwrap();
    };
    let refused = async || {
        let metrics = scrape(service.admin_address).await;
        let series = "http_server_request_duration_seconds_count{";
        let refused = metrics.lines().filter(|line| line.starts_with(series) && line.contains("=\"503\""));
        refused.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    // The environment of the Python SDK, which `make tools` installs.
    let python = Path::new(ROOT).join("target/tools/clients/python/bin");
    let path_with_python = format!("{}:{}", python.display(), std::env::var("PATH").unwrap());
    for example in ["docs/examples/add_pet.py", "docs/examples/add-pet.sh"] {
        let path = Path::new(ROOT).join(example);
        assert!(page.contains(&std::fs::read_to_string(&path).unwrap()), "{example} differs from the page");
        let before = refused().await;
        allow(false).await;
        database.disconnect_all().await;
        let child = Command::new(&path)
            .args(["Rex", "3"])
            .env("PATH", &path_with_python)
            .env("PYTHONPATH", Path::new(ROOT).join("clients/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PETSTORE_URL", format!("http://{}", service.address))
            .env("PETSTORE_KEY", key().reveal())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the first attempt is refused", async || refused().await > before).await;
        allow(true).await;
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{example}: {printed}");
        // Only the last line matters: the last answer.
        assert!(printed.lines().last().unwrap().contains("Rex"), "{example}: {printed}");
    }
    let pets = database.connect().await.query_one("SELECT count(*) FROM pets", &[]).await.unwrap();
    assert_eq!(pets.get::<_, i64>(0), 2);
}
