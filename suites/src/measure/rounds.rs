//! Measurements in alternating rounds: many short ones, so that other load on the machine affects all servers alike.

use super::{Cost, Samples, wrk};
use crate::Outcome;
use crate::topology::Server;

/// The measurements of one server, one sample per round.
#[derive(Default)]
pub(crate) struct CostSamples {
    pub(crate) rate: Samples,
    pub(crate) cpu_micros: Samples,
}

impl CostSamples {
    pub(crate) fn push(&mut self, Cost { rate, cpu_micros }: Cost) {
        self.rate.push(rate);
        self.cpu_micros.push(cpu_micros);
    }
}

/// Measures two servers in rounds, after one that warms up. Each goes first in turn, so that a machine that slows down
/// affects both alike.
pub(crate) fn wrk_in_turn(
    servers: [&Server; 2],
    workload: &str,
    key: &str,
    pets: u64,
    connections: u16,
    rounds: usize,
    seconds: u16,
) -> Outcome<[CostSamples; 2]> {
    let mut samples = [CostSamples::default(), CostSamples::default()];
    for round in 0..=rounds {
        for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let cost = wrk(servers[place], workload, key, pets, connections, seconds)?;
            if round > 0 {
                samples[place].push(cost);
            }
        }
    }
    Ok(samples)
}
