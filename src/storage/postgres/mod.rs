//! The engine: connecting, the pool, statements and their errors, migrations, enumerated types. Knows no table.

pub(in crate::storage) mod connect;
pub(in crate::storage) mod database;
pub(in crate::storage) mod error;
pub(in crate::storage) mod migrations;
pub(in crate::storage) mod pg_enum;
pub(in crate::storage) mod pool;
