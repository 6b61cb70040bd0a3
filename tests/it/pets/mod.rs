//! Pets: one file per operation, and what several operations share.

mod create;
mod delete;
mod field_round_trip;
mod get;
mod list;
mod metadata;
mod pagination;
mod references;
mod update;
