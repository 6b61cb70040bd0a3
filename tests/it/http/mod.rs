//! HTTP, whatever the operation: rules for all routes, limits, retries, and clients that are slow or hostile.

mod attacks;
mod hostile_clients;
mod rate_and_connection_limits;
mod retries;
mod routes;
mod stored_text;
