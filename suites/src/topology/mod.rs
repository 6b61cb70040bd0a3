//! What a suite runs on: PostgreSQL servers, nodes of the service, a load balancer, a cluster, and a network that fails.
//!
//! Everything that is started is stopped when its value is dropped.

mod balancer;
mod clock;
mod cluster;
mod postgres;
mod process;
mod proxy;
mod server;
mod service_nodes;

pub(crate) use balancer::Balancer;
pub(crate) use clock::Clock;
pub(crate) use cluster::{Cluster, Process};
pub(crate) use postgres::{Postgres, database_url, fill, new_key, prepare, psql, sibling};
pub(crate) use process::{cpu_seconds, output, peak_megabytes};
pub(crate) use proxy::{NetworkFault, Proxy};
pub(crate) use server::{LOG, PETSTORE, Server};
pub(crate) use service_nodes::{BEHIND_BALANCER, DIRECT, Node, Nodes};
