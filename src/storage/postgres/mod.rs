//! The PostgreSQL engine: connecting, the pool, running statements, errors, migrations, enum types. Names no table.

pub(in crate::storage) mod connect;
pub(in crate::storage) mod error;
pub(in crate::storage) mod executor;
pub(in crate::storage) mod migrations;
pub(in crate::storage) mod pg_enum;
pub(in crate::storage) mod pool;
