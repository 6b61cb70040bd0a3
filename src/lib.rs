//! An inventory service for animals.
//!
//! The rooms, each of which may use only those to its right:
//!
//! `main → cli → app → http → storage → domain`, with [`files`] between `cli` and `http`, and [`config`],
//! [`supervisor`] and [`telemetry`] as leaves.
//!
//! The library exists for the program `petstore` and for its tests; it promises nothing to other crates.
//! `ARCHITECTURE.md` has the map and the way of a request.

pub mod app;
pub mod cli;
pub mod config;
pub mod domain;
pub mod files;
pub mod http;
pub mod storage;
pub mod systemd;
pub mod telemetry;
mod wire;
