//! `GET /events`: every change is an event, once and in order, for readers that follow the feed.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::io::Write;
use std::process::Stdio;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::events::{EVENTS, follow, from_now, pets, types};
use crate::support::folder::Folder;
use crate::support::program::{petstore, run};
use crate::support::wait::{eventually, poll};
use crate::support::write_requests::ORDERS;
use crate::support::{Answer, Client, TestDatabase, TestService};

async fn place(client: &Client, pet: i64) -> Answer {
    client.post(ORDERS, &json!({"petId": pet})).await
}

async fn end(client: &Client, order: i64, what: &str) -> Answer {
    client.send(Method::POST, &format!("{ORDERS}/{order}/{what}"), |request| request).await
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

    let (events, _) = follow(client, EVENTS, 11).await;
    // An order also changes its pet, in the same transaction.
    assert_eq!(
        types(&events),
        [
            "pet.created",
            "pet.updated",
            "pet.updated",
            "order.placed",
            "order.cancelled",
            "pet.updated",
            "pet.updated",
            "order.placed",
            "order.completed",
            "pet.updated",
            "pet.created"
        ]
    );
    let members = |event: &Value| event.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(members(&events[0]), ["id", "type", "petId", "at"]);
    assert_eq!(members(&events[3]), ["id", "type", "petId", "orderId", "at"]);
    assert_eq!(events[4]["orderId"], orders[0]);
    assert_eq!(events[8]["orderId"], sold);
    assert!(events[..10].iter().all(|event| event["petId"] == pet), "{events:?}");
    let at: jiff::Timestamp = events[0]["at"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs().abs() < 60);
}

#[tokio::test]
async fn changes_in_sql_are_events_too() {
    let service = TestService::start().await;
    let client = &service.client;
    let database = service.database.connect().await;
    for change in [
        "INSERT INTO pets (name, category_id) VALUES ('Rex', 1), ('Max', 1)",
        "UPDATE pets SET name = 'Bello' WHERE id = 1",
        "UPDATE pets SET name = name",
        "INSERT INTO orders (pet_id, status, created_at, updated_at) VALUES (1, 'placed', now(), now())",
        "UPDATE orders SET reference = 'basket'",
        "UPDATE orders SET status = 'completed'",
        "DELETE FROM orders",
        "DELETE FROM pets WHERE id = 2",
        // As many as an import adds at once.
        "INSERT INTO pets (name, category_id) SELECT 'Rex', 1 FROM generate_series(1, 2001)",
    ] {
        database.batch_execute(change).await.unwrap();
    }
    let (events, _) = follow(client, EVENTS, 11).await;
    let short: Vec<(&str, Option<i64>, Option<i64>)> = events
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["petId"].as_i64(), event["lastPetId"].as_i64()))
        .collect();
    assert_eq!(
        short,
        [
            ("pet.created", Some(1), None),
            ("pet.created", Some(2), None),
            ("pet.updated", Some(1), None),
            ("order.placed", Some(1), None),
            ("order.updated", Some(1), None),
            ("order.completed", Some(1), None),
            ("order.deleted", Some(1), None),
            ("pet.deleted", Some(2), None),
            ("pets.imported", Some(3), Some(1_002)),
            ("pets.imported", Some(1_003), Some(2_002)),
            ("pet.created", Some(2_003), None),
        ]
    );
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
async fn a_reader_of_some_types_sees_each_of_their_events_once() {
    let service = TestService::start().await;
    let client = &service.client;
    for number in 0..12 {
        let pet = client.add("Rex", Some("available")).await;
        let order = place(client, pet).await.json()["id"].as_i64().unwrap();
        end(client, order, if number % 2 == 0 { "complete" } else { "cancel" }).await;
    }
    for limit in [1, 5, 100] {
        let from = format!("{EVENTS}?limit={limit}&type=order.completed&type=order.cancelled");
        let (events, next) = follow(client, &from, 12).await;
        let alternating = ["order.completed", "order.cancelled"].repeat(6);
        assert_eq!(types(&events), alternating, "{limit}");
        assert!(next.contains("&type=order.completed&type=order.cancelled&after="), "{next}");
        assert_eq!(client.get(&next).await.body, "[]");
    }
    let unknown = client.get(&format!("{EVENTS}?type=pet.sold")).await;
    assert_eq!(unknown.error(), (400, "invalid_parameter".into()));
    assert!(unknown.json()["message"].as_str().unwrap().contains("must be one of `pet.created`"));
}

#[tokio::test]
async fn a_page_of_some_types_ends_after_a_thousand_events_of_others() {
    let service = TestService::start().await;
    let client = &service.client;
    let database = service.database.connect().await;
    let pets = "INSERT INTO pets (name, category_id, status) SELECT 'Rex', 1, 'available' FROM generate_series(1, 100)";
    for _ in 0..15 {
        database.batch_execute(pets).await.unwrap();
    }
    place(client, 1).await;
    follow(client, EVENTS, 1502).await;
    // It does not wait: there is more.
    let first = client.get(&format!("{EVENTS}?type=order.placed&wait=20")).await;
    assert_eq!(first.body, "[]");
    let second = client.get(first.next().unwrap()).await;
    assert_eq!(second.json()[0]["type"], "order.placed", "{}", second.body);
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
    let insert = "BEGIN; INSERT INTO pets (name, category_id) VALUES ('older', 1)";
    older.batch_execute(insert).await.unwrap();
    let pet = client.add("Rex", None).await;
    let page = client.get(EVENTS).await;
    assert_eq!(page.body, "[]", "a reader that saw the newer event would miss the older one");
    older.batch_execute("COMMIT").await.unwrap();
    let (events, _) = follow(client, page.next().unwrap(), 2).await;
    assert_eq!(pets(&events), [pet - 1, pet]);
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
async fn a_change_waits_for_the_lock_of_its_pet_before_it_has_a_transaction_id() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, ordered) =
        (client.add("Rex", Some("available")).await, client.add("Max", Some("available")).await);
    let order = place(client, ordered).await.json()["id"].as_i64().unwrap();
    let (holder, watch) = (service.database.connect().await, service.database.connect().await);
    for what in ["patch", "place", "complete"] {
        let locked = if what == "complete" { ordered } else { pet };
        holder.batch_execute("BEGIN").await.unwrap();
        let lock = "SELECT pg_advisory_xact_lock(1885697139, hashint8($1))";
        holder.execute(lock, &[&locked]).await.unwrap();
        let change = async || match what {
            "patch" => client.patch_pet(pet, &json!({"name": "Bello"})).await.status,
            "place" => place(client, pet).await.status,
            _ => end(client, order, what).await.status,
        };
        let changes = async || -> Infallible {
            loop {
                // A wait may have ended before it was seen.
                assert_eq!(change().await, 503, "{what} did not wait");
            }
        };
        let waiting = async || {
            let waiting = "SELECT wait_event, backend_xid::text FROM pg_stat_activity \
                WHERE wait_event_type = 'Lock' AND datname = current_database() \
                  AND query NOT LIKE '%pg_relation_size%' LIMIT 1";
            watch.query_opt(waiting, &[]).await.unwrap()
        };
        let row = tokio::select! {
            row = poll("the change waits", waiting, Option::is_some) => row.unwrap(),
            never = changes() => match never {},
        };
        let (wait_event, transaction): (&str, Option<&str>) = (row.get(0), row.get(1));
        assert_eq!((wait_event, transaction), ("advisory", None), "{what}");
        holder.batch_execute("COMMIT").await.unwrap();
    }
}

#[tokio::test]
async fn an_order_waits_for_the_lock_of_its_pet_for_a_second() {
    let service = TestService::start().await;
    let client = &service.client;
    let (pet, ordered) =
        (client.add("Rex", Some("available")).await, client.add("Max", Some("available")).await);
    let order = place(client, ordered).await.json()["id"].as_i64().unwrap();
    let holder = service.database.connect().await;
    holder.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(1885697139, hashint8(id)) FROM pets";
    holder.execute(lock, &[]).await.unwrap();
    // Without the limit, they would wait for as long as a statement may, and fail.
    let placed = client.post_with_key("/v1/store/orders", "place", &json!({"petId": pet})).await;
    assert_eq!(placed.error(), (409, "idempotency_in_progress".into()));
    let path = format!("/v1/store/orders/{order}/complete");
    let ended = client.send(Method::POST, &path, |it| it.header("idempotency-key", "end")).await;
    assert_eq!(ended.error(), (409, "idempotency_in_progress".into()));
}

#[tokio::test]
async fn an_import_from_an_idle_pipe_delays_no_event_and_needs_no_running_node() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    // As after a week without a node.
    connection
        .batch_execute(
            "DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT daily_partitions_before('events', '9999-12-31') \
            LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$",
        )
        .await
        .unwrap();
    let seeded = run(&["seed", "--count", "10"], &[("DATABASE_URL", &database.url())]);
    assert!(seeded.status.success(), "{}", String::from_utf8_lossy(&seeded.stderr));

    let mut import = petstore(&["import", "--atomic", "--format", "ndjson", "-"]);
    import.env("DATABASE_URL", database.url()).stdin(Stdio::piped());
    let mut import = import.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let staged =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%staged%'";
    eventually("the import waits for its input", async || {
        connection.query_one(staged, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND state LIKE 'idle in transaction%'";
    assert_eq!(connection.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 0);
    import.stdin.take().unwrap().write_all(b"{\"name\":\"Rex\",\"categoryId\":1}\n").unwrap();
    let output = import.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events =
        "SELECT sum(coalesce(cardinality(pet_ids), 1))::bigint FROM events WHERE type = 'pet.created'";
    assert_eq!(connection.query_one(events, &[]).await.unwrap().get::<_, i64>(0), 11);
}

#[tokio::test]
async fn an_import_is_one_event_per_thousand_pets() {
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
    // The second chunk of each has exactly a thousand, which is not more than a thousand.
    let (mut events, mut next) = (Vec::new(), format!("{EVENTS}?limit=100"));
    while events.len() < 2_010 {
        let (page, after) = follow(&service.client, &next, 1).await;
        events.extend(page);
        next = after;
    }
    let ranges: Vec<(i64, i64)> = events
        .iter()
        .filter(|event| event["type"] == "pets.imported")
        .map(|event| (event["petId"].as_i64().unwrap(), event["lastPetId"].as_i64().unwrap()))
        .collect();
    let expected = [0, 6_000].into_iter().flat_map(|from| (0..5).map(move |n| from + n * 1_000));
    assert_eq!(ranges, expected.map(|before| (before + 1, before + 1_000)).collect::<Vec<_>>());
    let single: Vec<i64> = events
        .iter()
        .filter(|event| event["type"] == "pet.created")
        .filter_map(|event| event["petId"].as_i64())
        .collect();
    assert_eq!(single, (5_001..=6_000).chain(11_001..=12_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_newest_events_are_printed_for_people() {
    let service = TestService::start().await;
    let client = &service.client;
    for name in ["Ada", "Bea", "Rex"] {
        client.add(name, Some("available")).await;
    }
    assert_eq!(place(client, 3).await.status, 201);
    follow(client, EVENTS, 5).await;
    let printed = run(&["events", "--last", "2"], &[("DATABASE_URL", &service.database.url())]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let printed = String::from_utf8(printed.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().map(|line| line.split_once("Z  ").unwrap().1).collect();
    assert_eq!(lines, ["pet.updated      pet 3", "order.placed     pet 3  order 1"]);
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

#[tokio::test]
async fn an_event_of_a_pet_with_an_impossible_id_does_not_stop_the_feed() {
    let service = TestService::start().await;
    let client = &service.client;
    let first = client.add("Rex", None).await;
    let odd = "INSERT INTO pets (id, name, category_id) OVERRIDING SYSTEM VALUE VALUES (-1, 'Odd', 1), (0, 'Odd', 1)";
    service.database.connect().await.batch_execute(odd).await.unwrap();
    let last = client.add("Max", None).await;
    for from in [EVENTS, "/v1/events?limit=1", "/v1/events?type=pet.created"] {
        let (events, _) = follow(client, from, 2).await;
        let pets: Vec<i64> = events.iter().map(|event| event["petId"].as_i64().unwrap()).collect();
        assert_eq!(pets, [first, last], "{from}");
    }
}

#[tokio::test]
async fn each_page_says_how_long_the_oldest_event_that_is_not_shown_yet_has_waited() {
    let service = TestService::start().await;
    let client = &service.client;
    let lag = |page: &Answer| page.header("petstore-feed-lag").parse::<f64>().unwrap();
    let start = from_now(client).await;
    let holder = service.database.connect().await;
    holder.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    client.add("Rex", None).await;
    let held = poll("the event waits", async || client.get(&start).await, |page| lag(page) > 0.1).await;
    assert_eq!(held.body, "[]", "it is committed, and not shown");
    let again = client.get_with_header(&start, "if-none-match", held.header("etag")).await;
    assert_eq!((again.status, lag(&again) >= lag(&held)), (304, true));
    let waited = client.get(&format!("{start}&wait=1")).await;
    assert!(waited.body == "[]" && lag(&waited) > 1.0, "{waited:?}");
    holder.batch_execute("COMMIT").await.unwrap();
    let shown = poll("the event is shown", async || client.get(&start).await, |page| page.body != "[]").await;
    assert_eq!(shown.header("petstore-feed-lag"), "0.000");
}
