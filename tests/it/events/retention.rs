//! How long events are kept, and what makes a reader's position expire.

use std::process::Command;

use serde_json::Value;

use crate::support::events::{EVENTS, follow, from_now, pets};
use crate::support::folder::Folder;
use crate::support::metrics::metric;
use crate::support::program::{ServeProcess, run};
use crate::support::wait::{eventually, poll};
use crate::support::{TestDatabase, TestService};

/// Creates the partition of a day in the past, unless it exists, and stores an event of this pet there.
async fn add_past_event(database: &tokio_postgres::Client, days_ago: i32, pet: i64) {
    let statements = "SELECT format('CREATE TABLE IF NOT EXISTS events_%s PARTITION OF events FOR VALUES FROM (%L) TO (%L); \
        INSERT INTO events (type, pet_id, happened_at) VALUES (''pet.created'', %s, %L)', \
        to_char(day, 'YYYYMMDD'), day, day + 1, $2::bigint, day) \
        FROM (SELECT (now() AT TIME ZONE 'UTC')::date - $1::int AS day) AS past";
    let statements: String = database.query_one(statements, &[&days_ago, &pet]).await.unwrap().get(0);
    database.batch_execute(&format!("SET timezone = 'UTC'; {statements}")).await.unwrap();
}

async fn drop_older_than(database: &tokio_postgres::Client, days: i32) {
    let drop = "SELECT drop_event_partitions($1 * interval '1 day')";
    database.query_one(drop, &[&f64::from(days)]).await.unwrap();
}

async fn partitions(database: &tokio_postgres::Client) -> i64 {
    let count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass";
    database.query_one(count, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn old_partitions_are_dropped_whole_and_never_those_of_yesterday_or_later() {
    let service = TestService::start_with(&["--event-retention=60"]).await;
    let client = &service.client;
    let database = service.database.connect().await;
    assert_eq!(partitions(&database).await, 9, "yesterday, today and the next seven days");
    for days_ago in (0..8).rev() {
        add_past_event(&database, days_ago, 1).await;
    }
    drop_older_than(&database, 3).await;
    assert_eq!(partitions(&database).await, 13, "and the four days before yesterday");
    let (events, next) = follow(client, EVENTS, 6).await;
    assert_eq!(events.len(), 6);
    // A clock that was ahead, or an operator's mistake.
    drop_older_than(&database, -3_650).await;
    assert_eq!(
        partitions(&database).await,
        11,
        "the two days before yesterday have not been old for three days"
    );
    assert_eq!(client.get(&next).await.body, "[]", "nothing after it was dropped");
}

#[tokio::test]
async fn the_oldest_event_that_is_kept_can_be_followed_however_old_the_database_is() {
    let service = TestService::start_with(&["--event-retention=60"]).await;
    let client = &service.client;
    let database = service.database.connect().await;
    // A month and more, one event per day, the oldest first.
    for (pet, days_ago) in (1..).zip((0..=34).rev()) {
        add_past_event(&database, days_ago, pet).await;
    }
    let (before, _) = follow(client, &format!("{EVENTS}?limit=100"), 35).await;
    drop_older_than(&database, 30).await;
    let (after, next) = follow(client, &format!("{EVENTS}?limit=7"), 33).await;
    // The next two days have not been old for three days.
    assert_eq!(pets(&after), (3..=35).collect::<Vec<_>>(), "two days were dropped");
    assert_eq!(client.get(&next).await.body, "[]");

    let position = |event: &Value| format!("{EVENTS}?after={}", event["id"].as_str().unwrap());
    assert_eq!(client.get(&position(&before[0])).await.error(), (410, "cursor_expired".into()));
    let waiting = format!("{}&wait=1", position(&before[0]));
    assert_eq!(client.get(&waiting).await.error(), (410, "cursor_expired".into()));
    // The last one that was dropped: nothing after it is missing.
    let (followed, _) = follow(client, &position(&before[1]), 33).await;
    assert_eq!(followed, after);
}

#[tokio::test]
async fn a_reader_with_nothing_to_read_keeps_its_position_however_long_it_waits() {
    let service = TestService::start_with(&["--event-retention=60"]).await;
    let client = &service.client;
    let database = service.database.connect().await;
    add_past_event(&database, 40, 1).await;
    let (_, after_the_only_event) = follow(client, EVENTS, 1).await;
    let now = from_now(client).await;
    drop_older_than(&database, 30).await;
    for position in [&after_the_only_event, &now] {
        assert_eq!(client.get(position).await.body, "[]", "{position}");
    }
    let pet = client.add("Rex", None).await;
    for position in [&after_the_only_event, &now] {
        assert_eq!(pets(&follow(client, position, 1).await.0), [pet], "{position}");
    }
    // No other event was written on two later days, so it may be the clock that is wrong.
    assert_eq!(pets(&follow(client, EVENTS, 2).await.0), [1, pet]);
}

#[tokio::test]
async fn an_event_that_was_written_days_before_its_transaction_committed_is_shown() {
    let service = TestService::start_with(&["--event-retention=60"]).await;
    let client = &service.client;
    let database = service.database.connect().await;
    client.add("Rex", None).await;
    let (_, next) = follow(client, EVENTS, 1).await;
    add_past_event(&database, 3, 1000).await;
    assert_eq!(pets(&follow(client, &next, 1).await.0), [1000]);
}

#[tokio::test]
async fn a_new_epoch_expires_every_position() {
    let service = TestService::start().await;
    let client = &service.client;
    client.add("Rex", None).await;
    let (_, next) = follow(client, EVENTS, 1).await;
    service.database.connect().await.batch_execute("SELECT start_event_epoch()").await.unwrap();
    assert_eq!(client.get(&next).await.error(), (410, "cursor_expired".into()));
    let pet = client.add("Tom", None).await;
    assert_eq!(pets(&follow(client, EVENTS, 1).await.0), [pet]);
}

#[tokio::test]
async fn a_new_epoch_is_logged_measured_and_explained_by_doctor() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let started = async || {
        metric(service.admin_address, "petstore_event_feed_started_timestamp_seconds").await.unwrap_or(0.0)
    };
    eventually("the epoch is known", async || started().await > 0.0).await;
    let before = started().await;
    let connection = database.connect().await;
    connection.batch_execute("SELECT start_event_epoch('a test wants it')").await.unwrap();
    service.wait_for_log("event feed restarted: every reader gets 410").await;
    assert!(service.log().contains("a test wants it"));
    assert!(started().await > before);
    let doctor =
        async || String::from_utf8(run(&["doctor"], &[("DATABASE_URL", &database.url())]).stdout).unwrap();
    let text = doctor().await;
    assert!(text.contains("warning  events       recorded without a gap since "), "{text}");
    assert!(text.contains(", when a test wants it: readers from before get 410\n"), "{text}");
    connection.batch_execute("ALTER TABLE orders DISABLE TRIGGER orders_record_update").await.unwrap();
    let text = doctor().await;
    assert!(text.contains("FAILURE  events       7 of 8 triggers that record events are enabled"), "{text}");
}

#[tokio::test]
async fn a_truncated_table_expires_every_position() {
    let service = TestService::start().await;
    let client = &service.client;
    for truncate in ["TRUNCATE orders", "TRUNCATE pets CASCADE"] {
        client.add("Rex", None).await;
        let (_, next) = follow(client, EVENTS, 1).await;
        service.database.connect().await.batch_execute(truncate).await.unwrap();
        assert_eq!(client.get(&next).await.error(), (410, "cursor_expired".into()), "{truncate}");
        assert_eq!(client.get(EVENTS).await.body, "[]", "{truncate}");
    }
}

#[tokio::test]
async fn a_dump_that_is_restored_into_the_same_database_expires_every_position() {
    let service = TestService::start().await;
    let client = &service.client;
    client.add("Rex", None).await;
    let (_, next) = follow(client, EVENTS, 1).await;
    let url = service.database.url();
    let dump = Command::new("pg_dump").arg(&url).output().unwrap();
    assert!(dump.status.success());
    client.add("lost", None).await;
    let database = service.database.connect().await;
    database.batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await.unwrap();
    let folder = Folder::new();
    let file = folder.write("dump.sql", String::from_utf8(dump.stdout).unwrap());
    let restored =
        Command::new("psql").args([&url, "--quiet", "--set", "ON_ERROR_STOP=1", "--file", &file]).output();
    assert!(restored.unwrap().status.success());
    eventually("the feed is prepared", async || client.get(EVENTS).await.status == 200).await;
    // Each connection that knows the dropped tables fails once.
    let position =
        poll("the position is read", async || client.get(&next).await, |answer| answer.status != 503).await;
    assert_eq!(position.error(), (410, "cursor_expired".into()));
    let first =
        poll("the feed is read", async || client.get(EVENTS).await, |answer| answer.status != 503).await;
    assert_eq!(first.body, "[]");
}
