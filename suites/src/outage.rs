//! Stops the database for a while behind two nodes and HAProxy, under clients: each failed request must get the service's own
//! error with `Retry-After`, whoever answered it, and each node must log one line for the loss and one for the return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::topology::{Balancer, Node, Postgres, prepare};
use crate::workload::{Clients, Kind, Load, none_of};

const CLIENTS: Clients =
    Clients { mix: &[(1, Kind::Create), (3, Kind::Find)], pause: 50..51, ..Clients::DEFAULT };

/// Two nodes, one load balancer, one database that goes away.
#[derive(Args)]
pub(crate) struct Outage {
    /// How long the database is away.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Outage {
    pub(crate) async fn run(self) -> Outcome {
        let postgres = Postgres::temporary();
        let url = postgres.start()?;
        let key = prepare(&url, 1_000)?;
        let nodes = [Node::start(&url)?, Node::start(&url)?];
        let balancer = Balancer::start(&nodes)?;
        let load = Arc::new(Load::new(&url, &[balancer.address], &key, 1, 1_000)?);
        let mut tasks = JoinSet::new();
        load.spawn(&mut tasks, 20, &CLIENTS);
        sleep(Duration::from_secs(3)).await;
        postgres.stop()?;
        sleep(Duration::from_secs(self.seconds)).await;
        postgres.start()?;
        let returned = Instant::now();
        sleep(Duration::from_secs(4)).await;
        load.stop();
        tasks.join_all().await;
        let (seconds, observed) = (self.seconds, returned.elapsed().as_secs_f64());
        let answers = load.log().answers.clone();
        println!("database away for {seconds} s, observed for {observed:.0} s after its return: {answers:?}");
        if load.log().failures() == 0 {
            return Err("no request failed: the database was not away".into());
        }
        let (_, mut problems) = load.check(&url)?;
        let broken = load.log().with_status(0, 0.0, f64::INFINITY).0;
        if broken > 0 {
            problems.push(format!("{broken} requests got no answer"));
        }
        none_of(&problems)?;
        nodes.iter().try_for_each(|node| check_log(&node.log()?))
    }
}

/// Checks what a node has logged.
fn check_log(log: &str) -> Outcome {
    let lines = log.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let count = |message: &str| {
        lines.iter().filter(|line| line["message"].as_str().is_some_and(|it| it.starts_with(message))).count()
    };
    let (lost, back) = (count("database unavailable"), count("database back"));
    let failed = lines.iter().filter(|line| line["message"] == "request" && line["status"] == 503);
    let (mut full, mut incomplete) = (0, 0);
    for line in failed {
        full += 1;
        incomplete += usize::from(line["route"] == "-" || line["key"].is_null() || line["cause"].is_null());
    }
    println!(
        "a node logged {lost} line for the loss, {back} for the return, and {full} for failed requests, of which \
         {incomplete} lack route, key or cause"
    );
    if (lost, back, incomplete) != (1, 1, 0) {
        return Err("the log is not as documented".into());
    }
    Ok(())
}
