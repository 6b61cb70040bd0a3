//! The integration tests: one binary, one file per operation or topic, in folders. They use the service over HTTP or run
//! the program, on a real PostgreSQL.
#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a test may panic, print what it measured, and contain a long table"
)]

mod support;

mod commands;
mod database;
mod documents;
mod events;
mod http;
mod keys;
mod model_based;
mod operations;
mod orders;
mod pets;
