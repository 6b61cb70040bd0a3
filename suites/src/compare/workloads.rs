//! The workloads of the comparison.

/// The same work for pgbench, the service and the peers.
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Scripts of pgbench, with weights.
    pub(super) pgbench: &'static [&'static str],
    /// The name in suites/load/requests.lua, for the service.
    pub(super) service: &'static str,
    /// The same for the peers.
    pub(super) peer: &'static str,
}

pub(super) const WORKLOADS: [Workload; 5] = [
    Workload { name: "getPet", pgbench: &["suites/load/get.sql"], service: "get", peer: "get" },
    Workload {
        name: "listPets, first page",
        pgbench: &["suites/load/list.sql"],
        service: "list",
        peer: "list",
    },
    Workload {
        name: "listPets, random pages",
        pgbench: &["suites/load/status_cursor.sql"],
        service: "status_cursor",
        peer: "peer_status_cursor",
    },
    Workload { name: "createPet", pgbench: &["suites/load/create.sql"], service: "create", peer: "create" },
    Workload {
        name: "80 % list, 15 % get, 5 % create",
        pgbench: &["suites/load/list.sql@80", "suites/load/get.sql@15", "suites/load/create.sql@5"],
        service: "mix",
        peer: "mix",
    },
];
