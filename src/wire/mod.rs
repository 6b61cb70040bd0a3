//! Resources as clients and files see them: JSON, CSV columns, and the schemas of the OpenAPI document.
//!
//! **Invariant:** a field is described once, in [`pet`], [`order`] or [`event`]. Reading, writing and the document derive from that
//! description, so none of them can disagree with another.

pub(crate) mod event;
pub(crate) mod field_value;
pub(crate) mod json;
pub(crate) mod order;
pub(crate) mod pet;
pub(crate) mod resource_description;
pub(crate) mod suggestions;
