//! A cluster with synchronous replication: reads outlive the primary, and never miss an acknowledged write.

use std::time::{Duration, Instant};

use petstore_domain::api_key::ApiKey;
use serde_json::json;
use tokio_postgres::types::PgLsn;

use crate::support::Client;
use crate::support::metrics::metric;
use crate::support::postgres::connect;
use crate::support::private_postgres::PrivatePostgres;
use crate::support::program::ServeProcess;
use crate::support::wait::eventually;

/// A primary and two standbys, of which one must have a write before it is acknowledged.
struct Servers {
    primary: PrivatePostgres,
    standbys: [PrivatePostgres; 2],
    key: ApiKey,
}

impl Servers {
    async fn start() -> Self {
        let (primary, key) = PrivatePostgres::start_with_key();
        let standbys = ["s1", "s2"].map(|name| primary.start_standby(name));
        for server in [&primary, &standbys[0], &standbys[1]] {
            let names = format!(r#"ANY 1 ("{}", "{}")"#, standbys[0].name(), standbys[1].name());
            let session = connect(&server.url).await;
            session
                .batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"))
                .await
                .unwrap();
            session.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        }
        Self { primary, standbys, key }
    }

    fn url(&self) -> String {
        let [one, two] = &self.standbys;
        // A standby comes first: the primary must be found.
        let addresses = [one, &self.primary, two].map(PrivatePostgres::address).join(",");
        format!("postgresql://postgres@{addresses}/postgres?target_session_attrs=read-write")
    }

    /// Starts a node, and waits until it knows that reads are proven.
    async fn serve(&self, flags: &[&str]) -> (ServeProcess, Client) {
        let service = ServeProcess::start(&self.url(), flags);
        let client = Client::new(service.address, Some(&self.key));
        assert_eq!(client.get("/v1/pets").await.status, 200);
        let admin = Client::new(service.admin_address, None);
        eventually("proven reads", async || {
            admin.get("/metrics").await.body.contains("petstore_database_reads_proven 1")
        })
        .await;
        (service, client)
    }

    /// Makes the standby that has more the primary, lets the other one follow it, and returns the new primary.
    async fn fail_over(&self) -> &PrivatePostgres {
        let [one, two] = &self.standbys;
        let mut received = Vec::new();
        for standby in [one, two] {
            follow(standby, "").await;
            let session = connect(&standby.url).await;
            eventually("the standby receives nothing", async || {
                session.query("SELECT FROM pg_stat_wal_receiver", &[]).await.unwrap().is_empty()
            })
            .await;
            let row = session.query_one("SELECT pg_last_wal_receive_lsn()", &[]).await.unwrap();
            received.push(row.get::<_, PgLsn>(0));
        }
        // A standby can follow only a server that has all that it has itself.
        let (new, other) = if received[0] >= received[1] { (one, two) } else { (two, one) };
        new.promote();
        follow(other, &format!("{}?application_name={}", new.url, other.name())).await;
        new
    }
}

/// Lets a standby follow another server, or none.
async fn follow(standby: &PrivatePostgres, address: &str) {
    let session = connect(&standby.url).await;
    session.batch_execute(&format!("ALTER SYSTEM SET primary_conninfo = '{address}'")).await.unwrap();
    session.batch_execute("SELECT pg_reload_conf()").await.unwrap();
}

/// The name of a pet that every list begins with.
async fn first_name(client: &Client) -> Result<String, u16> {
    let answer = client.get("/v1/pets").await;
    if answer.status == 200 {
        Ok(answer.json()[0]["name"].as_str().unwrap().into())
    } else {
        Err(answer.status)
    }
}

/// Waits until a pet can be created: until the service has found the new primary, and that has a standby.
async fn create_eventually(client: &Client, name: &str) {
    eventually("a write on the new primary", async || {
        client.post("/v1/pets", &json!({"name": name, "categoryId": 1})).await.status == 201
    })
    .await;
}

#[tokio::test]
async fn reads_outlive_the_primary_and_writes_find_the_next_one() {
    let servers = Servers::start().await;
    let (service, client) = servers.serve(&[]).await;
    client.add("Rex", None).await;
    servers.primary.stop("immediate");
    eventually("a read without a primary", async || first_name(&client).await.is_ok()).await;
    for _ in 0..20 {
        assert_eq!(first_name(&client).await, Ok("Rex".into()));
    }
    let refused = client.post("/v1/pets", &json!({"name": "Ada", "categoryId": 1})).await;
    assert_eq!(refused.status, 503);
    // Keys are read from the standbys as well.
    let unknown = Client::new(service.address, Some(&ApiKey::generate(|| 7)));
    assert_eq!(unknown.get("/v1/pets").await.status, 401);

    servers.fail_over().await;
    create_eventually(&client, "Ada").await;
    let answer = client.get("/v1/pets").await;
    assert_eq!((answer.status, &answer.json()[1]["name"]), (200, &json!("Ada")), "{}", answer.body);
}

#[tokio::test]
async fn a_reader_of_the_events_goes_on_after_a_failover() {
    for reads in ["primary", "quorum"] {
        let servers = Servers::start().await;
        let (_service, client) = servers.serve(&["--reads", reads]).await;
        for name in ["Ada", "Bea", "Rex"] {
            client.add(name, None).await;
        }
        let mut reader = Reader { client: &client, next: "/v1/events?limit=2".to_owned(), pets: Vec::new() };
        reader.read(3).await;
        servers.primary.stop("immediate");
        assert_eq!(
            client.get(&reader.next).await.status,
            503,
            "nobody knows what the next primary will have"
        );
        servers.fail_over().await;
        create_eventually(&client, "Tom").await;
        let pets = client.get("/v1/pets?limit=100").await.ids();
        reader.read(pets.len()).await;
        assert_eq!(reader.pets, pets, "--reads {reads}");
    }
}

/// Reads the events of new pets, from page to page.
struct Reader<'a> {
    client: &'a Client,
    next: String,
    pets: Vec<i64>,
}

impl Reader<'_> {
    /// Reads until it has the events of this many pets, however long that takes.
    async fn read(&mut self, wanted: usize) {
        while self.pets.len() < wanted {
            let page = self.client.get(&format!("{}&wait=1", self.next)).await;
            if page.status == 200 {
                let events = page.json().as_array().unwrap().clone();
                self.pets.extend(events.iter().map(|event| event["petId"].as_i64().unwrap()));
                self.next = page.next().unwrap().replace("&wait=1", "");
            }
        }
    }
}

#[tokio::test]
async fn the_metrics_are_true_of_the_primary_and_of_its_absence_also_with_reads_from_standbys() {
    let servers = Servers::start().await;
    let (service, client) = servers.serve(&["--reads", "quorum"]).await;
    client.add("Rex", None).await;
    let expect = async |up: f64, standbys: f64| {
        let what = format!("up {up} and {standbys} standbys");
        eventually(&what, async || {
            let of = async |name| metric(service.admin_address, name).await;
            of("petstore_database_up").await == Some(up)
                && of("petstore_database_standbys").await == Some(standbys)
        })
        .await;
    };
    expect(1.0, 2.0).await;
    servers.primary.stop("immediate");
    expect(0.0, 0.0).await;
    assert_eq!(first_name(&client).await, Ok("Rex".into()));
    servers.fail_over().await;
    expect(1.0, 1.0).await;
}

#[tokio::test]
async fn a_former_primary_that_lives_on_is_not_read() {
    let servers = Servers::start().await;
    let (_service, client) = servers.serve(&[]).await;
    client.add("before", None).await;
    let new = connect(&servers.fail_over().await.url).await;
    for round in 0..20 {
        let name = format!("after {round}");
        // Acknowledged by the new primary and its standby.
        new.execute("UPDATE pets SET name = $1", &[&name]).await.unwrap();
        let found = first_name(&client).await;
        assert!(found == Ok(name) || found == Err(503), "{found:?}");
    }
    assert_eq!(first_name(&client).await, Ok("after 19".into()));
    create_eventually(&client, "Ada").await;
}

#[tokio::test]
async fn what_a_former_primary_knows_of_a_pet_refuses_no_order_and_no_change() {
    let servers = Servers::start().await;
    let (_service, client) = servers.serve(&[]).await;
    let pet = client.add("Rex", Some("available")).await;
    let order = json!({"petId": pet});
    assert_eq!(client.post("/v1/store/orders", &order).await.status, 201);
    let new = connect(&servers.fail_over().await.url).await;
    // On the former primary, which lives on, the order is open. Its end is acknowledged by the new primary and its standby.
    let end = "UPDATE orders SET status = 'cancelled'; UPDATE pets SET status = 'available'";
    new.batch_execute(end).await.unwrap();
    eventually("the pet is changed and ordered", async || {
        let changed = client.patch_pet(pet, &json!({"status": "available"})).await;
        assert!(matches!(changed.status, 200 | 503), "{}", changed.body);
        // With a key: the outcome of an attempt may be unknown.
        let placed = client.post_with_key("/v1/store/orders", "basket", &order).await;
        let waits = placed.status == 503 || placed.body.contains("idempotency_in_progress");
        assert!(placed.status == 201 || waits, "{}", placed.body);
        placed.status == 201
    })
    .await;
}

#[tokio::test]
async fn a_standby_that_has_not_replayed_everything_is_not_read() {
    let servers = Servers::start().await;
    let (_service, client) = servers.serve(&[]).await;
    let [one, two] = &servers.standbys;
    for standby in [one, two] {
        connect(&standby.url).await.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    }
    client.add("Rex", None).await;
    assert_eq!(first_name(&client).await, Ok("Rex".into()), "from the primary");
    servers.primary.stop("immediate");
    for _ in 0..3 {
        assert_eq!(first_name(&client).await, Err(503));
    }
    for standby in [one, two] {
        connect(&standby.url).await.batch_execute("SELECT pg_wal_replay_resume()").await.unwrap();
    }
    eventually("a read from a standby", async || first_name(&client).await.is_ok()).await;
    assert_eq!(first_name(&client).await, Ok("Rex".into()));

    two.stop("fast");
    eventually("too few servers", async || first_name(&client).await == Err(503)).await;
    two.start_again();
    // Restarted, it may have more than it reports, until it has replayed that and asks for more.
    for _ in 0..3 {
        let found = first_name(&client).await;
        assert!(found == Ok("Rex".into()) || found == Err(503), "{found:?}");
    }
}

#[tokio::test]
async fn with_reads_quorum_standbys_are_read_and_the_primary_only_if_one_is_missing() {
    let servers = Servers::start().await;
    let (service, client) = servers.serve(&["--reads", "quorum"]).await;
    client.add("Rex", None).await;
    let reads = async |source: &str| {
        let series = format!(r#"petstore_database_reads_total{{source="{source}"}}"#);
        metric(service.admin_address, &series).await.unwrap()
    };
    // On a busy machine, a standby may take too long to report: then it is not asked for a while.
    let most_come_from = async |source: &str| {
        let what = format!("45 of 50 reads from {source}");
        eventually(&what, async || {
            let before = reads(source).await;
            for _ in 0..50 {
                assert_eq!(first_name(&client).await, Ok("Rex".into()));
            }
            reads(source).await >= before + 45.0
        })
        .await;
    };
    most_come_from("standby").await;
    servers.standbys[1].stop("fast");
    most_come_from("primary").await;
}

#[tokio::test]
async fn a_key_revoked_on_the_new_primary_is_refused_within_5_seconds() {
    let servers = Servers::start().await;
    let (_service, client) = servers.serve(&[]).await;
    // The former primary lives on, with the connection that listens for changes.
    let new = connect(&servers.fail_over().await.url).await;
    new.execute("UPDATE api_keys SET revoked_at = now()", &[]).await.unwrap();
    let revoked = Instant::now();
    loop {
        let sent = revoked.elapsed();
        match client.get("/v1/pets").await.status {
            401 => break,
            status => assert!(sent < Duration::from_secs(5), "{status} to a request sent after {sent:?}"),
        }
    }
}
