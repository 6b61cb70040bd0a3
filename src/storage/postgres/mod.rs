//! The PostgreSQL engine: connecting, the pools, the servers of a cluster, running statements, errors,
//! schema versions, enum types. Names no table.

pub(in crate::storage) mod availability;
mod busy_connection;
pub(in crate::storage) mod cluster;
pub(in crate::storage) mod connect;
pub(in crate::storage) mod credentials;
pub(in crate::storage) mod database;
pub(in crate::storage) mod database_url;
pub(in crate::storage) mod error;
pub(in crate::storage) mod pg_enum;
pub(in crate::storage) mod pool;
pub(in crate::storage) mod pooler_check;
pub(in crate::storage) mod schema_version;
