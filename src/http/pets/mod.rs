//! The operations on pets: one file each.

mod create;
mod get;
mod list;
mod update;
mod wire;

pub(crate) use create::*;
pub(crate) use get::*;
pub(crate) use list::*;
pub(crate) use update::*;
pub(crate) use wire::{read_new_pet, write_pet};
