//! Steps the clock of the database, back and forward, under two nodes: a request with an `Idempotency-Key` takes effect once,
//! a key that was rotated without an overlap stays revoked, and nothing that is not old is dropped.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::http::{Connection, Response, id_of};
use crate::topology::{Clock, Cluster, Nodes, PETSTORE, Postgres, Server, new_key, output, prepare, psql};
use crate::workload::{Clients, Kind, Load, none_of};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// A PostgreSQL server whose clock is stepped, and two nodes.
#[derive(Args)]
pub(crate) struct Clocks {
    /// How long clients write before and after midnight, and after the clock has stepped back.
    #[arg(long, default_value_t = 20)]
    seconds: i64,
    /// How many days pass, one after another.
    #[arg(long, default_value_t = 32)]
    days: i64,
}

const CLIENTS: Clients = Clients {
    mix: &[(4, Kind::Create), (2, Kind::Place), (1, Kind::Complete), (1, Kind::Cancel)],
    retry: Some(Duration::from_millis(20)),
    repeats: true,
    ..Clients::DEFAULT
};

/// Seconds from now to this time of the day, UTC, today or tomorrow.
fn until(time: i64) -> Outcome<i64> {
    let now = i64::try_from(UNIX_EPOCH.elapsed()?.as_secs())?;
    Ok((time - now).rem_euclid(DAY))
}

/// Everything that a scenario needs. The nodes and the database are stopped on drop.
struct Shop {
    nodes: Nodes,
    key: String,
    url: String,
    clock: Arc<Clock>,
    _postgres: Postgres,
}

/// A request with an `Idempotency-Key` that was done, and its answer.
struct Done {
    path: String,
    body: String,
    key: String,
    answer: String,
}

impl Shop {
    /// Opens when the clock differs from the machine's by so many seconds.
    fn open(offset: i64) -> Outcome<Self> {
        let clock = Arc::new(Clock::new("postgres")?);
        clock.set(offset)?;
        let postgres = Postgres::temporary().with_clock(&clock);
        let url = postgres.start()?;
        let key = prepare(&url, 10)?;
        let nodes = Nodes::start(&url)?;
        Ok(Self { nodes, key, url, clock, _postgres: postgres })
    }

    async fn send(&self, node: usize, path: &str, body: &str, key: &str) -> Outcome<Response> {
        send(self.nodes.addresses[node], &self.key, path, body, key).await
    }

    /// Sends a request until its partition exists, which may take a moment.
    async fn send_patiently(&self, node: usize, path: &str, body: &str, key: &str) -> Outcome<Response> {
        for _ in 0..100 {
            let response = self.send(node, path, body, key).await?;
            if response.status != 503 {
                return Ok(response);
            }
            sleep(Duration::from_millis(50)).await;
        }
        Err(format!("{path} is unavailable").into())
    }

    /// Does something with each operation that accepts an idempotency key.
    async fn do_all(&self, name: &str) -> Outcome<Vec<Done>> {
        let pet = r#"{"name":"Rex","categoryId":1,"status":"available"}"#;
        let mut done = Vec::new();
        for end in ["", "/complete", "/cancel"] {
            let created = self.done("/v1/pets", pet, &format!("{name}-pet{end}")).await?;
            let pet = id_of(&created.answer).ok_or("no pet")?;
            let order = format!(r#"{{"petId":{pet}}}"#);
            let placed = self.done("/v1/store/orders", &order, &format!("{name}-order{end}")).await?;
            let order = id_of(&placed.answer).ok_or("no order")?;
            done.push(created);
            if end.is_empty() {
                done.push(placed);
            } else {
                let path = format!("/v1/store/orders/{order}{end}");
                done.push(self.done(&path, "", &format!("{name}-end{end}")).await?);
            }
        }
        Ok(done)
    }

    async fn done(&self, path: &str, body: &str, key: &str) -> Outcome<Done> {
        let response = self.send_patiently(0, path, body, key).await?;
        if !matches!(response.status, 200 | 201) || response.header("idempotent-replayed").is_some() {
            return Err(format!("{path}: {} {}", response.status, response.body).into());
        }
        Ok(Done { path: path.into(), body: body.into(), key: key.into(), answer: response.body })
    }

    /// Sends everything again, to both nodes: nothing may take effect twice.
    async fn expect_replays(&self, done: &[Done], when: &str) -> Outcome {
        let mut problems = Vec::new();
        for Done { path, body, key, answer } in done {
            for node in [1, 0] {
                let again = self.send_patiently(node, path, body, key).await?;
                // An order is shown as it is now: it may have expired.
                if again.header("idempotent-replayed").is_none() || id_of(&again.body) != id_of(answer) {
                    problems.push(format!("{when}: {path}: {} {}, not {answer}", again.status, again.body));
                }
            }
        }
        println!("{when}: {} requests sent again, {} problems", 2 * done.len(), problems.len());
        none_of(&problems)
    }

    /// Starts both nodes again, which create and drop partitions first.
    async fn restart(&mut self) -> Outcome {
        (0..2).try_for_each(|node| self.nodes.restart(node, &self.url))?;
        // Until the nodes have dropped what they would drop.
        sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    fn sql(&self, sql: &str) -> Outcome<String> {
        Ok(psql(&self.url, sql)?.trim().to_owned())
    }

    /// How many events a reader gets that reads the feed from the beginning.
    async fn count_events(&self) -> Outcome<usize> {
        let (mut path, mut count) = ("/v1/events?limit=100".to_owned(), 0);
        let mut connection = Connection::open(self.nodes.addresses[0], &self.key).await?;
        loop {
            let page = connection.exchange("GET", &path, "", None).await?;
            let found = page.body.matches("\"type\"").count();
            if page.status != 200 || found == 0 {
                return if page.status == 200 { Ok(count) } else { Err(page.body.into()) };
            }
            count += found;
            let next = page.header("link").and_then(|link| link.split(['<', '>']).nth(1));
            next.ok_or("no next page")?.clone_into(&mut path);
        }
    }
}

async fn send(node: SocketAddr, api_key: &str, path: &str, body: &str, key: &str) -> Outcome<Response> {
    Connection::open(node, api_key).await?.exchange("POST", path, body, Some(key)).await
}

/// The status of a read with this key.
async fn status(node: SocketAddr, key: &str) -> Outcome<u16> {
    Ok(Connection::open(node, key).await?.send("GET", "/v1/pets?limit=1", "").await?.0)
}

impl Clocks {
    pub(crate) async fn run(self) -> Outcome {
        self.midnight().await?;
        steps().await?;
        a_day_to_the_second().await?;
        self.days_compressed().await?;
        wrong_boot_clock().await?;
        rotated_key().await?;
        clock_of_the_operator().await
    }

    /// Clients on two nodes, while midnight passes twice: the clock steps back by ten minutes in between.
    async fn midnight(&self) -> Outcome {
        let shop = Shop::open(until(0)? - HOUR)?;
        shop.clock.set(until(0)? - self.seconds)?;
        let load = Arc::new(Load::new(&shop.url, &shop.nodes.addresses, &shop.key, 1, 20)?);
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, 16, &CLIENTS);
        sleep(Duration::from_secs(2 * self.seconds.unsigned_abs())).await;
        let days = shop.sql("SELECT count(DISTINCT kept_on) FROM idempotency_keys")?;
        shop.clock.set(until(0)? - self.seconds / 2 - 10 * MINUTE)?;
        sleep(Duration::from_secs(self.seconds.unsigned_abs())).await;
        shop.clock.set(until(0)? - self.seconds / 2)?;
        sleep(Duration::from_secs(self.seconds.unsigned_abs())).await;
        load.stop();
        tasks.join_all().await;
        let (_, problems) = load.check(&shop.url)?;
        println!("midnight: {} writes, keys on {days} days", load.history().counts.writes);
        if days != "2" {
            return Err("midnight did not pass".into());
        }
        none_of(&problems)
    }

    /// A month in seconds, and then eight days without a node.
    async fn days_compressed(&self) -> Outcome {
        let mut shop = Shop::open(0)?;
        let before = psql(&shop.url, "SELECT count(*) FROM pets")?.trim().parse::<i64>()?;
        for day in 1..=self.days {
            shop.clock.set(day * DAY)?;
            let done = shop.do_all(&format!("day-{day}")).await?;
            shop.expect_replays(&done, &format!("day {day}")).await?;
        }
        let pets = shop.sql("SELECT count(*) FROM pets")?.parse::<i64>()? - before;
        if pets != 3 * self.days {
            return Err(format!("{pets} pets were added by {} keys", 3 * self.days).into());
        }
        shop.restart().await?;
        let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'idempotency_keys'::regclass";
        let partitions: i64 = shop.sql(partitions)?.parse()?;
        println!("{} days: {pets} pets, {partitions} partitions of keys are left", self.days);
        if partitions > 12 {
            return Err("old keys are not dropped".into());
        }
        shop.nodes.stop();
        shop.clock.set((self.days + 8) * DAY)?;
        let doctor = output(PETSTORE, &["doctor", "--database-url", &shop.url])?;
        println!("eight days later: {}", line(&doctor, " partitions "));
        shop.nodes.restart(0, &shop.url)?;
        let first = shop.send(0, "/v1/pets", r#"{"name":"Rex","categoryId":1}"#, "after-eight-days").await?;
        println!("the first request is answered with {}", first.status);
        if first.status == 201 { Ok(()) } else { Err(first.body.into()) }
    }
}

/// The line of an output that has this text.
fn line<'a>(output: &'a str, text: &str) -> &'a str {
    output.lines().find(|line| line.contains(text)).unwrap_or_default()
}

/// Steps of seconds to weeks, back and forward, across midnight and within a day.
async fn steps() -> Outcome {
    for (time, from) in [(30, "after midnight"), (12 * HOUR, "at noon")] {
        let base = until(time)? + 3 * DAY;
        let shop = Shop::open(base)?;
        for (step, name) in [
            (-MINUTE, "a minute back"),
            (-10 * MINUTE, "ten minutes back"),
            (-13 * HOUR, "13 hours back"),
            (-DAY, "a day back"),
            (-3 * DAY, "three days back"),
            (-40 * DAY, "40 days back"),
            (10 * MINUTE, "ten minutes forward"),
            (23 * HOUR, "23 hours forward"),
        ] {
            shop.clock.set(base)?;
            let done = shop.do_all(&name.replace(' ', "-")).await?;
            shop.clock.set(base + step)?;
            shop.expect_replays(&done, &format!("{name}, {from}")).await?;
        }
    }
    Ok(())
}

/// A key is found for 24 hours and a minute.
async fn a_day_to_the_second() -> Outcome {
    let shop = Shop::open(0)?;
    let pet = r#"{"name":"Rex","categoryId":1}"#;
    // Requests take time, so not to the very second.
    for (name, age, is_found) in [("a", DAY, true), ("b", DAY + 55, true), ("c", DAY + 61, false)] {
        shop.clock.set(0)?;
        shop.send_patiently(0, "/v1/pets", pet, name).await?;
        shop.clock.set(age)?;
        let again = shop.send_patiently(1, "/v1/pets", pet, name).await?;
        let was_found = again.header("idempotent-replayed").is_some();
        println!("after {age} s: found {was_found}");
        if was_found != is_found {
            return Err(format!("a key was found after {age} s: {was_found}").into());
        }
    }
    Ok(())
}

/// The machine boots with a clock that is 40 days ahead, or years behind, passes a midnight, and is corrected.
async fn wrong_boot_clock() -> Outcome {
    for (days, name) in [(40, "40 days ahead"), (-2_500, "in 2020")] {
        let offset = until(0)? - MINUTE + days * DAY;
        let mut shop = Shop::open(0)?;
        let filled = shop.count_events().await?;
        let before = shop.do_all("before").await?;
        let written = shop.count_events().await?;
        let expected = written + 2 * (written - filled);
        shop.clock.set(offset)?;
        shop.restart().await?;
        shop.do_all("wrong").await?;
        shop.clock.set(offset + 2 * MINUTE)?;
        shop.do_all("after-midnight").await?;
        shop.restart().await?;
        shop.clock.set(0)?;
        shop.restart().await?;
        shop.expect_replays(&before, &format!("a boot {name}")).await?;
        let left = shop.count_events().await?;
        let doctor = output(PETSTORE, &["doctor", "--database-url", &shop.url])?;
        println!(
            "{written} events, {expected} with those {name}: {left} are left; {}",
            line(&doctor, "in the future")
        );
        if left < expected {
            return Err(format!("events were lost: {left} of {expected}").into());
        }
        if offset > 0 && line(&doctor, "in the future").is_empty() {
            return Err("doctor does not report rows from the future".into());
        }
    }
    Ok(())
}

/// A key that is rotated without an overlap is refused within three seconds, whatever the clocks are.
async fn rotated_key() -> Outcome {
    let clocks = [Clock::new("s0")?, Clock::new("s1")?, Clock::new("s2")?].map(Arc::new);
    clocks[1].set(-10 * MINUTE)?;
    clocks[2].set(-10 * MINUTE)?;
    let cluster = Cluster::start_with_clocks(&clocks)?;
    cluster.wait_for_standbys(0, 2).await?;
    prepare(cluster.primary_url(), 10)?;
    let node = Server::with_flags(&cluster.url(), &["--reads", "quorum"])?;
    let key = new_key(cluster.primary_url())?;
    let url = cluster.primary_url();
    while status(node.address, &key).await? != 200 {
        sleep(Duration::from_millis(50)).await;
    }
    let id = psql(url, "SELECT max(id) FROM api_keys")?;
    output(PETSTORE, &["keys", "rotate", id.trim(), "--overlap", "0s", "--database-url", url])?;
    let (rotated, mut last_served) = (Instant::now(), Duration::ZERO);
    while rotated.elapsed() < Duration::from_secs(8) {
        if rotated.elapsed() > Duration::from_secs(4) {
            clocks.iter().try_for_each(|clock| clock.set(-HOUR))?;
        }
        let sent = rotated.elapsed();
        if status(node.address, &key).await? == 200 {
            last_served = sent;
        }
        sleep(Duration::from_millis(20)).await;
    }
    println!(
        "a rotated key was served for {:.1} s; then the clocks were set back",
        last_served.as_secs_f64()
    );
    clocks[0].set(0)?;
    let doctor = output(PETSTORE, &["doctor", "--database-url", &cluster.url()])?;
    println!("{}", line(&doctor, "the primary's"));
    if line(&doctor, "behind the primary's").is_empty() {
        return Err("doctor does not compare the clocks of the servers".into());
    }
    if last_served < Duration::from_secs(3) { Ok(()) } else { Err("it was served for too long".into()) }
}

/// The clock of the machine on which an operator creates a key does not matter.
async fn clock_of_the_operator() -> Outcome {
    let shop = Shop::open(0)?;
    for offset in [-10 * MINUTE, 10 * MINUTE] {
        let clock = Clock::new("operator")?;
        clock.set(offset)?;
        let mut create = Command::new(PETSTORE);
        create.args(["keys", "create", "--name", "operator", "--expires", "5m", "--database-url", &shop.url]);
        clock.apply_to(&mut create)?;
        let key = String::from_utf8(create.output()?.stdout)?.trim().to_owned();
        let left =
            "SELECT extract(epoch FROM expires_at - now())::int FROM api_keys ORDER BY id DESC LIMIT 1";
        let (status, left) = (status(shop.nodes.addresses[0], &key).await?, shop.sql(left)?);
        println!("a key of an operator whose clock is {offset} s off: {status}, expires in {left} s");
        if status != 200 || !(280..=300).contains(&left.parse::<i64>()?) {
            return Err("the clock of the operator decides".into());
        }
    }
    Ok(())
}
