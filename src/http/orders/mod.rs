//! The operations on orders: one file each; complete and cancel share one.

mod end;
mod get;
mod list;
mod place;

pub(crate) use end::*;
pub(crate) use get::*;
pub(crate) use list::*;
pub(crate) use place::*;
