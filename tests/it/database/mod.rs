//! The database: its schema, the statements, and what happens when it is locked, slow, unavailable or replicated.

mod clocks;
mod credentials;
mod failover;
mod fresh_reads;
mod least_privilege;
mod locks_of_others;
mod outages;
mod partitions;
mod poolers;
mod query_plans;
mod schema;
mod set_in_sql;
