//! Upgrades from the previous release, rolls back and upgrades again, under load behind HAProxy and with a reader of the feed:
//! no request may fail, and every pet that was added since the migration must be in the feed once, whichever version added it. A
//! mirror that is built after the last upgrade must equal the table in the end.
//! Before the rollback, clients use references, holds and metadata, which the previous release may not know: it must read their
//! pets and orders, change and complete them, and keep what it does not know.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::chaos::SHOP;
use crate::history::feed::Reader;
use crate::http::Connection;
use crate::sdk_mirror::NewMirror;
use crate::topology::{
    BEHIND_BALANCER, Balancer, Node, PETSTORE, Server, database_url, new_key, output, psql,
};
use crate::workload::{Load, none_of};

/// Two nodes behind a load balancer, and a third for the reader.
#[derive(Args)]
pub(crate) struct Upgrade {
    /// The program of the previous release; see scripts/previous-release.
    #[arg(long)]
    previous: String,
    /// The program of this release, such as that of a package.
    #[arg(long, default_value = PETSTORE)]
    current: String,
    /// Requests per second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
}

impl Upgrade {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let (previous, current) = (self.previous.as_str(), self.current.as_str());
        for program in [previous, current] {
            println!("{program}: {}", output(program, &["--version"])?.trim());
        }
        output(previous, &["migrate", "--database-url", &url])?;
        psql(
            &url,
            "INSERT INTO pets (name, category_id) SELECT 'Pet ' || n, 1 FROM generate_series(1, 1000) n",
        )?;
        let create = ["keys", "create", "--name", "old", "--database-url", &url];
        let key = output(previous, &create)?.trim().to_owned();
        let mut nodes =
            [Node::start(previous, &url, BEHIND_BALANCER)?, Node::start(previous, &url, BEHIND_BALANCER)?];
        let balancer = Balancer::start(&nodes)?;
        let traffic = Traffic::start(&url, balancer.address, &key, self.rate)?;
        sleep(Duration::from_secs(2)).await;

        let started = Instant::now();
        output(current, &["migrate", "--database-url", &url])?;
        println!(
            "migrated in {:.1} s while nodes of the previous release write",
            started.elapsed().as_secs_f64()
        );
        let reading_node = Node::start(current, &url, BEHIND_BALANCER)?;
        let reader_key = new_key(&url)?;
        let position = position(&reading_node, &reader_key).await?;
        // Pets with a later id were added after the position.
        let last_before: i64 = psql(&url, "SELECT last_value FROM pets_id_seq")?.trim().parse()?;
        let reader = Reader::start(&[reading_node.address], &reader_key, 100, Some(position));

        let mut running = [previous; 2];
        let mut held = None;
        for (what, programs) in [
            ("only the previous release", [previous, previous]),
            ("one node upgraded", [current, previous]),
            ("both nodes upgraded", [current, current]),
            ("one node rolled back", [previous, current]),
            ("both nodes rolled back", [previous, previous]),
            ("one node upgraded again", [previous, current]),
            ("both nodes upgraded again", [current, current]),
        ] {
            for (number, program) in programs.into_iter().enumerate() {
                if running[number] != program {
                    nodes[number].restart(program, &url).await?;
                    running[number] = program;
                }
            }
            sleep(Duration::from_secs(2)).await;
            println!("{what}: {} events read", reader.count());
            match held {
                None if programs == [current; 2] => {
                    held = Some(Held::order(current, &url, &reader_key).await?);
                }
                None => {}
                Some(held) => {
                    held.check(&nodes, &running, previous, &reader_key).await?;
                    if programs == [previous; 2] {
                        held.complete_second(&nodes[0], &reader_key).await?;
                    }
                }
            }
        }
        // Built and kept current while the clients go on.
        let mirror = NewMirror::start(nodes[0].address, &reader_key)?;
        held.ok_or("no order was held")?.check_completed(&nodes[0], &reader_key).await?;
        expire(current, &url, &reader_key).await?;
        let (load, mut problems) = traffic.finish(&url).await?;
        // All but that of its position, which is the oldest.
        let stored = reader.catch_up(&url, 1).await?;
        let reading = reader.stop().await?;
        problems.extend(reading.problems(&stored, false));
        problems.extend(reading.differences(&load.journal(&url)?, last_before));
        none_of(&problems)?;
        print!("{}", mirror.finish(&url).await?);
        println!("both versions added pets: each is in the feed once, in {} events", reading.events.len());
        drop((nodes, reading_node));
        write_without_partitions(previous, &url).await
    }
}

/// The position at the end of the feed.
async fn position(node: &Node, key: &str) -> Outcome<String> {
    let mut connection = Connection::open(node.address, key).await?;
    // Pets are added all the time, so the oldest event that is kept is a position, too.
    let (status, body) = connection.send("GET", "/v1/events?limit=1&wait=20", "").await?;
    let id = body.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    id.map(ToOwned::to_owned).ok_or_else(|| format!("the feed answered {status}: {body}").into())
}

/// A pet and an order with a reference and metadata, and with a hold that has not ended; and a second order, which the previous
/// release completes.
#[derive(Clone, Copy)]
struct Held {
    pet: i64,
    order: i64,
    second: i64,
}

impl Held {
    async fn order(current: &str, url: &str, key: &str) -> Outcome<Self> {
        let node = node_with_holds(current, url)?;
        let mut connection = Connection::open(node.address, key).await?;
        let mut held = Vec::new();
        for number in [7, 8] {
            let pet = format!(
                r#"{{"name":"held","categoryId":1,"status":"available","reference":"chip {number}","metadata":{{"price":"7.00"}}}}"#
            );
            let pet = added(&mut connection, "/v1/pets", &pet).await?;
            let order = format!(
                r#"{{"petId":{pet},"holdSeconds":3000,"reference":"invoice {number}","metadata":{{"paid":"no"}}}}"#
            );
            let order = added(&mut connection, "/v1/store/orders", &order).await?;
            println!("pet {pet} with a reference is held by order {order}");
            held.push((pet, order));
        }
        Ok(Self { pet: held[0].0, order: held[0].1, second: held[1].1 })
    }

    async fn complete_second(self, node: &Node, key: &str) -> Outcome {
        let mut connection = Connection::open(node.address, key).await?;
        let path = format!("/v1/store/orders/{}/complete", self.second);
        match connection.send("POST", &path, "").await? {
            (200, _) => Ok(()),
            (status, body) => {
                Err(format!("the previous release answered {path} with {status}: {body}").into())
            }
        }
    }

    /// The order that the previous release has completed still has what that release does not know.
    async fn check_completed(self, node: &Node, key: &str) -> Outcome {
        let mut connection = Connection::open(node.address, key).await?;
        let (status, body) = connection.send("GET", &format!("/v1/store/orders/{}", self.second), "").await?;
        let expected =
            [r#""status":"completed""#, r#""reference":"invoice 8""#, r#""metadata":{"paid":"no"}"#];
        if status != 200 || !expected.iter().all(|member| body.contains(member)) {
            return Err(format!("the completed order is {status}: {body}").into());
        }
        println!("order {} was completed by the previous release and has all of its fields", self.second);
        Ok(())
    }

    /// Every node reads both and changes the pet, and this release still has what the previous one does not know.
    async fn check(self, nodes: &[Node; 2], running: &[&str; 2], previous: &str, key: &str) -> Outcome {
        let Self { pet, order, second: _ } = self;
        for (node, program) in nodes.iter().zip(running) {
            let mut connection = Connection::open(node.address, key).await?;
            let name = format!(r#"{{"name":"held by {}"}}"#, node.address);
            let (status, body) = connection.send("PATCH", &format!("/v1/pets/{pet}"), &name).await?;
            if status != 200 {
                return Err(format!("{program} answered {status} to a change: {body}").into());
            }
            for (path, known, added) in [
                (
                    format!("/v1/pets?id={pet}"),
                    r#""status":"pending""#,
                    vec![r#""reference":"chip 7""#, r#""metadata":{"price":"7.00"}"#],
                ),
                (
                    format!("/v1/store/orders/{order}"),
                    r#""status":"placed""#,
                    vec![r#""reference":"invoice 7""#, r#""expiresAt":""#, r#""metadata":{"paid":"no"}"#],
                ),
            ] {
                let (status, body) = connection.send("GET", &path, "").await?;
                let is_complete = *program == previous || added.iter().all(|member| body.contains(member));
                if status != 200 || !body.contains(known) || !is_complete {
                    return Err(format!("{program} answered {path} with {status}: {body}").into());
                }
            }
        }
        Ok(())
    }
}

/// Lets an order expire, which closes the way back.
async fn expire(current: &str, url: &str, key: &str) -> Outcome {
    let node = node_with_holds(current, url)?;
    let mut connection = Connection::open(node.address, key).await?;
    let pet = r#"{"name":"expiring","categoryId":1,"status":"available"}"#;
    let pet = added(&mut connection, "/v1/pets", pet).await?;
    let order = format!(r#"{{"petId":{pet},"holdSeconds":1}}"#);
    let order = added(&mut connection, "/v1/store/orders", &order).await?;
    let started = Instant::now();
    loop {
        let (status, body) = connection.send("GET", &format!("/v1/store/orders/{order}"), "").await?;
        if body.contains(r#""status":"expired""#) {
            println!("order {order} expired");
            return Ok(());
        }
        if started.elapsed() > Duration::from_secs(20) {
            return Err(format!("order {order} does not expire: {status} {body}").into());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A node whose orders can expire.
fn node_with_holds(current: &str, url: &str) -> Outcome<Server> {
    Server::program(current, url, &["--order-hold", "1h"], "target/suite-holds.log")
}

/// The id of what was added.
async fn added(connection: &mut Connection, path: &str, body: &str) -> Outcome<i64> {
    let (status, answer) = connection.send("POST", path, body).await?;
    let id = answer.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
    match id {
        Some(id) if status == 201 => Ok(id.parse()?),
        _ => Err(format!("POST {path} with {body} answered {status}: {answer}").into()),
    }
}

/// As more than a week after a rollback: the previous release prepares the partitions of events, which it does not know.
async fn write_without_partitions(previous: &str, url: &str) -> Outcome {
    psql(
        url,
        "DO $$ DECLARE p regclass; BEGIN FOR p IN SELECT daily_partitions_before('events', '9999-12-31') \
           LOOP EXECUTE format('DROP TABLE %s', p); END LOOP; END $$",
    )?;
    let key = new_key(url)?;
    let node = Node::start(previous, url, BEHIND_BALANCER)?;
    let mut connection = Connection::open(node.address, &key).await?;
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

/// Clients at a steady rate, none of whose requests may fail.
struct Traffic {
    load: Arc<Load>,
    tasks: JoinSet<()>,
}

impl Traffic {
    fn start(url: &str, address: SocketAddr, key: &str, rate: u32) -> Outcome<Self> {
        let load = Arc::new(Load::new(url, &[address], key, 1, 1_000)?);
        let mut tasks = JoinSet::new();
        load.spawn_at_rate(&mut tasks, rate, &SHOP);
        Ok(Self { load, tasks })
    }

    /// Stops the clients. Returns what is wrong with what they saw.
    async fn finish(self, url: &str) -> Outcome<(Arc<Load>, Vec<String>)> {
        self.load.stop();
        self.tasks.join_all().await;
        let (_, mut problems) = self.load.check(url)?;
        let (log, counts) = (self.load.log(), self.load.history().counts.clone());
        let milliseconds = log.milliseconds();
        println!(
            "{} reads, {} writes, {} failures; p50 {:.1} ms, p99 {:.1} ms, maximum {:.0} ms",
            counts.reads,
            counts.writes,
            log.failures(),
            milliseconds.median(),
            milliseconds.at(0.99),
            milliseconds.at(1.0)
        );
        problems.extend(log.first_failure.iter().map(|failure| format!("a request failed: {failure}")));
        drop(log);
        Ok((self.load, problems))
    }
}
