//! The operations on pets: one file each.

mod create;
mod delete;
mod get;
mod list;
mod update;

pub(crate) use create::*;
pub(crate) use delete::*;
pub(crate) use get::*;
pub(crate) use list::*;
pub(crate) use update::*;
