//! The program `petstore`, as a library for its tests and its manual pages. Its API is not stable.
//!
//! It puts the crates together: [`cli`] has the commands, and [`app`] turns settings into a running service.
//! `ARCHITECTURE.md` has a map of the crates, and `docs/tour.md` follows a request through them.

pub mod app;
pub mod cli;
pub mod systemd;
