//! HTTP, whatever the operation: rules for all routes, limits, retries, and clients that are slow or hostile.

mod every_route;
mod hostile_clients;
mod http1_protocol;
mod rate_and_connection_limits;
mod retries;
mod retries_of_changes;
mod stored_text;
mod versions;
