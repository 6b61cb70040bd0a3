//! Connections: accepts them, limits them and lets hyper serve them. Knows sockets, not keys, and never looks at the bytes that
//! hyper reads and writes.

mod accept_loop;
mod client_socket;
mod connection_limiter;

pub use accept_loop::serve;
pub use connection_limiter::ConnectionLimiter;
