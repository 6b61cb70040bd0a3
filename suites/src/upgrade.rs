//! Upgrades from the previous release, rolls back and upgrades again, under load behind HAProxy and with a reader of the feed:
//! no request may fail, and every pet that was added since the migration must be in the feed once, whichever version added it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::Outcome;
use crate::events::follow;
use crate::http::Connection;
use crate::rolling::{Balancer, Node, send};
use crate::tools::{PETSTORE, database_url, new_key, output, psql};

/// Two nodes behind a load balancer, and a third for the reader.
#[derive(Args)]
pub(crate) struct Upgrade {
    /// The program of the previous release; see scripts/previous-release.
    #[arg(long)]
    previous: String,
    /// Requests per second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
}

impl Upgrade {
    pub(crate) async fn run(self) -> Outcome {
        let (url, previous) = (database_url()?, self.previous.as_str());
        output(previous, &["migrate", "--database-url", &url])?;
        psql(
            &url,
            "INSERT INTO pets (name, category_id) SELECT 'Pet ' || n, 1 FROM generate_series(1, 1000) n",
        )?;
        let create = ["keys", "create", "--name", "old", "--database-url", &url];
        let key = output(previous, &create)?.trim().to_owned();
        let mut nodes = [Node::start_version(previous, &url)?, Node::start_version(previous, &url)?];
        let balancer = Balancer::start(&nodes)?;
        let done = Arc::new(AtomicBool::new(false));
        let clients = tokio::spawn(send(balancer.address, key, self.rate, done.clone()));
        sleep(Duration::from_secs(2)).await;

        let started = Instant::now();
        output(PETSTORE, &["migrate", "--database-url", &url])?;
        println!(
            "migrated in {:.1} s while nodes of the previous release write",
            started.elapsed().as_secs_f64()
        );
        let reading_node = Node::start(&url)?;
        let reader_key = new_key(&url)?;
        let position = position(&reading_node, &reader_key).await?;
        // Pets with a later id were added after the position.
        let last_before: i64 = psql(&url, "SELECT last_value FROM pets_id_seq")?.trim().parse()?;
        let (count, (stop, stopped)) = (Arc::new(AtomicU64::new(0)), watch::channel(false));
        let addresses = vec![reading_node.address()];
        let reader = tokio::spawn(follow(addresses, reader_key, Some(position), count.clone(), stopped));

        let mut running = [previous; 2];
        for (what, programs) in [
            ("only the previous release", [previous, previous]),
            ("one node upgraded", [PETSTORE, previous]),
            ("both nodes upgraded", [PETSTORE, PETSTORE]),
            ("one node rolled back", [previous, PETSTORE]),
            ("both nodes rolled back", [previous, previous]),
            ("one node upgraded again", [previous, PETSTORE]),
            ("both nodes upgraded again", [PETSTORE, PETSTORE]),
        ] {
            for (number, program) in programs.into_iter().enumerate() {
                if running[number] != program {
                    nodes[number].restart(program, &url).await?;
                    running[number] = program;
                }
            }
            sleep(Duration::from_secs(2)).await;
            println!("{what}: {} events read", count.load(Ordering::Relaxed));
        }
        done.store(true, Ordering::Release);
        clients.await?.check(&url)?;

        let added = format!("SELECT id FROM pets WHERE id > {last_before} ORDER BY id");
        let added: Vec<i64> = psql(&url, &added)?.lines().map(str::parse).collect::<Result<_, _>>()?;
        let deadline = Instant::now() + Duration::from_mins(1);
        while count.load(Ordering::Relaxed) < added.len() as u64 {
            if Instant::now() > deadline {
                return Err("the reader did not get all events within a minute".into());
            }
            sleep(Duration::from_millis(200)).await;
        }
        stop.send_replace(true);
        let record = reader.await??;
        let mut seen: BTreeMap<i64, u32> = BTreeMap::new();
        for (event, _) in record.events.iter().filter(|(event, _)| event.pet_id > last_before) {
            if event.kind != "pet.created" {
                return Err(format!("an unexpected event: {event:?}").into());
            }
            *seen.entry(event.pet_id).or_default() += 1;
        }
        if seen.values().any(|times| *times != 1) || !seen.keys().eq(added.iter()) {
            return Err(format!("{} pets were added, and {} are in the feed", added.len(), seen.len()).into());
        }
        println!("{} pets were added by both versions; each is in the feed once", added.len());
        drop((nodes, reading_node));
        write_without_partitions(previous, &url).await
    }
}

/// The position at the end of the feed.
async fn position(node: &Node, key: &str) -> Outcome<String> {
    let mut connection = Connection::open(node.address(), key).await?;
    // Pets are added all the time, so the oldest event that is kept is a position, too.
    let (status, body) = connection.send("GET", "/v1/events?limit=1&wait=20", "").await?;
    let id = body.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    id.map(ToOwned::to_owned).ok_or_else(|| format!("the feed answered {status}: {body}").into())
}

/// As more than a week after a rollback: the previous release prepares the partitions of events, which it does not know.
async fn write_without_partitions(previous: &str, url: &str) -> Outcome {
    psql(
        url,
        "DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT daily_partitions_before('events', '9999-12-31') \
           LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$",
    )?;
    let key = new_key(url)?;
    let node = Node::start_version(previous, url)?;
    let mut connection = Connection::open(node.address(), &key).await?;
    let started = Instant::now();
    loop {
        let (status, body) = connection.send("POST", "/v1/pets", r#"{"name":"late","categoryId":1}"#).await?;
        if status == 201 {
            break;
        }
        // It prepares them in the background when it starts.
        if started.elapsed() > Duration::from_secs(10) {
            return Err(format!("the previous release answered {status} without partitions: {body}").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    println!("the previous release created the missing partitions of events");
    Ok(())
}
