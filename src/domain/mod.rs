//! What the shop deals in: animals, pages of them, and the keys that open the door. Types and rules.
//!
//! **Invariant:** pure. No clock, no randomness, no input or output: what is needed of them is passed in.
//! A value of these types is valid, because its only constructor checks it.

pub mod api_key;
pub mod idempotency;
pub mod key_record;
pub mod page;
pub mod pet;
pub mod rate_limit;
