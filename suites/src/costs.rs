//! What features cost: throughput with and without them, in alternating rounds.

use crate::Outcome;
use crate::measure::{Samples, wrk};
use crate::topology::{Postgres, Server, fill};

/// Compares the creates per second at 64 connections: on the cluster, on the cluster without synchronous replication, and
/// on a single server, in turn.
pub(crate) fn replication(url: &str) -> Outcome {
    let postgres = Postgres::temporary();
    let single = postgres.start()?;
    let (key, single_key) = (fill(url, 1_000)?, fill(&single, 1_000)?);
    let without_waiting = format!("{url}&options=-c%20synchronous_commit%3Dlocal");
    let services = [
        (Server::petstore(url)?, &key),
        (Server::petstore(&without_waiting)?, &key),
        (Server::petstore(&single)?, &single_key),
    ];
    let (mut of_waiting, mut of_all) = (Samples::default(), Samples::default());
    for round in 0..=7 {
        let mut rates = [0.0; 3];
        for (rate, (service, key)) in rates.iter_mut().zip(&services) {
            *rate = wrk(service, "create_without_key", key, 1_000, 64, 4)?.rate;
        }
        // The first round warms up.
        if round > 0 {
            let [waiting, not_waiting, single] = rates;
            println!(
                "round {round}: {waiting:.0} creates per second on the cluster, {not_waiting:.0} without synchronous replication, \
                 {single:.0} on a single server"
            );
            of_waiting.push(waiting / not_waiting);
            of_all.push(waiting / single);
        }
    }
    println!("synchronous replication keeps {} of the throughput; the bar is 0.8", of_waiting.spread());
    println!(
        "the whole cluster has {} of the throughput of a single server, with all three nodes on one machine",
        of_all.spread()
    );
    if of_waiting.median() < 0.8 { Err("synchronous replication costs too much".into()) } else { Ok(()) }
}
