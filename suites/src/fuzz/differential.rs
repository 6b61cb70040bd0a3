//! Sends the same requests to two builds of the service, each on its own copy of one database, and compares the answers.
//!
//! One request at a time, so that both builds do the same in the same order. A request with an effect that only one of them
//! takes makes their databases differ, and with them later answers: look at the first finding first.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::connection::RawConnection;
use super::findings::Record;
use super::raw::{self, ConnectionScript, Then};
use super::valid::Generator;
use super::{fixtures, place_orders};
use crate::Outcome;
use crate::topology::{PETSTORE, Server, database_url, psql, sibling};

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

impl Differential {
    pub(crate) async fn run(self) -> Outcome {
        let url = database_url()?;
        let fixtures = Arc::new(fixtures(&url)?);
        let key = &fixtures.key;
        let service = Server::petstore(&url)?;
        place_orders(service.address, key).await?;
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
        let contract = contract_requests(start(&self.before, "recorded")?.address, key)?;
        let services = (start(&self.before, "before")?, start(PETSTORE, "after")?);
        let addresses = (services.0.address, services.1.address);
        let record = Record::default();
        for request in contract {
            compare(addresses, &ConnectionScript::one("contract", request), key, &record).await;
        }
        let mut generator = Generator::new(fixtures.clone(), self.seed, 0);
        // Waits would end at another time in each build.
        generator.templates.retain(|template| !template.contains("wait="));
        if self.without_additions {
            generator.templates.retain(|template| !ADDITIONS.iter().any(|added| template.contains(added)));
        }
        for _ in 0..self.requests {
            let exchange = raw::exchange(&mut generator);
            // If the client leaves before it is answered, the effect is a matter of luck.
            if !matches!(exchange.then, Then::Leave | Then::Reset) {
                compare(addresses, &exchange, key, &record).await;
            }
        }
        record.report(self.seed)
    }
}

async fn compare(addresses: (SocketAddr, SocketAddr), sent: &ConnectionScript, key: &str, record: &Record) {
    let (before, after) = tokio::join!(play(sent, addresses.0, key), play(sent, addresses.1, key));
    let statuses = after.lines().filter_map(|line| line.strip_prefix("HTTP/1.")?.get(2..5));
    statuses.filter_map(|status| status.parse().ok()).for_each(|status| record.answered(status));
    if before == after {
        return;
    }
    let mut lines = before.lines().chain([""]).zip(after.lines().chain([""]));
    let (was, is) = lines.find(|(was, is)| was != is).unwrap_or_default();
    let problem = format!("was {was:.300}\n  is  {is:.300}");
    let answered = format!("{before}\n--- now ---\n{after}");
    record.find(sent.label, &problem, &sent.parts.concat(), answered.as_bytes());
}

/// Everything that a build answers, without what differs between two runs of the same build, and how it ends.
async fn play(exchange: &ConnectionScript, address: SocketAddr, key: &str) -> String {
    let mut connection = match RawConnection::open(address).await {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    exchange.send(&mut connection, key).await;
    let mut answered = Vec::new();
    let end = match timeout(PATIENCE, connection.socket.read_to_end(&mut answered)).await {
        Ok(_) => "closed",
        Err(_) => "left open",
    };
    format!("{}\n{end}", comparable(&String::from_utf8_lossy(&answered)))
}

/// Answers without what differs between two runs of the same build, and with placeholders for times and the ids of events.
fn comparable(answers: &str) -> String {
    let varying = ["date:", "x-request-id:", "etag:", "content-length:"];
    let lines = answers.split("\r\n").filter(|line| !varying.iter().any(|name| line.starts_with(name)));
    lines.map(masked).collect::<Vec<_>>().join("\n")
}

fn masked(line: &str) -> String {
    let ends = ['"', '=', '>', '&'];
    let mask = |word: &str| match word.trim_end_matches(ends) {
        time if time.parse::<jiff::Timestamp>().is_ok() => "<time>".to_owned(),
        event if is_event_id(event) => "<event>".to_owned(),
        _ => word.to_owned(),
    };
    line.split_inclusive(ends).map(mask).collect()
}

fn is_event_id(word: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    word.starts_with('A') && word.len() > 30 && word.bytes().all(is_base64)
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
    let url = recorded["url"].as_str()?;
    let target = url.strip_prefix(&format!("http://{address}")).unwrap_or(url);
    let mut request = format!("{} {target} HTTP/1.1\r\n", recorded["method"].as_str()?);
    for header in recorded["headers"].as_array()? {
        let (name, value) = (header["name"].as_str()?, header["value"].as_str()?);
        if !["content-length", "transfer-encoding"].contains(&&*name.to_ascii_lowercase()) {
            let _ = write!(request, "{name}: {value}\r\n");
        }
    }
    match recorded["postData"]["text"].as_str() {
        None => request += "\r\n",
        Some(body) => drop(write!(request, "Content-Length: {}\r\n\r\n{body}", body.len())),
    }
    Some(request.into())
}
