//! The workloads of the comparison, with their goals and the ratios of the last measurement.

/// The same work for pgbench, the service, the thinnest server and the peers.
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Scripts of pgbench, with weights.
    pub(super) pgbench: &'static [&'static str],
    /// The name in suites/load/requests.lua, for the service and the thinnest server.
    pub(super) service: &'static str,
    /// The same for the peers.
    pub(super) peer: &'static str,
    /// The ratios of the service's throughput to that of pgbench: at 64 connections and at one.
    pub(super) to_pgbench: [Ratio; 2],
    /// The same to the thinnest server. A mixture of other workloads is not compared with it.
    pub(super) to_thin: Option<[Ratio; 2]>,
    /// The usual CPU time per request, as a multiple of that of the thinnest server.
    pub(super) cpu_to_thin: [f64; 2],
}

/// A ratio of throughputs.
#[derive(Clone, Copy)]
pub(super) struct Ratio {
    pub(super) goal: f64,
    /// The usual ratio. `smoke` fails when it measures much less.
    pub(super) recorded: f64,
}

const fn ratio(goal: f64, recorded: f64) -> Ratio {
    Ratio { goal, recorded }
}

pub(super) const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "getPet by random id",
        pgbench: &["suites/load/get.sql"],
        service: "get",
        peer: "get",
        to_pgbench: [ratio(0.95, 0.82), ratio(0.45, 0.30)],
        to_thin: Some([ratio(0.9, 0.60), ratio(0.85, 0.80)]),
        cpu_to_thin: [1.81, 1.39],
    },
    Workload {
        name: "listPets, first page by status",
        pgbench: &["suites/load/list.sql"],
        service: "list",
        peer: "list",
        to_pgbench: [ratio(1.9, 1.39), ratio(0.42, 0.24)],
        to_thin: Some([ratio(0.9, 0.60), ratio(0.85, 0.74)]),
        cpu_to_thin: [1.69, 1.46],
    },
    Workload {
        name: "listPets, random pages by status",
        pgbench: &["suites/load/status_cursor.sql"],
        service: "status_cursor",
        peer: "peer_status_cursor",
        to_pgbench: [ratio(0.7, 0.63), ratio(0.4, 0.28)],
        to_thin: Some([ratio(1.0, 0.80), ratio(0.85, 0.72)]),
        cpu_to_thin: [1.71, 1.45],
    },
    Workload {
        name: "createPet",
        pgbench: &["suites/load/create.sql"],
        service: "create",
        peer: "create",
        to_pgbench: [ratio(2.3, 1.90), ratio(0.55, 0.38)],
        to_thin: Some([ratio(0.9, 0.69), ratio(0.85, 0.62)]),
        cpu_to_thin: [1.56, 1.99],
    },
    Workload {
        name: "80 % list, 15 % get, 5 % create",
        pgbench: &["suites/load/list.sql@80", "suites/load/get.sql@15", "suites/load/create.sql@5"],
        service: "mix",
        peer: "mix",
        // At one connection: the goals of the three, weighted by the time that each takes in pgbench.
        to_pgbench: [ratio(1.0, 1.06), ratio(0.43, 0.25)],
        to_thin: None,
        cpu_to_thin: [1.0, 1.0],
    },
];

/// The goal for the CPU time of the service per request, as a multiple of that of the thinnest server: at most this.
pub(super) const CPU_GOAL: f64 = 1.4;
/// The goal for the throughput of the service as a multiple of that of FastAPI and of Fastify.
pub(super) const PEER_GOAL: f64 = 8.0;
