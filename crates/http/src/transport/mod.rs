//! Connections: accepts them, limits them and reads requests from them. Knows sockets, not keys.

mod accept_loop;
mod bare_line_feeds;
mod client_io;
mod connection_limiter;

pub use accept_loop::serve;
pub use connection_limiter::ConnectionLimiter;
