//! The metrics at `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::metrics::{scrape, value, wait_for_metric};
use crate::support::postgres::TestDatabase;
use crate::support::program::ServeProcess;
use crate::support::repository::read;
use crate::support::service::TestService;
use crate::support::wait::poll;

/// The names of metrics, without the suffixes of histograms.
fn names(metrics: &str) -> BTreeSet<String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_request_is_measured_by_its_route_method_and_status() {
    let service = TestService::start().await;
    for path in ["/v1/pets?limit=1", "/v1/pets?limit=2", "/v1/pets?limit=0", "/v1/pets/1"] {
        service.client.get(path).await;
    }
    let metrics = scrape(service.admin_address).await;
    let requests = |route: &str, status: u16| {
        let labels = format!(
            "http_route=\"{route}\",http_request_method=\"GET\",http_response_status_code=\"{status}\""
        );
        value(&metrics, &format!("http_server_request_duration_seconds_count{{{labels}}}"))
    };
    assert_eq!(requests("/v1/pets", 200), Some(2.0), "{metrics}");
    assert_eq!(requests("/v1/pets", 400), Some(1.0));
    assert_eq!(requests("/v1/pets/{petId}", 404), Some(1.0));
    assert!(!metrics.contains("http_route=\"/metrics\""), "scrapes are not client requests");
}

#[tokio::test]
async fn a_client_cannot_create_new_series() {
    let service = TestService::start().await;
    for number in 0..20 {
        service.client.get(&format!("/v1/{number}")).await;
        let method = format!("METHOD{number}").parse().unwrap();
        service.client.send(method, "/v1/pets", |request| request).await;
    }
    let metrics = scrape(service.admin_address).await;
    let series =
        metrics.lines().filter(|line| line.starts_with("http_server_request_duration_seconds_count"));
    assert_eq!(series.count(), 2, "{metrics}");
}

#[tokio::test]
async fn key_lookups_rate_limits_batches_and_the_pool_are_counted() {
    let service = TestService::start_with(&["--default-rate-limit", "3/h"]).await;
    for _ in 0..5 {
        service.client.get("/v1/pets").await;
    }
    // A starting node uses connections for its own work, too.
    let idle = |metrics: &String| value(metrics, "db_client_connections{state=\"used\"}") == Some(0.0);
    let metrics = poll("no connection is used", async || scrape(service.admin_address).await, idle).await;
    for (series, expected) in [
        ("petstore_key_lookups_total{outcome=\"hit\"}", 4.0),
        ("petstore_requests_rate_limited_total", 2.0),
        ("petstore_batch_size_count{queue=\"list_pets\"}", 3.0),
        ("db_client_connection_max", 16.0),
        ("db_client_connections{state=\"used\"}", 0.0),
        ("petstore_requests_shed_total{reason=\"requests\"}", 0.0),
        ("petstore_database_errors_total{kind=\"deadline\"}", 0.0),
    ] {
        assert_eq!(value(&metrics, series), Some(expected), "{series}\n{metrics}");
    }
    assert!(value(&metrics, "db_client_connections{state=\"idle\"}").unwrap() >= 1.0);
}

#[tokio::test]
async fn a_request_that_waits_too_long_in_its_queue_is_counted() {
    // Much longer than a request may wait in its queue.
    let service = TestService::start_with(&["--database-timeout", "6s"]).await;
    let blocker = service.database.connect().await;
    blocker.batch_execute("BEGIN; LOCK TABLE pets IN SHARE MODE").await.unwrap();
    let add = || {
        let client = service.client.clone();
        async move { client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await.status }
    };
    let mut adding = JoinSet::new();
    // As many batches as may be in progress at the same time.
    for batches in [1.0, 2.0] {
        adding.spawn(add());
        let series = "petstore_batch_size_count{queue=\"insert_pet\"}";
        wait_for_metric(service.admin_address, series, batches).await;
    }
    adding.spawn(add());
    assert_eq!(adding.join_all().await, [503; 3]);
    let metrics = scrape(service.admin_address).await;
    for (reason, expected) in [("late", 1.0), ("queue", 0.0)] {
        let series = format!("petstore_requests_shed_total{{reason=\"{reason}\"}}");
        assert_eq!(value(&metrics, &series), Some(expected), "{series}");
    }
}

#[tokio::test]
async fn each_event_is_counted_once_by_its_type() {
    let service = TestService::start_with(&["--order-hold=168h"]).await;
    let client = &service.client;
    let pet = client.add("Rex", Some("available")).await;
    client.patch_pet(pet, &json!({"name": "Max"})).await;
    client.patch_pet(pet, &json!({"name": "Max"})).await;
    let duplicate = client.add("Rex", None).await;
    for _ in 0..2 {
        client.send(Method::DELETE, &format!("/v1/pets/{duplicate}"), |request| request).await;
    }
    let held = client.add("Ada", Some("available")).await;
    client.post("/v1/store/orders", &json!({"petId": held, "holdSeconds": 1})).await;
    for end in ["cancel", "complete"] {
        let order = client.post("/v1/store/orders", &json!({"petId": pet})).await.json();
        let path = format!("/v1/store/orders/{}/{end}", order["id"]);
        for _ in 0..2 {
            let answer = client.send(Method::POST, &path, |request| request).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }
    let counted = async || {
        let metrics = scrape(service.admin_address).await;
        [
            "pet.created",
            "pet.updated",
            "pet.deleted",
            "order.placed",
            "order.completed",
            "order.cancelled",
            "order.expired",
            "pets.imported",
        ]
        .map(|event| value(&metrics, &format!("petstore_events_total{{type=\"{event}\"}}")))
    };
    poll("the held order expires", counted, |counts| counts[6] > Some(0.0)).await;
    assert_eq!(counted().await, [3.0, 7.0, 1.0, 3.0, 1.0, 1.0, 1.0, 0.0].map(Some));
}

#[tokio::test]
async fn pets_are_estimated_by_status() {
    let service = TestService::start().await;
    service.database.add_pets(40).await;
    service.database.connect().await.batch_execute("ANALYZE pets").await.unwrap();
    let estimates = async || {
        let metrics = scrape(service.admin_address).await;
        let of = |status| value(&metrics, &format!("petstore_pets_estimated{{status=\"{status}\"}}"));
        ["available", "pending", "sold", "none"].map(of)
    };
    poll("10 pets of each status", estimates, |found| *found == [Some(10.0); 4]).await;
}

#[tokio::test]
async fn the_estimated_pets_follow_the_table_between_two_analyses() {
    let service = TestService::start().await;
    let session = service.database.connect().await;
    session.batch_execute("ALTER TABLE pets SET (autovacuum_enabled = off)").await.unwrap();
    service.database.add_pets(2_000).await;
    session.batch_execute("ANALYZE pets").await.unwrap();
    service.database.add_pets(6_000).await;
    let estimate = async || {
        let metrics = scrape(service.admin_address).await;
        value(&metrics, "petstore_pets_estimated{status=\"sold\"}")
    };
    // To within the last page, and shorter names.
    poll("about 2,000 sold pets", estimate, |sold| sold.is_some_and(|sold| (sold - 2_000.0).abs() < 100.0))
        .await;
}

#[tokio::test]
async fn the_next_key_that_expires_is_known_except_for_revoked_and_rotated_ones() {
    let service = TestService::start().await;
    let session = service.database.connect().await;
    let expiry =
        async || value(&scrape(service.admin_address).await, "petstore_keys_next_expiry_timestamp_seconds");
    poll("no key expires", expiry, |next| *next == Some(0.0)).await;
    session
        .batch_execute(
            "INSERT INTO api_keys (id, name, prefix, digest, scopes, expires_at, revoked_at, lineage_id)
             OVERRIDING SYSTEM VALUE VALUES
               (101, 'expired', '', sha256('101'), '{}', now() - interval '1 day', NULL, NULL),
               (102, 'revoked', '', sha256('102'), '{}', now() + interval '1 day', now(), NULL),
               (103, 'rotated', '', sha256('103'), '{}', now() + interval '2 days', NULL, NULL),
               (104, 'rotated', '', sha256('104'), '{}', now() + interval '3 days', NULL, 103),
               (105, 'current', '', sha256('105'), '{}', '2100-01-02 00:00Z', NULL, 103),
               (106, 'another', '', sha256('106'), '{}', '2100-01-01 00:00Z', NULL, NULL)",
        )
        .await
        .unwrap();
    poll("a key expires in 2100", expiry, |next| *next == Some(4_102_444_800.0)).await;
    // Without its successor, a rotated key is the last of its lineage again.
    session.batch_execute("UPDATE api_keys SET revoked_at = now() WHERE id IN (105, 106)").await.unwrap();
    poll("key 104 is next", expiry, |next| next.is_some_and(|next| next > 0.0 && next < 4_102_444_800.0))
        .await;
}

/// The names in the table of docs/monitoring.md, except those of the process.
fn documented() -> BTreeSet<String> {
    let page = read("docs/monitoring.md");
    let table = &page[page.find("| metric | labels |").unwrap()..];
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).filter(|name| name != "process_…").collect()
}

/// A service on two servers, which has the metrics of a cluster, too.
fn serve_with_two_servers(database: &TestDatabase) -> ServeProcess {
    let url = database.url();
    let address = url.split(['@', '/']).nth(3).unwrap();
    ServeProcess::start(&url.replacen('@', &format!("@{address},"), 1), &[])
}

#[tokio::test]
async fn the_page_on_monitoring_lists_exactly_the_metrics_that_exist() {
    let database = TestDatabase::new().await;
    let service = serve_with_two_servers(&database);
    service.client.post("/v1/pets", &json!({"name": "Rex", "categoryId": 1})).await;
    service.client.get("/v1/pets/1").await;
    database.connect().await.batch_execute("ANALYZE pets").await.unwrap();
    let documented = documented();
    // Some are measured every few seconds only.
    let found = async || {
        let mut found = names(&scrape(service.admin_address).await);
        found.retain(|name| !name.starts_with("process_"));
        found
    };
    poll(&format!("the metrics are {documented:?}"), found, |found| *found == documented).await;
}

/// The type of each metric, and its labels with their values, except for values that differ between two runs.
fn shapes(metrics: &str) -> String {
    let mut labels: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        for label in rest.rsplit_once('}').unwrap().0.split("\",") {
            let (label, value) = label.split_once("=\"").unwrap();
            let differs = matches!(label, "server" | "version" | "commit");
            let value = if differs { "…" } else { value.trim_end_matches('"') };
            let values = labels.entry(name).or_default().entry(label).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut text = String::new();
    for line in types.collect::<BTreeSet<_>>() {
        writeln!(text, "{line}").unwrap();
        for (label, values) in labels.get_mut(line.split(' ').next().unwrap()).into_iter().flatten() {
            // The bounds of buckets are in their order.
            if *label != "le" {
                values.sort_unstable();
            }
            writeln!(text, "  {label}: {}", values.join(" ")).unwrap();
        }
    }
    text
}

#[tokio::test]
async fn dashboards_find_the_same_metrics_types_labels_and_buckets() {
    let database = TestDatabase::new().await;
    let service = serve_with_two_servers(&database);
    let client = &service.client;
    for end in ["complete", "cancel"] {
        let pet = client.add("Rex", Some("available")).await;
        client.patch_pet(pet, &json!({"name": "Max"})).await;
        let order = client.post("/v1/store/orders", &json!({"petId": pet})).await.json()["id"].clone();
        client.get(&format!("/v1/store/orders/{order}")).await;
        client.send(Method::POST, &format!("/v1/store/orders/{order}/{end}"), |request| request).await;
        client.get(&format!("/v1/pets/{pet}")).await;
    }
    for path in ["/v1/pets", "/v1/pets/0", "/v1/store/orders", "/v1/events", "/v1/nothing"] {
        client.get(path).await;
        client.send(Method::DELETE, path, |request| request).await;
        client.without_key().get(path).await;
    }
    for path in ["/openapi.json", "/docs", "/docs/page.js", "/docs/quickstart"] {
        client.send(Method::HEAD, path, |request| request).await;
    }
    client.send(Method::OPTIONS, "/v1/pets", |request| request).await;
    client.send(Method::TRACE, "/v1/pets", |request| request).await;
    database.add_pets(40).await;
    database.connect().await.batch_execute("ANALYZE pets").await.unwrap();
    // Some are measured every few seconds only, and those of the pets one after the other.
    let found = async || scrape(service.admin_address).await;
    let is_complete = |metrics: &String| {
        names(metrics).is_superset(&documented())
            && ["available", "pending", "sold", "none"]
                .iter()
                .all(|status| metrics.contains(&format!("petstore_pets_estimated{{status=\"{status}\"}}")))
    };
    let metrics = poll("all metrics are measured", found, is_complete).await;
    insta::assert_snapshot!("metrics", shapes(&metrics));
}
