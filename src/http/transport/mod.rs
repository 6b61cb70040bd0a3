//! Connections: accepts them, limits them and reads requests from them. Knows sockets, not keys.

mod accept_loop;
pub(crate) mod body_wake;
mod client_io;
mod connection_limiter;
mod head_scanner;

pub use accept_loop::serve;
pub use connection_limiter::ConnectionLimiter;
