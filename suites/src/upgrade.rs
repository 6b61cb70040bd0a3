//! Upgrades from the previous release, rolls back and upgrades again, under load behind HAProxy and with a reader of the feed:
//! no request may fail, and every pet that was added since the migration must be in the feed once, whichever version added it.

use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::sleep;

use crate::Outcome;
use crate::history::feed::Reader;
use crate::http::Connection;
use crate::rolling::Traffic;
use crate::topology::{Balancer, Node, PETSTORE, database_url, new_key, output, psql};
use crate::workload::none_of;

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
        let traffic = Traffic::start(&url, balancer.address, &key, self.rate)?;
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
        let reader = Reader::start(&[reading_node.address()], &reader_key, 100, Some(position));

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
            println!("{what}: {} events read", reader.count());
        }
        let (load, mut problems) = traffic.finish(&url).await?;
        // All but that of its position, which is the oldest.
        let stored = reader.catch_up(&url, 1).await?;
        let reading = reader.stop().await?;
        problems.extend(reading.problems(&stored, false));
        problems.extend(reading.differences(&load.journal(&url)?, last_before));
        none_of(&problems)?;
        println!("both versions added pets: each is in the feed once, in {} events", reading.events.len());
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
