//! `/events`: every change is an event, once and in order, for readers that follow the feed.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::folder::Folder;
use crate::support::metrics::wait_for_metric;
use crate::support::program::{new_key, run};
use crate::support::wait::{PROMPTLY, eventually};
use crate::support::{Answer, Client, TestService};

const EVENTS: &str = "/v1/events";
const ORDERS: &str = "/v1/store/orders";

/// Reads the feed from this URL on until it has this many events, and returns them with the next URL. Transactions of other
/// tests hold the feed back for a while.
async fn follow(client: &Client, from: &str, wanted: usize) -> (Vec<Value>, String) {
    let (mut events, mut next) = (Vec::new(), from.to_owned());
    let started = Instant::now();
    while events.len() < wanted {
        assert!(started.elapsed() < Duration::from_mins(1), "only {} of {wanted} events", events.len());
        let page = client.get(&next).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let items = page.json().as_array().unwrap().clone();
        next = page.next().unwrap().to_owned();
        if items.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        events.extend(items);
    }
    (events, next)
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn place(client: &Client, pet: i64) -> Answer {
    client.post(ORDERS, &json!({"petId": pet})).await
}

async fn end(client: &Client, order: i64, what: &str) -> Answer {
    client.send(Method::POST, &format!("{ORDERS}/{order}/{what}"), |request| request).await
}

/// Waits until a request waits for an event.
async fn wait_for_waiting_request(service: &TestService) {
    wait_for_metric(service.admin_address, "petstore_waiting_requests", 1.0).await;
}

/// The URL of what happens from now on.
async fn from_now(client: &Client) -> String {
    let page = client.get(&format!("{EVENTS}?after=now")).await;
    assert_eq!((page.status, page.body.as_str()), (200, "[]"));
    page.next().unwrap().to_owned()
}

#[tokio::test]
async fn every_change_is_an_event() {
    let service = TestService::start().await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    assert_eq!(client.patch_pet(pet, &json!({"name": "Max"})).await.status, 200);
    assert_eq!(client.patch_pet(pet, &json!({"name": "Max"})).await.status, 200, "changes nothing");
    let orders = [place(client, pet).await.json()["id"].as_i64().unwrap()];
    assert_eq!(end(client, orders[0], "cancel").await.status, 200);
    assert_eq!(end(client, orders[0], "cancel").await.status, 200, "changes nothing");
    let sold = place(client, pet).await.json()["id"].as_i64().unwrap();
    assert_eq!(end(client, sold, "complete").await.status, 200);
    let body = json!({"name": "Tom", "categoryId": 1});
    for _ in 0..2 {
        assert_eq!(client.post_with_key("/v1/pets", "once", &body).await.status, 201);
    }

    let (events, _) = follow(client, EVENTS, 7).await;
    assert_eq!(
        types(&events),
        [
            "pet.created",
            "pet.updated",
            "order.placed",
            "order.cancelled",
            "order.placed",
            "order.completed",
            "pet.created"
        ]
    );
    let members = |event: &Value| event.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(members(&events[0]), ["id", "type", "petId", "keyId", "at"]);
    assert_eq!(members(&events[2]), ["id", "type", "petId", "orderId", "keyId", "at"]);
    assert_eq!(events[3]["orderId"], orders[0]);
    assert_eq!(events[5]["orderId"], sold);
    assert!(events[..6].iter().all(|event| event["petId"] == pet && event["keyId"] == 1), "{events:?}");
    let at: jiff::Timestamp = events[0]["at"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs().abs() < 60);
}

#[tokio::test]
async fn a_reader_sees_each_event_once_whatever_the_size_of_its_pages() {
    let service = TestService::start().await;
    let client = &service.client;
    let mut adding = JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        adding.spawn(async move {
            for _ in 0..5 {
                client.add("Rex", None).await;
            }
        });
    }
    adding.join_all().await;
    for limit in [1, 7, 100] {
        let (events, next) = follow(client, &format!("{EVENTS}?limit={limit}"), 40).await;
        let pets: HashSet<i64> = events.iter().map(|event| event["petId"].as_i64().unwrap()).collect();
        assert_eq!((events.len(), pets.len()), (40, 40));
        assert_eq!(client.get(&next).await.body, "[]");
        // The id of an event is also a position.
        let (rest, _) =
            follow(client, &format!("{EVENTS}?after={}", events[37]["id"].as_str().unwrap()), 2).await;
        assert_eq!(rest[..], events[38..]);
    }
}

#[tokio::test]
async fn an_empty_page_says_where_to_go_on_and_is_not_sent_again() {
    let service = TestService::start().await;
    let client = &service.client;
    let empty = client.get(EVENTS).await;
    assert_eq!((empty.status, empty.body.as_str()), (200, "[]"));
    for from in [EVENTS.to_owned(), empty.next().unwrap().to_owned(), from_now(client).await] {
        let page = client.get(&from).await;
        let again = client.get_with_header(&from, "if-none-match", page.header("etag")).await;
        assert_eq!((again.status, again.next()), (304, page.next()), "{from}");
    }
    let from = from_now(client).await;
    let tag = client.get(&from).await.header("etag").to_owned();
    client.add("Rex", None).await;
    eventually("the page changes", async || {
        client.get_with_header(&from, "if-none-match", &tag).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn an_event_is_not_shown_before_those_of_older_transactions() {
    let service = TestService::start().await;
    let client = &service.client;
    let older = service.database.connect().await;
    older
        .batch_execute("BEGIN; INSERT INTO events (type, pet_id) VALUES ('pet.created', 1000)")
        .await
        .unwrap();
    let pet = client.add("Rex", None).await;
    let page = client.get(EVENTS).await;
    assert_eq!(page.body, "[]", "a reader that saw the newer event would miss the older one");
    older.batch_execute("COMMIT").await.unwrap();
    let (events, _) = follow(client, page.next().unwrap(), 2).await;
    assert_eq!(events.iter().map(|event| event["petId"].as_i64().unwrap()).collect::<Vec<_>>(), [1000, pet]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_events_of_a_pet_are_in_the_order_of_their_effects() {
    let service = TestService::start().await;
    let client = &service.client;
    let mut pets = Vec::new();
    for _ in 0..2 {
        pets.push(client.add("Rex", Some("available")).await);
    }
    // Changes of a pet are recorded one after another: each holds the row.
    let database = service.database.connect().await;
    database
        .batch_execute(
            "CREATE TABLE effects (place bigint GENERATED ALWAYS AS IDENTITY, pet_id bigint, xid xid8); \
             CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO effects (pet_id, xid) VALUES (NEW.id, pg_current_xact_id()); RETURN NULL; END $$; \
             CREATE TRIGGER record AFTER UPDATE ON pets FOR EACH ROW EXECUTE FUNCTION record()",
        )
        .await
        .unwrap();
    let mut workers = JoinSet::new();
    for worker in 0..16_usize {
        let (client, pet) = (client.clone(), pets[worker % 2]);
        workers.spawn(async move {
            let mut ended = 0;
            for _ in 0..40 {
                let placed = place(&client, pet).await;
                if placed.status == 201 {
                    assert_eq!(
                        end(&client, placed.json()["id"].as_i64().unwrap(), "cancel").await.status,
                        200
                    );
                    ended += 1;
                }
                let renamed = client.patch_pet(pet, &json!({"name": format!("Rex {worker} {ended}")})).await;
                assert_eq!(renamed.status, 200, "{}", renamed.body);
            }
            ended
        });
    }
    let sold: usize = workers.join_all().await.into_iter().sum();
    let inverted = "SELECT count(*), count(*) FILTER (WHERE xid < before) FROM ( \
        SELECT xid, lag(xid) OVER (PARTITION BY pet_id ORDER BY place) AS before FROM effects) AS pairs";
    let row = database.query_one(inverted, &[]).await.unwrap();
    let (effects, inverted): (i64, i64) = (row.get(0), row.get(1));
    assert!(effects >= 640, "{effects}");
    assert_eq!(inverted, 0, "of {effects} effects");
    assert!(sold >= 20, "{sold}");
    let (events, next) = follow(client, &format!("{EVENTS}?limit=100"), 2 + 2 * sold).await;
    let mut events = events;
    events.extend(follow(client, &next, 0).await.0);
    let mut open: BTreeMap<i64, i64> = BTreeMap::new();
    for event in &events {
        let pet = event["petId"].as_i64().unwrap();
        match event["type"].as_str().unwrap() {
            "order.placed" => {
                let before = open.insert(pet, event["orderId"].as_i64().unwrap());
                assert_eq!(before, None, "an order was placed while another was open: {event}");
            }
            "order.cancelled" => {
                assert_eq!(open.remove(&pet), event["orderId"].as_i64(), "{event}");
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_waiting_request_is_answered_when_something_happens() {
    let service = TestService::start().await;
    let client = &service.client;
    let from = from_now(client).await;
    let waiting = tokio::spawn({
        let (client, from) = (client.clone(), format!("{from}&wait=25"));
        async move { client.get(&from).await }
    });
    wait_for_waiting_request(&service).await;
    let pet = client.add("Rex", None).await;
    let page = waiting.await.unwrap();
    assert_eq!(page.json()[0]["petId"], pet);
    assert!(page.next().unwrap().contains("wait=25"), "{:?}", page.next());

    let started = Instant::now();
    let from = from_now(client).await;
    assert_eq!(client.get(&format!("{from}&wait=1")).await.body, "[]");
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_waiting_request_ends_when_the_service_stops() {
    let service = TestService::start().await;
    let client = service.client.clone();
    let from = from_now(&client).await;
    let waiting = tokio::spawn(async move { client.get(&format!("{from}&wait=25")).await });
    wait_for_waiting_request(&service).await;
    let started = Instant::now();
    service.stop().await;
    let page = waiting.await.unwrap();
    assert_eq!((page.status, page.body.as_str(), page.header("connection")), (200, "[]", "close"));
    assert!(started.elapsed() < PROMPTLY, "it does not wait for 25 seconds");
}

#[tokio::test]
async fn a_key_that_is_revoked_meanwhile_gets_no_events() {
    let service = TestService::start().await;
    let url = service.database.url();
    let key = new_key(&url, &[]);
    let client = Client::new(service.address, Some(&key));
    let from = from_now(&client).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(&format!("{from}&wait=25")).await }
    });
    wait_for_waiting_request(&service).await;
    assert!(run(&["keys", "revoke", "2"], &[("DATABASE_URL", &url)]).status.success());
    eventually("the key is refused", async || client.get("/v1/pets").await.status == 401).await;
    service.client.add("Rex", None).await;
    assert_eq!(waiting.await.unwrap().error(), (401, "invalid_api_key".into()));
}

#[tokio::test]
async fn each_key_has_a_share_of_the_waiting_requests() {
    let service = TestService::start_with(&["--max-requests=4"]).await;
    let client = &service.client;
    let from = from_now(client).await;
    let waiting = tokio::spawn({
        let (client, from) = (client.clone(), from.clone());
        async move { client.get(&format!("{from}&wait=25")).await }
    });
    wait_for_waiting_request(&service).await;
    assert_eq!(client.get(&format!("{from}&wait=1")).await.error(), (503, "unavailable".into()));
    client.add("Rex", None).await;
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_position_whose_events_are_gone_is_refused() {
    let service = TestService::start().await;
    let client = &service.client;
    client.add("Rex", None).await;
    let (_, next) = follow(client, EVENTS, 1).await;
    let database = service.database.connect().await;
    // As if the retention had passed.
    database.batch_execute("UPDATE event_feed SET kept_since = now() + interval '1 hour'").await.unwrap();
    assert_eq!(client.get(&next).await.error(), (410, "cursor_expired".into()));
    assert_eq!(client.get(&format!("{next}&wait=1")).await.error(), (410, "cursor_expired".into()));
    assert_eq!(client.get(EVENTS).await.status, 200);
    database.batch_execute("UPDATE event_feed SET kept_since = now() - interval '1 day'").await.unwrap();
    assert_eq!(client.get(&next).await.status, 200);

    database.batch_execute("SELECT start_event_epoch()").await.unwrap();
    assert_eq!(client.get(&next).await.error(), (410, "cursor_expired".into()));
    let pet = client.add("Tom", None).await;
    let (events, _) = follow(client, EVENTS, 1).await;
    assert_eq!(events[0]["petId"], pet);
}

#[tokio::test]
async fn a_restored_dump_starts_a_new_feed_by_itself() {
    let service = TestService::start().await;
    let client = &service.client;
    client.add("Rex", None).await;
    let (_, next) = follow(client, EVENTS, 1).await;
    let database = service.database.connect().await;
    // The events have the transaction ids of another database.
    database
        .batch_execute("UPDATE event_feed SET origin = 'another'; UPDATE events SET xid = '999999999'")
        .await
        .unwrap();
    eventually("the feed is prepared", async || client.get(EVENTS).await.status == 200).await;
    assert_eq!(client.get(EVENTS).await.body, "[]");
    assert_eq!(client.get(&next).await.error(), (410, "cursor_expired".into()));
}

#[tokio::test]
async fn old_partitions_are_dropped_whole() {
    let service = TestService::start_with(&["--event-retention=3"]).await;
    let database = service.database.connect().await;
    let days = async || -> i64 {
        let count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass";
        database.query_one(count, &[]).await.unwrap().get(0)
    };
    assert_eq!(days().await, 9, "yesterday, today and the next seven days");
    for day in 2..8 {
        let create = format!(
            "CREATE TABLE events_' || to_char((now() AT TIME ZONE 'UTC')::date - {day}, 'YYYYMMDD') || ' PARTITION OF events \
             FOR VALUES FROM (''' || date_trunc('day', now(), 'UTC') - {day} * interval '1 day' || ''') \
             TO (''' || date_trunc('day', now(), 'UTC') - ({day} - 1) * interval '1 day' || ''')"
        );
        let create: String = database.query_one(&format!("SELECT '{create}'"), &[]).await.unwrap().get(0);
        database.batch_execute(&create).await.unwrap();
    }
    let kept_since = "SELECT extract(epoch FROM date_trunc('day', now(), 'UTC') - kept_since)::float8 / 86400 FROM event_feed";
    database.batch_execute("UPDATE event_feed SET kept_since = '2020-01-01'").await.unwrap();
    let drop = "SELECT drop_event_partitions(interval '3 days')";
    database.query_one(drop, &[]).await.unwrap();
    assert_eq!(days().await, 12, "three more days, and one because transactions may begin before older ones");
    let age: f64 = database.query_one(kept_since, &[]).await.unwrap().get(0);
    assert!((age - 3.0).abs() < 0.01, "{age}");
}

#[tokio::test]
async fn an_import_is_one_event_per_chunk() {
    let service = TestService::start().await;
    let folder = Folder::new();
    let lines = (0..6_000)
        .fold(String::new(), |lines, n| lines + &format!("{{\"name\":\"Pet {n}\",\"categoryId\":1}}\n"));
    let file = folder.write("pets.ndjson", lines);
    let url = service.database.url();
    for flags in [&["import"][..], &["import", "--atomic"]] {
        let imported = run(&[flags, &[&file]].concat(), &[("DATABASE_URL", &url)]);
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    }
    let (events, _) = follow(&service.client, EVENTS, 4).await;
    let ranges: Vec<(i64, i64)> = events
        .iter()
        .map(|event| (event["petId"].as_i64().unwrap(), event["lastPetId"].as_i64().unwrap()))
        .collect();
    assert_eq!(ranges, [(1, 5_000), (5_001, 6_000), (6_001, 11_000), (11_001, 12_000)]);
    assert!(events.iter().all(|event| event["type"] == "pets.imported" && event.get("keyId").is_none()));
}

#[tokio::test]
async fn the_newest_events_are_printed_for_people() {
    let service = TestService::start().await;
    let client = &service.client;
    for name in ["Ada", "Bea", "Rex"] {
        client.add(name, Some("available")).await;
    }
    assert_eq!(place(client, 3).await.status, 201);
    follow(client, EVENTS, 4).await;
    let printed = run(&["events", "--last", "2"], &[("DATABASE_URL", &service.database.url())]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let printed = String::from_utf8(printed.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().map(|line| line.split_once("Z  ").unwrap().1).collect();
    assert_eq!(lines, ["pet.created      pet 3  key 1", "order.placed     pet 3  order 1  key 1"]);
}

#[tokio::test]
async fn the_feed_needs_its_own_scope() {
    let service = TestService::start().await;
    let client = service.client_with_new_key(&["--scope", "pets:read", "--scope", "orders:write"]);
    assert_eq!(client.get(EVENTS).await.error(), (403, "insufficient_scope".into()));
    let client = service.client_with_new_key(&["--scope", "events:read"]);
    assert_eq!(client.get(EVENTS).await.status, 200);
}

#[tokio::test]
async fn what_is_not_a_position_or_a_duration_is_refused() {
    let service = TestService::start().await;
    for query in [
        "after=",
        "after=AQAAAAAAAAAU",
        "after=Now",
        "wait=26",
        "wait=-1",
        "wait=1s",
        "limit=0",
        "after=now&after=now",
    ] {
        let answer = service.client.get(&format!("{EVENTS}?{query}")).await;
        assert_eq!(answer.error(), (400, "invalid_parameter".into()), "{query}");
    }
    let answer = service.client.get(&format!("{EVENTS}?cursor=AQAAAAAAAAAU")).await;
    assert_eq!(answer.error(), (400, "unknown_parameter".into()));
}
