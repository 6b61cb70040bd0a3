//! Measurements: the tools that make load, statistics, and comparisons in alternating rounds.

mod rounds;
mod wrk;

pub(crate) use crate::report::{Samples, draw, grouped, machine, replace_measured, verdict};
pub(crate) use rounds::{CostSamples, wrk_in_turn};
pub(crate) use wrk::{Cost, Load, load, pgbench, wrk, wrk_version};
