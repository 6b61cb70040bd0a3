//! The workloads of the comparison, with the ratios of an earlier measurement.

/// The same work for pgbench, the service, the thinnest server and the peers.
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Scripts of pgbench, with weights.
    pub(super) pgbench: &'static [&'static str],
    /// The name in suites/load/requests.lua, for the service and the thinnest server.
    pub(super) service: &'static str,
    /// The same for the peers.
    pub(super) peer: &'static str,
    /// The usual ratios of the service's throughput to that of pgbench: at 64 connections and at one. `smoke` fails when it
    /// measures much less.
    pub(super) to_pgbench: [f64; 2],
    /// The same to the thinnest server. A mixture of other workloads is not compared with it.
    pub(super) to_thin: Option<[f64; 2]>,
    /// The usual CPU time per request, as a multiple of that of the thinnest server.
    pub(super) cpu_to_thin: [f64; 2],
}

pub(super) const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "getPet",
        pgbench: &["suites/load/get.sql"],
        service: "get",
        peer: "get",
        to_pgbench: [0.82, 0.30],
        to_thin: Some([0.60, 0.80]),
        cpu_to_thin: [1.81, 1.39],
    },
    Workload {
        name: "listPets, first page",
        pgbench: &["suites/load/list.sql"],
        service: "list",
        peer: "list",
        to_pgbench: [1.39, 0.24],
        to_thin: Some([0.60, 0.74]),
        cpu_to_thin: [1.69, 1.46],
    },
    Workload {
        name: "listPets, random pages",
        pgbench: &["suites/load/status_cursor.sql"],
        service: "status_cursor",
        peer: "peer_status_cursor",
        to_pgbench: [0.63, 0.28],
        to_thin: Some([0.80, 0.72]),
        cpu_to_thin: [1.71, 1.45],
    },
    Workload {
        name: "createPet",
        pgbench: &["suites/load/create.sql"],
        service: "create",
        peer: "create",
        to_pgbench: [1.90, 0.38],
        to_thin: Some([0.69, 0.62]),
        cpu_to_thin: [1.56, 1.99],
    },
    Workload {
        name: "80 % list, 15 % get, 5 % create",
        pgbench: &["suites/load/list.sql@80", "suites/load/get.sql@15", "suites/load/create.sql@5"],
        service: "mix",
        peer: "mix",
        to_pgbench: [1.06, 0.25],
        to_thin: None,
        cpu_to_thin: [1.0, 1.0],
    },
];
