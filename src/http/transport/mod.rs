//! From a listening socket to requests, with a limit on everything that a client controls. Knows sockets, not keys.

mod accept;
mod client_io;
mod connection_limiter;
mod head_scanner;

pub use accept::serve;
pub use connection_limiter::ConnectionLimiter;
