//! The faults. A new one is an entry here and in the list of a scenario.

pub(super) mod patroni_cluster;
pub(super) mod three_servers;
pub(super) mod two_nodes;

use std::future::Future;
use std::pin::Pin;

use super::system_under_test::SystemUnderTest;
use crate::Outcome;

/// No limit.
const ANY: f64 = f64::INFINITY;

type Injection<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// Something that goes wrong, and ends again.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// The longest time without an acknowledged write on any node, in seconds. With three PostgreSQL servers, on each node.
    pub(super) writes: f64,
    /// The same without a successful read.
    pub(super) reads: f64,
    /// Causes it, and ends it.
    pub(super) cause: for<'a> fn(&'a mut SystemUnderTest) -> Injection<'a>,
}
