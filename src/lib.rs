//! An inventory service for pets.
//!
//! The modules, each of which may use only those to its right:
//!
//! `main → cli → app → http → storage → domain`, with [`files`] between `cli` and `http`, and [`config`], [`systemd`],
//! [`telemetry`] and [`version`] as leaves.
//!
//! The library serves the program `petstore` and its tests. Its API is not stable. `ARCHITECTURE.md` has a map of the
//! code and the path of a request.

pub mod app;
pub mod cli;
pub mod config;
pub mod domain;
pub mod files;
pub mod http;
pub mod storage;
pub mod systemd;
pub mod telemetry;
pub mod version;
mod wire;
