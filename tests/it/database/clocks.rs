//! A database clock that steps: what was stored under another time is still found, and nothing is dropped early.
//!
//! These tests move stored times instead of the clock. The suite `clocks` moves the clock.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use petstore_config::DatabaseUrl;
use petstore_domain::api_key::ApiKey;
use petstore_storage::{SCHEMA_LATEST, migrate};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client as Connection;
use tokio_postgres::error::SqlState;

use crate::support::folder::Folder;
use crate::support::metrics::metric;
use crate::support::program::{ServeProcess, new_key, run};
use crate::support::wait::eventually;
use crate::support::{Answer, Client, TestDatabase, TestService};

/// Sends a request with an idempotency key, and a body unless the operation has none.
async fn send(client: &Client, path: &str, key: &str, body: Option<&Value>) -> Answer {
    match body {
        Some(body) => client.post_with_key(path, key, body).await,
        None => client.send(Method::POST, path, |request| request.header("idempotency-key", key)).await,
    }
}

/// Moves all idempotency keys to the time that is `offset` from now, as if the clock had shown it when they were stored.
async fn move_keys(database: &Connection, offset: &str) {
    let moved = format!(
        "\
        SET timezone = 'UTC';
        DO $$
        DECLARE
          stored CONSTANT timestamptz := now() + interval '{offset}';
          day CONSTANT date := stored;
        BEGIN
          IF to_regclass(to_char(day, '\"idempotency_keys_\"YYYYMMDD')) IS NULL THEN
            EXECUTE format('CREATE TABLE %s PARTITION OF idempotency_keys FOR VALUES FROM (%L) TO (%L)',
              to_char(day, '\"idempotency_keys_\"YYYYMMDD'), day, day + 1);
          END IF;
          -- In the last minute of a day, a key is also stored for the next day.
          DELETE FROM idempotency_keys AS copy
          USING idempotency_keys AS first
          WHERE first.digest = copy.digest AND first.kept_on < copy.kept_on;
          UPDATE idempotency_keys SET kept_on = day, used_at = stored;
        END $$"
    );
    database.batch_execute(&moved).await.unwrap();
}

#[tokio::test]
async fn a_key_is_found_after_the_clock_stepped_back_by_any_time_or_forward_by_less_than_a_day() {
    let service = TestService::start().await;
    let (client, database) = (&service.client, service.database.connect().await);
    let new = json!({"name": "Rex", "categoryId": 1, "status": "available"});
    for offset in [
        "1 minute",
        "1 hour",
        "1 day",
        "3 days",
        "40 days",
        "-1 minute",
        "-1 hour",
        "-23 hours -59 minutes",
        "-24 hours -50 seconds",
    ] {
        let key = format!("key {offset}").replace(' ', "_");
        let order = async |body| {
            let placed = client.post("/v1/store/orders", &body).await;
            placed.json()["id"].as_i64().unwrap()
        };
        let mut pets = [0; 4];
        for pet in &mut pets {
            *pet = client.add("Rex", Some("available")).await;
        }
        let to_place = json!({"petId": pets[0]});
        let complete = format!("/v1/store/orders/{}/complete", order(json!({"petId": pets[1]})).await);
        let cancel = format!("/v1/store/orders/{}/cancel", order(json!({"petId": pets[2]})).await);
        for (path, body) in [
            ("/v1/pets", Some(&new)),
            ("/v1/store/orders", Some(&to_place)),
            (&complete, None),
            (&cancel, None),
        ] {
            let first = send(client, path, &key, body).await;
            assert!(matches!(first.status, 200 | 201) && !first.is_replayed(), "{path}: {first:?}");
            move_keys(&database, offset).await;
            let again = send(client, path, &key, body).await;
            assert!(again.is_replayed(), "{path}, {offset}: {again:?}");
            assert_eq!(again.body, first.body, "{path}, {offset}");
        }
    }
}

#[tokio::test]
async fn a_key_is_forgotten_24_hours_and_a_minute_after_its_use() {
    let service = TestService::start().await;
    let (client, database) = (&service.client, service.database.connect().await);
    let new = json!({"name": "Rex", "categoryId": 1});
    for offset in ["-24 hours -60 seconds", "-3 days"] {
        let first = client.post_with_key("/v1/pets", offset.split(' ').next().unwrap(), &new).await;
        move_keys(&database, offset).await;
        let again = client.post_with_key("/v1/pets", offset.split(' ').next().unwrap(), &new).await;
        assert!(!again.is_replayed(), "{offset}");
        assert_ne!(again.body, first.body, "{offset}");
    }
}

/// Lets `petstore keys` fail the test unless it succeeds, and returns its output.
fn keys(service: &TestService, arguments: &[&str]) -> String {
    let output = run(&[&["keys"], arguments].concat(), &[("DATABASE_URL", &service.database.url())]);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_key_that_was_rotated_without_an_overlap_does_not_work_again_when_the_clock_is_set_back() {
    let service = TestService::start().await;
    let folder = Folder::new();
    let apply = |digest: &str| {
        let file =
            folder.write("keys.toml", format!("[keys.vault]\nscopes = ['pets:read']\ndigest = '{digest}'\n"));
        keys(&service, &["apply", &file, "--overlap", "0s"])
    };
    let generated: Vec<ApiKey> = (0..2).map(|_| keys(&service, &["generate"]).parse().unwrap()).collect();
    apply(&generated[0].digest().to_string());
    let text = apply(&generated[1].digest().to_string());
    assert!(text.contains("old key         revoked at once\n"), "{text}");
    let rotated: ApiKey = keys(&service, &["create", "--name", "leaked"]).parse().unwrap();
    let successor: ApiKey = keys(&service, &["rotate", "4", "--overlap", "0s"]).parse().unwrap();
    // As if the clock had been set back by an hour.
    let back = "UPDATE api_keys SET created_at = created_at + interval '1 hour', \
        expires_at = expires_at + interval '1 hour', revoked_at = revoked_at + interval '1 hour'";
    service.database.connect().await.batch_execute(back).await.unwrap();
    for (key, status) in [(&generated[0], 401), (&generated[1], 200), (&rotated, 401), (&successor, 200)] {
        // A node that has not seen the key before.
        let node = service.start_another().await;
        assert_eq!(Client::new(node.address, Some(key)).get("/v1/pets").await.status, status);
    }
    for id in ["2", "4"] {
        let shown: Value = serde_json::from_str(&keys(&service, &["show", id, "--json"])).unwrap();
        let actions: Vec<&Value> =
            shown["events"].as_array().unwrap().iter().map(|event| &event["action"]).collect();
        assert_eq!(actions, ["created", "rotated", "revoked"], "{shown}");
        assert_eq!(shown["state"], "revoked");
    }
}

/// The columns of all tables that contain a time, and their types.
async fn time_columns(database: &Connection) -> Vec<(String, String, String)> {
    let columns = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns \
        JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(table_name)) \
        WHERE table_schema = 'public' AND (data_type LIKE 'timestamp%' OR data_type = 'date') AND NOT relispartition \
        ORDER BY 1, 2";
    let rows = database.query(columns, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// Calls whatever reads times, on a node that has seen no key yet.
async fn check_unharmed(service: &TestService, other: &ApiKey, what: &str) {
    let node = service.start_another().await;
    let other = Client::new(node.address, Some(other));
    // Keys that are looked up together share a statement.
    let (ours, others) = tokio::join!(node.client.get("/v1/store/orders"), other.get("/v1/pets"));
    assert_eq!(ours.status, 200, "{what}: {}", ours.body);
    assert!(matches!(others.status, 200 | 401), "{what}: {}", others.body);
    for path in ["/v1/store/orders/1", "/v1/events", "/v1/pets"] {
        let answer = node.client.get(path).await;
        assert_eq!(answer.status, 200, "{what}: {path}: {}", answer.body);
    }
    let new = json!({"name": "Rex", "categoryId": 1});
    assert_eq!(
        node.client.post_with_key("/v1/pets", &what.replace(' ', "_"), &new).await.status,
        201,
        "{what}"
    );
    eventually(what, async || metric(node.admin_address, "petstore_database_up").await == Some(1.0)).await;
    for command in [&["keys", "list"][..], &["keys", "show", "2"], &["doctor"]] {
        let output = run(command, &[("DATABASE_URL", &service.database.url())]);
        assert!(output.status.success(), "{what}: {command:?}: {output:?}");
    }
}

#[tokio::test]
async fn an_extreme_time_in_any_column_is_refused_or_harmless() {
    let service = TestService::start_with(&["--order-hold=1h"]).await;
    let (client, database) = (&service.client, service.database.connect().await);
    let pet = client.add("Rex", Some("available")).await;
    let order = json!({"petId": pet, "holdSeconds": 600});
    assert_eq!(client.post_with_key("/v1/store/orders", "a", &order).await.status, 201);
    let other = new_key(&service.database.url(), &["--expires", "1d"]);
    database.batch_execute("INSERT INTO imported_chunks (source, keys) VALUES ('a', '{1}')").await.unwrap();
    let columns = time_columns(&database).await;
    assert!(columns.len() >= 13, "{columns:?}");
    for is_existing in [false, true] {
        if is_existing {
            // As if it had been stored before there were constraints.
            let drop = "DO $$ DECLARE checked record; BEGIN \
                FOR checked IN SELECT conrelid::regclass AS name, conname FROM pg_constraint \
                  WHERE contype = 'c' AND pg_get_constraintdef(oid) LIKE '%\\_at%' LOOP \
                EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', checked.name, checked.conname); \
                END LOOP; END $$";
            database.batch_execute(drop).await.unwrap();
        }
        for extreme in ["infinity", "-infinity", "294276-12-31 23:59:59Z", "4713-01-01 BC"] {
            let mut changed = Vec::new();
            for (table, column, kind) in &columns {
                // Not the key of this test.
                let rows = if table == "api_keys" { "WHERE id = 2" } else { "" };
                let saved = format!("SELECT quote_nullable({column}) FROM {table} {rows} LIMIT 1");
                let saved: String = database.query_one(&saved, &[]).await.unwrap().get(0);
                let value = if kind == "date" { extreme.trim_end_matches(" 23:59:59Z") } else { extreme };
                let update = |value: &str| format!("UPDATE {table} SET {column} = {value} {rows}");
                match database.batch_execute(&update(&format!("'{value}'"))).await {
                    Ok(()) => changed.push((format!("{table}.{column}"), update(&saved))),
                    // Also if there is no partition for it.
                    Err(refused) => {
                        assert_eq!(refused.code(), Some(&SqlState::CHECK_VIOLATION), "{refused:?}");
                    }
                }
            }
            let names: Vec<&str> = changed.iter().map(|(name, _)| &**name).collect();
            if is_existing {
                assert!(names.len() >= 11, "{names:?}");
            } else {
                assert_eq!(names, ["idempotency_keys.used_at"], "only this one is never shown");
            }
            check_unharmed(&service, &other, &format!("{extreme}-{is_existing}")).await;
            for (_, restore) in changed.iter().rev() {
                database.batch_execute(restore).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn migrate_limits_the_times_that_are_stored_already() {
    let database = TestDatabase::empty().await;
    let url = DatabaseUrl::from(database.url());
    // Before the limits.
    migrate(&url, 14).await.unwrap();
    let client = database.connect().await;
    let extreme = "INSERT INTO api_keys (name, prefix, digest, scopes, expires_at) \
        VALUES ('shop', 'psk_abcdef', sha256('x'), '{}', 'infinity'); \
        INSERT INTO pets (name, category_id) VALUES ('Rex', 1); \
        INSERT INTO orders (pet_id, status, created_at, updated_at) VALUES (1, 'placed', '-infinity', 'infinity')";
    client.batch_execute(extreme).await.unwrap();
    migrate(&url, SCHEMA_LATEST).await.unwrap();
    let row = client
        .query_one(
            "SELECT (api_keys.expires_at AT TIME ZONE 'UTC')::text, (orders.created_at AT TIME ZONE 'UTC')::text, \
               (updated_at AT TIME ZONE 'UTC')::text, revoked_at IS NULL \
             FROM api_keys, orders",
            &[],
        )
        .await
        .unwrap();
    let times: [String; 3] = [0, 1, 2].map(|column| row.get(column));
    assert_eq!(times, ["9999-12-30 22:00:00", "0001-01-01 00:00:00", "9999-12-30 22:00:00"]);
    assert!(row.get::<_, bool>(3));
}

#[tokio::test]
async fn a_successor_lives_exactly_as_long_in_every_time_zone() {
    let service = TestService::start().await;
    let zone = format!("ALTER DATABASE {} SET timezone = 'America/New_York'", service.database.name());
    service.database.server().await.batch_execute(&zone).await.unwrap();
    // At least one of them reaches from summer time to winter time, or back.
    for (id, days) in (2..).step_by(2).zip([60, 120, 180, 240, 300]) {
        keys(&service, &["create", "--name", "shop", "--expires", &format!("{days}d")]);
        let id: i64 = id;
        let exact = "UPDATE api_keys SET expires_at = created_at + $2 * interval '24 hours' WHERE id = $1";
        let database = service.database.connect().await;
        database.execute(exact, &[&id, &f64::from(days)]).await.unwrap();
        keys(&service, &["rotate", &id.to_string(), "--overlap", "1h"]);
        let lifetime = "SELECT (extract(epoch FROM expires_at) - extract(epoch FROM created_at))::float8 \
            FROM api_keys WHERE lineage_id = $1";
        let seconds: f64 = database.query_one(lifetime, &[&id]).await.unwrap().get(0);
        assert!((seconds - f64::from(days) * 86_400.0).abs() < 0.001, "{days} days: {seconds}");
    }
}

#[tokio::test]
async fn the_last_use_of_a_key_is_in_the_time_of_the_database() {
    for minutes in [-600, 600] {
        let clock = Arc::new(move || Timestamp::now() + SignedDuration::from_mins(minutes));
        let service = TestService::start_at(&[], clock).await;
        let database = service.database.connect().await;
        // By a clock that was set back since.
        let future = "UPDATE api_keys SET last_used_at = now() + interval '1 hour'";
        database.batch_execute(future).await.unwrap();
        assert_eq!(service.client.get("/v1/pets").await.status, 200);
        let _database = service.database.clone();
        service.stop().await;
        let age = "SELECT extract(epoch FROM now() - last_used_at)::float8 FROM api_keys";
        let age: f64 = database.query_one(age, &[]).await.unwrap().get(0);
        assert!((0.0..180.0).contains(&age), "{minutes} minutes: {age}");
    }
}

#[tokio::test]
async fn a_key_that_would_expire_after_the_year_9999_is_refused_with_a_clear_message() {
    let database = TestDatabase::new().await;
    let create = |expires: &str| {
        let command = ["keys", "create", "--name", "shop", "--expires", expires];
        let output = run(&command, &[("DATABASE_URL", &database.url())]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(create("9999-12-30").0, Some(0));
    let (code, error) = create("9999-12-31");
    assert!(code == Some(1) && error.contains("the expiry must be at most 9999-12-30"), "{error}");
    let (code, error) = create("3000000d");
    assert!(code == Some(2) && error.contains("must be a duration such as 90d"), "{error}");
    // Its successor, years later.
    let aged = "UPDATE api_keys SET created_at = created_at - interval '100 years' WHERE id = 2";
    database.connect().await.batch_execute(aged).await.unwrap();
    let rotated = run(&["keys", "rotate", "2", "--overlap", "1h"], &[("DATABASE_URL", &database.url())]);
    assert!(rotated.status.success(), "{rotated:?}");
}

/// Drops the partitions of both tables from today on, as after eight days without a service.
async fn drop_all_partitions(database: &Connection) {
    let drop = "DO $$ DECLARE old regclass; BEGIN \
        FOR old IN SELECT inhrelid::regclass FROM pg_inherits \
          WHERE inhparent IN ('events'::regclass, 'idempotency_keys'::regclass) LOOP \
        EXECUTE format('DROP TABLE %s', old); END LOOP; END $$";
    database.batch_execute(drop).await.unwrap();
}

async fn partitions(database: &Connection) -> i64 {
    let count = "SELECT count(*) FROM pg_inherits \
        WHERE inhparent IN ('events'::regclass, 'idempotency_keys'::regclass)";
    database.query_one(count, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn after_days_off_a_node_is_ready_only_when_its_partitions_exist() {
    let service = TestService::start_with(&["--order-hold=1h"]).await;
    let pet = service.client.add("Rex", Some("available")).await;
    let order = json!({"petId": pet, "holdSeconds": 600});
    assert_eq!(service.client.post("/v1/store/orders", &order).await.status, 201);
    let database = service.database.clone();
    service.stop().await;
    let connection = database.connect().await;
    drop_all_partitions(&connection).await;
    let past = "SET session_replication_role = replica; UPDATE orders SET created_at = now() - interval '9 days', \
        updated_at = now() - interval '9 days', expires_at = now() - interval '8 days'";
    connection.batch_execute(past).await.unwrap();

    let doctor = run(&["doctor"], &[("DATABASE_URL", &database.url())]);
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.status.success(), "{text}");
    assert!(text.contains("warning  partitions   partitions are left for 0 days, including today"), "{text}");
    assert_eq!(partitions(&connection).await, 0, "doctor changes nothing");

    let process = ServeProcess::start(&database.url(), &["--order-hold=1h"]);
    assert_eq!(partitions(&connection).await, 13, "they exist before it listens");
    process.wait_for_log("listening").await;
    eventually("the order has expired", async || {
        process.client.get("/v1/store/orders/1").await.json()["status"] == "expired"
    })
    .await;
    assert!(!process.log().contains("could not end orders"), "{}", process.log());
}

#[tokio::test]
async fn migrate_creates_the_partitions_of_the_coming_days() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    drop_all_partitions(&connection).await;
    let migrated = run(&["migrate"], &[("DATABASE_URL", &database.url())]);
    assert!(migrated.status.success(), "{migrated:?}");
    assert_eq!(migrated.stdout, b"the schema is up to date\n");
    assert_eq!(partitions(&connection).await, 13);
}

/// Creates the partitions of a day, and stores a key and an event there.
async fn store_on(database: &Connection, days_from_today: i32) {
    let store = format!(
        "\
        SET timezone = 'UTC';
        DO $$
        DECLARE
          day CONSTANT date := current_date + ({days_from_today});
          parent text;
        BEGIN
          FOREACH parent IN ARRAY ARRAY['idempotency_keys', 'events'] LOOP
            IF to_regclass(parent || to_char(day, '_YYYYMMDD')) IS NULL THEN
              EXECUTE format('CREATE TABLE %s PARTITION OF %s FOR VALUES FROM (%L) TO (%L)',
                parent || to_char(day, '_YYYYMMDD'), parent, day, day + 1);
            END IF;
          END LOOP;
          INSERT INTO idempotency_keys VALUES (gen_random_uuid(), day, day, gen_random_uuid(), 1);
          INSERT INTO events (happened_at, type, pet_id) VALUES (day, 'pet.created', 1);
        END $$"
    );
    database.batch_execute(&store).await.unwrap();
}

/// Drops what is old, and returns which days from today have keys and events left.
async fn days_left(database: &Connection) -> (Vec<i32>, Vec<i32>) {
    let drop = "SELECT drop_idempotency_partitions(), drop_event_partitions(interval '7 days')";
    database.batch_execute(drop).await.unwrap();
    let days = async |query: &str| -> Vec<i32> {
        database.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    let keys = "SELECT DISTINCT kept_on - current_date FROM idempotency_keys ORDER BY 1";
    let events = "SELECT DISTINCT happened_at::date - current_date FROM events ORDER BY 1";
    (days(keys).await, days(events).await)
}

#[tokio::test]
async fn nothing_is_dropped_by_a_clock_that_is_ahead_before_it_has_been_ahead_for_more_than_a_day() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    // Written day by day, until the clock jumped ahead by 40 days.
    for day in [-47, -46, -45, -44, -43, -42] {
        store_on(&connection, day).await;
    }
    let all = |days: &[i32]| days.to_vec();
    let (keys, events) = days_left(&connection).await;
    // The keys of the first days were forgotten before.
    assert_eq!((keys, events), (all(&[-45, -44, -43, -42]), all(&[-47, -46, -45, -44, -43, -42])));
    // Within a minute, it passes a midnight.
    store_on(&connection, -2).await;
    store_on(&connection, -1).await;
    let (keys, events) = days_left(&connection).await;
    assert_eq!((keys, events), (all(&[-43, -42, -2, -1]), all(&[-47, -46, -45, -44, -43, -42, -2, -1])));
    // It was right: a third day has begun.
    store_on(&connection, 0).await;
    assert_eq!(days_left(&connection).await, (all(&[-2, -1, 0]), all(&[-2, -1, 0])));
}

#[tokio::test]
async fn what_is_stored_for_tomorrow_drops_nothing() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    for day in [-42, -1, 0, 1] {
        store_on(&connection, day).await;
    }
    assert_eq!(days_left(&connection).await, (vec![-42, -1, 0, 1], vec![-42, -1, 0, 1]));
}

#[tokio::test]
async fn events_of_a_clock_that_was_behind_are_kept_until_three_more_days_have_events() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    for day in [-13, -5, -4, -3] {
        store_on(&connection, day).await;
    }
    // Written last, by a clock that was years behind.
    store_on(&connection, -2_500).await;
    assert_eq!(days_left(&connection).await.1, [-2_500, -5, -4, -3]);
    for day in [-2, -1] {
        store_on(&connection, day).await;
    }
    assert_eq!(days_left(&connection).await.1, [-2_500, -5, -4, -3, -2, -1]);
    store_on(&connection, 0).await;
    assert_eq!(days_left(&connection).await.1, [-5, -4, -3, -2, -1, 0]);
}

#[tokio::test]
async fn doctor_reports_what_is_dated_in_the_future() {
    let database = TestDatabase::new().await;
    let connection = database.connect().await;
    let doctor = || String::from_utf8(run(&["doctor"], &[("DATABASE_URL", &database.url())]).stdout).unwrap();
    assert!(!doctor().contains("in the future"), "{}", doctor());
    store_on(&connection, 40).await;
    assert!(
        doctor().contains("warning  clock        idempotency keys or events are dated 2"),
        "{}",
        doctor()
    );
}

#[tokio::test]
async fn an_order_gets_more_time_although_the_clock_was_set_back() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let pet = service.client.add("Rex", Some("available")).await;
    let order = json!({"petId": pet, "holdSeconds": 600});
    assert_eq!(service.client.post("/v1/store/orders", &order).await.status, 201);
    let back = "UPDATE orders SET created_at = created_at + interval '1 hour', \
        updated_at = updated_at + interval '1 hour', expires_at = expires_at + interval '1 hour'";
    service.database.connect().await.batch_execute(back).await.unwrap();
    let longer = json!({"holdSeconds": 900}).to_string();
    let answer = service
        .client
        .send(Method::PATCH, "/v1/store/orders/1", |request| {
            request.header("content-type", "application/merge-patch+json").body(longer.clone())
        })
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
