//! Connections: accepts them, limits them and reads requests from them. Knows sockets, not keys.

mod accept_loop;
mod client_io;
mod connection_limiter;
mod line_ends;

pub use accept_loop::serve;
pub use connection_limiter::ConnectionLimiter;
