//! What the shop deals in: animals, orders for them, pages of both, and the keys that open the door. Types and rules.
//!
//! **Invariant:** pure. No clock, no randomness, no input or output: what is needed of them is passed in.
//! A value of these types is valid, because its only constructor checks it.

pub mod api_key;
pub mod idempotency;
pub mod identifier;
pub mod import_source;
pub mod key_record;
pub mod order;
pub mod page;
pub mod pet;
pub mod rate_limit;
