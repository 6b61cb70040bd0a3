//! What several tests use: a database and a service for each test, and a client that checks every answer.

pub(crate) mod client;
pub(crate) mod demo;
pub(crate) mod environment;
pub(crate) mod events;
pub(crate) mod folder;
pub(crate) mod import;
pub(crate) mod interleaving;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod openapi;
pub(crate) mod partitions;
pub(crate) mod postgres;
pub(crate) mod private_postgres;
pub(crate) mod program;
pub(crate) mod proxy;
pub(crate) mod raw_http;
pub(crate) mod repository;
pub(crate) mod service;
pub(crate) mod wait;
pub(crate) mod write_requests;

pub(crate) use client::{Answer, Client};
pub(crate) use postgres::TestDatabase;
pub(crate) use service::TestService;
