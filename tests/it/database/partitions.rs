//! The partitions of idempotency keys, one per day: created in advance, even if other work fails, and monitored.

use petstore_storage::{DAYS_AHEAD, SCHEMA_LATEST, migrate};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_postgres::Client as Connection;

use crate::support::metrics::metric;
use crate::support::partitions::{OLD_PARTITION, days, drop_partitions, partition_name, prepared};
use crate::support::postgres::TestDatabase;
use crate::support::program::{ServeProcess, run};
use crate::support::service::TestService;
use crate::support::wait::poll;

async fn wait_for_days(database: &Connection, wanted: usize) {
    poll("days with a partition", async || days(database).await, |days| *days == wanted).await;
}

/// A database without partitions for the coming days. Its old partition cannot be dropped before the returned
/// transaction ends, as during a long `pg_dump`.
async fn with_blocked_partition() -> (TestDatabase, Connection) {
    let database = TestDatabase::new().await;
    let reader = database.connect().await;
    reader.batch_execute(OLD_PARTITION).await.unwrap();
    drop_partitions(&reader, 1).await;
    reader.batch_execute("BEGIN; SELECT FROM idempotency_keys").await.unwrap();
    (database, reader)
}

#[tokio::test]
async fn partitions_are_created_while_something_blocks_dropping_old_ones() {
    let (database, _reader) = with_blocked_partition().await;
    let service = ServeProcess::start(&database.url(), &[]);
    let admin = database.connect().await;
    wait_for_days(&admin, prepared()).await;
    service.wait_for_log("could not drop old partitions").await;
    assert!(!service.log().contains("could not create"), "{}", service.log());
}

#[tokio::test]
async fn the_previous_release_creates_partitions_while_something_blocks_dropping_old_ones() {
    let (database, reader) = with_blocked_partition().await;
    let admin = database.connect().await;
    let as_previous_release = "SELECT turn_idempotency_pages() WHERE pg_try_advisory_xact_lock(7)";
    admin.query(as_previous_release, &[]).await.unwrap();
    assert_eq!(days(&admin).await, prepared());
    let old_exists = async || -> bool {
        let exists = "SELECT to_regclass('idempotency_keys_20200101') IS NOT NULL";
        admin.query_one(exists, &[]).await.unwrap().get(0)
    };
    assert!(old_exists().await, "it is locked");
    reader.batch_execute("COMMIT").await.unwrap();
    admin.query(as_previous_release, &[]).await.unwrap();
    assert!(!old_exists().await);
}

#[tokio::test]
async fn a_missing_partition_answers_503_and_is_created_at_once() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    let pet = json!({"name": "Rex", "categoryId": 1, "status": "available"});
    let id = service.client.add("Max", Some("available")).await;
    for (path, body) in [("/v1/pets", pet), ("/v1/store/orders", json!({"petId": id}))] {
        let mut refused = None;
        // The node creates partitions when it starts, which may be right now.
        for _ in 0..5 {
            drop_partitions(&database, 0).await;
            let answer = service.client.post_with_key(path, "a", &body).await;
            if answer.status != 201 {
                refused = Some(answer);
                break;
            }
            database.batch_execute("DELETE FROM orders; UPDATE pets SET status = 'available'").await.unwrap();
        }
        let refused = refused.unwrap();
        assert_eq!(refused.error(), (503, "unavailable".into()), "{path}");
        assert!(refused.body.contains("nothing was changed"), "{}", refused.body);
        let retry = async || service.client.post_with_key(path, "a", &body).await;
        let answer = poll("the partition is created", retry, |answer| answer.status != 503).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false), "{path}");
        let again = service.client.post_with_key(path, "a", &body).await;
        assert_eq!((again.status, again.is_replayed()), (201, true), "{path}");
        assert_eq!(days(&database).await, prepared());
    }
}

#[tokio::test]
async fn requests_without_an_idempotency_key_succeed_despite_a_missing_partition() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    // No partition can be created.
    let broken = "CREATE OR REPLACE FUNCTION create_idempotency_partitions() RETURNS void LANGUAGE plpgsql AS \
        $$ BEGIN RAISE 'an injected error'; END $$";
    database.batch_execute(broken).await.unwrap();
    drop_partitions(&database, -1).await;
    let mut clients = JoinSet::new();
    for number in 0..64 {
        let client = service.client.clone();
        clients.spawn(async move {
            let body = json!({"name": "Rex", "categoryId": 1});
            match number % 2 {
                0 => (201, client.post("/v1/pets", &body).await.status),
                _ => (503, client.post_with_key("/v1/pets", &number.to_string(), &body).await.status),
            }
        });
    }
    for (expected, status) in clients.join_all().await {
        assert_eq!(status, expected);
    }
}

#[tokio::test]
async fn nodes_can_create_partitions_concurrently() {
    let database = TestDatabase::new().await;
    let admin = database.connect().await;
    for _ in 0..5 {
        drop_partitions(&admin, -1).await;
        let mut nodes = JoinSet::new();
        for _ in 0..8 {
            let node = database.connect().await;
            nodes.spawn(async move { node.execute("SELECT create_idempotency_partitions()", &[]).await });
        }
        for created in nodes.join_all().await {
            created.unwrap();
        }
        assert_eq!(days(&admin).await, prepared());
    }
}

#[tokio::test]
async fn a_detached_partition_is_attached_again_with_its_rows() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    let body = json!({"name": "Rex", "categoryId": 1});
    let first = service.client.post_with_key("/v1/pets", "a", &body).await;
    let today = partition_name(&database, 0).await;
    database.batch_execute(&format!("ALTER TABLE idempotency_keys DETACH PARTITION {today}")).await.unwrap();
    database.execute("SELECT create_idempotency_partitions()", &[]).await.unwrap();
    let again = service.client.post_with_key("/v1/pets", "a", &body).await;
    assert_eq!((again.is_replayed(), &again.body), (true, &first.body));
}

/// PostgreSQL may compare the names of all tables before it looks which are partitions.
#[tokio::test]
async fn old_partitions_are_found_whatever_the_query_plan() {
    let database = TestDatabase::empty().await;
    let admin = database.server().await;
    let plan = format!("ALTER DATABASE {} SET enable_nestloop = off", database.name());
    admin.batch_execute(&plan).await.unwrap();
    migrate(&database.url().into(), SCHEMA_LATEST).await.unwrap();
    let database = database.connect().await;
    database.batch_execute(OLD_PARTITION).await.unwrap();
    let row = "INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
         VALUES (gen_random_uuid(), '2020-01-01', '2020-01-01', gen_random_uuid(), 1)";
    database.batch_execute(row).await.unwrap();
    database.batch_execute("SELECT drop_idempotency_partitions()").await.unwrap();
}

#[tokio::test]
async fn metrics_and_doctor_report_how_many_days_have_partitions() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    let days = async || metric(service.admin_address, "petstore_idempotency_partitions_prepared").await;
    let doctor = || {
        let output = run(&["doctor"], &[("DATABASE_URL", &service.database.url())]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.contains(" partitions ")).unwrap().to_owned()
    };
    for (dropped_from, left) in [(None, f64::from(DAYS_AHEAD + 1)), (Some(1), 1.0), (Some(0), 0.0)] {
        // The node updates the metric every five seconds. On a busy machine, it may create partitions only now, after its start.
        let days_left = async || {
            if let Some(day) = dropped_from {
                drop_partitions(&database, day).await;
            }
            days().await
        };
        poll("days with a partition", days_left, |days| *days == Some(left)).await;
        let line = doctor();
        let expected = if dropped_from.is_none() { "ok " } else { "warning " };
        assert!(line.starts_with(expected) && line.contains(&format!(" {left} ")), "{line}");
    }
    // Only the days before a gap count.
    database.execute("SELECT create_idempotency_partitions()", &[]).await.unwrap();
    let tomorrow = partition_name(&database, 1).await;
    database.batch_execute(&format!("DROP TABLE {tomorrow}")).await.unwrap();
    assert!(doctor().contains(" 1 "), "{}", doctor());
}

#[tokio::test]
async fn old_partitions_are_dropped_and_future_ones_are_created_in_advance() {
    let service = TestService::start().await;
    let database = service.database.connect().await;
    database.batch_execute(OLD_PARTITION).await.unwrap();
    let partitions = async || -> Vec<String> {
        let names = "SELECT relname::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid \
            WHERE inhparent = 'idempotency_keys'::regclass ORDER BY 1";
        database.query(names, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    // A node does so when it starts.
    let _another = service.start_another().await;
    let is_dropped = |names: &Vec<String>| !names.contains(&"idempotency_keys_20200101".to_owned());
    let names = poll("the old partition is dropped", partitions, is_dropped).await;
    assert_eq!(names.len(), 4, "yesterday, today and the next two days");
}
