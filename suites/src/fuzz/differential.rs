//! Sends the same requests to two builds of the service, each on its own copy of one database, and compares the answers.
//!
//! One request at a time, so that both builds do the same in the same order. A request with an effect that only one of them
//! takes makes their databases differ, and with them later answers: look at the first finding first.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::findings::{Exchange, Record};
use super::grammar::Fixtures;
use super::raw::{self, Then};
use super::request::Request;
use super::wire::Wire;
use super::{ORDERS, PETS, create_fixtures, keys, malformed};
use crate::Outcome;
use crate::random::Random;
use crate::topology::{PETSTORE, Server, database_url, prepare, psql, sibling};

/// The requests of the contract test, as schemathesis records them.
const RECORDING: &str = "target/contract.har";
/// Without `--order-hold`: orders would expire at other times in each build.
const FLAGS: [&str; 4] = ["--header-timeout", "2s", "--body-timeout", "1s"];
/// Both builds give up on a client before.
const PATIENCE: Duration = Duration::from_secs(10);

/// Compares the answers of two builds.
#[derive(Args)]
pub(crate) struct Differential {
    /// The program to compare with.
    #[arg(long)]
    before: String,
    /// How many random requests to send, after those of the contract test.
    #[arg(long, default_value_t = 10_000)]
    requests: u64,
    /// Whether to leave out what version 1.1.0 does not know.
    #[arg(long)]
    without_additions: bool,
    /// Seed of the random requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a request has that version 1.1.0 does not know.
const ADDITIONS: [&str; 5] =
    ["\"metadata\":", "\"reference\":null", "sort=", "DELETE /v1/pets", "PATCH /v1/store"];

/// What is sent on one connection.
struct Conversation {
    label: String,
    /// Sent one after the other, with short pauses.
    parts: Vec<Vec<u8>>,
    then: Then,
}

impl Differential {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let key = prepare(&url, PETS.into())?;
        let mut keys = keys(&url, key.clone())?;
        // Its answers depend on the time.
        keys.retain(|key| !key.is_limited);
        let service = Server::petstore(&url)?;
        let tags = create_fixtures(service.address, &key).await?;
        drop(service);
        let copy = |name: &str| -> Outcome<String> {
            let (_, original) = url.rsplit_once('/').ok_or("no database in the URL")?;
            let sql = format!("CREATE DATABASE {name} TEMPLATE {original}");
            psql(&sibling(&url, "postgres"), &sql)?;
            Ok(sibling(&url, name))
        };
        let start = |program: &str, name: &str| {
            Server::program(program, &copy(name)?, &FLAGS, &format!("target/suite-{name}.log"))
        };
        let contract = contract_requests(start(&self.before, "recorded")?.address, &key)?;
        let services = (start(&self.before, "before")?, start(PETSTORE, "after")?);
        let addresses = (services.0.address, services.1.address);
        let record = Record::new();
        let mut random = Random::of_worker(self.seed, 0);
        let fixtures = Fixtures { keys, pets: PETS.into(), orders: ORDERS.into(), tags };
        for request in contract {
            compare(addresses, &Conversation::of("contract", request), &key, &record).await;
        }
        for _ in 0..self.requests {
            if let Some(random) = random_conversation(&fixtures, &mut random)
                && !(self.without_additions && random.has_additions())
            {
                compare(addresses, &random, &key, &record).await;
            }
        }
        record.report(self.seed)
    }
}

impl Conversation {
    /// One request, whose connection is kept.
    fn of(label: &str, request: Vec<u8>) -> Self {
        Self { label: label.to_owned(), parts: vec![request], then: Then::Sentinel }
    }

    fn has_additions(&self) -> bool {
        let sent = self.parts.concat();
        let sent = String::from_utf8_lossy(&sent);
        ADDITIONS.iter().any(|added| sent.contains(added))
    }
}

/// A request with valid framing, or raw bytes. None if the client would leave before it is answered: then the effect is a
/// matter of luck.
fn random_conversation(fixtures: &Fixtures, random: &mut Random) -> Option<Conversation> {
    if random.chance(50) {
        let (mut request, case) = fixtures.request(random);
        no_wait(&mut request.target);
        return Some(Conversation::of(case.label, request.render()));
    }
    let raw::Attempt { label, mut parts, then, .. } = raw::attempt(fixtures, random);
    for part in &mut parts {
        no_wait(part);
    }
    let is_answered = !matches!(then, Then::Leave | Then::Reset);
    is_answered.then(|| Conversation { label: label.to_owned(), parts, then })
}

/// Waits take time, and end at another time in each build.
fn no_wait(request: &mut [u8]) {
    if let Some(start) = request.windows(6).position(|window| window == b"wait=1") {
        request[start + 5] = b'0';
    }
}

async fn compare(addresses: (SocketAddr, SocketAddr), sent: &Conversation, key: &str, record: &Record) {
    let (before, after) = tokio::join!(sent.play(addresses.0, key), sent.play(addresses.1, key));
    record.requests.fetch_add(1, Ordering::Relaxed);
    record.connections.fetch_add(1, Ordering::Relaxed);
    let statuses = after.lines().filter_map(|line| line.strip_prefix("HTTP/1.")?.get(2..5));
    statuses.filter_map(|status| status.parse().ok()).for_each(|status| record.answered(status));
    if before == after {
        return;
    }
    let mut lines = before.lines().chain([""]).zip(after.lines().chain([""]));
    let (was, is) = lines.find(|(was, is)| was != is).unwrap_or_default();
    record.find(&sent.label, &format!("was {was:.300}\n  is  {is:.300}"), || Exchange {
        before: Vec::new(),
        sent: sent.parts.concat(),
        answered: format!("{before}\n--- now ---\n{after}").into(),
    });
}

impl Conversation {
    /// Everything that a build answers, without what differs between two runs of the same build, and how it ends.
    async fn play(&self, address: SocketAddr, key: &str) -> String {
        let mut wire = match Wire::open(address).await {
            Ok(wire) => wire,
            Err(error) => return error.to_string(),
        };
        for (number, part) in self.parts.iter().enumerate() {
            if number > 0 {
                sleep(Duration::from_millis(5)).await;
            }
            wire.send(part).await;
        }
        match self.then {
            Then::Sentinel => wire.send(&malformed::sentinel(key, "sentinel")).await,
            Then::HalfClose => drop(wire.socket.shutdown().await),
            Then::Wait | Then::Leave | Then::Reset => (),
        }
        let mut answered = Vec::new();
        let end = match timeout(PATIENCE, wire.socket.read_to_end(&mut answered)).await {
            Ok(_) => "closed",
            Err(_) => "left open",
        };
        format!("{}\n{end}", comparable(&String::from_utf8_lossy(&answered)))
    }
}

/// Answers without dates, request ids and tags, and with placeholders for times and for the ids of events.
fn comparable(answers: &str) -> String {
    let (mut comparable, mut is_masked) = (String::new(), false);
    for line in answers.split("\r\n") {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if ["date", "x-request-id", "etag"].contains(&name.as_str()) {
            continue;
        }
        let masked = masked(line);
        is_masked |= masked != line;
        let _ = writeln!(comparable, "{masked}");
    }
    // Placeholders stand for texts of different lengths.
    let lines = comparable.lines().filter(|line| !is_masked || !line.starts_with("content-length"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A line with placeholders.
fn masked(line: &str) -> String {
    if line.starts_with("link: ")
        && let Some((start, rest)) = line.split_once("after=")
        && let Some((_, end)) = rest.split_once('>')
    {
        return format!("{start}after=<event>{end}");
    }
    let mut quoted: Vec<&str> = line.split('"').collect();
    for place in 1..quoted.len() {
        let is_event_id = place > 2 && quoted[place - 2] == "id" && quoted[place - 1] == ":";
        if is_event_id {
            quoted[place] = "<event>";
        } else if quoted[place].parse::<jiff::Timestamp>().is_ok() {
            quoted[place] = "<time>";
        }
    }
    quoted.join("\"")
}

/// Runs the contract test, and returns the requests that it sent.
fn contract_requests(address: SocketAddr, key: &str) -> Outcome<Vec<Vec<u8>>> {
    let mut contract = Command::new("scripts/contract");
    contract
        .args(["target/tools/python/bin/schemathesis", "--max-examples", "50", "--output-sanitize", "false"])
        .args(["--report", "har", "--report-har-path", RECORDING])
        .env("PETSTORE_URL", format!("http://{address}"))
        .env("PETSTORE_KEY", key);
    if !contract.status()?.success() {
        return Err("the contract test failed".into());
    }
    let recorded: Value = serde_json::from_slice(&fs::read(RECORDING)?)?;
    let entries = recorded["log"]["entries"].as_array().ok_or("not a recording")?;
    entries.iter().map(|entry| render(&entry["request"], address).ok_or("not a request".into())).collect()
}

/// A recorded request, with framing of its own.
fn render(recorded: &Value, address: SocketAddr) -> Option<Vec<u8>> {
    let mut headers = Vec::new();
    for header in recorded["headers"].as_array()? {
        let (name, value) = (header["name"].as_str()?, header["value"].as_str()?);
        if !["content-length", "transfer-encoding"].contains(&&*name.to_ascii_lowercase()) {
            headers.push((name.into(), value.into()));
        }
    }
    let url = recorded["url"].as_str()?;
    let request = Request {
        method: recorded["method"].as_str()?.into(),
        target: url.strip_prefix(&format!("http://{address}")).unwrap_or(url).into(),
        version: "HTTP/1.1",
        headers,
        body: recorded["postData"]["text"].as_str().map(Into::into),
        chunks: Vec::new(),
    };
    Some(request.render())
}
