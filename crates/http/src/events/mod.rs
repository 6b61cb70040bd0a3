//! The operations on events: one file each.

mod list;

pub(crate) use list::*;
