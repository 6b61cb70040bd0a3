//! The integration tests: one binary, one file per operation or topic. They use the service over HTTP or run the
//! program, on a real PostgreSQL.
#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a test may panic, print what it measured, and contain a long table"
)]

mod support;

mod attacks;
mod authentication;
mod clocks;
mod command_line;
mod compatibility;
mod create_pet;
mod delete_pet;
mod demo;
mod docs_page;
mod doctor;
mod document;
mod documented_figures;
mod documented_numbers;
mod events;
mod expiry;
mod export;
mod faults;
mod fields;
mod fresh_reads;
mod get_pet;
mod held_by_others;
mod hostile_clients;
mod http;
mod import;
mod incidents;
mod interrupted_import;
mod interrupted_orders;
mod keys;
mod keys_apply;
mod least_privilege;
mod limits;
mod lineage;
mod list_pets;
mod logs;
mod metadata;
mod metrics;
mod operations;
mod order_races;
mod orders;
mod output_failures;
mod packages;
mod pagination;
mod partitions;
mod poolers;
mod reachable;
mod references;
mod retries;
mod revocation;
mod schema;
mod secrets;
mod seed;
mod servers;
mod shutdown;
mod statements;
mod stored_text;
mod structure;
mod traces;
mod transitions;
mod unhealthy_database;
mod update_order;
mod update_pet;
