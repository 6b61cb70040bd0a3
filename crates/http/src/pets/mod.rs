//! The operations on pets: one file each.

mod create;
mod deprecation;
mod get;
mod list;
mod update;

pub(crate) use create::*;
pub(crate) use deprecation::GetPetDeprecation;
pub(crate) use get::*;
pub(crate) use list::*;
pub(crate) use update::*;
