//! What tests stand on: a database each, a service each, and a client that checks every answer.

pub(crate) mod client;
pub(crate) mod document;
pub(crate) mod folder;
pub(crate) mod postgres;
pub(crate) mod program;
pub(crate) mod proxy;
pub(crate) mod service;

pub(crate) use client::{Answer, Client};
pub(crate) use postgres::TestDatabase;
pub(crate) use service::TestService;
