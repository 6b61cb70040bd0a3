//! The operations on orders: one file each; complete and cancel share one.

mod complete_or_cancel;
mod get;
mod list;
mod place;
mod update;

pub(crate) use complete_or_cancel::*;
pub(crate) use get::*;
pub(crate) use list::*;
pub(crate) use place::*;
pub(crate) use update::*;
